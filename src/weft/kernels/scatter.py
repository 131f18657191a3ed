"""Scatters: a copy of the tensor, then the updates in their order.

Two points of the domain meet in one element only where all indices agree. So along an axis of the domain that is an
index by itself they never do, and blocks and lanes may go along it; along the other axes points are taken one by one.
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.ir import dims
from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.ir.kernel import Buffer, Call, Code, Fetch, Integer, Kernel, Put, Statement
from weft.ir.program import Scatter
from weft.ir.scalar import Apply, Index, Load, Scalar, loads
from weft.ir.target import Target
from weft.kernels.folds import wide_dtype
from weft.kernels.launch import Launch, Reference, Tensor, Work, Workspace
from weft.kernels.layout import offset
from weft.kernels.lowering import Lowering
from weft.kernels.maps import gather_errors, is_checked, map_launch, report_errors
from weft.kernels.merge import operand_views
from weft.kernels.nest import Body, Span, choose_lanes, computed_dtypes, estimate, lane_loop, loops, spread
from weft.kernels.parameters import Parameters


def scatter_work(primitive: Scatter, operands: Sequence[Tensor], result: Tensor, target: Target) -> Work:
    """The copy, the updates, and for sums of narrow floats a rounding at the end."""
    combines = primitive.reduction != "none"
    wide = wide_dtype("sum", result.dtype) if combines else result.dtype
    plain = tuple(Index(dims.axis(axis, size)) for axis, size in enumerate(result.shape))
    lanes = choose_lanes(target, [wide])
    copied = Tensor(wide, result.shape, result.layout)
    narrow = wide is not result.dtype
    place = Reference("workspace", 0) if narrow else Reference("result", 0)
    copy = map_launch(_cast(Load(0, plain, result.dtype), wide), [operands[0]], copied, lanes)
    updates, references = _Updates(primitive, operands, copied, target).launch(place)
    launches = [(copy, (Reference("operand", 0), place)), (updates, references)]
    if not narrow:
        return Work(tuple(launches))
    back = map_launch(_cast(Load(0, plain, wide), result.dtype), [copied], result, lanes)
    launches.append((back, (place, Reference("result", 0))))
    return Work(tuple(launches), (Workspace(wide, dims.product(result.shape)),))


def _cast(value: Scalar, dtype: DType) -> Scalar:
    return value if value.dtype is dtype else Apply("cast", (value,), dtype)


class _Updates:
    def __init__(self, primitive: Scatter, operands: Sequence[Tensor], copied: Tensor, target: Target) -> None:
        self.primitive = primitive
        self.operands = operands
        self.copied = copied
        self.parameters = Parameters()
        self.views = operand_views(operands, self.parameters)[: len(operands)]
        self.strides = tuple(self.parameters.size(stride) for stride in copied.strides)
        self.alone = {dims.axis(axis, size): axis for axis, size in enumerate(primitive.domain) if size != 1}
        own = [index.value for index in primitive.indices if isinstance(index, Index)]
        self.free = [axis for place, axis in self.alone.items() if place in own]
        self.lane_axis = self._lane_axis()
        self.lanes = 1 if self.lane_axis is None else choose_lanes(target, computed_dtypes(primitive.update))
        self.expressions = (*primitive.indices, primitive.update)
        self.reports = primitive.checked or is_checked(*self.expressions)

    def _lane_axis(self) -> int | None:
        """The free axis along which the result's elements are neighbours."""
        for index, stride in zip(self.primitive.indices, self.copied.strides, strict=True):
            if stride == 1 and isinstance(index, Index) and self.alone.get(index.value) in self.free:
                return self.alone[index.value]
        return None

    def launch(self, place: Reference) -> tuple[Launch, tuple[Reference, ...]]:
        domain = self.primitive.domain
        outer = [axis for axis in self.free if axis != self.lane_axis]
        if self.lane_axis is not None:
            outer.append(self.lane_axis)
        steps = [axis for axis in range(len(domain)) if axis not in self.free]
        weight = estimate(dims.product(domain[axis] for axis in steps))
        blocks, spans = spread([domain[axis] for axis in outer], self.parameters, weight, self.lanes)
        ends = [Span(0, self.parameters.size(domain[axis])) for axis in steps]

        def points(free: list[Dim], mask: Code | None) -> Body:
            places = dict(zip(outer, free, strict=True))
            return loops(ends, "s", lambda rest: self.point({**places, **dict(zip(steps, rest))}, mask))

        if self.lane_axis is None:
            body = loops(spans, "o", lambda free: points(free, None))
        else:
            body = loops(
                spans[:-1],
                "o",
                lambda free: lane_loop("c", spans[-1], self.lanes, lambda at, mask: points([*free, at], mask)),
            )
        read = sorted({load.operand for expression in self.expressions for load in loads(expression)})
        buffers = [Buffer(f"in{n}", self.operands[n].dtype, False) for n in read]
        buffers.append(Buffer("out", self.copied.dtype, True))
        references = [*(Reference("operand", n) for n in read), place]
        if self.reports:
            buffers.append(Buffer("errors", DType.int32, True))
            references.append(Reference("errors", 0))
            body = report_errors(body)
        kernel = Kernel("scatter", tuple(buffers), tuple(self.parameters.values), self.lanes, body)
        return Launch(kernel, blocks, tuple(self.parameters.values.values())), tuple(references)

    def point(self, places: dict[int, Dim], mask: Code | None) -> Body:
        """One point of the domain, or one a lane."""
        statements: list[Statement] = []
        lowering = Lowering(self.views, places, self.parameters, None, mask, statements)
        inside = mask
        fixed: list[Dim] = []
        indirect: Code | None = None
        wrong: list[Code] = []
        for index, size, stride in zip(self.primitive.indices, self.copied.shape, self.strides, strict=True):
            known = isinstance(index, Index) and _is_inside(index.value, size)
            if known and isinstance(index, Index):
                fixed.append(lowering.index(index.value))
                continue
            fixed.append(0)
            position = lowering.keep(lowering.code(index))
            fits = lowering.keep(_within(position, lowering.index(size)))
            wrong.append(Call("logical_not", (fits,), DType.bool))
            inside = fits if inside is None else Call("logical_and", (inside, fits), DType.bool)
            scaled = position if stride == 1 else Call("multiply", (position, Integer(stride)), DType.int64)
            indirect = scaled if indirect is None else Call("add", (indirect, scaled), DType.int64)
        place = offset(self.strides, fixed)
        value = lowering.code(self.primitive.update)
        dtype = self.copied.dtype
        if value.dtype is not dtype:
            value = Call("cast", (value,), dtype)
        if self.primitive.reduction != "none":
            present = Fetch("out", place, dtype, indirect, inside)
            value = Call(self.primitive.reduction, (present, value), dtype)
        checks = [*lowering.checks, *(self._masked(check, mask) for check in wrong if self.primitive.checked)]
        return (*statements, *gather_errors(checks), Put("out", place, value, indirect, inside))

    @staticmethod
    def _masked(check: Code, mask: Code | None) -> Code:
        return check if mask is None else Call("logical_and", (mask, check), DType.bool)


def _is_inside(index: Dim, size: Dim) -> bool:
    return dims.is_at_least(index, 0) and dims.is_at_least(size - 1, index)


def _within(position: Code, size: Dim) -> Code:
    low = Call("greater_equal", (position, Integer(0)), DType.bool)
    return Call("logical_and", (low, Call("less", (position, Integer(size)), DType.bool)), DType.bool)
