"""Domains with a thread per point: neighbouring lanes are neighbours along the innermost axis."""

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

MANY_THREADS = 128  # per unit, to keep a GPU busy if each thread has many reads in flight
FEW_LANES = 64  # of a block, where there are few threads


@dataclass(frozen=True, slots=True)
class Points:
    """A thread's position along each axis, clamped to the domain; surplus threads are not in `mask`."""

    places: tuple[Dim, ...]
    mask: Code | None
    blocks: Dim


def points(sizes: Sequence[Dim], builder: KernelBuilder, lanes: int) -> Points:
    """Assign a point to each lane of each block; sizes are from the outermost axis in."""
    total = dims.product(sizes)
    position: Dim = block() * lanes + lane(lanes)
    mask: Code | None = None
    if not isinstance(total, int) or total % lanes:
        mask = Call("less", (Integer(position), Integer(builder.parameter("points", total))), DType.bool)
        position = dims.minimum(position, builder.parameter("last", dims.maximum(total - 1, 0)))
    places: list[Dim] = [0] * len(sizes)
    axes = [axis for axis, size in enumerate(sizes) if size != 1]
    for axis in reversed(axes):
        if axis == axes[0]:
            places[axis] = position
            break
        size = builder.parameter(f"points{axis}", dims.maximum(sizes[axis], 1))
        places[axis] = dims.mod(position, size)
        position = dims.floordiv(position, size)
    return Points(tuple(places), mask, dims.ceildiv(total, lanes))


def all_of(tests: Sequence[Code | None]) -> Code | None:
    """Combine tests into one condition that holds where all of them do; None where there is none."""
    result: Code | None = None
    for test in tests:
        if test is not None:
            result = test if result is None else Call("logical_and", (result, test), DType.bool)
    return result


def check_bounds(
    builder: KernelBuilder,
    hint: str,
    position: Dim,
    size: Dim,
    may_leave: tuple[bool, bool],
    statements: list[Statement],
) -> Code | None:
    """Test whether a position is in 0..size-1, in a register; None where it always is.

    `may_leave`: whether it may be before the first position, and after the last.
    """
    is_before, is_behind = may_leave
    test = all_of(
        [
            Call("greater_equal", (Integer(position), Integer(0)), DType.bool) if is_before else None,
            Call("less", (Integer(position), Integer(size)), DType.bool) if is_behind else None,
        ]
    )
    if test is None:
        return None
    definition, register = builder.keep(hint, test, varying=True)
    statements.append(definition)
    return register


def clamp_to_bounds(position: Dim, size: Dim, may_leave: tuple[bool, bool]) -> Dim:
    """Return the nearest position in 0..size-1."""
    is_before, is_behind = may_leave
    position = dims.maximum(position, 0) if is_before else position
    return dims.minimum(position, size - 1) if is_behind else position


def minimum_size(size: Dim) -> int:
    """Evaluate a size with the smallest values of its symbols."""
    return dims.evaluate(size, {symbol.name: max(symbol.low or 0, 1) for symbol in dims.symbols(size)})


def write_inside(
    writer: EpilogueWriter, values: Sequence[Code], axes: Mapping[int, Dim], axis: int, mask: Code | None
) -> tuple[Statement, ...]:
    """Apply the epilogue to neighbours along an axis, and write them in lanes where a mask holds.

    Positions must be inside for all lanes: the epilogue reads without the mask, so that no load waits for it.
    """
    statements: list[Statement] = []
    places = [{**axes, axis: axes.get(axis, 0) + number} for number in range(len(values))]
    ended = tuple(writer.apply(value, at, None, statements) for value, at in zip(values, places))
    if len(values) > 1 and writer.result.strides[axis] == 1:
        return (*statements, put_run(writer.out, writer.result_offset(axes), ended, mask))
    return (*statements, *(put(writer.out, writer.result_offset(at), end, mask=mask) for end, at in zip(ended, places)))


def unravel(position: Dim, sizes: Sequence[Dim], builder: KernelBuilder) -> list[Dim]:
    """Split a flat position into one along each axis, outermost first; sizes become parameters."""
    positions: list[Dim] = []
    for size in reversed(sizes[1:]):
        positions.insert(0, dims.mod(position, divisor(size, builder)))
        position = dims.floordiv(position, divisor(size, builder))
    return [position, *positions] if sizes else []


def divisor(size: Dim, builder: KernelBuilder) -> Dim:
    """Return a size as a parameter to divide positions by; 1 instead of 0, as there are no positions then."""
    return 1 if size == 0 else builder.size(size)


def choose_lanes(count: Dim, target: ThreadTarget) -> int:
    """Choose the lanes of blocks with a point per lane: fewer than usual where there are fewer points."""
    return min(target.block_threads, power_of_two(count)) if isinstance(count, int) else target.block_threads


def build_point_body(
    count: Dim, lanes: int, builder: KernelBuilder, body: Callable[[Dim, Code | None], Body]
) -> tuple[Dim, Body]:
    """Run a body for each of `count` points, given the position and the mask of lanes that have one.

    Returns the number of blocks, and their statements.
    """
    position = block() * lanes + lane(lanes)
    blocks = dims.ceildiv(count, lanes)
    if isinstance(count, int) and count % lanes == 0:
        return blocks, body(position, None)
    test = Call("less", (Integer(position), Integer(builder.size(count))), DType.bool)
    definition, has_point = builder.keep("has_point", test, varying=True)
    return blocks, (definition, *body(position, has_point))
