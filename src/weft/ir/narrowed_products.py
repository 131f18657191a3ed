"""Find the products of a program whose operands are rounded, by fusion or by the kernels that multiply them.

This runs when kernels are built: kernels loaded from the cache have no bodies.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from weft.ir.dtypes import DType
from weft.ir.half_weights import HALVES
from weft.ir.kernel import (
    Call,
    Code,
    Kernel,
    MultiplyFragments,
    MultiplyTiles,
    Statement,
    inner_bodies,
    statement_codes,
    walk_code,
)
from weft.ir.program import Contract, Convolve, Step
from weft.ir.row_products import MultiplyRows
from weft.ir.target import Float32Products, Target, ThreadTarget, VectorTarget
from weft.ir.work import PAIR_PRODUCTS, HostSection, NativeSection, ScanTask, Section, Task
from weft.records import dataclass


@dataclass(frozen=True, slots=True)
class NarrowedProduct:
    """A product that rounds its float32 operands, and the type that it rounds them to ("tf32", "bfloat16", ...)."""

    node: str
    operands: str
    template: str


@dataclass(frozen=True, slots=True)
class _KernelProducts:
    """The types of a kernel's tiles and fragments, and of what it reads; whether it multiplies pairs of bfloat16."""

    tiles: frozenset[DType]
    sources: frozenset[DType]
    pairs: bool


def find_narrowed_products(sections: Sequence[Section]) -> Iterator[NarrowedProduct]:
    """Find the products of sections that round their operands, in order."""
    return _find_in_sections(sections, {})


def find_rounded_type(steps: Sequence[Step], target: Target) -> DType | None:
    """Return the type that fusion rounded operands of the products among some steps to, if there are any.

    Where a target rounds nothing, narrow operands of float32 products are exact.
    """
    if not _rounds_operands(target):
        return None
    products = [step for step in steps if isinstance(step.primitive, (Contract, Convolve))]
    types = {
        value.dtype
        for step in products
        if step.results[0].dtype is DType.float32
        for value in step.operands
        if value.dtype in HALVES
    }
    return types.pop() if len(types) == 1 else None


def _rounds_operands(target: Target) -> bool:
    match target:
        case ThreadTarget(float32_products=products):
            return products is Float32Products.HALVES
        case VectorTarget(narrow_products=narrows):
            return narrows
    return False


def _find_in_sections(sections: Sequence[Section], cache: dict[int, _KernelProducts]) -> Iterator[NarrowedProduct]:
    for section in sections:
        match section:
            case NativeSection(tasks=tasks):
                for task in tasks:
                    if isinstance(task, ScanTask):
                        yield from _find_in_sections((task.body,), cache)
                    else:
                        yield from _find_in_task(task, cache)
            case HostSection(bodies=bodies):
                for body in bodies:
                    yield from _find_in_sections(body, cache)


def _find_in_task(task: Task, cache: dict[int, _KernelProducts]) -> Iterator[NarrowedProduct]:
    """`cache` maps the ids of kernels to their products: few kernels serve many launches."""
    kernels = {id(launch.kernel): launch.kernel for launch in task.work.launches}
    cache.update((key, _find_kernel_products(kernel)) for key, kernel in kernels.items() if key not in cache)
    tiles = {dtype for key in kernels for dtype in cache[key].tiles}
    sources = {dtype for key in kernels for dtype in cache[key].sources}
    operand_dtypes = {value.dtype for value in task.operands if value.is_tensor}
    if DType.float32 in tiles:
        yield NarrowedProduct(task.origin, "tf32", task.template)
    elif task.rounded is not None:
        yield NarrowedProduct(task.origin, task.rounded.value, task.template)
    elif DType.float16 in tiles | sources and DType.float16 not in operand_dtypes:
        yield NarrowedProduct(task.origin, DType.float16.value, task.template)
    elif task.template == PAIR_PRODUCTS or any(cache[key].pairs for key in kernels):
        yield NarrowedProduct(task.origin, DType.bfloat16.value, task.template)


def _find_kernel_products(kernel: Kernel) -> _KernelProducts:
    types = {buffer.name: buffer.dtype for buffer in kernel.buffers}
    tiles: set[DType] = set()
    pairs = False
    pending: list[Statement] = list(kernel.body)
    while pending:
        statement = pending.pop()
        if isinstance(statement, MultiplyTiles):
            tiles.update((types[statement.left], types[statement.right]))
        if isinstance(statement, MultiplyFragments):
            tiles.add(statement.dtype)
        if isinstance(statement, MultiplyRows):
            tiles.add(types[statement.right])
        for inner in inner_bodies(statement):
            pending.extend(inner)
        pairs = pairs or any(_multiplies_pairs(code) for code in statement_codes(statement))
    sources = {buffer.dtype for buffer in kernel.buffers if not buffer.written and buffer.local_size is None}
    return _KernelProducts(frozenset(tiles), frozenset(sources), pairs)


def _multiplies_pairs(code: Code) -> bool:
    return any(isinstance(node, Call) and node.function == "dot2" for node in walk_code(code))
