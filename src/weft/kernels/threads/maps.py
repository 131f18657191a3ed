"""Maps with a thread for each element, all axes joined; for four neighbours where all that is read allows it."""

from __future__ import annotations

from collections.abc import Sequence

from weft.cost.occupancy import enough_threads
from weft.ir import dims
from weft.ir.access import nonlinear_axes, stride_along, without_axis
from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.ir.kernel import Call, Code, Integer, Statement, block, lane
from weft.ir.layout import offset
from weft.ir.scalar import FlatLoad, Load, Scalar, flat_loads, walk
from weft.ir.target import ThreadTarget
from weft.kernels.build.loop_nest import Body, masked
from weft.kernels.common.maps import MapWriter, Region, single_map
from weft.kernels.lower.expressions import Known, Lowering
from weft.kernels.lower.kernel_builder import fetch_run, put_run
from weft.kernels.lower.memoize import memoized
from weft.kernels.lower.tensors import Launch, StoredTensor, Work
from weft.kernels.threads.points import FEW_LANES, MANY_THREADS, at_least, digits

RUN = 4  # neighbours that a thread reads, computes and writes at once
MOST_NODES = 160  # of an expression that is in a kernel so many times


def map_work(
    expression: Scalar,
    operands: Sequence[StoredTensor],
    result: StoredTensor,
    target: ThreadTarget,
    region: Region | None = None,
) -> Work:
    """result[...] = expression; with a region, the result (of the same order of axes) is that part of it."""
    return single_map(region_launch(expression, operands, result, target, region), expression, operands, result, region)


def region_launch(
    expression: Scalar,
    operands: Sequence[StoredTensor],
    result: StoredTensor,
    target: ThreadTarget,
    region: Region | None = None,
) -> Launch:
    """The kernel of a map alone."""
    many = enough_threads(target.rates, MANY_THREADS) if target.sharing_pays else None
    return _map_launch(expression, operands, result, target.block_threads, region, many)


@memoized
def _map_launch(
    expression: Scalar,
    operands: Sequence[StoredTensor],
    result: StoredTensor,
    lanes: int,
    region: Region | None,
    many: int | None,
) -> Launch:
    """`many`: the threads that keep a device busy on which each may well do several elements."""
    writer = MapWriter(expression, operands, result, region)
    if not writer.merged.axes:
        return writer.launch(writer.element((), None), 1, 1)
    if many is not None and _has_runs(writer, region):
        few = at_least(dims.product(writer.merged.sizes)) // RUN < 2 * many
        lanes = min(lanes, FEW_LANES) if few else lanes
        return writer.launch(*_in_runs(writer, lanes), lanes)
    return writer.launch(*_scattered(writer, lanes), lanes)


def _scattered(writer: MapWriter, lanes: int) -> tuple[Body, Dim]:
    """An element for each lane, all axes joined."""
    merged = writer.merged
    if 0 in merged.sizes:
        return (), 0
    total = dims.product(merged.sizes)
    position = block() * lanes + lane(lanes)
    digits: list[Dim] = []
    rest: Dim = position
    step: Dim = 1
    in_order = True  # whether the result's elements follow each other
    for size, stride in zip(reversed(merged.sizes), reversed(writer.strides)):
        in_order, step = in_order and stride == step, step * size
        divisor = writer.builder.size(dims.maximum(size, 1))  # a block has no work where it would be 0
        digits.insert(0, dims.mod(rest, divisor) if len(digits) < len(merged.sizes) - 1 else rest)
        rest = dims.floordiv(rest, divisor)
    place = writer.base + position if in_order else None
    blocks = dims.ceildiv(total, lanes)
    if isinstance(total, int) and total % lanes == 0:
        return writer.element(digits, None, place), blocks
    end = writer.builder.size(total)
    return masked(writer.builder, position, end, lambda mask: writer.element(digits, mask, place)), blocks


# -- runs ------------------------------------------------------------------------------------------------------------


def _has_runs(writer: MapWriter, region: Region | None) -> bool:
    """Whether neighbours of the result are neighbours in all that is read, or read the same."""
    start = 0 if region is None else offset(region.whole.strides, region.start)
    *others, near = writer.strides
    whole = (writer.merged.sizes[-1], start, *others)
    if near != 1 or 0 in writer.merged.sizes or any(dims.mod(value, RUN) != 0 for value in whole):
        return False
    (expression,) = writer.merged.expressions
    nodes = list(walk(expression))
    if len(nodes) > MOST_NODES or any(isinstance(node, Load) for node in nodes):
        return False
    found = flat_loads(expression)
    return all(_is_run(writer, load) or _is_same(writer, load) for load in found) and (
        not found or any(_is_run(writer, load) for load in found)
    )


def _is_run(writer: MapWriter, load: FlatLoad) -> bool:
    axis = writer.merged.axes[-1][-1]
    linear = axis not in nonlinear_axes(load.offset) and stride_along(load.offset, axis) == 1
    return linear and dims.mod(without_axis(load.offset, axis), RUN) == 0


def _is_same(writer: MapWriter, load: FlatLoad) -> bool:
    axis = writer.merged.axes[-1][-1]
    return axis not in nonlinear_axes(load.offset) and stride_along(load.offset, axis) == 0


def _in_runs(writer: MapWriter, lanes: int) -> tuple[Body, Dim]:
    """Four elements for each lane. Those of lanes without any are read again, so that no read waits for a test."""
    merged, builder = writer.merged, writer.builder
    sizes = (*merged.sizes[:-1], dims.floordiv(merged.sizes[-1], RUN))
    total = dims.product(sizes)
    position: Dim = block() * lanes + lane(lanes)
    statements: list[Statement] = []
    mask: Code | None = None
    if not isinstance(total, int) or total % lanes:
        test = Call("less", (Integer(position), Integer(builder.size(total))), DType.bool)
        defined, mask = builder.keep("inside", test, varying=True)
        statements.append(defined)
        position = dims.minimum(position, builder.size(dims.maximum(total - 1, 0)))
    *outer, near = digits(position, sizes, builder)
    places = [*outer, near * RUN]
    here = Lowering(writer.views, merged.places(places), builder, {}, None, statements)
    (expression,) = merged.expressions
    known: dict[FlatLoad, Sequence[Code]] = {}
    for load in dict.fromkeys(flat_loads(expression)):
        if _is_run(writer, load):
            run = known[load] = builder.registers("run", RUN, load.dtype)
            statements.append(fetch_run(run, writer.views[load.operand].buffer, here.flat_offset(load.offset)))
        else:
            known[load] = [here.keep(here.code(load))] * RUN
    values: list[Code] = []
    for number in range(RUN):
        at = merged.places([*outer, near * RUN + number])
        elements: dict[Known, Code] = {load: codes[number] for load, codes in known.items()}
        values.append(Lowering(writer.views, at, builder, elements, None, statements).code(expression))
    place = writer.base
    for stride, at_group in zip(writer.strides, places, strict=True):
        place = place + builder.size(stride) * at_group
    return (*statements, put_run(writer.out, place, values, mask)), dims.ceildiv(total, lanes)
