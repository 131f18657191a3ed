"""Attention on tile products of 16 bits: scores and weights stay in registers.

Each warp has 16 queries. The sums of its products with a tile of keys become weights where they are, since sums are
laid out like a left operand. Four lanes share a row: they exchange only its largest score, and at the end its total.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from weft.ir import dims
from weft.ir.dims import Dim
from weft.ir.kernel import Code, Register, Statement, lane
from weft.ir.row_products import MultiplyRows, ReduceRows
from weft.kernels.build.multiply_add import multiply_add
from weft.kernels.lower.kernel_builder import assign, define, put, put_run
from weft.kernels.lower.memoize import memoize_launch
from weft.kernels.threads.attention import FLOAT, Body, call, float32, is_below, larger
from weft.kernels.threads.attention_products import AttentionProducts
from weft.kernels.threads.attention_shapes import WARP, WARP_ROWS
from weft.kernels.threads.points import all_of

_QUAD = 4
_LANE_ROWS = 2  # of the 16 of its warp


class AttentionRows(AttentionProducts):
    def add_tiles(self) -> None:
        """Declare the tiles: one stage of them, where lanes would hold elements of the next one in registers."""
        if not (self.moves_keys and self.moves_values):
            self.shape = replace(self.shape, stages=1)
        super().add_tiles()

    def add_state(self) -> None:
        shape, builder = self.shape, self.builder
        within = dims.mod(lane(shape.lanes), WARP)
        first = WARP_ROWS * dims.floordiv(lane(shape.lanes), WARP) + dims.floordiv(within, _QUAD)
        self.lane_rows = [first, first + 8]
        self.member = dims.mod(within, _QUAD)
        self.largest = builder.registers("largest", _LANE_ROWS, FLOAT)
        self.totals = builder.registers("total", _LANE_ROWS, FLOAT)
        self.out = [builder.registers("out", shape.columns // 2, FLOAT) for _ in range(self.across)]

    def begin_sums(self) -> Sequence[Statement]:
        return [define(total, float32(0.0)) for own in self.out for total in own]

    def column(self, number: int) -> Dim:
        """Return the column of a lane's register."""
        return number // 4 * 8 + 2 * self.member + number % 2

    # -- a tile of keys ----------------------------------------------------------------------------------------------

    def process_tile(self, start: Dim) -> Body:
        """Process the tile of keys from `start` on, and its values."""
        products = self.builder.registers("product", self.shape.keys // 2, FLOAT)
        statements: list[Statement] = [define(product, float32(0.0)) for product in products]
        for (queries,), (keys,) in zip(self.query_tiles, self.key_tiles):
            statements.append(MultiplyRows(_names(products), queries.name, keys.name))
        scores: list[list[Code]] = [[] for _ in self.lane_rows]
        places = [self.row_positions(row) for row in self.lane_rows]
        for number, product in enumerate(products):
            upper = number // 2 % 2
            scores[upper].append(self.masked_score(product, places[upper], start + self.column(number), statements))
        weights = self.compute_row_weights(scores, statements)
        for own, ((values,),) in zip(self.out, self.value_tiles):
            statements.append(MultiplyRows(_names(own), _names(weights), values.name))
        return tuple(statements)

    def compute_row_weights(self, scores: Sequence[Sequence[Code]], statements: list[Statement]) -> list[Register]:
        """Turn the scores of a lane's rows into weights, in the order of registers, and scale the sums so far."""
        largest = self.builder.registers("most", _LANE_ROWS, FLOAT)
        for register, own in zip(largest, scores):
            statements.append(define(register, self.reduce_pairs(own, larger, statements)))
        statements.append(ReduceRows(_names(largest), "maximum"))
        row_weights: list[list[Register]] = []
        for upper, own in enumerate(scores):
            before, total = self.largest[upper], self.totals[upper]
            statements.append(assign(largest[upper], larger(before, largest[upper])))
            first, shift = self.builder.keep("by", self.shift(largest[upper]), varying=True)
            second, factor = self.builder.keep("factor", call("exp", call("subtract", before, shift)), varying=True)
            statements += [first, second, assign(before, largest[upper])]
            weights: list[Register] = []
            for score in own:
                exponential = call("exp", call("subtract", score, shift))
                definition, weight = self.builder.keep("weight", exponential, varying=True)
                statements.append(definition)
                weights.append(weight)
            added = self.reduce_pairs(weights, lambda a, b: call("add", a, b), statements)
            statements.append(assign(total, multiply_add(self.target, total, factor, added)))
            row_weights.append(weights)
            for registers in self.out:
                for number, register in enumerate(registers):
                    if number // 2 % 2 == upper:
                        statements.append(assign(register, call("multiply", register, factor)))
        return [row_weights[n // 2 % 2][n // 4 * 2 + n % 2] for n in range(self.shape.keys // 2)]

    # -- the end -----------------------------------------------------------------------------------------------------

    def finish(self) -> list[Statement]:
        statements: list[Statement] = [ReduceRows(_names(self.totals), "sum")]
        for row, total, largest in zip(self.lane_rows, self.totals, self.largest):
            if self.split is None:
                statements.append(put(self.factors, row, self.inverse(total, largest, row, statements)))
                continue
            test = all_of([is_below(self.member, 1), self.has_row(row)])
            statements += self.split_writer.put_row(self.split_row(row), largest, total, test)
        for tile, registers in enumerate(self.out):
            for number in range(0, len(registers), 2):
                row = self.lane_rows[number // 2 % 2]
                place = row * self.result_pitch + tile * self.shape.columns + self.column(number)
                statements.append(put_run(self.results, place, registers[number : number + 2]))
        return [*statements, *self.write_results()]


def _names(registers: Sequence[Register]) -> tuple[str, ...]:
    return tuple(register.name for register in registers)


build_row_attention = memoize_launch(AttentionRows)
