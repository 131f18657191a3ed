"""The kernel for sums of products where lanes are threads: a block computes a tile, each lane some rows and columns.

Pieces of the operands go through shared memory, where sharing pays: while a piece is multiplied, the next one is on
its way. Else lanes read their rows and columns straight from memory. With several `parts` the sums are cut too: each
block adds up one part of them, and writes plain sums for another kernel to add (see split.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft.cost.sizes import estimate
from weft.ir import dims
from weft.ir.dims import Dim
from weft.ir.kernel import (
    Assign,
    Barrier,
    Buffer,
    Code,
    Define,
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
from weft.ir.target import ThreadTarget
from weft.kernels.build.loop_axes import split_index
from weft.kernels.build.multiply_add import multiply_add
from weft.kernels.lower.memoize import memoized
from weft.kernels.lower.parameters import Parameters
from weft.kernels.lower.tensors import Launch
from weft.kernels.threads.depth import Depth
from weft.kernels.threads.direct_product import DirectProduct
from weft.kernels.threads.epilogue import RunEpilogueWriter
from weft.kernels.threads.lane_slices import Slices
from weft.kernels.threads.product import Product, merged
from weft.kernels.threads.product_operands import RUN, ProductOperand, all_of
from weft.kernels.threads.staging import Stage
from weft.kernels.threads.tile import Tile
from weft.kernels.threads.tile_axis import TileAxis


@memoized
def tile_product(name: str, product: Product, tile: Tile, parts: int, target: ThreadTarget) -> Launch:
    """Buffers: left, right, those of the epilogue, and the result; with several parts left, right and the sums."""
    return _Builder(name, product, tile, parts, target).launch()


class _Builder:
    def __init__(self, name: str, product: Product, tile: Tile, parts: int, target: ThreadTarget) -> None:
        self.name, self.tile, self.target, self.parts = name, tile, target, parts
        self.parameters = Parameters()
        self.epilogue_writer = RunEpilogueWriter(product.result, product.epilogue, self.parameters)
        self.product = merged(product, self.epilogue_writer)
        self.type = product.type
        self.left = ProductOperand(self.product, self.parameters, is_left=True)
        self.right = ProductOperand(self.product, self.parameters, is_left=False)
        self.depth = Depth(self.product.sums, self.parameters, tile.depth)
        self.rows = TileAxis("row", self.product.rows, self.parameters, tile.height, tile.row)
        self.columns = TileAxis("column", self.product.columns, self.parameters, tile.width, tile.column)
        self.grid_size = self.product.extents()[0]
        self.grid_places: list[Dim] = []
        self.place: Dim = 0
        self.part: Dim = 0

    def launch(self) -> Launch:
        statements, blocks = self.locate()
        body: list[Statement] = []
        local: list[Buffer] = []
        for row in range(self.tile.rows):
            for column in range(self.tile.columns):
                statements.append(Define(self.sum(row, column).name, Number(0, self.type), True))
        if self.depth.pieces != 0:
            body, local = self.shared_sums() if self.tile.shared else self.own_sums()
        sums = [[self.sum(row, column) for column in range(self.tile.columns)] for row in range(self.tile.rows)]
        slices = Slices(self.tile, sums, self.type)
        written = self.write(slices) if self.parts == 1 else self.write_sums(slices)
        outputs = self.epilogue_writer.buffers if self.parts == 1 else [Buffer("out", self.type, True)]
        operands = [Buffer("left", self.product.left, False), Buffer("right", self.product.right, False)]
        kernel = Kernel(
            self.name,
            (*operands, *outputs, *local, *slices.buffers),
            tuple(self.parameters.values),
            self.tile.lanes,
            (*statements, *body, *slices.statements, *written),
        )
        return Launch(kernel, blocks, tuple(self.parameters.values.values()))

    def sum(self, row: int, column: int) -> Register:
        return Register(f"sum{row}_{column}", self.type, True)

    def locate(self) -> tuple[list[Statement], Dim]:
        """Which tile, part and place of the grid a block has, and the number of blocks.

        Neighbours share the larger operand: its panel stays in caches while tiles pass that take it with all of the
        other. The order is a matter of parameters, so that it needs no other kernel.
        """
        named, tiles = self.parameters.named, self.columns.tiles * self.rows.tiles
        down = estimate(self.rows.count) < estimate(self.columns.count)
        column_step = named("column_step", dims.maximum(self.rows.tiles, 1) if down else 1)
        row_step = named("row_step", 1 if down else dims.maximum(self.columns.tiles, 1))
        column = dims.mod(
            dims.floordiv(block(), column_step), named("column_tiles", dims.maximum(self.columns.tiles, 1))
        )
        row = dims.mod(dims.floordiv(block(), row_step), named("row_tiles", dims.maximum(self.rows.tiles, 1)))
        statements: list[Statement] = [Let("tile_column", column), Let("tile_row", row)]
        self.columns.first = variable("tile_column") * self.tile.width
        self.rows.first = variable("tile_row") * self.tile.height
        if self.parts > 1 or self.product.grid:
            statements.append(Let("rest", dims.floordiv(block(), named("tiles", dims.maximum(tiles, 1)))))
        rest: Dim = variable("rest")
        if self.parts > 1:
            statements.append(Let("part", dims.mod(rest, named("parts", self.parts))))
            self.part, rest = variable("part"), dims.floordiv(rest, named("parts", self.parts))
        self.place = rest if self.product.grid else 0
        sizes = [named(f"grid{n}", dims.maximum(walk.size, 1)) for n, walk in enumerate(self.product.grid)]
        for number, place in enumerate(split_index(self.place, sizes)):
            statements.append(Let(f"g{number}", place))
            self.grid_places.append(variable(f"g{number}"))
        return statements, tiles * self.parts * self.grid_size

    # -- sums --------------------------------------------------------------------------------------------------------

    def shared_sums(self) -> tuple[list[Statement], list[Buffer]]:
        """Pieces of both operands in shared memory; the next ones are fetched before these are multiplied."""
        stages = [
            Stage(side, along, self.depth, self.tile.lanes, self.type, self.grid_places)
            for side, along in ((self.left, self.rows), (self.right, self.columns))
        ]
        start, stop, last = self.pieces()

        def fetched(name: str, piece: Dim) -> list[Statement]:
            return [*self.depth.begin(piece, name), *(s for stage in stages for s in stage.fetch(name))]

        def put(name: str) -> list[Statement]:
            return [*(s for stage in stages for s in stage.put(name)), Barrier()]

        following = dims.minimum(variable("piece") + 1, last)
        body = (*fetched("next_", following), *self.multiplied(stages), Barrier(), *put("next_"))
        statements = [*fetched("first_", dims.minimum(start, last)), *put("first_")]
        statements.append(Repeat("piece", start, stop, 1, body))
        return statements, [buffer for stage in stages for buffer in stage.buffers()]

    def pieces(self) -> tuple[Dim, Dim, Dim]:
        """The pieces of this block's part: the first, where they end, and the last of all."""
        count, named = self.depth.pieces, self.parameters.named
        last = named("last_piece", dims.maximum(count - 1, 0))
        end = last + 1 if dims.is_at_least(count, 1) else named("pieces", count)
        if self.parts == 1:
            return 0, end, last
        each = named("pieces_part", dims.ceildiv(count, self.parts))
        first = self.part * each
        return first, dims.minimum(first + each, end), last

    def multiplied(self, stages: Sequence[Stage]) -> list[Statement]:
        """One piece; of its depth, the steps of this lane's slice."""
        first = self.tile.slice * self.tile.steps
        statements: list[Statement] = []
        for step in range(self.tile.steps):
            values: list[list[Code]] = []
            for stage, name, each in zip(stages, "ab", (self.tile.rows, self.tile.columns)):
                for group in range(0, each, RUN):
                    names = [f"{name}{step}_{group + part}" for part in range(RUN)]
                    statements.append(stage.read(names, first, step, stage.along.within(group)))
                values.append([Register(f"{name}{step}_{number}", self.type, True) for number in range(each)])
            statements += self.added(*values)
        return statements

    def own_sums(self) -> tuple[list[Statement], list[Buffer]]:
        """Every lane reads its rows and columns from memory."""
        sides = ((self.left, self.rows), (self.right, self.columns))
        own = DirectProduct(self.tile, sides, self.depth, self.grid_places, self.type)
        return own.statements(self.added, None if self.parts == 1 else self.pieces()[:2]), []

    def added(self, left: Sequence[Code], right: Sequence[Code]) -> list[Statement]:
        """All sums with one more product each."""
        return [
            Assign(self.sum(row, column).name, multiply_add(self.target, a, b, self.sum(row, column)))
            for row, a in enumerate(left)
            for column, b in enumerate(right)
        ]

    # -- the end -----------------------------------------------------------------------------------------------------

    def write(self, slices: Slices) -> list[Statement]:
        """The epilogue, and what comes out."""
        starts = {axis: self.parameters.named(f"start{axis}", start) for axis, start in self.product.result_start}
        run = RUN if self.epilogue_writer.has_runs(self.product.columns, dict(self.product.result_start)) else 1
        statements, masks = self.masks(slices, run)
        rows = [self.rows.places(self.rows.within(slices.first + number)) for number in range(len(slices.rows))]
        columns = [self.columns.places(self.columns.within(number), run) for number in range(0, self.tile.columns, run)]
        for row, row_places in enumerate(rows):
            for number, column_places in enumerate(columns):
                axes = self.axes(starts, row_places, column_places)
                column, prefix = number * run, f"t{row}_{number}_"
                values = slices.rows[row][column : column + run]
                if run == 1:
                    statements += self.epilogue_writer.write_one(values[0], axes, masks[row][column], prefix)
                    continue
                axis = self.product.columns[-1].axis
                assert axis is not None
                statements += self.epilogue_writer.write_four(values, axes, axis, masks[row][column], prefix)
        return statements

    def masks(self, slices: Slices, run: int) -> tuple[list[Statement], list[list[Code | None]]]:
        """Which of a lane's elements are there, by row and column; for runs, the first of each speaks for all."""
        statements: list[Statement] = []
        rows = self.rows.tests(slices.first, len(slices.rows), 1, statements)
        columns = self.columns.tests(0, self.tile.columns, run, statements)
        return statements, [[all_of([*slices.tests, row, column]) for column in columns] for row in rows]

    def axes(self, starts: Mapping[int, Dim], rows: Sequence[Dim], columns: Sequence[Dim]) -> dict[int, Dim]:
        """Positions along the result's axes."""
        product, found = self.product, dict(starts)
        walks = [*zip(product.grid, self.grid_places), *zip(product.rows, rows), *zip(product.columns, columns)]
        for walk, place in walks:
            if walk.axis is not None:
                found[walk.axis] = found.get(walk.axis, 0) + self.parameters.size(walk.factor) * place
        return found

    def write_sums(self, slices: Slices) -> list[Statement]:
        """Sums of a part as they are: [parts, grid, rows, columns]."""
        named = self.parameters.named
        run = RUN if dims.mod(self.columns.count, RUN) == 0 else 1
        pitch = run * named(f"pitch{run}", dims.floordiv(self.columns.count, run))
        plane = (self.part * named("places", self.grid_size) + self.place) * named("height", self.rows.count)
        statements, masks = self.masks(slices, run)
        for row, sums in enumerate(slices.rows):
            line = (plane + self.rows.first + self.rows.within(slices.first + row)) * pitch + self.columns.first
            for column in range(0, self.tile.columns, run):
                place, mask = line + self.columns.within(column), masks[row][column]
                values = tuple(sums[column : column + run])
                statements.append(
                    PutRun("out", place, values, mask) if run > 1 else Put("out", place, values[0], mask=mask)
                )
        return statements
