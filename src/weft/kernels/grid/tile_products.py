"""The kernel for sums of products where lanes are threads: a block computes a tile, each lane some rows and columns.

Pieces of the operands go through shared memory, where sharing pays: while a piece is multiplied, the next one is on
its way. Else lanes read their rows and columns straight from memory. With several `parts` the sums are cut too: each
block adds up one part of them, and writes plain sums for another kernel to add (see split.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from weft.ir import dims
from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.ir.kernel import (
    Assign,
    Barrier,
    Buffer,
    Call,
    Code,
    Define,
    Integer,
    Kernel,
    Let,
    Number,
    Put,
    PutRun,
    Register,
    Repeat,
    Statement,
    block,
    variable,
)
from weft.ir.target import Target
from weft.kernels.grid.depth import Depth
from weft.kernels.grid.endings import RunEnding
from weft.kernels.grid.product import Product, merged
from weft.kernels.grid.sides import RUN, Side, all_of
from weft.kernels.grid.staging import Stage, fragment
from weft.kernels.grid.tile import Tile
from weft.kernels.launch import Launch
from weft.kernels.multiply import multiply_add
from weft.kernels.parameters import Parameters
from weft.kernels.remember import remembered
from weft.kernels.walks import split_index


@remembered
def tile_product(name: str, product: Product, tile: Tile, parts: int, target: Target) -> Launch:
    """Buffers: left, right, those of the epilogue, and the result; with several parts left, right and the sums."""
    return _Builder(name, product, tile, parts, target).launch()


class _Builder:
    def __init__(self, name: str, product: Product, tile: Tile, parts: int, target: Target) -> None:
        self.name, self.tile, self.target, self.parts = name, tile, target, parts
        self.parameters = Parameters()
        self.ending = RunEnding(product.result, product.epilogue, self.parameters)
        self.product = merged(product, self.ending)
        self.type = product.type
        named = self.parameters.named
        self.left = Side(self.product, self.parameters, is_left=True)
        self.right = Side(self.product, self.parameters, is_left=False)
        self.depth = Depth(self.product.sums, self.parameters, tile.depth)
        grid, self.rows, self.columns, _ = self.product.extents()
        self.grid_size = grid
        self.row_sizes = [named(f"rows{n}", dims.maximum(w.size, 1)) for n, w in enumerate(self.product.rows)]
        self.column_sizes = [named(f"columns{n}", dims.maximum(w.size, 1)) for n, w in enumerate(self.product.columns)]
        self.grid_places: list[Dim] = []
        self.place: Dim = 0
        self.part: Dim = 0
        self.first_row: Dim = 0
        self.first_column: Dim = 0

    def launch(self) -> Launch:
        statements, blocks = self.locate()
        body: list[Statement] = []
        local: list[Buffer] = []
        for row in range(self.tile.rows):
            statements += [
                Define(self.sum(row, column).name, Number(0, self.type), True) for column in range(self.tile.columns)
            ]
        if self.depth.pieces != 0:
            body, local = self.shared_sums() if self.tile.shared else self.own_sums()
        outputs = self.ending.buffers if self.parts == 1 else [Buffer("out", self.type, True)]
        operands = [Buffer("left", self.product.left, False), Buffer("right", self.product.right, False)]
        written = self.write() if self.parts == 1 else self.write_sums()
        kernel = Kernel(
            self.name,
            (*operands, *outputs, *local),
            tuple(self.parameters.values),
            self.tile.lanes,
            (*statements, *body, *written),
        )
        return Launch(kernel, blocks, tuple(self.parameters.values.values()))

    def sum(self, row: int, column: int) -> Register:
        return Register(f"sum{row}_{column}", self.type, True)

    # -- places ------------------------------------------------------------------------------------------------------

    def locate(self) -> tuple[list[Statement], Dim]:
        """Which tile, part and place of the grid a block has, and the number of blocks."""
        statements: list[Statement] = []
        rest: Dim = block()
        across, down = dims.ceildiv(self.columns, self.tile.width), dims.ceildiv(self.rows, self.tile.height)

        def cut(name: str, count: Dim) -> Dim:
            nonlocal rest
            if count == 1:
                return 0
            size = self.parameters.named(f"{name}s", dims.maximum(count, 1))
            statements.append(Let(name, dims.mod(rest, size)))
            statements.append(Let(f"after_{name}", dims.floordiv(rest, size)))
            rest = variable(f"after_{name}")
            return variable(name)

        self.first_column = cut("tile_column", across) * self.tile.width
        self.first_row = cut("tile_row", down) * self.tile.height
        self.part = cut("part", self.parts)
        self.place = rest if self.product.grid else 0
        sizes = [self.parameters.named(f"grid{n}", dims.maximum(w.size, 1)) for n, w in enumerate(self.product.grid)]
        for number, place in enumerate(split_index(self.place, sizes)):
            statements.append(Let(f"g{number}", place))
            self.grid_places.append(variable(f"g{number}"))
        return statements, across * down * self.parts * self.grid_size

    def row_places(self, within: Dim) -> list[Dim]:
        """Where a row of the tile lies along the walks of rows; one that is not there, where the last one does."""
        run = RUN if self.left.runs_across else 1
        return self.places("row", self.first_row + within, self.rows, self.row_sizes, self.tile.height, run)

    def column_places(self, within: Dim) -> list[Dim]:
        """The same for a column."""
        run = RUN if self.right.runs_across else 1
        return self.places("column", self.first_column + within, self.columns, self.column_sizes, self.tile.width, run)

    def places(self, name: str, index: Dim, count: Dim, sizes: Sequence[Dim], extent: int, run: int) -> list[Dim]:
        """Along walks of given sizes. Of a run, the first is asked for, and all of it is there or nothing."""
        if not sizes:
            return []
        if dims.mod(count, extent) != 0:
            last = dims.maximum(dims.floordiv(count, run) - 1, 0)
            index = run * dims.minimum(dims.floordiv(index, run), self.parameters.named(f"last_{name}{run}", last))
        return split_index(index, sizes)

    # -- sums --------------------------------------------------------------------------------------------------------

    def shared_sums(self) -> tuple[list[Statement], list[Buffer]]:
        """Pieces of both operands in shared memory; the next ones are fetched before these are multiplied."""
        tile = self.tile
        stages = [
            Stage(self.left, tile.height, self.depth, tile.lanes, self.type, self.grid_places, self.row_places),
            Stage(self.right, tile.width, self.depth, tile.lanes, self.type, self.grid_places, self.column_places),
        ]
        last = self.parameters.named("last_piece", dims.maximum(self.depth.pieces - 1, 0))
        start, stop = self.pieces(last)

        def fetched(name: str, piece: Dim) -> list[Statement]:
            return [*self.depth.begin(piece, name), *(s for stage in stages for s in stage.fetch(name))]

        def put(name: str) -> list[Statement]:
            return [Barrier(), *(s for stage in stages for s in stage.put(name)), Barrier()]

        following = dims.minimum(variable("piece") + 1, last)
        body = [*fetched("next_", following), *self.multiplied(stages), *put("next_")]
        statements = [*fetched("first_", dims.minimum(start, last)), *put("first_")[1:]]
        statements.append(Repeat("piece", start, stop, 1, tuple(body)))
        return statements, [buffer for stage in stages for buffer in stage.buffers()]

    def pieces(self, last: Dim) -> tuple[Dim, Dim]:
        """The pieces of this block's part: from the first to before the second."""
        if self.parts == 1:
            return 0, last + 1 if dims.is_at_least(self.depth.pieces, 1) else self.parameters.named(
                "pieces", self.depth.pieces
            )
        each = self.parameters.named("pieces_part", dims.ceildiv(self.depth.pieces, self.parts))
        first = self.part * each
        return first, dims.minimum(first + each, self.parameters.named("pieces", self.depth.pieces))

    def multiplied(self, stages: Sequence[Stage]) -> list[Statement]:
        """One piece, `unroll` steps of it at a time."""
        unroll = max(self.tile.unroll, *(stage.count for stage in stages))
        count = self.tile.depth // unroll
        turn: Dim = variable("turn") if count > 1 else 0
        statements: list[Statement] = []
        for step in range(unroll):
            values: list[list[Code]] = []
            for stage, side, place, groups in (
                (stages[0], "a", self.tile.row, self.tile.rows // RUN),
                (stages[1], "b", self.tile.column, self.tile.columns // RUN),
            ):
                found: list[Code] = []
                for group in range(groups):
                    names = [f"{side}{step}_{RUN * group + part}" for part in range(RUN)]
                    statements.append(stage.read(names, turn * (unroll // stage.count), step, place(group)))
                    found += [Register(name, self.type, True) for name in names]
                values.append(found)
            statements += self.added(*values)
        return [Repeat("turn", 0, count, 1, tuple(statements))] if count > 1 else statements

    def own_sums(self) -> tuple[list[Statement], list[Buffer]]:
        """Every lane reads its rows and columns from memory."""
        statements: list[Statement] = []
        rows = [self.row_places(self.row_of(number)) for number in range(self.tile.rows)]
        if self.tile.high == 1:
            rows = [self.let(f"row{number}_", places, statements) for number, places in enumerate(rows)]
        columns = [self.column_places(self.column_of(number)) for number in range(self.tile.columns)]
        body = self.depth.begin(variable("piece"), "")
        left, a = fragment(self.left, self.grid_places, rows, self.depth, "", self.type, "a")
        right, b = fragment(self.right, self.grid_places, columns, self.depth, "", self.type, "b")
        body += [*left, *right]
        for step in range(self.tile.depth):
            body += self.added([row[step] for row in a], [column[step] for column in b])
        last = self.parameters.named("last_piece", dims.maximum(self.depth.pieces - 1, 0))
        return [*statements, Repeat("piece", *self.pieces(last), 1, tuple(body))], []

    def let(self, name: str, places: Sequence[Dim], statements: list[Statement]) -> list[Dim]:
        """Places under names, so that they are found once."""
        statements.extend(Let(f"{name}{number}", place) for number, place in enumerate(places))
        return [variable(f"{name}{number}") for number in range(len(places))]

    def added(self, left: Sequence[Code], right: Sequence[Code]) -> list[Statement]:
        """All sums with one more product each."""
        return [
            Assign(self.sum(row, column).name, multiply_add(self.target, a, b, self.sum(row, column)))
            for row, a in enumerate(left)
            for column, b in enumerate(right)
        ]

    def row_of(self, number: int) -> Dim:
        return self.tile.row(number // RUN) + number % RUN

    def column_of(self, number: int) -> Dim:
        return self.tile.column(number // RUN) + number % RUN

    # -- the end -----------------------------------------------------------------------------------------------------

    def write(self) -> list[Statement]:
        """The epilogue, and what comes out."""
        starts = {axis: self.parameters.named(f"start{axis}", start) for axis, start in self.product.result_start}
        runs = self.ending.has_runs(self.product.columns, dict(self.product.result_start))
        statements: list[Statement] = []
        rows = self.tests(
            "row", self.first_row, self.row_of, self.tile.rows, self.rows, self.tile.height, 1, statements
        )
        columns = self.tests(
            "column", self.first_column, self.column_of, self.tile.columns, self.columns, self.tile.width,
            RUN if runs else 1, statements,
        )  # fmt: skip
        places = [self.write_places(number, RUN if runs else 1) for number in range(self.tile.columns)]
        for row in range(self.tile.rows):
            row_places = self.places(
                "row", self.first_row + self.row_of(row), self.rows, self.row_sizes, self.tile.height, 1
            )
            for column in range(0, self.tile.columns, RUN if runs else 1):
                axes = self.axes(starts, row_places, places[column])
                mask = all_of([test for test in (rows[row], columns[column]) if test is not None])
                prefix = f"t{row}_{column}_"
                if runs:
                    axis = self.product.columns[-1].axis
                    assert axis is not None
                    values = [self.sum(row, column + part) for part in range(RUN)]
                    statements += self.ending.write_four(values, axes, axis, mask, prefix)
                else:
                    statements += self.ending.write_one(self.sum(row, column), axes, mask, prefix)
        return statements

    def write_places(self, number: int, run: int) -> list[Dim]:
        index = self.first_column + self.column_of(number)
        return self.places("column", index, self.columns, self.column_sizes, self.tile.width, run)

    def tests(
        self, name: str, first: Dim, within: Callable[[int], Dim], each: int, count: Dim, extent: int, run: int,
        statements: list[Statement],
    ) -> list[Code | None]:  # fmt: skip
        """Which rows or columns of a lane are there; for runs, their first ones speak for all."""
        if dims.mod(count, extent) == 0:
            return [None] * each
        size = Integer(self.parameters.named(f"{name}s", count))
        found: list[Code | None] = []
        for number in range(each):
            if number % run == 0:
                test = Call("less", (Integer(first + within(number)), size), DType.bool)
                statements.append(Define(f"in_{name}{number}", test, True))
            found.append(Register(f"in_{name}{number // run * run}", DType.bool, True))
        return found

    def axes(self, starts: Mapping[int, Dim], rows: Sequence[Dim], columns: Sequence[Dim]) -> dict[int, Dim]:
        """Positions along the result's axes."""
        product, found = self.product, dict(starts)
        walks = [*zip(product.grid, self.grid_places), *zip(product.rows, rows), *zip(product.columns, columns)]
        for walk, place in walks:
            if walk.axis is not None:
                found[walk.axis] = found.get(walk.axis, 0) + self.parameters.size(walk.factor) * place
        return found

    def write_sums(self) -> list[Statement]:
        """Sums of a part as they are: [parts, grid, rows, columns]."""
        named = self.parameters.named
        runs = dims.mod(self.columns, RUN) == 0
        run = RUN if runs else 1
        pitch = RUN * named("columns_4", dims.floordiv(self.columns, RUN)) if runs else named("columns_1", self.columns)
        count = named("rows_1", self.rows)
        plane = (self.part * named("places", self.grid_size) + self.place) * count
        statements: list[Statement] = []
        rows = self.tests(
            "row", self.first_row, self.row_of, self.tile.rows, self.rows, self.tile.height, 1, statements
        )
        columns = self.tests(
            "column", self.first_column, self.column_of, self.tile.columns, self.columns, self.tile.width, run,
            statements,
        )  # fmt: skip
        for row in range(self.tile.rows):
            line = (plane + self.first_row + self.row_of(row)) * pitch + self.first_column
            for column in range(0, self.tile.columns, run):
                mask = all_of([test for test in (rows[row], columns[column]) if test is not None])
                place = line + self.column_of(column)
                if runs:
                    values = tuple(self.sum(row, column + part) for part in range(RUN))
                    statements.append(PutRun("out", place, values, mask))
                else:
                    statements.append(Put("out", place, self.sum(row, column), mask=mask))
        return statements
