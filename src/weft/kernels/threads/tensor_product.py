"""The product kernel on tile products: all lanes of a block multiply tiles of both operands, which a pipeline loads.

The sums are put into local memory; then each lane reads neighbours, applies the epilogue and writes them. Operands that
are split into planes give several products per depth tile. The products of a depth tile may be summed separately before
they are added to the total, so that little precision is lost where sums grow.
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.ir import dims
from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.ir.kernel import AddSums, Call, Code, Integer, MultiplyTiles, PutSums, Statement, TilePipeline, block, lane
from weft.kernels.lower.kernel_builder import KernelBuilder, define, fetch, fetch_run, let, repeat
from weft.kernels.lower.memoize import memoize
from weft.kernels.lower.tensors import Launch
from weft.kernels.threads.points import all_of
from weft.kernels.threads.product import Product, merge_product_axes
from weft.kernels.threads.product_frame import ProductFrame
from weft.kernels.threads.tensor_operands import TensorOperand
from weft.kernels.threads.tensor_tile import PAD, ProductScheme, TensorTile

_UNROLL = 4  # iterations of the loop that writes results
_SWAPPED_PAD = 2  # elements between lines that are read across
_GROUP_ROWS = 8  # tiles of rows whose blocks are neighbours, so that caches serve both operands


@memoize
def build_tensor_product(name: str, product: Product, scheme: ProductScheme, tile: TensorTile, splits: int) -> Launch:
    """Operands are left, right and the epilogue's; with several splits the result is [splits, grid, rows, columns]."""
    return _TensorProductKernel(name, merge_product_axes(product), scheme, tile, splits).build_launch()


class _TensorProductKernel(ProductFrame):
    def __init__(self, name: str, product: Product, scheme: ProductScheme, tile: TensorTile, splits: int) -> None:
        builder = KernelBuilder(name)
        self.scheme, self.tile = scheme, tile
        self.operands = [TensorOperand(product, builder, scheme, tile, is_left=is_left) for is_left in (True, False)]

        def within(position: Dim) -> Dim:
            return position

        super().__init__(builder, product, tile, splits, scheme.tile_product.sums, within, within, literal=True)

    def build_launch(self) -> Launch:
        statements = self.locate_block()
        lines, length = self.tile.sums_shape
        sums = self.builder.sums("sums", lines, length, self.type)
        statements.append(sums)
        if self.depth.tiles != 0:
            statements.append(self.build_pipeline(sums.name))
        pitch = length + (_SWAPPED_PAD if self.tile.swapped else PAD)
        local_sums = self.builder.late("held", self.type, lines * pitch)
        statements.append(PutSums(sums.name, local_sums.name, 0, pitch))
        run = self.begin_results()
        runs_per_row = self.tile.width // run
        iterations = -(-self.tile.height * runs_per_row // self.tile.lanes)
        turn = self.builder.variable("turn", 0, iterations - 1)
        index: Dim = turn * self.tile.lanes + lane(self.tile.lanes)
        if self.tile.height * runs_per_row % self.tile.lanes:
            index = dims.minimum(index, self.tile.height * runs_per_row - 1)
        row, column = dims.floordiv(index, runs_per_row), dims.mod(index, runs_per_row) * run
        values = self.builder.registers("sum", run, self.type)
        if self.tile.swapped:
            body: list[Statement] = [
                define(value, fetch(local_sums, (column + number) * pitch + row)) for number, value in enumerate(values)
            ]
        elif run == 1:
            body = [define(values[0], fetch(local_sums, row * pitch + column))]
        else:
            body = [fetch_run(values, local_sums, row * pitch + column)]
        body += self.write(values, row, column)
        is_short = self.splits > 1 or not self.epilogue_writer.is_long
        unroll = _UNROLL if is_short and iterations % _UNROLL == 0 else 1
        statements.append(repeat(turn, 0, iterations, 1, body, unroll))
        return self.builder.launch(self.tile.lanes, statements, self.blocks)

    def locate_block(self) -> list[Statement]:
        """Compute which tile, split and grid position a block has.

        Neighbouring blocks form groups of a few tiles of rows, which advance along the columns together.
        """
        parameter, tiles = self.builder.parameter, self.columns.tiles * self.rows.tiles
        statements: list[Statement] = []
        row_tiles = parameter("row_tiles", dims.maximum(self.rows.tiles, 1))
        group_rows = parameter("together", _GROUP_ROWS)
        group_tiles = parameter("tiles_together", _GROUP_ROWS * dims.maximum(self.columns.tiles, 1))
        index = self.let(statements, "tile", dims.mod(block(), parameter("tiles", dims.maximum(tiles, 1))))
        first = self.let(statements, "group", dims.floordiv(index, group_tiles)) * group_rows
        rows = self.builder.variable("rows_together", 1)  # fewer in the last group
        statements.append(let(rows, dims.maximum(dims.minimum(row_tiles - first, group_rows), 1)))
        in_group = self.let(statements, "in_group", dims.mod(index, group_tiles))
        self.rows.first = self.let(statements, "tile_row", first + dims.mod(in_group, rows)) * self.tile.height
        self.columns.first = self.let(statements, "tile_column", dims.floordiv(in_group, rows)) * self.tile.width
        self.locate_in_grid(statements)
        return statements

    # -- sums --------------------------------------------------------------------------------------------------------

    def build_pipeline(self, total: str) -> Statement:
        """Load and multiply all depth tiles of this block's split."""
        number = self.builder.variable("piece")
        moves: list[Statement] = []
        fetches: list[Statement] = []
        puts: list[Statement] = []
        for hint, statements, is_moved in (("moves", moves, True), ("fetches", fetches, False)):
            operands = [
                (operand, along)
                for operand, along in zip(self.operands, (self.rows, self.columns))
                if operand.is_moved is is_moved
            ]
            if not operands:
                continue
            depth_tile = self.depth.tile(hint)
            statements += self.depth.begin(depth_tile, number)
            for operand, along in operands:
                staged = operand.begin(hint, self.grid_positions, self.depth, depth_tile)
                statements += staged.begin
                if is_moved:
                    statements += staged.moves(along)
                    continue
                operand_fetches, operand_puts = staged.fetches(along)
                statements += operand_fetches
                puts += operand_puts
        start, stop = self.depth_range(self.builder.parameter("pieces", self.depth.tiles))
        products = tuple(self.multiply(total))
        return TilePipeline(str(number), start, stop, tuple(moves), tuple(fetches), tuple(puts), products)

    def multiply(self, total: str) -> list[Statement]:
        """Multiply one depth tile."""
        left, right = (operand.tiles for operand in self.operands)
        if self.tile.swapped:
            left, right = right, left
        if not self.scheme.promotes_sums:
            return [MultiplyTiles(total, left[0].name, right[0].name)]
        small = self.builder.sums("small", *self.tile.sums_shape, self.type)
        products = [MultiplyTiles(small.name, left[a].name, right[b].name) for a, b in self.scheme.pairs]
        return [small, *products, AddSums(total, small.name)]

    # -- results -----------------------------------------------------------------------------------------------------

    def write(self, values: Sequence[Code], row: Dim, column: Dim) -> list[Statement]:
        """Write a run of results, if it is inside the result."""
        tests = [
            Call(
                "less",
                (Integer(along.first + within), Integer(self.builder.parameter(f"{along.name}s", along.count))),
                DType.bool,
            )
            for along, within in ((self.rows, row), (self.columns, column))
        ]
        test = all_of(tests)
        assert test is not None
        definition, mask = self.builder.keep("there", test, varying=True)
        if self.splits > 1:
            return [definition, self.write_sums(values, row, column, mask)]
        columns = self.columns.places(column, len(values))
        return [definition, *self.write_results(values, self.rows.places(row), columns, mask)]
