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
from weft.ir.kernel import Barrier, Code, Number, Statement, block
from weft.ir.target import ThreadTarget
from weft.kernels.build.loop_axes import split_index
from weft.kernels.build.multiply_add import multiply_add
from weft.kernels.lower.kernel_builder import KernelBuilder, assign, define, put, put_run, repeat
from weft.kernels.lower.memoize import memoized
from weft.kernels.lower.tensors import RESULT, Launch
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
    """Operands are left, right and the epilogue's; with several parts the result is [parts, grid, rows, columns]."""
    return _Builder(name, product, tile, parts, target).launch()


class _Builder:
    def __init__(self, name: str, product: Product, tile: Tile, parts: int, target: ThreadTarget) -> None:
        self.tile, self.target, self.parts = tile, target, parts
        self.builder = KernelBuilder(name)
        self.product = merged(product)
        self.type = product.type
        self.left = ProductOperand(self.product, self.builder, is_left=True)
        self.right = ProductOperand(self.product, self.builder, is_left=False)
        if parts == 1:
            self.epilogue_writer = RunEpilogueWriter(product.result, product.epilogue, self.builder, 2)
        else:
            self.out = self.builder.output("out", self.type, RESULT)
        self.depth = Depth(self.product.sums, self.builder, tile.depth)
        self.rows = TileAxis("row", self.product.rows, self.builder, tile.height, tile.row)
        self.columns = TileAxis("column", self.product.columns, self.builder, tile.width, tile.column)
        self.grid_size = self.product.extents()[0]
        self.grid_places: list[Dim] = []
        self.place: Dim = 0
        self.part: Dim = 0

    def launch(self) -> Launch:
        statements, blocks = self.locate()
        self.sums = [
            self.builder.registers(f"sum{row}_", self.tile.columns, self.type) for row in range(self.tile.rows)
        ]
        statements += [define(total, Number(0, self.type)) for row in self.sums for total in row]
        if self.depth.pieces != 0:
            statements += self.shared_sums() if self.tile.shared else self.direct_sums()
        slices = Slices(self.tile, self.sums, self.type, self.builder)
        written = self.write(slices) if self.parts == 1 else self.write_sums(slices)
        return self.builder.launch(self.tile.lanes, (*statements, *slices.statements, *written), blocks)

    def locate(self) -> tuple[list[Statement], Dim]:
        """Which tile, part and place of the grid a block has, and the number of blocks.

        Neighbours share the larger operand: its panel stays in caches while tiles pass that take it with all of the
        other. The order is a matter of parameters, so that it needs no other kernel.
        """
        named, tiles = self.builder.named, self.columns.tiles * self.rows.tiles
        down = estimate(self.rows.count) < estimate(self.columns.count)
        column_step = named("column_step", dims.maximum(self.rows.tiles, 1) if down else 1)
        row_step = named("row_step", 1 if down else dims.maximum(self.columns.tiles, 1))
        column = dims.mod(
            dims.floordiv(block(), column_step), named("column_tiles", dims.maximum(self.columns.tiles, 1))
        )
        row = dims.mod(dims.floordiv(block(), row_step), named("row_tiles", dims.maximum(self.rows.tiles, 1)))
        first, tile_column = self.builder.let("tile_column", column)
        second, tile_row = self.builder.let("tile_row", row)
        statements: list[Statement] = [first, second]
        self.columns.first = tile_column * self.tile.width
        self.rows.first = tile_row * self.tile.height
        rest: Dim = 0
        if self.parts > 1 or self.product.grid:
            defined, rest = self.builder.let("rest", dims.floordiv(block(), named("tiles", dims.maximum(tiles, 1))))
            statements.append(defined)
        if self.parts > 1:
            defined, self.part = self.builder.let("part", dims.mod(rest, named("parts", self.parts)))
            statements.append(defined)
            rest = dims.floordiv(rest, named("parts", self.parts))
        self.place = rest if self.product.grid else 0
        sizes = [named(f"grid{n}", dims.maximum(loop_axis.size, 1)) for n, loop_axis in enumerate(self.product.grid)]
        for number, place in enumerate(split_index(self.place, sizes)):
            defined, at = self.builder.let(f"g{number}", place)
            statements.append(defined)
            self.grid_places.append(at)
        return statements, tiles * self.parts * self.grid_size

    # -- sums --------------------------------------------------------------------------------------------------------

    def shared_sums(self) -> list[Statement]:
        """Pieces of both operands in shared memory; the next ones are fetched before these are multiplied."""
        stages = [
            Stage(side, along, self.depth, self.tile.lanes, self.type, self.grid_places)
            for side, along in ((self.left, self.rows), (self.right, self.columns))
        ]
        start, stop, last = self.pieces()

        def staged(hint: str, number: Dim) -> tuple[list[Statement], list[Statement]]:
            """What fetches a piece of both, and what puts it down."""
            piece = self.depth.piece(hint)
            fetched = self.depth.begin(piece, number)
            puts: list[Statement] = []
            for stage in stages:
                statements, registers = stage.fetch(hint, piece)
                fetched += statements
                puts += stage.put(registers)
            return fetched, [*puts, Barrier()]

        number = self.builder.variable("piece")
        fetched, puts = staged("next", dims.minimum(number + 1, last))
        body = (*fetched, *self.multiplied(stages), Barrier(), *puts)
        fetched, puts = staged("first", dims.minimum(start, last))
        return [*fetched, *puts, repeat(number, start, stop, 1, body)]

    def pieces(self) -> tuple[Dim, Dim, Dim]:
        """The pieces of this block's part: the first, where they end, and the last of all."""
        count, named = self.depth.pieces, self.builder.named
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
            for stage, hint, each in zip(stages, "ab", (self.tile.rows, self.tile.columns)):
                registers = self.builder.registers(hint, each, self.type)
                for group in range(0, each, RUN):
                    run = registers[group : group + RUN]
                    statements.append(stage.read(run, first, step, stage.along.within(group)))
                values.append([*registers])
            statements += self.added(*values)
        return statements

    def direct_sums(self) -> list[Statement]:
        """Every lane reads its rows and columns from memory."""
        sides = ((self.left, self.rows), (self.right, self.columns))
        own = DirectProduct(self.tile, sides, self.depth, self.grid_places, self.type)
        return own.statements(self.added, None if self.parts == 1 else self.pieces()[:2])

    def added(self, left: Sequence[Code], right: Sequence[Code]) -> list[Statement]:
        """All sums with one more product each."""
        return [
            assign(total, multiply_add(self.target, a, b, total))
            for a, row in zip(left, self.sums)
            for b, total in zip(right, row)
        ]

    # -- the end -----------------------------------------------------------------------------------------------------

    def write(self, slices: Slices) -> list[Statement]:
        """The epilogue, and what comes out."""
        starts = {axis: self.builder.named(f"start{axis}", start) for axis, start in self.product.result_start}
        run = RUN if self.epilogue_writer.has_runs(self.product.columns, dict(self.product.result_start)) else 1
        statements, masks = self.masks(slices, run)
        rows = [self.rows.places(self.rows.within(slices.first + number)) for number in range(len(slices.rows))]
        columns = [self.columns.places(self.columns.within(number), run) for number in range(0, self.tile.columns, run)]
        for row, row_places in enumerate(rows):
            for number, column_places in enumerate(columns):
                axes = self.axes(starts, row_places, column_places)
                column = number * run
                values = slices.rows[row][column : column + run]
                if run == 1:
                    statements += self.epilogue_writer.write_one(values[0], axes, masks[row][column])
                    continue
                axis = self.product.columns[-1].axis
                assert axis is not None
                statements += self.epilogue_writer.write_four(values, axes, axis, masks[row][column])
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
        loop_axes = [*zip(product.grid, self.grid_places), *zip(product.rows, rows), *zip(product.columns, columns)]
        for loop_axis, place in loop_axes:
            if loop_axis.axis is not None:
                found[loop_axis.axis] = found.get(loop_axis.axis, 0) + self.builder.size(loop_axis.factor) * place
        return found

    def write_sums(self, slices: Slices) -> list[Statement]:
        """Sums of a part as they are: [parts, grid, rows, columns]."""
        named = self.builder.named
        run = RUN if dims.mod(self.columns.count, RUN) == 0 else 1
        pitch = run * named(f"pitch{run}", dims.floordiv(self.columns.count, run))
        plane = (self.part * named("places", self.grid_size) + self.place) * named("height", self.rows.count)
        statements, masks = self.masks(slices, run)
        for row, sums in enumerate(slices.rows):
            line = (plane + self.rows.first + self.rows.within(slices.first + row)) * pitch + self.columns.first
            for column in range(0, self.tile.columns, run):
                place, mask = line + self.columns.within(column), masks[row][column]
                values = sums[column : column + run]
                write = (
                    put_run(self.out, place, values, mask) if run > 1 else put(self.out, place, values[0], mask=mask)
                )
                statements.append(write)
        return statements
