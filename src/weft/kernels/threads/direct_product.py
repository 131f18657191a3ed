"""Sums of products whose elements every lane reads straight from memory.

Values that all depth tiles share are computed before the loop over them: positions of rows that are the same for all
lanes, and bounds tests that do not depend on the innermost reduction axis.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.ir.kernel import Code, Register, Statement
from weft.kernels.lower.kernel_builder import define, fetch, fetch_run, let, repeat
from weft.kernels.lower.operations import cast
from weft.kernels.threads.depth import Depth
from weft.kernels.threads.points import all_of
from weft.kernels.threads.product_operands import RUN, OperandTile, ProductOperand
from weft.kernels.threads.tile import Tile
from weft.kernels.threads.tile_axis import TileAxis

Accumulate = Callable[[Sequence[Code], Sequence[Code]], list[Statement]]
"""Adds a step's products to the sums, from the elements of all rows and of all columns."""


class DirectProduct:
    def __init__(
        self,
        tile: Tile,
        operands: Sequence[tuple[ProductOperand, TileAxis]],
        depth: Depth,
        grid: Sequence[Dim],
        dtype: DType,
    ) -> None:
        self.tile, self.operands, self.depth, self.grid, self.type = tile, operands, depth, grid, dtype
        self.builder = depth.builder
        self.depth_tile = depth.tile("own")
        self.first: list[Statement] = []  # before all depth tiles
        self.before: list[Statement] = []  # before those with the same outer positions
        self.body: list[Statement] = []

    def build_statements(self, accumulate: Accumulate, span: tuple[Dim, Dim] | None) -> list[Statement]:
        """Sum over all depth tiles, or over those of a half-open span."""
        within = [self.tile.slice * self.tile.steps + step for step in range(self.tile.steps)]
        inner = [self.inner(step, position) for step, position in enumerate(within)]
        depth_tests = [all_of(self.depth.test(self.depth_tile, position)) for position in within]
        values = [self.elements(operand, along, inner, depth_tests) for operand, along in self.operands]
        for step in range(self.tile.steps):
            self.body += accumulate(*([element[step] for element in elements] for elements in values))
        if span is None:
            return [*self.first, *self.depth.loop_over_tiles(self.depth_tile, self.before, self.body)]
        number = self.builder.variable("piece")
        begin = self.depth.begin(self.depth_tile, number)
        return [*self.first, repeat(number, *span, 1, (*begin, *self.before, *self.body))]

    def inner(self, step: int, within: Dim) -> list[Dim]:
        """Return the positions of a step along each reduction axis."""
        positions = self.depth.inner(self.depth_tile, within)
        if self.tile.slices > 1 or len(positions) < 2 or self.depth.is_nested:
            return positions
        return self.let(f"step{step}_", positions, self.body)

    def elements(
        self,
        operand: ProductOperand,
        along: TileAxis,
        inner: Sequence[Sequence[Dim]],
        depth_tests: Sequence[Code | None],
    ) -> list[list[Code]]:
        """Read the values of all steps, for each row or column."""
        count = self.tile.rows if operand.is_left else self.tile.columns
        is_uniform = operand.is_left and self.tile.high == 1
        run = RUN if operand.runs_across else 1
        statements, operand_tile = operand.begin("own", self.grid, self.depth, self.depth_tile)
        self.before += statements
        loaded = [self.builder.registers(operand.name, len(inner), operand.buffer.dtype) for _ in range(count)]
        for number in range(count):
            across = along.places(along.within(number // run * run), run)
            across = self.let(f"{operand.name}{number}_", across, self.first) if is_uniform else across
            if number % run == 0:
                self.read(operand, operand_tile, across, inner, depth_tests, loaded[number : number + run])
        return [[cast(register, self.type) for register in registers] for registers in loaded]

    def read(
        self,
        operand: ProductOperand,
        operand_tile: OperandTile,
        across: Sequence[Dim],
        inner: Sequence[Sequence[Dim]],
        depth_tests: Sequence[Code | None],
        registers: Sequence[Sequence[Register]],
    ) -> None:
        """Read one row or column into registers for each step; where runs go across, four neighbouring ones."""
        hoisted = self.hoist_tests(operand, operand_tile, across, inner)
        for step in range(0, len(inner), RUN if operand.runs_deep else 1):
            tests = operand.tests(operand_tile, across, inner[step]) if hoisted is None else [hoisted]
            mask = all_of([depth_tests[step], *tests])
            offset = operand.offset(operand_tile, across, inner[step])
            if operand.runs_across:
                self.body.append(fetch_run([row[step] for row in registers], operand.buffer, offset, mask))
            elif operand.runs_deep:
                self.body.append(fetch_run(registers[0][step : step + RUN], operand.buffer, offset, mask))
            else:
                self.body.append(define(registers[0][step], fetch(operand.buffer, offset, mask=mask)))

    def hoist_tests(
        self,
        operand: ProductOperand,
        operand_tile: OperandTile,
        across: Sequence[Dim],
        inner: Sequence[Sequence[Dim]],
    ) -> Register | None:
        """Compute bounds tests before the innermost loop, if they are uniform in it."""
        if not self.depth.is_nested or not operand.has_outer_tests:
            return None
        test = all_of(operand.tests(operand_tile, across, inner[0]))
        assert test is not None
        definition, register = self.builder.keep(f"{operand.name}_inside", test, varying=True)
        self.before.append(definition)
        return register

    def let(self, hint: str, positions: Sequence[Dim], statements: list[Statement]) -> list[Dim]:
        """Define variables for positions."""
        names = self.builder.variables(hint, len(positions))
        statements.extend(let(name, position) for name, position in zip(names, positions))
        return [*names]
