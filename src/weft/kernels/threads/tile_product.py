"""The product kernel on multiply-adds: a block computes a tile of the result, each lane some of its rows and columns.

Where sharing pays, tiles of the operands go through shared memory, the next one fetched while one is multiplied.
Otherwise lanes read their rows and columns straight from memory.
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.cost.sizes import estimate
from weft.ir import dims
from weft.ir.dims import Dim
from weft.ir.kernel import Barrier, Code, Number, Statement, block
from weft.ir.target import ThreadTarget
from weft.kernels.build.multiply_add import multiply_add
from weft.kernels.lower.kernel_builder import KernelBuilder, assign, define, repeat
from weft.kernels.lower.memoize import memoize
from weft.kernels.lower.tensors import Launch
from weft.kernels.threads.direct_product import DirectProduct
from weft.kernels.threads.lane_slices import LaneSlices
from weft.kernels.threads.points import all_of
from weft.kernels.threads.product import Product, merge_product_axes
from weft.kernels.threads.product_frame import ProductFrame
from weft.kernels.threads.product_operands import RUN, ProductOperand
from weft.kernels.threads.shared_staging import SharedStage
from weft.kernels.threads.tile import Tile


@memoize
def build_tile_product(name: str, product: Product, tile: Tile, splits: int, target: ThreadTarget) -> Launch:
    """Operands are left, right and the epilogue's; with several splits the result is [splits, grid, rows, columns]."""
    return TileProductKernel(name, merge_product_axes(product), tile, splits, target).build_launch()


class TileProductKernel(ProductFrame):
    def __init__(self, name: str, product: Product, tile: Tile, splits: int, target: ThreadTarget) -> None:
        builder = KernelBuilder(name)
        self.tile, self.target = tile, target
        self.builder = builder
        self.left = ProductOperand(product, builder, is_left=True)
        self.declare_right(product)
        super().__init__(builder, product, tile, splits, product.type, tile.row, tile.column)

    def declare_right(self, product: Product) -> None:
        """Declare the buffers of the right operand."""
        self.right = ProductOperand(product, self.builder, is_left=False)

    def build_launch(self) -> Launch:
        statements = self.locate_block()
        self.sums = [
            self.builder.registers(f"sum{row}_", self.tile.columns, self.type) for row in range(self.tile.rows)
        ]
        statements += [define(total, Number(0, self.type)) for row in self.sums for total in row]
        if self.depth.tiles != 0:
            statements += self.sum_shared() if self.tile.shared else self.sum_direct()
        slices = LaneSlices(self.tile, self.sums, self.type, self.builder)
        return self.builder.launch(self.tile.lanes, (*statements, *slices.statements, *self.write(slices)), self.blocks)

    def locate_block(self) -> list[Statement]:
        """Compute which tile, split and grid position a block has.

        Neighbouring blocks share the larger operand: its panel stays in caches while all of the other operand passes.
        The order is set by parameters, so that it needs no other kernel.
        """
        parameter = self.builder.parameter
        is_down = estimate(self.rows.count) < estimate(self.columns.count)
        column_step = parameter("column_step", dims.maximum(self.rows.tiles, 1) if is_down else 1)
        row_step = parameter("row_step", 1 if is_down else dims.maximum(self.columns.tiles, 1))
        column = dims.mod(
            dims.floordiv(block(), column_step), parameter("column_tiles", dims.maximum(self.columns.tiles, 1))
        )
        row = dims.mod(dims.floordiv(block(), row_step), parameter("row_tiles", dims.maximum(self.rows.tiles, 1)))
        statements: list[Statement] = []
        self.columns.first = self.let(statements, "tile_column", column) * self.tile.width
        self.rows.first = self.let(statements, "tile_row", row) * self.tile.height
        self.locate_in_grid(statements)
        return statements

    # -- sums --------------------------------------------------------------------------------------------------------

    def sum_shared(self) -> list[Statement]:
        """Multiply tiles in shared memory; the next ones are fetched before the current ones are multiplied."""
        stages = [
            SharedStage(operand, along, self.depth, self.tile.lanes, self.type, self.grid_positions)
            for operand, along in ((self.left, self.rows), (self.right, self.columns))
        ]
        start, stop, last = self.depth_tiles()
        number = self.builder.variable("piece")
        fetches, puts = self.stage_tiles(stages, "next", dims.minimum(number + 1, last))
        body = (*fetches, *self.multiply(stages), Barrier(), *puts)
        fetches, puts = self.stage_tiles(stages, "first", dims.minimum(start, last))
        return [*fetches, *puts, repeat(number, start, stop, 1, body)]

    def stage_tiles(
        self, stages: Sequence[SharedStage], hint: str, number: Dim
    ) -> tuple[list[Statement], list[Statement]]:
        """Build statements that fetch a depth tile of both operands, and others that store it to shared memory."""
        depth_tile = self.depth.tile(hint)
        fetches = self.depth.begin(depth_tile, number)
        puts: list[Statement] = []
        for stage in stages:
            statements, registers = stage.fetch(hint, depth_tile)
            fetches += statements
            puts += stage.put(registers)
        return fetches, [*puts, Barrier()]

    def depth_tiles(self) -> tuple[Dim, Dim, Dim]:
        """Return the depth tiles of this block's split (the first, and where they end), and the last of all."""
        count, parameter = self.depth.tiles, self.builder.parameter
        last = parameter("last_piece", dims.maximum(count - 1, 0))
        end = last + 1 if dims.is_at_least(count, 1) else parameter("pieces", count)
        return *self.depth_range(end), last

    def multiply(self, stages: Sequence[SharedStage]) -> list[Statement]:
        """Multiply one depth tile; of its depth, the steps of this lane's slice."""
        first = self.tile.slice * self.tile.steps
        statements: list[Statement] = []
        for step in range(self.tile.steps):
            values: list[list[Code]] = []
            for stage, hint, count in zip(stages, "ab", (self.tile.rows, self.tile.columns)):
                registers = self.builder.registers(hint, count, self.type)
                for group in range(0, count, RUN):
                    run = registers[group : group + RUN]
                    statements.append(stage.read(run, first, step, stage.along.within(group)))
                values.append([*registers])
            statements += self.accumulate(*values)
        return statements

    def sum_direct(self) -> list[Statement]:
        """Let every lane read its rows and columns from memory."""
        operands = ((self.left, self.rows), (self.right, self.columns))
        direct = DirectProduct(self.tile, operands, self.depth, self.grid_positions, self.type)
        return direct.build_statements(self.accumulate, None if self.splits == 1 else self.depth_tiles()[:2])

    def accumulate(self, left: Sequence[Code], right: Sequence[Code]) -> list[Statement]:
        """Add one product to each sum."""
        return [
            assign(total, multiply_add(self.target, a, b, total))
            for a, row in zip(left, self.sums)
            for b, total in zip(right, row)
        ]

    # -- results -----------------------------------------------------------------------------------------------------

    def write(self, slices: LaneSlices) -> list[Statement]:
        run = self.begin_results()
        statements, masks = self.masks(slices, run)
        for row, sums in enumerate(slices.rows):
            row_within = self.rows.within(slices.first + row)
            for column in range(0, self.tile.columns, run):
                values, mask = sums[column : column + run], masks[row][column]
                column_within = self.columns.within(column)
                if self.splits > 1:
                    statements.append(self.write_sums(values, row_within, column_within, mask))
                else:
                    rows, columns = self.rows.places(row_within), self.columns.places(column_within, run)
                    statements += self.write_results(values, rows, columns, mask)
        return statements

    def masks(self, slices: LaneSlices, run: int) -> tuple[list[Statement], list[list[Code | None]]]:
        """Test which of a lane's elements exist, by row and column; the first of a run decides for all of it."""
        statements: list[Statement] = []
        rows = self.rows.tests(slices.first, len(slices.rows), 1, statements)
        columns = self.columns.tests(0, self.tile.columns, run, statements)
        return statements, [[all_of([*slices.tests, row, column]) for column in columns] for row in rows]
