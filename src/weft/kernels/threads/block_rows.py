"""Products of few rows by block-quantized weights: each weight is read once, and decoded in registers.

Neighbouring lanes have neighbouring columns, and the lanes of a block share the sums of its columns, a range each. The
ranges are added in shared memory. Without shared memory, a lane has all of the sums.
"""

from __future__ import annotations

from weft.ir import dims
from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.ir.kernel import Barrier, Call, Code, Integer, Number, Register, Statement, block, lane
from weft.ir.target import ThreadTarget
from weft.kernels.build.multiply_add import multiply_add
from weft.kernels.lower.kernel_builder import KernelBuilder, assign, define, fetch, fetch_run, put, repeat
from weft.kernels.lower.memoize import memoize
from weft.kernels.lower.operations import cast
from weft.kernels.lower.tensors import Launch
from weft.kernels.threads.block_format import GROUP
from weft.kernels.threads.float_format import WeightFormat
from weft.kernels.threads.points import all_of
from weft.kernels.threads.product import Product, merge_product_axes
from weft.kernels.threads.product_frame import ProductFrame
from weft.kernels.threads.product_operands import RUN, OperandTile, ProductOperand
from weft.records import dataclass

_F32 = DType.float32
_UNROLL = 2  # chunks, so that a lane has several reads in flight


@dataclass(frozen=True, slots=True)
class RowTile:
    """`wide` lanes with `columns` columns each, by `slices` lanes that share their sums; all have `height` rows."""

    height: int
    wide: int
    columns: int
    slices: int
    depth: int = RUN

    @property
    def lanes(self) -> int:
        return self.wide * self.slices

    @property
    def width(self) -> int:
        return self.wide * self.columns

    @property
    def shared_bytes(self) -> int:
        return self.height * self.width * self.slices * 4 if self.slices > 1 else 0


@memoize
def build_block_rows(product: Product, block_format: WeightFormat, tile: RowTile, target: ThreadTarget) -> Launch:
    """Operands are the left one, the words, the scales, and from number 2 on the epilogue's."""
    return _BlockRowKernel(merge_product_axes(product), block_format, tile, target).build_launch()


class _BlockRowKernel(ProductFrame):
    def __init__(self, product: Product, block_format: WeightFormat, tile: RowTile, target: ThreadTarget) -> None:
        builder = KernelBuilder("unpack_rows")
        self.tile, self.target, self.format = tile, target, block_format
        self.left = ProductOperand(product, builder, is_left=True)
        self.reader = block_format.open_reader(builder)
        super().__init__(builder, product, tile, 1, _F32, lambda number: number, lambda number: number)

    def build_launch(self) -> Launch:
        tile, builder = self.tile, self.builder
        statements: list[Statement] = []
        row_tiles = builder.parameter("row_tiles", dims.maximum(self.rows.tiles, 1))
        self.rows.first = self.let(statements, "tile_row", dims.mod(block(), row_tiles)) * tile.height
        column_tile = self.let(statements, "tile_column", dims.floordiv(block(), row_tiles))
        self.columns.first = column_tile * tile.width
        if tile.width <= GROUP:
            self.group = self.let(statements, "group", dims.floordiv(column_tile, GROUP // tile.width))
            self.group_column: Dim = self.let(statements, "near", dims.mod(column_tile, GROUP // tile.width))
        self.locate_in_grid(statements)
        self.sums = [builder.registers(f"sum{row}_", tile.columns, _F32) for row in range(tile.height)]
        statements += [define(total, Number(0.0, _F32)) for row in self.sums for total in row]
        statements += self.sum_range()
        statements += self.write_lane() if tile.slices == 1 else self.write_slices()
        return builder.launch(tile.lanes, statements, self.blocks)

    @property
    def own_column(self) -> Dim:
        """The first column of the lane in the tile; others are `wide` further on each."""
        return dims.mod(lane(self.tile.lanes), self.tile.wide) if self.tile.slices > 1 else lane(self.tile.lanes)

    @property
    def own_slice(self) -> Dim:
        return dims.floordiv(lane(self.tile.lanes), self.tile.wide) if self.tile.slices > 1 else 0

    def locate_column(self, number: int) -> tuple[Dim, Dim]:
        """Return the group of one of a lane's columns, and its position there."""
        within = number * self.tile.wide + self.own_column
        if self.tile.width <= GROUP:
            return self.group, self.group_column * self.tile.width + within
        last = self.builder.parameter("last_group", self.format.groups - 1)
        column = self.columns.first + within
        return dims.minimum(dims.floordiv(column, GROUP), last), dims.mod(column, GROUP)

    # -- sums --------------------------------------------------------------------------------------------------------

    def sum_range(self) -> list[Statement]:
        """Add up the products of the lane's range."""
        builder, block_format = self.builder, self.format
        step, range_chunks = builder.variable("step"), builder.parameter("range_chunks", block_format.range_chunks)
        chunk = self.own_slice * range_chunks + step
        body: list[Statement] = []
        sums_before: list[Register] = []
        if self.tile.slices * block_format.range_chunks != block_format.chunks:
            for total in (total for row in self.sums for total in row):
                definition, before = builder.keep("before", total, varying=True)
                body.append(definition)
                sums_before.append(before)
        at = dims.minimum(chunk, builder.parameter("last_chunk", block_format.chunks - 1)) if sums_before else chunk
        columns = [
            self.reader.open_values(*self.locate_column(number), at, 0, block_format.chunk, body)
            for number in range(self.tile.columns)
        ]
        rows = [self.rows.places(row) for row in range(self.tile.height)]
        for first in range(0, block_format.chunk, RUN):
            lines = [self.read_left(row, at * block_format.chunk + first, body) for row in rows]
            for number in range(RUN):
                left = [line[number] for line in lines]
                self.multiply(left, [decode(first + number, body) for decode in columns], body)
        if sums_before:  # the last ranges have fewer chunks, or none
            chunks = Integer(builder.parameter("chunks", block_format.chunks))
            definition, inside = builder.keep(
                "inside", Call("less", (Integer(chunk), chunks), DType.bool), varying=True
            )
            body.append(definition)
            for total, before in zip((total for row in self.sums for total in row), sums_before):
                body.append(assign(total, Call("select", (inside, total, before), _F32)))
        return [repeat(step, 0, range_chunks, 1, body, _UNROLL if self.tile.height == 1 else 1)]

    def multiply(self, left: list[Code], right: list[Register], statements: list[Statement]) -> None:
        for a, row in zip(left, self.sums):
            statements += [assign(total, multiply_add(self.target, a, b, total)) for b, total in zip(right, row)]

    def read_left(self, row: list[Dim], position: Dim, statements: list[Statement]) -> list[Code]:
        """Read four neighbours along the sums; elements after the last are 0."""
        registers = self.builder.registers("left", RUN, self.left.buffer.dtype)
        tile = OperandTile(self.left.start, (), (), self.depth, self.depth.tile("left"))
        if self.left.runs_deep:
            mask = self.test_depth(position)
            statements.append(fetch_run(registers, self.left.buffer, self.left.offset(tile, row, [position]), mask))
            return [cast(register, _F32) for register in registers]
        for number, register in enumerate(registers):
            place = self.left.offset(tile, row, [position + number])
            mask = self.test_depth(position + number)
            statements.append(define(register, fetch(self.left.buffer, place, mask=mask)))
        return [cast(register, _F32) for register in registers]

    def test_depth(self, position: Dim) -> Code | None:
        """Test whether there is an element at a position along the sums; None if there always is."""
        if self.format.depth % self.format.chunk == 0:
            return None
        depth = Integer(self.builder.parameter("whole_depth", self.format.depth))
        return Call("less", (Integer(position), depth), DType.bool)

    # -- results -----------------------------------------------------------------------------------------------------

    def write_lane(self) -> list[Statement]:
        """Write the sums of a lane that has all of a range."""
        self.begin_results()
        statements: list[Statement] = []
        rows = self.rows.tests(0, self.tile.height, 1, statements)
        for number in range(self.tile.columns):
            column = number * self.tile.wide + self.own_column
            (has_column,) = self.columns.tests(column, 1, 1, statements)
            for row, sums in enumerate(self.sums):
                mask = all_of([rows[row], has_column])
                statements += self.write_results(
                    [sums[number]], self.rows.places(row), self.columns.places(column), mask
                )
        return statements

    def write_slices(self) -> list[Statement]:
        """Add the ranges in order; a lane for each element of the tile."""
        tile, builder = self.tile, self.builder
        count = tile.height * tile.width
        statements: list[Statement] = []
        shared = builder.local("ranges", _F32, tile.slices * count)
        for row, sums in enumerate(self.sums):
            for number, total in enumerate(sums):
                place = self.own_slice * count + row * tile.width + number * tile.wide + self.own_column
                statements.append(put(shared, place, total))
        statements.append(Barrier())
        self.begin_results()
        for first in range(0, count, tile.lanes):
            element: Dim = (
                first + lane(tile.lanes)
                if count - first >= tile.lanes
                else first + dims.mod(lane(tile.lanes), count - first)
            )
            total = builder.register("total", _F32)
            statements.append(define(total, fetch(shared, element)))
            for number in range(1, tile.slices):
                value = fetch(shared, number * count + element)
                statements.append(assign(total, Call("add", (total, value), _F32)))
            row_within, column_within = dims.floordiv(element, tile.width), dims.mod(element, tile.width)
            tests = self.rows.tests(row_within, 1, 1, statements)
            tests += self.columns.tests(column_within, 1, 1, statements)
            if count - first < tile.lanes:
                inside = Call("less", (Integer(lane(tile.lanes)), Integer(count - first)), DType.bool)
                definition, has_element = builder.keep("has_element", inside, varying=True)
                statements.append(definition)
                tests.append(has_element)
            statements += self.write_results(
                [total], self.rows.places(row_within), self.columns.places(column_within), all_of(tests)
            )
        return statements
