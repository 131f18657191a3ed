"""Pooling with a thread per element of the result, or per four neighbouring channels.

On GPUs, positions outside of the input are clamped, and their elements ignored, so that no load waits for a test or for
another load.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product as cartesian

from weft.cost.occupancy import enough_threads
from weft.ir import dims
from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.ir.kernel import Call, Code, Integer, Number, Statement
from weft.ir.layout import offset
from weft.ir.program import Pool
from weft.ir.target import ThreadTarget
from weft.kernels.build.accumulators import COMBINE, identity_element, reduction_dtype
from weft.kernels.build.epilogue import EpilogueWriter
from weft.kernels.lower.kernel_builder import KernelBuilder, assign, define, fetch_run, repeat
from weft.kernels.lower.memoize import memoize_launch
from weft.kernels.lower.tensors import Epilogue, Launch, Reference, StoredTensor, Work
from weft.kernels.threads.points import (
    FEW_LANES,
    MANY_THREADS,
    all_of,
    check_bounds,
    clamp_to_bounds,
    minimum_size,
    points,
    write_inside,
)

RUN = 4  # neighbouring channels of a thread
MAX_UNROLLED = 16  # elements of a window that is not a loop
CHANNEL = 1

Body = tuple[Statement, ...]


def build_pool(
    primitive: Pool, operand: StoredTensor, result: StoredTensor, target: ThreadTarget, epilogue: Epilogue | None = None
) -> Work:
    """References are the operand, then those of the epilogue."""
    return Work((_build_pool_launch(primitive, operand, result, epilogue, target),))


class _PoolKernel:
    """Operands are the pool's and those of the epilogue."""

    def __init__(
        self,
        primitive: Pool,
        operand: StoredTensor,
        result: StoredTensor,
        epilogue: Epilogue | None,
        target: ThreadTarget,
    ) -> None:
        self.primitive, self.operand, self.result = primitive, operand, result
        self.shares = target.sharing_pays
        self.clamps = self.shares and all(dims.is_at_least(size, 1) for size in operand.shape[2:])
        self.builder = KernelBuilder("pool")
        self.source = self.builder.input("in0", operand.dtype, Reference("operand", 0))
        self.epilogue_writer = EpilogueWriter(result, epilogue, self.builder, 1)
        self.kind = "sum" if primitive.kind == "sum" else "maximum"
        self.type = reduction_dtype(self.kind, operand.dtype)
        neighbours = operand.strides[CHANNEL] == 1 and result.strides[CHANNEL] == 1
        self.run = RUN if neighbours and dims.mod(operand.shape[CHANNEL], RUN) == 0 else 1
        parameter = self.builder.parameter
        self.strides = [s if s in (0, 1) else parameter(f"in_{axis}", s) for axis, s in enumerate(operand.strides)]
        self.sizes = [parameter(f"size{axis}", size) for axis, size in enumerate(operand.shape[2:])]
        self.lanes = self.choose_lanes(target)
        self.window = [self.number(f"window{axis}", size) for axis, size in enumerate(primitive.window)]
        self.best = self.builder.registers("best", self.run, self.type)
        self.place = self.builder.registers("place", self.run, DType.int32)

    def number(self, name: str, value: Dim) -> Dim:
        return value if isinstance(value, int) else self.builder.parameter(name, value)

    def choose_lanes(self, target: ThreadTarget) -> int:
        """Choose the lanes of a block: few where there would be fewer blocks than units."""
        threads = minimum_size(dims.product(self.result.shape)) // self.run
        has_few = self.shares and threads < 2 * enough_threads(target.rates, MANY_THREADS)
        return min(FEW_LANES, target.block_threads) if has_few else target.block_threads

    def build_launch(self) -> Launch:
        order = self.result.layout.order
        sizes = [dims.floordiv(s, self.run) if a == CHANNEL else s for a, s in enumerate(self.result.shape)]
        here = points([sizes[axis] for axis in order], self.builder, self.lanes)
        places = dict(zip(order, here.places))
        places[CHANNEL] = places[CHANNEL] * self.run
        starts = [
            places[2 + axis] * stride - self.number(f"pad{axis}", before)
            for axis, (stride, (before, _)) in enumerate(zip(self.primitive.strides, self.primitive.pads))
        ]
        statements = (*self.begin(), *self.windows(places, starts), *self.end(places, here.mask))
        return self.builder.launch(self.lanes, statements, here.blocks)

    def begin(self) -> list[Statement]:
        statements: list[Statement] = []
        for best, place in zip(self.best, self.place):
            statements.append(define(best, identity_element(self.kind, self.type)))
            if self.primitive.kind == "argmax":
                statements.append(define(place, Number(-1, DType.int32)))
        return statements

    def end(self, places: Mapping[int, Dim], mask: Code | None) -> Body:
        values: list[Code] = [*self.best]
        if self.primitive.kind == "argmax":
            values = [Call("cast", (place,), DType.int64) for place in self.place]
        if self.shares:
            return write_inside(self.epilogue_writer, values, places, CHANNEL, mask)
        return self.epilogue_writer.write_run(values, places, CHANNEL, mask)

    def windows(self, places: Mapping[int, Dim], starts: Sequence[Dim]) -> Body:
        """Process all elements of the window, with those outside the input masked."""
        count = dims.product(self.window)
        if isinstance(count, int) and count <= MAX_UNROLLED:
            tests: list[Statement] = []
            masks: list[list[Code | None]] = []
            for axis, window in enumerate(self.window):
                assert isinstance(window, int)
                masks.append([self.inside(axis, starts[axis], step, tests) for step in range(window)])
            steps = cartesian(*(range(size) for size in self.window if isinstance(size, int)))
            bodies = [self.process(places, starts, at, [m[step] for m, step in zip(masks, at)]) for at in steps]
            return (*tests, *(statement for body in bodies for statement in body))
        at = self.builder.variables("k", len(starts))
        inner: list[Statement] = []
        window_masks = [self.inside(axis, start, at[axis], inner) for axis, start in enumerate(starts)]
        body: Body = (*inner, *self.process(places, starts, at, window_masks))
        for step, size in reversed(list(zip(at, self.window))):
            body = (repeat(step, 0, size, 1, body),)
        return body

    def inside(self, axis: int, start: Dim, step: Dim, statements: list[Statement]) -> Code | None:
        """Test whether a step of the window is inside the input; None where it always is."""
        position = start + step * self.primitive.dilations[axis]
        return check_bounds(self.builder, "inside", position, self.sizes[axis], self.may_leave(axis, step), statements)

    def may_leave(self, axis: int, step: Dim) -> tuple[bool, bool]:
        """Whether a step of the window may be before the first position of the input, and after the last."""
        pool, size = self.primitive, self.operand.shape[2 + axis]
        first, extent = -pool.pads[axis][0], self.result.shape[2 + axis]
        step_range = (step, step) if isinstance(step, int) else (0, pool.window[axis] - 1)
        low, high = (first + end * pool.dilations[axis] for end in step_range)
        end = high + (extent - 1) * pool.strides[axis]
        return not dims.is_at_least(low, 0), not dims.is_at_least(size - 1, end)

    def clamp(self, axis: int, position: Dim, step: Dim) -> Dim:
        """Return the position to read at: the nearest one inside if this kernel clamps positions."""
        return clamp_to_bounds(position, self.sizes[axis], self.may_leave(axis, step)) if self.clamps else position

    def process(
        self, places: Mapping[int, Dim], starts: Sequence[Dim], steps: Sequence[Dim], masks: Sequence[Code | None]
    ) -> list[Statement]:
        """Process one element of the window, for each channel."""
        positions = [start + step * by for start, step, by in zip(starts, steps, self.primitive.dilations)]
        read = [self.clamp(axis, at, step) for axis, (at, step) in enumerate(zip(positions, steps))]
        at = offset(self.strides, [places[0], places[CHANNEL], *read])
        mask = all_of(masks)
        statements: list[Statement] = []
        if mask is not None and len(masks) - masks.count(None) > 1:
            definition, mask = self.builder.keep("inside", mask, varying=True)
            statements.append(definition)
        elements = self.builder.registers("x", self.run, self.operand.dtype)
        statements.append(fetch_run(elements, self.source, at, None if self.clamps else mask))
        for number, element in enumerate(elements):
            value: Code = element
            if value.dtype is not self.type:
                value = Call("cast", (value,), self.type)
            if self.primitive.kind == "argmax":
                statements += self.update_argmax(number, value, positions, mask)
                continue
            if mask is not None and (self.kind != "sum" or self.clamps):
                value = Call("select", (mask, value, identity_element(self.kind, self.type)), self.type)
            best = self.best[number]
            statements.append(assign(best, Call(COMBINE[self.kind], (best, value), self.type)))
        return statements

    def update_argmax(self, number: int, value: Code, positions: Sequence[Dim], mask: Code | None) -> list[Statement]:
        """Keep the position of the first greatest element; the first element always counts."""
        here: Dim = 0
        for size, position in zip(self.sizes, positions, strict=True):
            here = here * size + position
        best, place = self.best[number], self.place[number]
        is_first = Call("less", (place, Number(0, DType.int32)), DType.bool)
        pair = [Call("cast", (code,), DType.uint8) if self.type is DType.bool else code for code in (value, best)]
        test: Code = Call("logical_or", (is_first, Call("greater", tuple(pair), DType.bool)), DType.bool)
        if mask is not None:
            test = Call("logical_and", (mask, test), DType.bool)
        flat_position = Call("cast", (Integer(here),), DType.int32)
        definition, better = self.builder.keep("better", test, varying=True)
        return [
            definition,
            assign(best, Call("select", (better, value, best), self.type)),
            assign(place, Call("select", (better, flat_position, place), DType.int32)),
        ]


_build_pool_launch = memoize_launch(_PoolKernel)
