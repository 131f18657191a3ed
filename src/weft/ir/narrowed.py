"""Which products of a program round their operands: read from the kernels, from the types of what they multiply.

It is asked once, when a program has its kernels: those that come from the cache have names and no bodies.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from weft.ir.dtypes import DType
from weft.ir.kernel import Call, Code, Kernel, MultiplyTiles, Statement, inner_bodies, statement_codes, walk_code
from weft.ir.types import TensorType
from weft.ir.work import PAIR_PRODUCTS, HostSection, NativeSection, ScanTask, Section, Task
from weft.records import dataclass


@dataclass(frozen=True, slots=True)
class NarrowedProduct:
    """A product whose float32 operands are rounded before they are multiplied, and to what: tf32, or another type."""

    node: str
    operands: str
    template: str


@dataclass(frozen=True, slots=True)
class _Multiplied:
    """What a kernel multiplies: the types of its tiles, and whether pairs of bfloat16."""

    tiles: frozenset[DType]
    pairs: bool


def narrowed_in(sections: Sequence[Section]) -> Iterator[NarrowedProduct]:
    """The products of sections that take less of their operands than these have, in order."""
    return _narrowed_sections(sections, {})


def _narrowed_sections(sections: Sequence[Section], known: dict[int, _Multiplied]) -> Iterator[NarrowedProduct]:
    for section in sections:
        match section:
            case NativeSection(tasks=tasks):
                for task in tasks:
                    if isinstance(task, ScanTask):
                        yield from _narrowed_sections((task.body,), known)
                    else:
                        yield from _narrowed_task(task, known)
            case HostSection(bodies=inside):
                for body in inside:
                    yield from _narrowed_sections(body, known)


def _narrowed_task(task: Task, known: dict[int, _Multiplied]) -> Iterator[NarrowedProduct]:
    """`known` is what kernels multiply, by their ids: few serve many launches."""
    kernels = {id(launch.kernel): launch.kernel for launch in task.work.launches}
    known.update((key, _multiplied(kernel)) for key, kernel in kernels.items() if key not in known)
    tiles = {dtype for key in kernels for dtype in known[key].tiles}
    given = {value.type.dtype for value in task.operands if isinstance(value.type, TensorType)}
    if DType.float32 in tiles:
        yield NarrowedProduct(task.origin, "tf32", task.template)
    elif DType.float16 in tiles and DType.float16 not in given:
        yield NarrowedProduct(task.origin, DType.float16.value, task.template)
    elif task.template == PAIR_PRODUCTS or any(known[key].pairs for key in kernels):
        yield NarrowedProduct(task.origin, DType.bfloat16.value, task.template)


def _multiplied(kernel: Kernel) -> _Multiplied:
    types = {buffer.name: buffer.dtype for buffer in kernel.buffers}
    tiles: set[DType] = set()
    pairs = False
    pending: list[Statement] = list(kernel.body)
    while pending:
        statement = pending.pop()
        if isinstance(statement, MultiplyTiles):
            tiles.update((types[statement.left], types[statement.right]))
        for inner in inner_bodies(statement):
            pending.extend(inner)
        pairs = pairs or any(_has_pairs(code) for code in statement_codes(statement))
    return _Multiplied(frozenset(tiles), pairs)


def _has_pairs(code: Code) -> bool:
    return any(isinstance(node, Call) and node.function == "dot2" for node in walk_code(code))
