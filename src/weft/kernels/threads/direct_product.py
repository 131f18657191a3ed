"""Sums of products whose elements every lane reads for itself, straight from memory.

What does not change from piece to piece is found before the loop over them: places of rows, where all lanes have the
same, and the tests whether rows meet the left operand at all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.ir.kernel import Code, Define, Fetch, FetchRun, Let, Register, Repeat, Statement, variable
from weft.kernels.build.multiply_add import widened
from weft.kernels.threads.depth import Depth
from weft.kernels.threads.product_operands import RUN, ProductOperand, all_of
from weft.kernels.threads.tile import Tile
from weft.kernels.threads.tile_axis import TileAxis

OWN = "own_"  # the piece at hand
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
        self.first: list[Statement] = []  # before all pieces
        self.before: list[Statement] = []  # before those with the same outer places
        self.body: list[Statement] = []

    def statements(self, added: Added, span: tuple[Dim, Dim] | None) -> list[Statement]:
        """All pieces, or those from the first to before the second of a span."""
        within = [self.tile.slice * self.tile.steps + step for step in range(self.tile.steps)]
        inner = [self.inner(step, place) for step, place in enumerate(within)]
        deep = [all_of(self.depth.test(OWN, place)) for place in within]
        values = [self.elements(side, along, inner, deep) for side, along in self.sides]
        for step in range(self.tile.steps):
            self.body += added(*([element[step] for element in elements] for elements in values))
        if span is None:
            return [*self.first, *self.depth.loops(OWN, self.before, self.body)]
        begin = self.depth.begin(variable("piece"), OWN)
        return [*self.first, Repeat("piece", *span, 1, (*begin, *self.before, *self.body))]

    def inner(self, step: int, place: Dim) -> list[Dim]:
        """Where a step is along each walk of the sums."""
        found = self.depth.inner(OWN, place)
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
        self.before += side.begin(OWN, self.grid, self.depth.outer(OWN))
        found: list[list[Code]] = []
        for number in range(each):
            places = along.places(along.within(number // run * run), run)
            places = self.let(f"{side.name}{number}_", places, self.first) if uniform else places
            found.append(self.row(side, number, places, inner, deep))
        return found

    def row(
        self,
        side: ProductOperand,
        number: int,
        places: Sequence[Dim],
        inner: Sequence[Sequence[Dim]],
        deep: Sequence[Code | None],
    ) -> list[Code]:
        """One row or column; what is read in runs with the one before is there already."""
        names = [self.register(side, number, step) for step in range(len(inner))]
        if not (side.runs_across and number % RUN):
            known = self.known_tests(side, number, places, inner)
            for step in range(0, len(inner), RUN if side.runs_deep else 1):
                tests = side.tests(OWN, places, inner[step]) if known is None else [known]
                mask = all_of([test for test in (deep[step], *tests) if test is not None])
                offset = side.offset(OWN, self.grid, places, inner[step])
                if side.runs_across:
                    run = [self.register(side, number + part, step) for part in range(RUN)]
                    self.body.append(FetchRun(tuple(run), side.name, offset, side.dtype, mask))
                elif side.runs_deep:
                    self.body.append(FetchRun(tuple(names[step : step + RUN]), side.name, offset, side.dtype, mask))
                else:
                    self.body.append(Define(names[step], Fetch(side.name, offset, side.dtype, mask=mask), True))
        return [widened(Register(name, side.dtype, True), self.type) for name in names]

    def known_tests(
        self, side: ProductOperand, number: int, places: Sequence[Dim], inner: Sequence[Sequence[Dim]]
    ) -> Register | None:
        """Tests that are the same for all pieces of a stretch, in a register; None where they are not, or none is."""
        if not self.depth.nested or not side.has_outer_tests:
            return None
        test = all_of(side.tests(OWN, places, inner[0]))
        assert test is not None
        self.before.append(Define(f"{side.name}{number}_inside", test, True))
        return Register(f"{side.name}{number}_inside", DType.bool, True)

    def register(self, side: ProductOperand, number: int, step: int) -> str:
        return f"{side.name}{number}_{step}_element"

    def let(self, name: str, places: Sequence[Dim], statements: list[Statement]) -> list[Dim]:
        """Places under names."""
        statements.extend(Let(f"{name}{number}", place) for number, place in enumerate(places))
        return [variable(f"{name}{number}") for number in range(len(places))]
