"""Running sums and products: one after the other along their axis, lanes side by side along another."""

from __future__ import annotations

from weft.cost.sizes import estimate
from weft.ir.dims import Dim
from weft.ir.kernel import Assign, Buffer, Call, Code, Define, Fetch, Kernel, Put, Register, Repeat, Statement, variable
from weft.ir.layout import offset
from weft.ir.program import Cumulate
from weft.ir.target import VectorTarget
from weft.kernels.build.accumulators import COMBINE, neutral, wide_dtype
from weft.kernels.build.loop_nest import Body, choose_lanes, lane_loop, loops, spread
from weft.kernels.lower.parameters import Parameters
from weft.kernels.lower.tensors import Launch, Reference, Tensor, Work


def cumulate_work(primitive: Cumulate, operand: Tensor, result: Tensor, target: VectorTarget) -> Work:
    """One kernel; where the axis itself is innermost in memory, a row is done by one lane."""
    parameters = Parameters()
    length = parameters.size(result.shape[primitive.axis])
    others = [axis for axis in result.layout.order if axis != primitive.axis and result.shape[axis] != 1]
    wide = wide_dtype(primitive.kind, result.dtype)
    innermost = [axis for axis in result.layout.order if result.shape[axis] != 1][-1:]
    side_by_side = bool(others) and innermost != [primitive.axis]
    lanes = choose_lanes(target, [wide], widest=8) if side_by_side else 1
    blocks, spans = spread(
        [result.shape[axis] for axis in others], parameters, estimate(result.shape[primitive.axis]), lanes
    )
    strides = [tuple(parameters.size(stride) for stride in tensor.strides) for tensor in (operand, result)]
    total = Register("total", wide, side_by_side)

    def row(places: list[Dim], mask: Code | None) -> Body:
        place = variable("i")
        indices: list[Dim] = [0] * len(result.shape)
        for axis, position in zip(others, places, strict=True):
            indices[axis] = position
        indices[primitive.axis] = length - 1 - place if primitive.reverse else place
        element: Code = Fetch("in0", offset(strides[0], indices), operand.dtype, mask=mask)
        if element.dtype is not wide:
            element = Call("cast", (element,), wide)
        add = Assign("total", Call(COMBINE[primitive.kind], (total, element), wide))
        value = total if wide is result.dtype else Call("cast", (total,), result.dtype)
        put = Put("out", offset(strides[1], indices), value, mask=mask)
        body: tuple[Statement, ...] = (put, add) if primitive.exclusive else (add, put)
        return Define("total", neutral(primitive.kind, wide), side_by_side), Repeat("i", 0, length, 1, body)

    def columns(outer: list[Dim]) -> Body:
        return lane_loop("c", spans[-1], lanes, lambda place, mask: row([*outer, place], mask))

    body = loops(spans[:-1], "o", columns) if side_by_side else loops(spans, "o", lambda places: row(places, None))
    buffers = (Buffer("in0", operand.dtype, False), Buffer("out", result.dtype, True))
    kernel = Kernel("cumulate", buffers, tuple(parameters.values), lanes, body)
    launch = Launch(kernel, blocks, tuple(parameters.values.values()))
    return Work(((launch, (Reference("operand", 0), Reference("result", 0))),))
