"""Pooling with a thread for each element of the result, or for four neighbouring channels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product as cartesian

from weft.ir import dims
from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.ir.kernel import (
    Assign,
    Buffer,
    Call,
    Code,
    Define,
    FetchRun,
    Integer,
    Kernel,
    Number,
    Register,
    Repeat,
    Statement,
    variable,
)
from weft.ir.layout import offset
from weft.ir.program import Pool
from weft.ir.target import ThreadTarget
from weft.kernels.build.accumulators import COMBINE, neutral, wide_dtype
from weft.kernels.build.epilogue import EpilogueWriter
from weft.kernels.lower.memoize import memoized
from weft.kernels.lower.parameters import Parameters
from weft.kernels.lower.tensors import Epilogue, Launch, Reference, Tensor, Work
from weft.kernels.threads.points import all_of, points

RUN = 4  # channels of a thread, where they are neighbours
WRITTEN_OUT = 16  # elements of a window, at most, that are not a loop
CHANNEL = 1

Body = tuple[Statement, ...]


def pool_work(
    primitive: Pool, operand: Tensor, result: Tensor, target: ThreadTarget, epilogue: Epilogue | None = None
) -> Work:
    """References count the operand, then the epilogue's."""
    others = len(epilogue.operands) if epilogue is not None else 0
    references = (*(Reference("operand", number) for number in range(1 + others)), Reference("result", 0))
    return Work(((_pool_launch(primitive, operand, result, epilogue, target), references),))


@memoized
def _pool_launch(
    primitive: Pool, operand: Tensor, result: Tensor, epilogue: Epilogue | None, target: ThreadTarget
) -> Launch:
    """Buffers: the operand, those of the epilogue, and the result."""
    return _Pooling(primitive, operand, result, epilogue, target).launch()


class _Pooling:
    def __init__(
        self, primitive: Pool, operand: Tensor, result: Tensor, epilogue: Epilogue | None, target: ThreadTarget
    ) -> None:
        self.primitive, self.operand, self.result = primitive, operand, result
        self.lanes = target.block_threads
        self.parameters = Parameters()
        self.epilogue_writer = EpilogueWriter(result, epilogue, self.parameters)
        self.kind = "sum" if primitive.kind == "sum" else "maximum"
        self.type = wide_dtype(self.kind, operand.dtype)
        neighbours = operand.strides[CHANNEL] == 1 and result.strides[CHANNEL] == 1
        self.run = RUN if neighbours and dims.mod(operand.shape[CHANNEL], RUN) == 0 else 1
        named = self.parameters.named
        self.strides = [s if s in (0, 1) else named(f"in_{axis}", s) for axis, s in enumerate(operand.strides)]
        self.sizes = [named(f"size{axis}", size) for axis, size in enumerate(operand.shape[2:])]
        self.window = [self.number(f"window{axis}", size) for axis, size in enumerate(primitive.window)]

    def number(self, name: str, value: Dim) -> Dim:
        return value if isinstance(value, int) else self.parameters.named(name, value)

    def launch(self) -> Launch:
        order = self.result.layout.order
        sizes = [dims.floordiv(s, self.run) if a == CHANNEL else s for a, s in enumerate(self.result.shape)]
        here = points([sizes[axis] for axis in order], self.parameters, self.lanes)
        places = dict(zip(order, here.places))
        places[CHANNEL] = places[CHANNEL] * self.run
        starts = [
            places[2 + axis] * stride - self.number(f"pad{axis}", before)
            for axis, (stride, (before, _)) in enumerate(zip(self.primitive.strides, self.primitive.pads))
        ]
        statements = (*self.begin(), *self.windows(places, starts), *self.end(places, here.mask))
        buffers = (Buffer("in0", self.operand.dtype, False), *self.epilogue_writer.buffers)
        kernel = Kernel("pool", buffers, tuple(self.parameters.values), self.lanes, statements)
        return Launch(kernel, here.blocks, tuple(self.parameters.values.values()))

    def best(self, number: int) -> Register:
        return Register(f"best{number}", self.type, True)

    def place(self, number: int) -> Register:
        return Register(f"place{number}", DType.int32, True)

    def begin(self) -> list[Statement]:
        statements: list[Statement] = []
        for number in range(self.run):
            statements.append(Define(self.best(number).name, neutral(self.kind, self.type), True))
            if self.primitive.kind == "argmax":
                statements.append(Define(self.place(number).name, Number(-1, DType.int32), True))
        return statements

    def end(self, places: Mapping[int, Dim], mask: Code | None) -> Body:
        values: list[Code] = [self.best(number) for number in range(self.run)]
        if self.primitive.kind == "argmax":
            values = [Call("cast", (self.place(number),), DType.int64) for number in range(self.run)]
        return self.epilogue_writer.write_run(values, places, CHANNEL, mask)

    def windows(self, places: Mapping[int, Dim], starts: Sequence[Dim]) -> Body:
        """All elements of the window, those outside of the input masked."""
        count = dims.product(self.window)
        if isinstance(count, int) and count <= WRITTEN_OUT:
            tests: list[Statement] = []
            masks: list[list[Code | None]] = []
            for axis, window in enumerate(self.window):
                assert isinstance(window, int)
                masks.append(
                    [self.inside(axis, starts[axis], step, f"inside{axis}_{step}", tests) for step in range(window)]
                )
            steps = cartesian(*(range(size) for size in self.window if isinstance(size, int)))
            taken = [self.take(places, starts, at, [m[step] for m, step in zip(masks, at)]) for at in steps]
            return (*tests, *(statement for body in taken for statement in body))
        at = [variable(f"k{axis}") for axis in range(len(starts))]
        inner: list[Statement] = []
        found = [self.inside(axis, start, at[axis], f"inside{axis}", inner) for axis, start in enumerate(starts)]
        body: Body = (*inner, *self.take(places, starts, at, found))
        for axis in reversed(range(len(starts))):
            body = (Repeat(f"k{axis}", 0, self.window[axis], 1, body),)
        return body

    def inside(self, axis: int, start: Dim, step: Dim, name: str, statements: list[Statement]) -> Code | None:
        """Whether a step of the window lies in the input, in a register; None where that is certain."""
        pool, size = self.primitive, self.operand.shape[2 + axis]
        first, extent = -pool.pads[axis][0], self.result.shape[2 + axis]
        reach = (step, step) if isinstance(step, int) else (0, pool.window[axis] - 1)
        low, high = (first + end * pool.dilations[axis] for end in reach)
        tests: list[Code] = []
        position = Integer(start + step * pool.dilations[axis])
        if not dims.is_at_least(low, 0):
            tests.append(Call("greater_equal", (position, Integer(0)), DType.bool))
        if not dims.is_at_least(size - 1, high + (extent - 1) * pool.strides[axis]):
            tests.append(Call("less", (position, Integer(self.sizes[axis])), DType.bool))
        test = all_of(tests)
        if test is None:
            return None
        statements.append(Define(name, test, True))
        return Register(name, DType.bool, True)

    def take(
        self, places: Mapping[int, Dim], starts: Sequence[Dim], steps: Sequence[Dim], masks: Sequence[Code | None]
    ) -> list[Statement]:
        """One element of the window, of each channel."""
        positions = [start + step * by for start, step, by in zip(starts, steps, self.primitive.dilations)]
        at = offset(self.strides, [places[0], places[CHANNEL], *positions])
        known = [mask for mask in masks if mask is not None]
        mask = all_of(known)
        suffix = "_".join(str(step) for step in steps)
        names = tuple(f"x{number}_{suffix}" for number in range(self.run))
        statements: list[Statement] = []
        if mask is not None and len(known) > 1:
            statements.append(Define(f"inside_{suffix}", mask, True))
            mask = Register(f"inside_{suffix}", DType.bool, True)
        statements.append(FetchRun(names, "in0", at, self.operand.dtype, mask))
        for number, name in enumerate(names):
            value: Code = Register(name, self.operand.dtype, True)
            if value.dtype is not self.type:
                value = Call("cast", (value,), self.type)
            if self.primitive.kind == "argmax":
                statements += self.take_place(number, value, positions, mask, suffix)
                continue
            if mask is not None and self.kind != "sum":
                value = Call("select", (mask, value, neutral(self.kind, self.type)), self.type)
            best = self.best(number)
            statements.append(Assign(best.name, Call(COMBINE[self.kind], (best, value), self.type)))
        return statements

    def take_place(
        self, number: int, value: Code, positions: Sequence[Dim], mask: Code | None, suffix: str
    ) -> list[Statement]:
        """The first of the greatest wins, and whatever comes first of all."""
        here: Dim = 0
        for size, position in zip(self.sizes, positions, strict=True):
            here = here * size + position
        best, place = self.best(number), self.place(number)
        better = Register(f"better{number}_{suffix}", DType.bool, True)
        first = Call("less", (place, Number(0, DType.int32)), DType.bool)
        pair = [Call("cast", (each,), DType.uint8) if self.type is DType.bool else each for each in (value, best)]
        test: Code = Call("logical_or", (first, Call("greater", tuple(pair), DType.bool)), DType.bool)
        if mask is not None:
            test = Call("logical_and", (mask, test), DType.bool)
        found = Call("cast", (Integer(here),), DType.int32)
        return [
            Define(better.name, test, True),
            Assign(best.name, Call("select", (better, value, best), self.type)),
            Assign(place.name, Call("select", (better, found, place), DType.int32)),
        ]
