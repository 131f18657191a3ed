"""Maps with a thread for each element, all axes joined."""

from __future__ import annotations

from collections.abc import Sequence

from weft.ir import dims
from weft.ir.dims import Dim
from weft.ir.kernel import block, lane
from weft.ir.scalar import Scalar
from weft.ir.target import ThreadTarget
from weft.kernels.build.loop_nest import Body, masked
from weft.kernels.common.maps import MapWriter, Region, single_map
from weft.kernels.lower.memoize import memoized
from weft.kernels.lower.tensors import Launch, StoredTensor, Work


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
    return _map_launch(expression, operands, result, target.block_threads, region)


@memoized
def _map_launch(
    expression: Scalar, operands: Sequence[StoredTensor], result: StoredTensor, lanes: int, region: Region | None
) -> Launch:
    writer = MapWriter(expression, operands, result, region)
    if not writer.merged.axes:
        return writer.launch(writer.element((), None), 1, 1)
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
