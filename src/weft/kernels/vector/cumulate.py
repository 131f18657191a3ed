"""Cumulative sums and products: sequential along their axis, with lanes along another axis."""

from __future__ import annotations

from weft.cost.sizes import estimate
from weft.ir.dims import Dim
from weft.ir.kernel import Call, Code, Statement
from weft.ir.layout import offset
from weft.ir.program import Cumulate
from weft.ir.target import VectorTarget
from weft.kernels.build.accumulators import COMBINE, identity_element, reduction_dtype
from weft.kernels.build.loop_nest import Body, build_lane_loop, build_loops, choose_lanes, split_into_blocks
from weft.kernels.lower.kernel_builder import KernelBuilder, assign, define, fetch, put, repeat
from weft.kernels.lower.memoize import memoize
from weft.kernels.lower.operations import cast
from weft.kernels.lower.tensors import Reference, StoredTensor, Work


@memoize
def build_cumulate(primitive: Cumulate, operand: StoredTensor, result: StoredTensor, target: VectorTarget) -> Work:
    """Build one kernel; if the axis itself is innermost in memory, one lane processes a row."""
    builder = KernelBuilder("cumulate")
    length = builder.size(result.shape[primitive.axis])
    others = [axis for axis in result.layout.order if axis != primitive.axis and result.shape[axis] != 1]
    sum_dtype = reduction_dtype(primitive.kind, result.dtype)
    innermost = [axis for axis in result.layout.order if result.shape[axis] != 1][-1:]
    side_by_side = bool(others) and innermost != [primitive.axis]
    lanes = choose_lanes(target, [sum_dtype], widest=8) if side_by_side else 1
    blocks, spans = split_into_blocks(
        [result.shape[axis] for axis in others], builder, estimate(result.shape[primitive.axis]), lanes
    )
    strides = [tuple(builder.size(stride) for stride in tensor.strides) for tensor in (operand, result)]
    source = builder.input("in0", operand.dtype, Reference("operand", 0))
    out = builder.output("out", result.dtype, Reference("result", 0))

    def row(places: list[Dim], mask: Code | None) -> Body:
        place = builder.variable("i")
        total = builder.register("total", sum_dtype, side_by_side)
        indices: list[Dim] = [0] * len(result.shape)
        for axis, position in zip(others, places, strict=True):
            indices[axis] = position
        indices[primitive.axis] = length - 1 - place if primitive.reverse else place
        element: Code = fetch(source, offset(strides[0], indices), mask=mask)
        element = cast(element, sum_dtype)
        add = assign(total, Call(COMBINE[primitive.kind], (total, element), sum_dtype))
        value = total if sum_dtype is result.dtype else Call("cast", (total,), result.dtype)
        write = put(out, offset(strides[1], indices), value, mask=mask)
        body: tuple[Statement, ...] = (write, add) if primitive.exclusive else (add, write)
        return define(total, identity_element(primitive.kind, sum_dtype)), repeat(place, 0, length, 1, body)

    def columns(outer: list[Dim]) -> Body:
        return build_lane_loop(builder, "c", spans[-1], lanes, lambda place, mask: row([*outer, place], mask))

    if side_by_side:
        body = build_loops(builder, "o", spans[:-1], columns)
    else:
        body = build_loops(builder, "o", spans, lambda places: row(places, None))
    return Work((builder.launch(lanes, body, blocks),))
