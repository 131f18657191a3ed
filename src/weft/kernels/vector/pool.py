"""Pooling: combine each window of an image into one value.

Lanes run along the innermost axis of the result. Windows that cross an edge are clipped, along the axis of the lanes by
a mask; small windows that are inside are unrolled.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from itertools import product as cartesian

from weft.cost.sizes import estimate
from weft.ir import dims
from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.ir.kernel import LANE, Call, Code, Integer, Number, Statement, When, dims_vary
from weft.ir.layout import offset
from weft.ir.program import Pool
from weft.ir.target import VectorTarget
from weft.kernels.build.accumulators import COMBINE, identity_element, reduction_dtype
from weft.kernels.build.epilogue import EpilogueWriter
from weft.kernels.build.loop_nest import Body, build_lane_loop, build_loops, choose_lanes, split_into_blocks
from weft.kernels.build.multiply_add import accumulator_dtype
from weft.kernels.build.positions import as_position, position_dtype
from weft.kernels.lower.kernel_builder import KernelBuilder, assign, define, fetch, repeat
from weft.kernels.lower.memoize import memoize_launch
from weft.kernels.lower.operations import and_masks, cast, less, logical_and, logical_or
from weft.kernels.lower.tensors import Epilogue, Launch, Reference, StoredTensor, Work
from weft.kernels.vector.line_pool import build_line_pool
from weft.kernels.vector.transposed_output import build_transposed_output

MAX_UNROLLED_WINDOW = 16  # elements
MAX_VECTORS = 4


def build_pool(
    primitive: Pool, operand: StoredTensor, result: StoredTensor, target: VectorTarget, epilogue: Epilogue | None = None
) -> Work:
    """Build a pool whose operands are the pooled tensor, then the epilogue's."""

    def build_along_channels(output: StoredTensor, fused_epilogue: Epilogue | None) -> Work | None:
        launch = build_line_pool(primitive, operand, output, fused_epilogue, target)
        return None if launch is None else Work((launch,))

    work = build_transposed_output(build_along_channels, result, epilogue, 1, target)
    if work is None:
        work = Work((_build_window_pool(primitive, operand, result, epilogue, target),))
    return work


class _PoolBuilder:
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
        self.wide = accumulator_dtype(reduction_dtype(self.kind, operand.dtype))
        self.order = [axis for axis in result.layout.order if result.shape[axis] != 1] or [result.layout.order[-1]]
        lanes = choose_lanes(target, [self.wide], widest=8)
        length = estimate(result.shape[self.order[-1]])
        self.lanes = lanes * MAX_VECTORS
        while self.lanes > lanes and (self.lanes > length or self.order[-1] != 1):
            self.lanes //= 2
        self.strides = tuple(self._stride(stride) for stride in operand.strides)
        self.window = [self._literal_or_size(size) for size in primitive.window]
        self.never_leaves = [self._is_always_inside(number) for number in range(len(self.window))]
        self.positions_dtype = position_dtype(dims.product(operand.shape[2:]))

    def _stride(self, stride: Dim) -> Dim:
        return stride if stride == 1 else self.builder.size(stride)

    def _literal_or_size(self, size: Dim) -> Dim:
        return size if isinstance(size, int) else self.builder.size(size)

    def _is_always_inside(self, number: int) -> bool:
        """Return whether all windows are inside along a spatial axis."""
        pool, size, count = self.primitive, self.operand.shape[2 + number], self.shape[2 + number]
        first = -pool.pads[number][0]
        last = (count - 1) * pool.strides[number] + first + (pool.window[number] - 1) * pool.dilations[number]
        return dims.is_at_least(first, 0) and dims.is_at_least(size - 1, last)

    def build_launch(self) -> Launch:
        sizes = [self.shape[axis] for axis in self.order]
        weight = estimate(dims.product(self.primitive.window))
        blocks, spans = split_into_blocks(sizes, self.builder, weight, self.lanes)
        exact = isinstance(sizes[-1], int) and sizes[-1] % self.lanes == 0

        def row(outer: list[Dim]) -> Body:
            def vector(position: Dim, mask: Code | None) -> Body:
                return self.build_output([*outer, position], mask)

            return build_lane_loop(self.builder, "c", spans[-1], self.lanes, vector, exact=exact)

        return self.builder.launch(self.lanes, build_loops(self.builder, "o", spans[:-1], row), blocks)

    def build_output(self, groups: Sequence[Dim], mask: Code | None) -> Body:
        """Build one vector of results."""
        places: list[Dim] = [0] * len(self.shape)
        for axis, position in zip(self.order, groups, strict=True):
            places[axis] = position
        starts = [
            position * stride - self._literal_or_size(before)
            for position, stride, (before, _) in zip(
                places[2:], self.primitive.strides, self.primitive.pads, strict=True
            )
        ]
        self.best = self.builder.register("best", self.wide)  # of the current vector, and its position
        self.position = self.builder.register("place", self.positions_dtype)
        begin: list[Statement] = [define(self.best, identity_element(self.kind, self.wide))]
        if self.primitive.kind == "argmax":
            begin.append(define(self.position, Number(-1, self.position.dtype)))
            value: Code = Call("cast", (self.position,), DType.int64)
        else:
            value = self.best
        return (
            *begin,
            *self.build_window(places, starts, mask),
            *self.epilogue_writer.write(value, dict(enumerate(places)), mask),
        )

    def build_window(self, places: Sequence[Dim], starts: Sequence[Dim], mask: Code | None) -> Body:
        count = dims.product(self.window)
        if (
            not isinstance(count, int)
            or count > MAX_UNROLLED_WINDOW
            or (mask is not None and not all(self.never_leaves))
        ):
            return self.build_clipped(places, starts, mask)
        inside = self.inside(starts)
        whole = [
            statement
            for steps in cartesian(*(range(size) for size in self.window if isinstance(size, int)))
            for statement in self.accumulate(places, self.positions(starts, steps), mask)
        ]
        if inside is None:
            return tuple(whole)
        return (When(inside, tuple(whole), self.build_clipped(places, starts, mask)),)

    def inside(self, starts: Sequence[Dim]) -> Code | None:
        """Test whether no window of the vector crosses an edge; None if none ever does."""
        tests: list[Code] = []
        for start, size, window, dilation, never_leaves in zip(
            starts, self.operand.shape[2:], self.window, self.primitive.dilations, self.never_leaves, strict=True
        ):
            if never_leaves:
                continue
            first = _at_lane(start, 0)
            last = _at_lane(start, self.lanes - 1) + (window - 1) * dilation
            end = self.builder.size(size)
            if not dims.is_at_least(first, 0):
                tests.append(Call("greater_equal", (Integer(first), Integer(0)), DType.bool))
            tests.append(less(last, end))
        return reduce(logical_and, tests) if tests else None

    def positions(self, starts: Sequence[Dim], steps: Sequence[Dim]) -> list[Dim]:
        return [start + step * dilation for start, step, dilation in zip(starts, steps, self.primitive.dilations)]

    def build_clipped(self, places: Sequence[Dim], starts: Sequence[Dim], mask: Code | None) -> Body:
        """Loop over the part of the window that is inside; along the axis of the lanes by masks, one per step."""
        steps: list[Dim] = [*self.builder.variables("k", len(starts))]
        ranges: dict[int, tuple[Dim, Dim]] = {}
        masked: int | None = None
        for number, (start, size, window, dilation) in enumerate(
            zip(starts, self.operand.shape[2:], self.window, self.primitive.dilations, strict=True)
        ):
            if self.never_leaves[number]:
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
            body = self.accumulate(places, self.positions(starts, steps), mask)
        else:
            before, body = self.build_masked_steps(masked, places, starts, steps, mask)
            if before:
                del ranges[masked]
        for number, (first, stop) in reversed(ranges.items()):
            body = (repeat(steps[number], first, stop, 1, body),)
        return (*before, *body)

    def build_masked_steps(
        self, number: int, places: Sequence[Dim], starts: Sequence[Dim], steps: list[Dim], mask: Code | None
    ) -> tuple[list[Statement], Body]:
        """Return (masks, body) along the axis of the lanes; the masks are separate only if its steps are unrolled."""
        window, dilation = self.window[number], self.primitive.dilations[number]
        end = self.builder.size(self.operand.shape[2 + number])

        def inside(step: Dim) -> Code:
            position = Integer(starts[number] + step * dilation)
            test: Code = Call("greater_equal", (position, Integer(0)), DType.bool)
            test = logical_and(test, Call("less", (position, Integer(end)), DType.bool))
            return and_masks(mask, test)

        if not isinstance(window, int) or window > MAX_UNROLLED_WINDOW or number < len(starts) - 1:
            defined, register = self.builder.keep("inside_window", inside(steps[number]), varying=True)
            return [], (defined, *self.accumulate(places, self.positions(starts, steps), register))
        masks: list[Statement] = []
        body: list[Statement] = []
        for step in range(window):
            defined, register = self.builder.keep("inside", inside(step), varying=True)
            masks.append(defined)
            at = [*steps[:number], step, *steps[number + 1 :]]
            body += self.accumulate(places, self.positions(starts, at), register)
        return masks, tuple(body)

    def accumulate(self, places: Sequence[Dim], positions: Sequence[Dim], mask: Code | None) -> Body:
        """Accumulate one element of each window."""
        indices = [*places[:2], *positions]
        value: Code = fetch(self.source, offset(self.strides, indices), mask=mask)
        value = cast(value, self.wide)
        if self.primitive.kind == "argmax":
            return self.accumulate_position(value, positions, mask)
        if mask is not None:
            value = Call("select", (mask, value, identity_element(self.kind, self.wide)), self.wide)
        return (assign(self.best, Call(COMBINE[self.kind], (self.best, value), self.wide)),)

    def accumulate_position(self, value: Code, positions: Sequence[Dim], mask: Code | None) -> Body:
        """Update the position of the maximum: the first of equal ones wins, and the first element of all."""
        here: Dim = 0
        for size, position in zip(self.operand.shape[2:], positions, strict=True):
            here = here * self.builder.size(size) + position
        defined, new = self.builder.keep("new", value, varying=True)
        first = Call("less", (self.position, Number(0, self.position.dtype)), DType.bool)
        left, right = (
            (Call("cast", (value,), DType.uint8) if self.wide is DType.bool else value) for value in (new, self.best)
        )
        test: Code = logical_or(first, Call("greater", (left, right), DType.bool))
        test = and_masks(mask, test)
        number = as_position(here, self.position.dtype)
        decided, better = self.builder.keep("better", test, varying=True)
        return (
            defined,
            decided,
            assign(self.best, Call("select", (better, new, self.best), self.wide)),
            assign(self.position, Call("select", (better, number, self.position), number.dtype)),
        )


_build_window_pool = memoize_launch(_PoolBuilder)


def _at_lane(value: Dim, number: int) -> Dim:
    """Replace the lane in index arithmetic by a number."""

    def replace(atom: dims.Symbol | dims.Axis) -> Dim:
        if isinstance(atom, dims.Symbol) and atom.name == LANE:
            return number
        assert isinstance(atom, dims.Symbol)
        return dims.from_atom(atom)

    return dims.substitute(value, replace)
