"""A domain whose points are threads: neighbouring lanes are neighbours along the innermost axis."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from weft.ir import dims
from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.ir.kernel import Call, Code, Integer, Statement, block, lane
from weft.ir.target import ThreadTarget
from weft.kernels.build.epilogue import EpilogueWriter
from weft.kernels.build.loop_nest import Body
from weft.kernels.lower.kernel_builder import KernelBuilder, put, put_run
from weft.kernels.threads.lane_groups import power_of_two
from weft.records import dataclass

MANY_THREADS = 128  # for each unit, that keep a GPU busy where each has many reads under way
FEW_LANES = 64  # of a block, where there are not many more threads than that


@dataclass(frozen=True, slots=True)
class Points:
    """Where a thread is along each axis, always inside; those without a point of their own are not in `mask`."""

    places: tuple[Dim, ...]
    mask: Code | None
    blocks: Dim


def points(sizes: Sequence[Dim], builder: KernelBuilder, lanes: int) -> Points:
    """A point for each lane of each block, for axes from the outermost in."""
    total = dims.product(sizes)
    position: Dim = block() * lanes + lane(lanes)
    mask: Code | None = None
    if not isinstance(total, int) or total % lanes:
        mask = Call("less", (Integer(position), Integer(builder.named("points", total))), DType.bool)
        position = dims.minimum(position, builder.named("last", dims.maximum(total - 1, 0)))
    places: list[Dim] = [0] * len(sizes)
    real = [axis for axis, size in enumerate(sizes) if size != 1]
    for axis in reversed(real):
        if axis == real[0]:
            places[axis] = position
            break
        size = builder.named(f"points{axis}", dims.maximum(sizes[axis], 1))
        places[axis] = dims.mod(position, size)
        position = dims.floordiv(position, size)
    return Points(tuple(places), mask, dims.ceildiv(total, lanes))


def all_of(tests: Sequence[Code]) -> Code | None:
    """Whether all tests hold; None where there is none."""
    result: Code | None = None
    for test in tests:
        result = test if result is None else Call("logical_and", (result, test), DType.bool)
    return result


def at_least(size: Dim) -> int:
    """A size for the least that its symbols may be."""
    return dims.evaluate(size, {symbol.name: max(symbol.low or 0, 1) for symbol in dims.symbols(size)})


def write_inside(
    writer: EpilogueWriter, values: Sequence[Code], axes: Mapping[int, Dim], axis: int, mask: Code | None
) -> tuple[Statement, ...]:
    """Write what becomes of neighbours along an axis, in lanes where a mask holds.

    Places must be inside for all lanes: what the epilogue reads is read by all, so that no lane waits for the mask.
    """
    statements: list[Statement] = []
    places = [{**axes, axis: axes.get(axis, 0) + number} for number in range(len(values))]
    ended = tuple(writer.finished(value, at, None, statements) for value, at in zip(values, places))
    if len(values) > 1 and writer.result.strides[axis] == 1:
        return (*statements, put_run(writer.out, writer.place(axes), ended, mask))
    return (*statements, *(put(writer.out, writer.place(at), end, mask=mask) for end, at in zip(ended, places)))


def digits(position: Dim, sizes: Sequence[Dim], builder: KernelBuilder) -> list[Dim]:
    """A position in all axes together, outermost first, as one along each."""
    found: list[Dim] = []
    for size in reversed(sizes[1:]):
        found.insert(0, dims.mod(position, divisor(size, builder)))
        position = dims.floordiv(position, divisor(size, builder))
    return [position, *found] if sizes else []


def divisor(size: Dim, builder: KernelBuilder) -> Dim:
    """A size to divide positions by; where it is 0 there are none."""
    return 1 if size == 0 else builder.size(size)


def lanes_for(count: Dim, target: ThreadTarget) -> int:
    """Lanes of blocks that do a point each: fewer than usual where there are fewer points."""
    return min(target.block_threads, power_of_two(count)) if isinstance(count, int) else target.block_threads


def each_point(
    count: Dim, lanes: int, builder: KernelBuilder, body: Callable[[Dim, Code | None], Body]
) -> tuple[Dim, Body]:
    """(blocks, what they do): the body for each of so many points; the mask tells which lanes have one."""
    position = block() * lanes + lane(lanes)
    blocks = dims.ceildiv(count, lanes)
    if isinstance(count, int) and count % lanes == 0:
        return blocks, body(position, None)
    test = Call("less", (Integer(position), Integer(builder.size(count))), DType.bool)
    defined, has_point = builder.keep("has_point", test, varying=True)
    return blocks, (defined, *body(position, has_point))
