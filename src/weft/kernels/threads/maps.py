"""Maps with a thread per element, or per four neighbours where all loads allow it."""

from __future__ import annotations

from collections.abc import Sequence

from weft.cost.occupancy import enough_threads
from weft.ir import dims
from weft.ir.access import find_nonlinear_axes, stride_along, without_axis
from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.ir.kernel import Call, Code, Integer, Statement, block, lane
from weft.ir.layout import offset
from weft.ir.scalar import FlatLoad, Load, Scalar, flat_loads, walk
from weft.ir.target import ThreadTarget
from weft.kernels.build.loop_nest import Body, build_masked
from weft.kernels.common.maps import MapWriter, Region, build_map_work
from weft.kernels.lower.expressions import Lowering, ValueKey
from weft.kernels.lower.kernel_builder import fetch_run, put_run
from weft.kernels.lower.memoize import memoize
from weft.kernels.lower.tensors import Launch, StoredTensor, Work
from weft.kernels.threads.points import FEW_LANES, MANY_THREADS, minimum_size, unravel

RUN = 4  # neighbours that a thread reads, computes and writes at once
MAX_NODES = 160  # of an expression that is unrolled RUN times


def build_map(
    expression: Scalar,
    operands: Sequence[StoredTensor],
    result: StoredTensor,
    target: ThreadTarget,
    region: Region | None = None,
) -> Work:
    """result[...] = expression; with a region, write that part of a larger tensor with the same order of axes."""
    return build_map_work(
        build_map_launch(expression, operands, result, target, region), expression, operands, result, region
    )


def build_map_launch(
    expression: Scalar,
    operands: Sequence[StoredTensor],
    result: StoredTensor,
    target: ThreadTarget,
    region: Region | None = None,
) -> Launch:
    """Build the launch of a map."""
    many = enough_threads(target.rates, MANY_THREADS) if target.sharing_pays else None
    return _build_launch(expression, operands, result, target.block_threads, region, many)


@memoize
def _build_launch(
    expression: Scalar,
    operands: Sequence[StoredTensor],
    result: StoredTensor,
    lanes: int,
    region: Region | None,
    many: int | None,
) -> Launch:
    """`many`: the threads that keep a device busy; None where a thread should do one element."""
    writer = MapWriter(expression, operands, result, region)
    if not writer.merged.axes:
        return writer.launch(writer.element((), None), 1, 1)
    if many is not None and _has_runs(writer, region):
        has_few = minimum_size(dims.product(writer.merged.sizes)) // RUN < 2 * many
        lanes = min(lanes, FEW_LANES) if has_few else lanes
        return writer.launch(*_build_runs(writer, lanes), lanes)
    return writer.launch(*_build_elements(writer, lanes), lanes)


def _build_elements(writer: MapWriter, lanes: int) -> tuple[Body, Dim]:
    """Write an element per lane, over all axes flattened."""
    merged = writer.merged
    if 0 in merged.sizes:
        return (), 0
    total = dims.product(merged.sizes)
    position = block() * lanes + lane(lanes)
    positions: list[Dim] = []
    remaining: Dim = position
    step: Dim = 1
    is_contiguous = True  # whether the result's elements are
    for size, stride in zip(reversed(merged.sizes), reversed(writer.strides)):
        is_contiguous, step = is_contiguous and stride == step, step * size
        divisor = writer.builder.size(dims.maximum(size, 1))  # with a size of 0 there are no blocks
        positions.insert(0, dims.mod(remaining, divisor) if len(positions) < len(merged.sizes) - 1 else remaining)
        remaining = dims.floordiv(remaining, divisor)
    place = writer.base + position if is_contiguous else None
    blocks = dims.ceildiv(total, lanes)
    if isinstance(total, int) and total % lanes == 0:
        return writer.element(positions, None, place), blocks
    end = writer.builder.size(total)
    return build_masked(writer.builder, position, end, lambda mask: writer.element(positions, mask, place)), blocks


# -- runs ------------------------------------------------------------------------------------------------------------


def _has_runs(writer: MapWriter, region: Region | None) -> bool:
    """Whether all loads read either aligned runs for neighbours of the result, or the same element."""
    start = 0 if region is None else offset(region.whole.strides, region.start)
    *others, near = writer.strides
    whole = (writer.merged.sizes[-1], start, *others)
    if near != 1 or 0 in writer.merged.sizes or any(dims.mod(value, RUN) != 0 for value in whole):
        return False
    (expression,) = writer.merged.expressions
    nodes = list(walk(expression))
    if len(nodes) > MAX_NODES or any(isinstance(node, Load) for node in nodes):
        return False
    loads = flat_loads(expression)
    return all(_is_run(writer, load) or _is_broadcast(writer, load) for load in loads) and (
        not loads or any(_is_run(writer, load) for load in loads)
    )


def _is_run(writer: MapWriter, load: FlatLoad) -> bool:
    axis = writer.merged.axes[-1][-1]
    is_contiguous = axis not in find_nonlinear_axes(load.offset) and stride_along(load.offset, axis) == 1
    return is_contiguous and dims.mod(without_axis(load.offset, axis), RUN) == 0


def _is_broadcast(writer: MapWriter, load: FlatLoad) -> bool:
    axis = writer.merged.axes[-1][-1]
    return axis not in find_nonlinear_axes(load.offset) and stride_along(load.offset, axis) == 0


def _build_runs(writer: MapWriter, lanes: int) -> tuple[Body, Dim]:
    """Write four elements per lane; positions of surplus lanes are clamped, so that no load waits for the mask."""
    merged, builder = writer.merged, writer.builder
    sizes = (*merged.sizes[:-1], dims.floordiv(merged.sizes[-1], RUN))
    total = dims.product(sizes)
    position: Dim = block() * lanes + lane(lanes)
    statements: list[Statement] = []
    mask: Code | None = None
    if not isinstance(total, int) or total % lanes:
        test = Call("less", (Integer(position), Integer(builder.size(total))), DType.bool)
        definition, mask = builder.keep("inside", test, varying=True)
        statements.append(definition)
        position = dims.minimum(position, builder.size(dims.maximum(total - 1, 0)))
    *outer, near = unravel(position, sizes, builder)
    places = [*outer, near * RUN]
    here = Lowering(writer.views, merged.axis_positions(places), builder, {}, None, statements)
    (expression,) = merged.expressions
    loaded: dict[FlatLoad, Sequence[Code]] = {}
    for load in dict.fromkeys(flat_loads(expression)):
        if _is_run(writer, load):
            run = loaded[load] = builder.registers("run", RUN, load.dtype)
            statements.append(fetch_run(run, writer.views[load.operand].buffer, here.flat_offset(load.offset)))
        else:
            loaded[load] = [here.keep(here.code(load))] * RUN
    values: list[Code] = []
    for number in range(RUN):
        at = merged.axis_positions([*outer, near * RUN + number])
        elements: dict[ValueKey, Code] = {load: codes[number] for load, codes in loaded.items()}
        values.append(Lowering(writer.views, at, builder, elements, None, statements).code(expression))
    place = writer.base
    for stride, at_group in zip(writer.strides, places, strict=True):
        place = place + builder.size(stride) * at_group
    return (*statements, put_run(writer.out, place, values, mask)), dims.ceildiv(total, lanes)
