"""Sums of products whose elements every lane reads for itself, straight from memory.

What does not change from piece to piece is found before the loop over them: places of rows, where all lanes have the
same, and the tests whether rows meet the left operand at all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.ir.kernel import Code, Register, Statement
from weft.kernels.build.multiply_add import widened
from weft.kernels.lower.kernel_builder import define, fetch, fetch_run, let, repeat
from weft.kernels.threads.depth import Depth
from weft.kernels.threads.product_operands import RUN, PieceOfOperand, ProductOperand, all_of
from weft.kernels.threads.tile import Tile
from weft.kernels.threads.tile_axis import TileAxis

Added = Callable[[Sequence[Code], Sequence[Code]], list[Statement]]  # sums with one more product each


class DirectProduct:
    """`added` gives the statements for one step of the sums, from the elements of all rows and all columns."""

    def __init__(
        self,
        tile: Tile,
        sides: Sequence[tuple[ProductOperand, TileAxis]],
        depth: Depth,
        grid: Sequence[Dim],
        dtype: DType,
    ) -> None:
        self.tile, self.sides, self.depth, self.grid, self.type = tile, sides, depth, grid, dtype
        self.builder = depth.builder
        self.piece = depth.piece("own")  # the one at hand
        self.first: list[Statement] = []  # before all pieces
        self.before: list[Statement] = []  # before those with the same outer places
        self.body: list[Statement] = []

    def statements(self, added: Added, span: tuple[Dim, Dim] | None) -> list[Statement]:
        """All pieces, or those from the first to before the second of a span."""
        within = [self.tile.slice * self.tile.steps + step for step in range(self.tile.steps)]
        inner = [self.inner(step, place) for step, place in enumerate(within)]
        deep = [all_of(self.depth.test(self.piece, place)) for place in within]
        values = [self.elements(side, along, inner, deep) for side, along in self.sides]
        for step in range(self.tile.steps):
            self.body += added(*([element[step] for element in elements] for elements in values))
        if span is None:
            return [*self.first, *self.depth.loops(self.piece, self.before, self.body)]
        number = self.builder.variable("piece")
        begin = self.depth.begin(self.piece, number)
        return [*self.first, repeat(number, *span, 1, (*begin, *self.before, *self.body))]

    def inner(self, step: int, place: Dim) -> list[Dim]:
        """Where a step is along each loop axis of the sums."""
        found = self.depth.inner(self.piece, place)
        if self.tile.slices > 1 or len(found) < 2 or self.depth.nested:
            return found
        return self.let(f"step{step}_", found, self.body)

    def elements(
        self, side: ProductOperand, along: TileAxis, inner: Sequence[Sequence[Dim]], deep: Sequence[Code | None]
    ) -> list[list[Code]]:
        """Values of all steps, for each row or column."""
        each = self.tile.rows if side.is_left else self.tile.columns
        uniform = side.is_left and self.tile.high == 1
        run = RUN if side.runs_across else 1
        statements, here = side.begin("own", self.grid, self.depth.outer(self.piece))
        self.before += statements
        found = [self.builder.registers(side.name, len(inner), side.buffer.dtype) for _ in range(each)]
        for number in range(each):
            places = along.places(along.within(number // run * run), run)
            places = self.let(f"{side.name}{number}_", places, self.first) if uniform else places
            if number % run == 0:
                self.read(side, here, places, inner, deep, found[number : number + run])
        return [[widened(register, self.type) for register in registers] for registers in found]

    def read(
        self,
        side: ProductOperand,
        here: PieceOfOperand,
        places: Sequence[Dim],
        inner: Sequence[Sequence[Dim]],
        deep: Sequence[Code | None],
        registers: Sequence[Sequence[Register]],
    ) -> None:
        """One row or column into registers for each step; where runs go across, four neighbouring ones."""
        known = self.known_tests(side, here, places, inner)
        for step in range(0, len(inner), RUN if side.runs_deep else 1):
            tests = side.tests(here, places, inner[step]) if known is None else [known]
            mask = all_of([test for test in (deep[step], *tests) if test is not None])
            offset = side.offset(here, self.grid, places, inner[step])
            if side.runs_across:
                self.body.append(fetch_run([own[step] for own in registers], side.buffer, offset, mask))
            elif side.runs_deep:
                self.body.append(fetch_run(registers[0][step : step + RUN], side.buffer, offset, mask))
            else:
                self.body.append(define(registers[0][step], fetch(side.buffer, offset, mask=mask)))

    def known_tests(
        self, side: ProductOperand, here: PieceOfOperand, places: Sequence[Dim], inner: Sequence[Sequence[Dim]]
    ) -> Register | None:
        """Tests that are the same for all pieces of a stretch, in a register; None where they are not, or none is."""
        if not self.depth.nested or not side.has_outer_tests:
            return None
        test = all_of(side.tests(here, places, inner[0]))
        assert test is not None
        defined, inside = self.builder.keep(f"{side.name}_inside", test, varying=True)
        self.before.append(defined)
        return inside

    def let(self, hint: str, places: Sequence[Dim], statements: list[Statement]) -> list[Dim]:
        """Places under names."""
        names = self.builder.variables(hint, len(places))
        statements.extend(let(name, place) for name, place in zip(names, places))
        return [*names]
