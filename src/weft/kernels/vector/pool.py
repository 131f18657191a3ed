"""Pooling: each window of an image combined into one number.

Lanes go along the axis that is innermost in the result. Windows that reach over the edge are clipped, along the axis
of the lanes by a mask; for those inside, and small enough, every element has a line of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product as cartesian

from weft.cost.sizes import estimate
from weft.ir import dims
from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.ir.kernel import LANE, Call, Code, Integer, Number, Statement, When, dims_vary
from weft.ir.layout import offset
from weft.ir.program import Pool
from weft.ir.target import VectorTarget
from weft.kernels.build.accumulators import COMBINE, neutral, wide_dtype
from weft.kernels.build.epilogue import EpilogueWriter
from weft.kernels.build.loop_nest import Body, choose_lanes, lane_loop, loops, spread
from weft.kernels.build.multiply_add import accumulator_type
from weft.kernels.build.positions import as_position, position_dtype
from weft.kernels.lower.kernel_builder import KernelBuilder, assign, define, fetch, repeat
from weft.kernels.lower.tensors import Epilogue, Launch, Reference, StoredTensor, Work
from weft.kernels.vector.pool_lines import pooled_lines
from weft.kernels.vector.turned_results import turned_work

SMALL_WINDOW = 16  # elements
MOST_VECTORS = 4


def pool_work(
    primitive: Pool, operand: StoredTensor, result: StoredTensor, target: VectorTarget, epilogue: Epilogue | None = None
) -> Work:
    """References count the operand, then the epilogue's."""

    def along_channels(made: StoredTensor, ending: Epilogue | None) -> Work | None:
        found = pooled_lines(primitive, operand, made, ending, target)
        return None if found is None else Work((found,))

    work = turned_work(along_channels, result, epilogue, 1, target)
    if work is None:
        work = Work((_Pooling(primitive, operand, result, epilogue, target).launch(),))
    return work


class _Pooling:
    def __init__(
        self,
        primitive: Pool,
        operand: StoredTensor,
        result: StoredTensor,
        epilogue: Epilogue | None,
        target: VectorTarget,
    ) -> None:
        self.primitive = primitive
        self.operand = operand
        self.shape = result.shape
        self.builder = KernelBuilder("pool")
        self.source = self.builder.input("in0", operand.dtype, Reference("operand", 0))
        self.epilogue_writer = EpilogueWriter(result, epilogue, self.builder, 1)
        self.kind = "sum" if primitive.kind == "sum" else "maximum"
        self.wide = accumulator_type(wide_dtype(self.kind, operand.dtype))
        self.order = [axis for axis in result.layout.order if result.shape[axis] != 1] or [result.layout.order[-1]]
        lanes = choose_lanes(target, [self.wide], widest=8)
        length = estimate(result.shape[self.order[-1]])
        self.lanes = lanes * MOST_VECTORS
        while self.lanes > lanes and (self.lanes > length or self.order[-1] != 1):
            self.lanes //= 2
        self.strides = tuple(self._stride(stride) for stride in operand.strides)
        self.window = [self._number(size) for size in primitive.window]
        self.free = [self._never_leaves(number) for number in range(len(self.window))]
        self.positions_dtype = position_dtype(dims.product(operand.shape[2:]))

    def _stride(self, stride: Dim) -> Dim:
        return stride if stride == 1 else self.builder.size(stride)

    def _number(self, size: Dim) -> Dim:
        return size if isinstance(size, int) else self.builder.size(size)

    def _never_leaves(self, number: int) -> bool:
        """Whether all windows lie inside along a spatial axis."""
        pool, size, count = self.primitive, self.operand.shape[2 + number], self.shape[2 + number]
        first = -pool.pads[number][0]
        last = (count - 1) * pool.strides[number] + first + (pool.window[number] - 1) * pool.dilations[number]
        return dims.is_at_least(first, 0) and dims.is_at_least(size - 1, last)

    def launch(self) -> Launch:
        sizes = [self.shape[axis] for axis in self.order]
        weight = estimate(dims.product(self.primitive.window))
        blocks, spans = spread(sizes, self.builder, weight, self.lanes)
        exact = isinstance(sizes[-1], int) and sizes[-1] % self.lanes == 0

        def row(outer: list[Dim]) -> Body:
            def vector(place: Dim, mask: Code | None) -> Body:
                return self.output([*outer, place], mask)

            return lane_loop(self.builder, "c", spans[-1], self.lanes, vector, exact=exact)

        return self.builder.launch(self.lanes, loops(self.builder, "o", spans[:-1], row), blocks)

    def output(self, groups: Sequence[Dim], mask: Code | None) -> Body:
        """One vector of results."""
        places: list[Dim] = [0] * len(self.shape)
        for axis, position in zip(self.order, groups, strict=True):
            places[axis] = position
        starts = [
            place * stride - self._number(before)
            for place, stride, (before, _) in zip(places[2:], self.primitive.strides, self.primitive.pads, strict=True)
        ]
        self.best = self.builder.register("best", self.wide)  # of the present vector, and where it is
        self.place = self.builder.register("place", self.positions_dtype)
        begin: list[Statement] = [define(self.best, neutral(self.kind, self.wide))]
        if self.primitive.kind == "argmax":
            begin.append(define(self.place, Number(-1, self.place.dtype)))
            value: Code = Call("cast", (self.place,), DType.int64)
        else:
            value = self.best
        return (
            *begin,
            *self.windows(places, starts, mask),
            *self.epilogue_writer.write(value, dict(enumerate(places)), mask),
        )

    def windows(self, places: Sequence[Dim], starts: Sequence[Dim], mask: Code | None) -> Body:
        count = dims.product(self.window)
        if not isinstance(count, int) or count > SMALL_WINDOW or (mask is not None and not all(self.free)):
            return self.clipped(places, starts, mask)
        inside = self.inside(starts)
        whole = [
            statement
            for steps in cartesian(*(range(size) for size in self.window if isinstance(size, int)))
            for statement in self.take(places, self.positions(starts, steps), mask)
        ]
        if inside is None:
            return tuple(whole)
        return (When(inside, tuple(whole), self.clipped(places, starts, mask)),)

    def inside(self, starts: Sequence[Dim]) -> Code | None:
        """Whether no window of the vector reaches over an edge; None where that is certain."""
        tests: list[Code] = []
        for start, size, window, dilation, free in zip(
            starts, self.operand.shape[2:], self.window, self.primitive.dilations, self.free, strict=True
        ):
            if free:
                continue
            first = _at_lane(start, 0)
            last = _at_lane(start, self.lanes - 1) + (window - 1) * dilation
            end = self.builder.size(size)
            if not dims.is_at_least(first, 0):
                tests.append(Call("greater_equal", (Integer(first), Integer(0)), DType.bool))
            tests.append(Call("less", (Integer(last), Integer(end)), DType.bool))
        if not tests:
            return None
        result = tests[0]
        for test in tests[1:]:
            result = Call("logical_and", (result, test), DType.bool)
        return result

    def positions(self, starts: Sequence[Dim], steps: Sequence[Dim]) -> list[Dim]:
        return [start + step * dilation for start, step, dilation in zip(starts, steps, self.primitive.dilations)]

    def clipped(self, places: Sequence[Dim], starts: Sequence[Dim], mask: Code | None) -> Body:
        """Loops over what of the window is inside; along the lanes' axis masks tell, one for each of its steps."""
        steps: list[Dim] = [*self.builder.variables("k", len(starts))]
        ranges: dict[int, tuple[Dim, Dim]] = {}
        masked: int | None = None
        for number, (start, size, window, dilation) in enumerate(
            zip(starts, self.operand.shape[2:], self.window, self.primitive.dilations, strict=True)
        ):
            if self.free[number]:
                ranges[number] = (0, window)
            elif dims_vary(start):
                masked = number
                ranges[number] = (0, window)
            else:
                end = self.builder.size(size)
                first = dims.maximum(-dims.floordiv(start, dilation), 0)
                ranges[number] = (first, dims.minimum(window, -dims.floordiv(start - end, dilation)))
        before: list[Statement] = []
        if masked is None:
            body = self.take(places, self.positions(starts, steps), mask)
        else:
            before, body = self.masked_steps(masked, places, starts, steps, mask)
            if before:
                del ranges[masked]
        for number, (first, stop) in reversed(ranges.items()):
            body = (repeat(steps[number], first, stop, 1, body),)
        return (*before, *body)

    def masked_steps(
        self, number: int, places: Sequence[Dim], starts: Sequence[Dim], steps: list[Dim], mask: Code | None
    ) -> tuple[list[Statement], Body]:
        """(masks, elements) along the axis of the lanes; there are masks only where its steps are unrolled."""
        window, dilation = self.window[number], self.primitive.dilations[number]
        end = self.builder.size(self.operand.shape[2 + number])

        def inside(step: Dim) -> Code:
            position = Integer(starts[number] + step * dilation)
            test = Call("greater_equal", (position, Integer(0)), DType.bool)
            test = Call("logical_and", (test, Call("less", (position, Integer(end)), DType.bool)), DType.bool)
            return test if mask is None else Call("logical_and", (mask, test), DType.bool)

        if not isinstance(window, int) or window > SMALL_WINDOW or number < len(starts) - 1:
            defined, register = self.builder.keep("inside_window", inside(steps[number]), varying=True)
            return [], (defined, *self.take(places, self.positions(starts, steps), register))
        masks: list[Statement] = []
        body: list[Statement] = []
        for step in range(window):
            defined, register = self.builder.keep("inside", inside(step), varying=True)
            masks.append(defined)
            at = [*steps[:number], step, *steps[number + 1 :]]
            body += self.take(places, self.positions(starts, at), register)
        return masks, tuple(body)

    def take(self, places: Sequence[Dim], positions: Sequence[Dim], mask: Code | None) -> Body:
        """One element of each window."""
        indices = [*places[:2], *positions]
        value: Code = fetch(self.source, offset(self.strides, indices), mask=mask)
        if value.dtype is not self.wide:
            value = Call("cast", (value,), self.wide)
        if self.primitive.kind == "argmax":
            return self.take_place(value, positions, mask)
        if mask is not None:
            value = Call("select", (mask, value, neutral(self.kind, self.wide)), self.wide)
        return (assign(self.best, Call(COMBINE[self.kind], (self.best, value), self.wide)),)

    def take_place(self, value: Code, positions: Sequence[Dim], mask: Code | None) -> Body:
        """The first of the greatest wins, and whatever comes first of all."""
        here: Dim = 0
        for size, position in zip(self.operand.shape[2:], positions, strict=True):
            here = here * self.builder.size(size) + position
        defined, new = self.builder.keep("new", value, varying=True)
        first = Call("less", (self.place, Number(0, self.place.dtype)), DType.bool)
        left, right = (
            (Call("cast", (each,), DType.uint8) if self.wide is DType.bool else each) for each in (new, self.best)
        )
        test: Code = Call("logical_or", (first, Call("greater", (left, right), DType.bool)), DType.bool)
        if mask is not None:
            test = Call("logical_and", (mask, test), DType.bool)
        number = as_position(here, self.place.dtype)
        decided, better = self.builder.keep("better", test, varying=True)
        return (
            defined,
            decided,
            assign(self.best, Call("select", (better, new, self.best), self.wide)),
            assign(self.place, Call("select", (better, number, self.place), number.dtype)),
        )


def _at_lane(value: Dim, number: int) -> Dim:
    """Index arithmetic for one lane."""

    def replace(atom: dims.Symbol | dims.Axis) -> Dim:
        if isinstance(atom, dims.Symbol) and atom.name == LANE:
            return number
        assert isinstance(atom, dims.Symbol)
        return dims.symbol(atom.name, atom.low, atom.high)

    return dims.substitute(value, replace)
