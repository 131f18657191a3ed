"""The kernel for sums of products on tile products: all lanes of a block multiply tiles of both operands, which a
pipeline brings. The sums end in local memory, where lanes take up neighbours, finish and write them.

Operands that come as several numbers give several products a turn; those of one turn are added up on their own, and
then to what others gave, so that little is lost where sums grow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft.ir import dims
from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.ir.kernel import AddSums, Call, Code, Integer, MultiplyTiles, PutSums, Statement, TilePipeline, block, lane
from weft.kernels.build.loop_axes import split_index
from weft.kernels.lower.kernel_builder import KernelBuilder, define, fetch, fetch_run, put, put_run, repeat
from weft.kernels.lower.kernel_builder import let as bound
from weft.kernels.lower.memoize import memoized
from weft.kernels.lower.tensors import RESULT, Launch
from weft.kernels.threads.depth import Depth
from weft.kernels.threads.epilogue import RunEpilogueWriter
from weft.kernels.threads.product import Product, merged
from weft.kernels.threads.product_operands import RUN, all_of
from weft.kernels.threads.tensor_operands import TensorOperand
from weft.kernels.threads.tensor_tiles import PAD, Multiplying, TensorTile
from weft.kernels.threads.tile_axis import TileAxis

_UNROLLED = 4  # turns in which sums are written
_SWAPPED_PAD = 2  # elements between lines that are read across
_TOGETHER = 8  # tiles of rows whose blocks are neighbours, so that caches serve both operands


@memoized
def tensor_product(name: str, product: Product, how: Multiplying, tile: TensorTile, parts: int) -> Launch:
    """Operands are left, right and the epilogue's; with several parts the result is [parts, grid, rows, columns]."""
    return _Builder(name, product, how, tile, parts).launch()


class _Builder:
    def __init__(self, name: str, product: Product, how: Multiplying, tile: TensorTile, parts: int) -> None:
        self.how, self.tile, self.parts = how, tile, parts
        self.builder = KernelBuilder(name)
        self.product = merged(product)
        self.type = how.tile_product.sums
        self.operands = [
            TensorOperand(self.product, self.builder, how, tile, is_left=is_left) for is_left in (True, False)
        ]
        if parts == 1:
            self.epilogue_writer = RunEpilogueWriter(product.result, product.epilogue, self.builder, 2)
        else:
            self.out = self.builder.output("out", self.type, RESULT)
        self.depth = Depth(self.product.sums, self.builder, tile.depth, literal=True)
        self.rows = TileAxis("row", self.product.rows, self.builder, tile.height, lambda within: within, literal=True)
        self.columns = TileAxis(
            "column", self.product.columns, self.builder, tile.width, lambda within: within, literal=True
        )
        self.grid_size = self.product.extents()[0]
        self.grid_places: list[Dim] = []
        self.place: Dim = 0
        self.part: Dim = 0

    def launch(self) -> Launch:
        statements, blocks = self.locate()
        lines, length = self.tile.sums_shape
        sums = self.builder.sums("sums", lines, length, self.type)
        statements.append(sums)
        if self.depth.pieces != 0:
            statements.append(self.pipeline(sums.name))
        pitch = length + (_SWAPPED_PAD if self.tile.swapped else PAD)
        held = self.builder.late("held", self.type, lines * pitch)
        statements.append(PutSums(sums.name, held.name, 0, pitch))
        run = self.run()
        each = self.tile.width // run
        turns = -(-self.tile.height * each // self.tile.lanes)
        turn = self.builder.variable("turn", 0, turns - 1)
        index: Dim = turn * self.tile.lanes + lane(self.tile.lanes)
        if self.tile.height * each % self.tile.lanes:
            index = dims.minimum(index, self.tile.height * each - 1)
        row, column = dims.floordiv(index, each), dims.mod(index, each) * run
        values = self.builder.registers("sum", run, self.type)
        if self.tile.swapped:
            body: list[Statement] = [
                define(value, fetch(held, (column + number) * pitch + row)) for number, value in enumerate(values)
            ]
        elif run == 1:
            body = [define(values[0], fetch(held, row * pitch + column))]
        else:
            body = [fetch_run(values, held, row * pitch + column)]
        body += self.write(values, row, column) if self.parts == 1 else self.write_sums(values, row, column)
        is_short = self.parts > 1 or not self.epilogue_writer.is_long
        unroll = _UNROLLED if is_short and turns % _UNROLLED == 0 else 1
        return self.builder.launch(self.tile.lanes, (*statements, repeat(turn, 0, turns, 1, body, unroll)), blocks)

    def locate(self) -> tuple[list[Statement], Dim]:
        """Which tile, part and place of the grid a block has, and the number of blocks.

        Neighbours are in some tiles of rows, and go on along the columns together.
        """
        named, tiles = self.builder.named, self.columns.tiles * self.rows.tiles
        statements: list[Statement] = []

        def let(hint: str, value: Dim) -> Dim:
            defined, made = self.builder.let(hint, value)
            statements.append(defined)
            return made

        row_tiles = named("row_tiles", dims.maximum(self.rows.tiles, 1))
        together = named("together", _TOGETHER)
        of_group = named("tiles_together", _TOGETHER * dims.maximum(self.columns.tiles, 1))
        whole = let("tile", dims.mod(block(), named("tiles", dims.maximum(tiles, 1))))
        group = let("group", dims.floordiv(whole, of_group))
        first = group * together
        here = self.builder.variable("rows_together", 1)
        statements.append(bound(here, dims.maximum(dims.minimum(row_tiles - first, together), 1)))
        within = let("in_group", dims.mod(whole, of_group))
        self.rows.first = let("tile_row", first + dims.mod(within, here)) * self.tile.height
        self.columns.first = let("tile_column", dims.floordiv(within, here)) * self.tile.width
        rest: Dim = 0
        if self.parts > 1 or self.product.grid:
            rest = let("rest", dims.floordiv(block(), named("tiles", dims.maximum(tiles, 1))))
        if self.parts > 1:
            self.part = let("part", dims.mod(rest, named("parts", self.parts)))
            rest = dims.floordiv(rest, named("parts", self.parts))
        self.place = rest if self.product.grid else 0
        sizes = [named(f"grid{n}", dims.maximum(loop_axis.size, 1)) for n, loop_axis in enumerate(self.product.grid)]
        self.grid_places = [let(f"g{number}", place) for number, place in enumerate(split_index(self.place, sizes))]
        return statements, tiles * self.parts * self.grid_size

    # -- sums --------------------------------------------------------------------------------------------------------

    def pipeline(self, total: str) -> Statement:
        """All pieces of this block's part."""
        number = self.builder.variable("piece")
        parts: dict[str, list[Statement]] = {"moves": [], "fetches": [], "puts": []}
        for kind, is_moved in (("moves", True), ("fetches", False)):
            sides = [
                (operand, along)
                for operand, along in zip(self.operands, (self.rows, self.columns))
                if operand.is_moved is is_moved
            ]
            if not sides:
                continue
            piece = self.depth.piece(kind)
            parts[kind] += self.depth.begin(piece, number)
            for operand, along in sides:
                here = operand.begin(kind, self.grid_places, self.depth, piece)
                parts[kind] += here.begin
                if is_moved:
                    parts[kind] += here.moves(along)
                    continue
                fetches, puts = here.fetched(along)
                parts[kind] += fetches
                parts["puts"] += puts
        start, stop = self.pieces()
        name = str(number)
        moves, fetched, put_down = (tuple(parts[kind]) for kind in ("moves", "fetches", "puts"))
        return TilePipeline(name, start, stop, moves, fetched, put_down, tuple(self.multiplied(total)))

    def multiplied(self, total: str) -> list[Statement]:
        """One piece."""
        left, right = (operand.tiles for operand in self.operands)
        if self.tile.swapped:
            left, right = right, left
        if self.how.planes == 1:
            return [MultiplyTiles(total, left[0].name, right[0].name)]
        small = self.builder.sums("small", *self.tile.sums_shape, self.type)
        products = [MultiplyTiles(small.name, left[a].name, right[b].name) for a, b in self.how.pairs]
        return [small, *products, AddSums(total, small.name)]

    def pieces(self) -> tuple[Dim, Dim]:
        """The pieces of this block's part: the first, and where they end."""
        count, named = self.depth.pieces, self.builder.named
        end = named("pieces", count)
        if self.parts == 1:
            return 0, end
        each = named("pieces_part", dims.ceildiv(count, self.parts))
        first = self.part * each
        return first, dims.minimum(first + each, end)

    # -- the end -----------------------------------------------------------------------------------------------------

    def run(self) -> int:
        """How many neighbours are written at once."""
        if self.parts > 1:
            return RUN if dims.mod(self.columns.count, RUN) == 0 else 1
        return RUN if self.epilogue_writer.has_runs(self.product.columns, dict(self.product.result_start)) else 1

    def mask(self, row: Dim, column: Dim) -> tuple[list[Statement], Code]:
        """Whether there is such an element."""
        tests = [
            Call("less", (Integer(along.first + at), Integer(self.builder.named(f"{along.name}s", along.count))),
                 DType.bool)
            for along, at in ((self.rows, row), (self.columns, column))
        ]  # fmt: skip
        test = all_of(tests)
        assert test is not None
        defined, register = self.builder.keep("there", test, varying=True)
        return [defined], register

    def write(self, values: Sequence[Code], row: Dim, column: Dim) -> list[Statement]:
        """The epilogue, and what comes out."""
        starts = {axis: self.builder.named(f"start{axis}", start) for axis, start in self.product.result_start}
        statements, mask = self.mask(row, column)
        axes = self.axes(starts, self.rows.places(row), self.columns.places(column, len(values)))
        if len(values) == 1:
            return [*statements, *self.epilogue_writer.write_one(values[0], axes, mask)]
        axis = self.product.columns[-1].axis
        assert axis is not None
        return [*statements, *self.epilogue_writer.write_four(values, axes, axis, mask)]

    def axes(self, starts: Mapping[int, Dim], rows: Sequence[Dim], columns: Sequence[Dim]) -> dict[int, Dim]:
        """Positions along the result's axes."""
        product, found = self.product, dict(starts)
        loop_axes = [*zip(product.grid, self.grid_places), *zip(product.rows, rows), *zip(product.columns, columns)]
        for loop_axis, place in loop_axes:
            if loop_axis.axis is not None:
                found[loop_axis.axis] = found.get(loop_axis.axis, 0) + self.builder.size(loop_axis.factor) * place
        return found

    def write_sums(self, values: Sequence[Code], row: Dim, column: Dim) -> list[Statement]:
        """Sums of a part as they are: [parts, grid, rows, columns]."""
        named, run = self.builder.named, len(values)
        pitch = run * named(f"pitch{run}", dims.floordiv(self.columns.count, run))
        plane = (self.part * named("places", self.grid_size) + self.place) * named("height", self.rows.count)
        place = (plane + self.rows.first + row) * pitch + self.columns.first + column
        statements, mask = self.mask(row, column)
        written = put_run(self.out, place, values, mask) if run > 1 else put(self.out, place, values[0], mask=mask)
        return [*statements, written]
