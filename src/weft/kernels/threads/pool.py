"""Pooling with a thread for each element of the result, or for four neighbouring channels.

Where lanes share memory, what lies outside of the input is read from inside and left out, so that no read waits for a
test or another read.
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
from weft.kernels.build.accumulators import COMBINE, neutral, wide_dtype
from weft.kernels.build.epilogue import EpilogueWriter
from weft.kernels.lower.kernel_builder import KernelBuilder, assign, define, fetch_run, repeat
from weft.kernels.lower.memoize import memoized
from weft.kernels.lower.tensors import Epilogue, Launch, Reference, StoredTensor, Work
from weft.kernels.threads.points import FEW_LANES, MANY_THREADS, all_of, at_least, points, write_inside

RUN = 4  # channels of a thread, where they are neighbours
WRITTEN_OUT = 16  # elements of a window, at most, that are not a loop
CHANNEL = 1

Body = tuple[Statement, ...]


def pool_work(
    primitive: Pool, operand: StoredTensor, result: StoredTensor, target: ThreadTarget, epilogue: Epilogue | None = None
) -> Work:
    """References count the operand, then the epilogue's."""
    return Work((_pool_launch(primitive, operand, result, epilogue, target),))


@memoized
def _pool_launch(
    primitive: Pool, operand: StoredTensor, result: StoredTensor, epilogue: Epilogue | None, target: ThreadTarget
) -> Launch:
    """Operands are the pool's and the epilogue's."""
    return _Pooling(primitive, operand, result, epilogue, target).launch()


class _Pooling:
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
        self.type = wide_dtype(self.kind, operand.dtype)
        neighbours = operand.strides[CHANNEL] == 1 and result.strides[CHANNEL] == 1
        self.run = RUN if neighbours and dims.mod(operand.shape[CHANNEL], RUN) == 0 else 1
        named = self.builder.named
        self.strides = [s if s in (0, 1) else named(f"in_{axis}", s) for axis, s in enumerate(operand.strides)]
        self.sizes = [named(f"size{axis}", size) for axis, size in enumerate(operand.shape[2:])]
        self.lanes = self.choose_lanes(target)
        self.window = [self.number(f"window{axis}", size) for axis, size in enumerate(primitive.window)]
        self.best = self.builder.registers("best", self.run, self.type)
        self.place = self.builder.registers("place", self.run, DType.int32)

    def number(self, name: str, value: Dim) -> Dim:
        return value if isinstance(value, int) else self.builder.named(name, value)

    def choose_lanes(self, target: ThreadTarget) -> int:
        """Of a block: few where blocks would be fewer than units."""
        threads = at_least(dims.product(self.result.shape)) // self.run
        few = self.shares and threads < 2 * enough_threads(target.rates, MANY_THREADS)
        return min(FEW_LANES, target.block_threads) if few else target.block_threads

    def launch(self) -> Launch:
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
            statements.append(define(best, neutral(self.kind, self.type)))
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
        """All elements of the window, those outside of the input masked."""
        count = dims.product(self.window)
        if isinstance(count, int) and count <= WRITTEN_OUT:
            tests: list[Statement] = []
            masks: list[list[Code | None]] = []
            for axis, window in enumerate(self.window):
                assert isinstance(window, int)
                masks.append([self.inside(axis, starts[axis], step, tests) for step in range(window)])
            steps = cartesian(*(range(size) for size in self.window if isinstance(size, int)))
            taken = [self.take(places, starts, at, [m[step] for m, step in zip(masks, at)]) for at in steps]
            return (*tests, *(statement for body in taken for statement in body))
        at = self.builder.variables("k", len(starts))
        inner: list[Statement] = []
        found = [self.inside(axis, start, at[axis], inner) for axis, start in enumerate(starts)]
        body: Body = (*inner, *self.take(places, starts, at, found))
        for step, size in reversed(list(zip(at, self.window))):
            body = (repeat(step, 0, size, 1, body),)
        return body

    def inside(self, axis: int, start: Dim, step: Dim, statements: list[Statement]) -> Code | None:
        """Whether a step of the window lies in the input, in a register; None where that is certain."""
        before, behind = self.may_leave(axis, step)
        tests: list[Code] = []
        position = Integer(start + step * self.primitive.dilations[axis])
        if before:
            tests.append(Call("greater_equal", (position, Integer(0)), DType.bool))
        if behind:
            tests.append(Call("less", (position, Integer(self.sizes[axis])), DType.bool))
        test = all_of(tests)
        if test is None:
            return None
        defined, inside = self.builder.keep("inside", test, varying=True)
        statements.append(defined)
        return inside

    def may_leave(self, axis: int, step: Dim) -> tuple[bool, bool]:
        """Whether a step of the window may be before the input's first position, and behind its last."""
        pool, size = self.primitive, self.operand.shape[2 + axis]
        first, extent = -pool.pads[axis][0], self.result.shape[2 + axis]
        reach = (step, step) if isinstance(step, int) else (0, pool.window[axis] - 1)
        low, high = (first + end * pool.dilations[axis] for end in reach)
        end = high + (extent - 1) * pool.strides[axis]
        return not dims.is_at_least(low, 0), not dims.is_at_least(size - 1, end)

    def readable(self, axis: int, position: Dim, step: Dim) -> Dim:
        """A position, or where reads do not wait for tests, the nearest one inside."""
        before, behind = self.may_leave(axis, step) if self.clamps else (False, False)
        position = dims.maximum(position, 0) if before else position
        return dims.minimum(position, self.sizes[axis] - 1) if behind else position

    def take(
        self, places: Mapping[int, Dim], starts: Sequence[Dim], steps: Sequence[Dim], masks: Sequence[Code | None]
    ) -> list[Statement]:
        """One element of the window, of each channel."""
        positions = [start + step * by for start, step, by in zip(starts, steps, self.primitive.dilations)]
        read = [self.readable(axis, at, step) for axis, (at, step) in enumerate(zip(positions, steps))]
        at = offset(self.strides, [places[0], places[CHANNEL], *read])
        known = [mask for mask in masks if mask is not None]
        mask = all_of(known)
        statements: list[Statement] = []
        if mask is not None and len(known) > 1:
            defined, mask = self.builder.keep("inside", mask, varying=True)
            statements.append(defined)
        elements = self.builder.registers("x", self.run, self.operand.dtype)
        statements.append(fetch_run(elements, self.source, at, None if self.clamps else mask))
        for number, element in enumerate(elements):
            value: Code = element
            if value.dtype is not self.type:
                value = Call("cast", (value,), self.type)
            if self.primitive.kind == "argmax":
                statements += self.take_place(number, value, positions, mask)
                continue
            if mask is not None and (self.kind != "sum" or self.clamps):
                value = Call("select", (mask, value, neutral(self.kind, self.type)), self.type)
            best = self.best[number]
            statements.append(assign(best, Call(COMBINE[self.kind], (best, value), self.type)))
        return statements

    def take_place(self, number: int, value: Code, positions: Sequence[Dim], mask: Code | None) -> list[Statement]:
        """The first of the greatest wins, and whatever comes first of all."""
        here: Dim = 0
        for size, position in zip(self.sizes, positions, strict=True):
            here = here * size + position
        best, place = self.best[number], self.place[number]
        first = Call("less", (place, Number(0, DType.int32)), DType.bool)
        pair = [Call("cast", (each,), DType.uint8) if self.type is DType.bool else each for each in (value, best)]
        test: Code = Call("logical_or", (first, Call("greater", tuple(pair), DType.bool)), DType.bool)
        if mask is not None:
            test = Call("logical_and", (mask, test), DType.bool)
        found = Call("cast", (Integer(here),), DType.int32)
        defined, better = self.builder.keep("better", test, varying=True)
        return [
            defined,
            assign(best, Call("select", (better, value, best), self.type)),
            assign(place, Call("select", (better, found, place), DType.int32)),
        ]
