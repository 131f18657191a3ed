"""Reduction of sums over slices of lanes: each slice ends up with some of the rows, summed over all slices.

In rounds, a lane and its partner, half the slices away, exchange halves of their rows; then quarters, and so on. With
one row left, both add it up, and one of them keeps it.
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.ir import dims
from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.ir.kernel import Barrier, Call, Code, Integer, Register, Statement, lane
from weft.kernels.lower.kernel_builder import KernelBuilder, fetch_run, put_run
from weft.kernels.threads.product_operands import RUN
from weft.kernels.threads.tile import Tile


class LaneSlices:
    """`rows` are the sums that a lane keeps, from its row number `first` on; `tests` hold in lanes that keep any."""

    def __init__(self, tile: Tile, rows: Sequence[Sequence[Code]], dtype: DType, builder: KernelBuilder) -> None:
        self.tile, self.type, self.builder = tile, dtype, builder
        self.rows = [list(row) for row in rows]
        self.first: Dim = 0
        self.tests: list[Code] = []
        self.statements: list[Statement] = []
        distance = tile.slices // 2
        while distance:
            self._exchange_rows(distance)
            distance //= 2

    def _exchange_rows(self, distance: int) -> None:
        side = dims.mod(dims.floordiv(self.tile.slice, distance), 2)
        test = Call("equal", (Integer(side), Integer(0)), DType.bool)
        definition, is_low = self.builder.keep("low", test, varying=True)
        self.statements.append(definition)
        here, step = lane(self.tile.lanes), distance * self.tile.between
        partner = here + step - 2 * step * side
        if len(self.rows) == 1:
            sent_rows, kept_rows = self.rows, self.rows
            self.tests.append(is_low)
        else:
            half = len(self.rows) // 2
            low, high = self.rows[:half], self.rows[half:]
            sent_rows, kept_rows = self._select(is_low, high, low), self._select(is_low, low, high)
            self.first = self.first + side * half
        places = [(row, column) for row in range(len(sent_rows)) for column in range(0, self.tile.columns, RUN)]
        buffers = [
            self.builder.local(f"slices{distance}_{row}_{column}", self.type, self.tile.lanes * RUN)
            for row, column in places
        ]
        for (row, column), buffer in zip(places, buffers):
            self.statements.append(put_run(buffer, here * RUN, sent_rows[row][column : column + RUN]))
        self.statements.append(Barrier())
        self.rows = [[] for _ in kept_rows]
        for (row, column), buffer in zip(places, buffers):
            others = self.builder.registers("slice", RUN, self.type)
            self.statements.append(fetch_run(others, buffer, partner * RUN))
            for part, other in enumerate(others):
                value = Call("add", (kept_rows[row][column + part], other), self.type)
                definition, total = self.builder.keep("slice_sum", value, varying=True)
                self.statements.append(definition)
                self.rows[row].append(total)

    def _select(
        self, is_low: Register, first: Sequence[Sequence[Code]], second: Sequence[Sequence[Code]]
    ) -> list[list[Code]]:
        return [[Call("select", (is_low, a, b), self.type) for a, b in zip(*rows)] for rows in zip(first, second)]
