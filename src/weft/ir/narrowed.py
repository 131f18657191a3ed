"""Which products of a program round their operands: read from the kernels, from the types of what they multiply.

It is asked once, when a program has its kernels: those that come from the cache have names and no bodies.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from weft.ir.dtypes import DType
from weft.ir.kernel import Call, Kernel, MultiplyTiles, Statement, inner_bodies, statement_codes, walk_code
from weft.ir.types import TensorType
from weft.ir.work import PAIR_PRODUCTS, HostSection, NativeSection, ScanTask, Section, Task
from weft.records import dataclass


@dataclass(frozen=True, slots=True)
class NarrowedProduct:
    """A product whose float32 operands are rounded before they are multiplied, and to what: tf32, or another type."""

    node: str
    operands: str
    template: str


def narrowed_in(sections: Sequence[Section]) -> Iterator[NarrowedProduct]:
    """The products of sections that take less of their operands than these have, in order."""
    for section in sections:
        match section:
            case NativeSection(tasks=tasks):
                for task in tasks:
                    if isinstance(task, ScanTask):
                        yield from narrowed_in((task.body,))
                    else:
                        yield from _narrowed_task(task)
            case HostSection(bodies=inside):
                for body in inside:
                    yield from narrowed_in(body)


def _narrowed_task(task: Task) -> Iterator[NarrowedProduct]:
    multiplied = {dtype for launch in task.work.launches for dtype in _multiplied(launch.kernel)}
    given = {value.type.dtype for value in task.operands if isinstance(value.type, TensorType)}
    if DType.float32 in multiplied:
        yield NarrowedProduct(task.origin, "tf32", task.template)
    elif DType.float16 in multiplied and DType.float16 not in given:
        yield NarrowedProduct(task.origin, DType.float16.value, task.template)
    elif task.template == PAIR_PRODUCTS or any(_adds_pairs(launch.kernel.body) for launch in task.work.launches):
        yield NarrowedProduct(task.origin, DType.bfloat16.value, task.template)


def _adds_pairs(body: Sequence[Statement]) -> bool:
    """Whether a kernel multiplies pairs of bfloat16."""
    for statement in body:
        for code in statement_codes(statement):
            if any(isinstance(node, Call) and node.function == "dot2" for node in walk_code(code)):
                return True
        if any(_adds_pairs(inner) for inner in inner_bodies(statement)):
            return True
    return False


def _multiplied(kernel: Kernel) -> set[DType]:
    """The types of the tiles that a kernel multiplies."""
    types = {buffer.name: buffer.dtype for buffer in kernel.buffers}
    return {types[name] for product in _tile_products(kernel.body) for name in (product.left, product.right)}


def _tile_products(body: Sequence[Statement]) -> Iterator[MultiplyTiles]:
    for statement in body:
        if isinstance(statement, MultiplyTiles):
            yield statement
        for inner in inner_bodies(statement):
            yield from _tile_products(inner)
