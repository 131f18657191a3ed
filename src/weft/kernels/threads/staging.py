"""Operands on their way into shared memory: pieces of a product's operand, turned so that places across are neighbours.

A piece [across, depth] lies in several buffers, sum k in buffer k % count: every lane writes each of them once, at a
place of its own. Where neighbours in memory go along the sums, a lane turns squares of four by four.
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.ir import dims
from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.ir.kernel import Buffer, Code, Define, Fetch, FetchRun, PutRun, Register, Statement, lane
from weft.kernels.build.multiply_add import widened
from weft.kernels.threads.depth import Depth
from weft.kernels.threads.product_operands import RUN, ProductOperand, all_of
from weft.kernels.threads.tile_axis import TileAxis


class Stage:
    """The piece that a block takes of an operand, whose places across are rows or columns `along`."""

    def __init__(
        self, side: ProductOperand, along: TileAxis, depth: Depth, lanes: int, dtype: DType, grid: Sequence[Dim]
    ) -> None:
        self.side, self.along, self.depth, self.type, self.grid = side, along, depth, dtype, grid
        runs = along.extent // RUN
        if side.runs_deep:
            self.count = RUN * max(1, runs * depth.depth // RUN // lanes)
        else:
            self.count = max(1, runs * depth.depth // lanes)
        self.lines = depth.depth // self.count
        turned = side.runs_deep or (side.is_deep and not side.runs_across)
        self.pitch = along.extent + (RUN if turned else 0)
        here = lane(lanes)
        if turned:
            self.line, self.first = dims.mod(here, self.lines), dims.mod(dims.floordiv(here, self.lines), runs) * RUN
        else:
            self.line, self.first = dims.mod(dims.floordiv(here, runs), self.lines), dims.mod(here, runs) * RUN

    def buffers(self) -> list[Buffer]:
        return [Buffer(f"{self.side.name}{n}", self.type, True, self.lines * self.pitch) for n in range(self.count)]

    def fetch(self, name: str) -> list[Statement]:
        """Registers with what this lane brings of the piece called `name`."""
        statements = self.side.begin(name, self.grid, self.depth.outer(name))
        if self.side.runs_deep:
            return statements + self._fetch_deep(name)
        for number in range(self.count):
            within = self.line * self.count + number
            names = [self._register(name, number, part) for part in range(RUN)]
            if self.side.runs_across:
                place, mask = self._element(name, within, self.along.places(self.first, RUN))
                statements.append(FetchRun(tuple(names), self.side.name, place, self.side.dtype, mask))
                continue
            for part in range(RUN):
                place, mask = self._element(name, within, self.along.places(self.first + part))
                element = Fetch(self.side.name, place, self.side.dtype, mask=mask)
                statements.append(Define(names[part], element, True))
        return statements

    def _fetch_deep(self, name: str) -> list[Statement]:
        statements: list[Statement] = []
        for square in range(self.count // RUN):
            within = self.line * self.count + square * RUN
            for part in range(RUN):
                names = tuple(self._register(name, square * RUN + number, part) for number in range(RUN))
                place, mask = self._element(name, within, self.along.places(self.first + part))
                statements.append(FetchRun(names, self.side.name, place, self.side.dtype, mask))
        return statements

    def _element(self, name: str, within: Dim, across: Sequence[Dim]) -> tuple[Dim, Code | None]:
        """Where an element lies, and the condition under which there is one."""
        inner = self.depth.inner(name, within)
        tests = [*self.depth.test(name, within), *self.side.tests(name, across, inner)]
        return self.side.offset(name, self.grid, across, inner), all_of(tests)

    def put(self, name: str) -> list[Statement]:
        """What was fetched, into shared memory."""
        statements: list[Statement] = []
        for number in range(self.count):
            values = tuple(
                widened(Register(self._register(name, number, part), self.side.dtype, True), self.type)
                for part in range(RUN)
            )
            statements.append(PutRun(f"{self.side.name}{number}", self.line * self.pitch + self.first, values))
        return statements

    def read(self, names: Sequence[str], first: Dim, step: int, across: Dim) -> Statement:
        """Four neighbours of sum `first` (a multiple of the number of buffers) + `step`."""
        line = dims.floordiv(first, self.count) + step // self.count
        return FetchRun(tuple(names), f"{self.side.name}{step % self.count}", line * self.pitch + across, self.type)

    def _register(self, name: str, number: int, part: int) -> str:
        return f"{name}{self.side.name}{number}_{part}"
