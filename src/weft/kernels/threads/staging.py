"""Operands on their way into shared memory: pieces of a product's operand, turned so that places across are neighbours.

A piece [across, depth] lies in several buffers, sum k in buffer k % count: every lane writes each of them once, at a
place of its own. Where neighbours in memory go along the sums, a lane turns squares of four by four.
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.ir import dims
from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.ir.kernel import Code, Register, Statement, lane
from weft.kernels.build.multiply_add import widened
from weft.kernels.lower.kernel_builder import define, fetch, fetch_run, put_run
from weft.kernels.threads.depth import Depth, DepthPiece
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
        self.builder = side.builder
        self.buffers = [
            self.builder.local(f"{side.name}{number}", dtype, self.lines * self.pitch) for number in range(self.count)
        ]

    def fetch(self, hint: str, piece: DepthPiece) -> tuple[list[Statement], list[list[Register]]]:
        """What this lane brings of a piece: for each buffer four registers."""
        statements, here = self.side.begin(hint, self.grid, self.depth.outer(piece))
        found = [self.builder.registers(self.side.name, RUN, self.side.buffer.dtype) for _ in range(self.count)]

        def element(within: Dim, across: Sequence[Dim]) -> tuple[Dim, Code | None]:
            """Where an element lies, and the condition under which there is one."""
            inner = self.depth.inner(piece, within)
            tests = [*self.depth.test(piece, within), *self.side.tests(here, across, inner)]
            return self.side.offset(here, self.grid, across, inner), all_of(tests)

        if self.side.runs_deep:
            for square in range(0, self.count, RUN):
                within = self.line * self.count + square
                for part in range(RUN):
                    registers = [found[square + number][part] for number in range(RUN)]
                    place, mask = element(within, self.along.places(self.first + part))
                    statements.append(fetch_run(registers, self.side.buffer, place, mask))
            return statements, found
        for number, registers in enumerate(found):
            within = self.line * self.count + number
            if self.side.runs_across:
                place, mask = element(within, self.along.places(self.first, RUN))
                statements.append(fetch_run(registers, self.side.buffer, place, mask))
                continue
            for part, register in enumerate(registers):
                place, mask = element(within, self.along.places(self.first + part))
                statements.append(define(register, fetch(self.side.buffer, place, mask=mask)))
        return statements, found

    def put(self, fetched: Sequence[Sequence[Register]]) -> list[Statement]:
        """What was fetched, into shared memory."""
        place = self.line * self.pitch + self.first
        return [
            put_run(buffer, place, [widened(register, self.type) for register in registers])
            for buffer, registers in zip(self.buffers, fetched)
        ]

    def read(self, registers: Sequence[Register], first: Dim, step: int, across: Dim) -> Statement:
        """Four neighbours of sum `first` (a multiple of the number of buffers) + `step`."""
        line = dims.floordiv(first, self.count) + step // self.count
        return fetch_run(registers, self.buffers[step % self.count], line * self.pitch + across)
