"""Staging of operands in shared memory, with rows or columns innermost.

A tile [across, depth] is spread over several buffers, depth k in buffer k % count: every lane writes each buffer once.
Where the depth is innermost in memory, a lane transposes blocks of four by four.
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.ir import dims
from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.ir.kernel import Register, Statement, lane
from weft.kernels.lower.kernel_builder import define, fetch, fetch_run, put_run
from weft.kernels.lower.operations import cast
from weft.kernels.threads.depth import Depth, DepthTile
from weft.kernels.threads.product_operands import RUN, ProductOperand
from weft.kernels.threads.tile_axis import TileAxis


class SharedStage:
    """The shared tile of one operand; `along` is its axis of rows or columns."""

    def __init__(
        self, operand: ProductOperand, along: TileAxis, depth: Depth, lanes: int, dtype: DType, grid: Sequence[Dim]
    ) -> None:
        self.operand, self.along, self.depth, self.type, self.grid = operand, along, depth, dtype, grid
        runs = along.extent // RUN
        if operand.runs_deep:
            self.count = RUN * max(1, runs * depth.depth // RUN // lanes)
        else:
            self.count = max(1, runs * depth.depth // lanes)
        self.lines = depth.depth // self.count
        is_transposed = operand.runs_deep or (operand.is_deep and not operand.runs_across)
        self.pitch = along.extent + (RUN if is_transposed else 0)
        here = lane(lanes)
        if is_transposed:
            self.line, self.first = dims.mod(here, self.lines), dims.mod(dims.floordiv(here, self.lines), runs) * RUN
        else:
            self.line, self.first = dims.mod(dims.floordiv(here, runs), self.lines), dims.mod(here, runs) * RUN
        self.builder = operand.builder
        self.buffers = [
            self.builder.local(f"{operand.name}{number}", dtype, self.lines * self.pitch)
            for number in range(self.count)
        ]

    def fetch(self, hint: str, tile: DepthTile) -> tuple[list[Statement], list[list[Register]]]:
        """Fetch this lane's share of a depth tile: four registers per buffer."""
        statements, operand_tile = self.operand.begin(hint, self.grid, self.depth, tile)
        loaded = [self.builder.registers(self.operand.name, RUN, self.operand.buffer.dtype) for _ in range(self.count)]

        if self.operand.runs_deep:
            for block in range(0, self.count, RUN):
                within = self.line * self.count + block
                for row in range(RUN):
                    registers = [loaded[block + number][row] for number in range(RUN)]
                    place, mask = self.operand.locate(operand_tile, self.along.places(self.first + row), within)
                    statements.append(fetch_run(registers, self.operand.buffer, place, mask))
            return statements, loaded
        for number, registers in enumerate(loaded):
            within = self.line * self.count + number
            if self.operand.runs_across:
                place, mask = self.operand.locate(operand_tile, self.along.places(self.first, RUN), within)
                statements.append(fetch_run(registers, self.operand.buffer, place, mask))
                continue
            for row, register in enumerate(registers):
                place, mask = self.operand.locate(operand_tile, self.along.places(self.first + row), within)
                statements.append(define(register, fetch(self.operand.buffer, place, mask=mask)))
        return statements, loaded

    def put(self, fetched: Sequence[Sequence[Register]]) -> list[Statement]:
        """Store fetched registers to shared memory."""
        place = self.line * self.pitch + self.first
        return [
            put_run(buffer, place, [cast(register, self.type) for register in registers])
            for buffer, registers in zip(self.buffers, fetched)
        ]

    def read(self, registers: Sequence[Register], first: Dim, step: int, across: Dim) -> Statement:
        """Read four neighbours at depth `first` (a multiple of the number of buffers) + `step`."""
        line = dims.floordiv(first, self.count) + step // self.count
        return fetch_run(registers, self.buffers[step % self.count], line * self.pitch + across)
