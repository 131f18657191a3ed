"""Load operands into the tiles of a tile product.

Where neighbours in memory are neighbours in a line of the tile, 16 bytes at a time are moved there as they are.
Otherwise lanes fetch elements into registers, convert them to the tile's type, and store them.
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.ir import dims
from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.ir.kernel import Call, Code, Integer, MoveRun, PutTile, Register, Statement, TileForm, lane
from weft.kernels.lower.kernel_builder import KernelBuilder, define, fetch, fetch_run
from weft.kernels.threads.depth import Depth, DepthTile
from weft.kernels.threads.float_splits import convert_value
from weft.kernels.threads.points import all_of
from weft.kernels.threads.product import Product
from weft.kernels.threads.product_operands import RUN, OperandTile, ProductOperand, run_direction
from weft.kernels.threads.tensor_tile import ProductScheme, TensorTile, chunk_length
from weft.kernels.threads.tile_axis import TileAxis


class TensorOperand:
    """The tiles of one operand, one per plane."""

    def __init__(
        self, product: Product, builder: KernelBuilder, scheme: ProductScheme, tile: TensorTile, *, is_left: bool
    ) -> None:
        self.builder, self.scheme, self.tile = builder, scheme, tile
        dtype, self.element = (product.left, scheme.left) if is_left else (product.right, scheme.right)
        self.chunk = chunk_length(self.element)
        plane = product.planes[0 if is_left else 1]
        self.is_converted = plane != 0 or (scheme.planes == 1 and dtype is self.element)
        direction = run_direction(product, is_left, self.chunk)
        self.is_moved = (
            self.is_converted
            and dims.mod(plane, self.chunk) == 0
            and (direction == "deep" or (direction == "across" and scheme.can_transpose))
        )
        self.source = ProductOperand(product, builder, is_left=is_left, run=self.chunk if self.is_moved else RUN)
        self.is_transposed = self.source.runs_across and scheme.can_transpose
        step = self.chunk if self.is_moved else 1
        self.plane = (
            0 if plane == 0 else step * builder.parameter(f"{self.source.name}_plane", dims.floordiv(plane, step))
        )
        extent = tile.height if is_left else tile.width
        self.form = TileForm(extent, tile.depth, tile.stages, self.is_transposed)
        self.tiles = [builder.tile(f"{self.source.name}_tile", self.element, self.form) for _ in range(scheme.planes)]
        self.line_chunks = self.form.line_length // self.chunk
        self.chunks = self.form.lines * self.line_chunks
        self.lane_chunks = -(-self.chunks // tile.lanes)

    def locate_chunk(self, number: int) -> tuple[Dim, Dim]:
        """Return the line of a lane's chunk, and its start in the line; surplus lanes repeat the chunks of others."""
        index: Dim = lane(self.tile.lanes) + number * self.tile.lanes
        if self.chunks % self.tile.lanes:
            index = dims.mod(index, self.chunks)
        if self.is_transposed or self.source.is_deep:
            return dims.floordiv(index, self.line_chunks), dims.mod(index, self.line_chunks) * self.chunk
        return dims.mod(index, self.form.lines), dims.floordiv(index, self.form.lines) * self.chunk

    def begin(self, hint: str, grid: Sequence[Dim], depth: Depth, tile: DepthTile) -> _StagedTile:
        return _StagedTile(self, *self.source.begin(hint, grid, depth, tile))


class _StagedTile:
    """One depth tile of an operand: `begin` computes its start; `moves` or `fetches` load it into the tiles."""

    def __init__(self, operand: TensorOperand, begin: list[Statement], source_tile: OperandTile) -> None:
        self.operand, self.begin, self.source_tile = operand, begin, source_tile

    def moves(self, along: TileAxis) -> list[Statement]:
        """Move chunks into the tiles as they are."""
        operand = self.operand
        statements: list[Statement] = []
        for number in range(operand.lane_chunks):
            line, first = operand.locate_chunk(number)
            place, mask = self.locate(along, line, first, operand.chunk)
            mask = self.mask_across(along, first if operand.is_transposed else line, mask)
            statements += [
                MoveRun(
                    tile.name,
                    line,
                    first,
                    operand.chunk,
                    operand.source.buffer.name,
                    place + plane * operand.plane,
                    mask,
                )
                for plane, tile in enumerate(operand.tiles)
            ]
        return statements

    def locate(self, along: TileAxis, line: Dim, first: Dim, run: int) -> tuple[Dim, Code | None]:
        """Return the source offset of an element of the tile, and the condition under which it exists."""
        if self.operand.is_transposed:
            return self.operand.source.locate(self.source_tile, along.places(first, run), line)
        return self.operand.source.locate(self.source_tile, along.places(line), first)

    def mask_across(self, along: TileAxis, within: Dim, mask: Code | None) -> Code | None:
        """Also mask rows or columns past the end; otherwise all blocks would read the last one repeatedly."""
        if dims.mod(along.count, along.extent) == 0:
            return mask
        count = Integer(self.operand.builder.parameter(f"{along.name}s", along.count))
        return all_of([Call("less", (Integer(along.first + within), count), DType.bool), mask])

    def fetches(self, along: TileAxis) -> tuple[list[Statement], list[Statement]]:
        """Build the statements that fetch chunks into registers, and those that put them into the tiles."""
        operand = self.operand
        fetches: list[Statement] = []
        puts: list[Statement] = []
        for number in range(operand.lane_chunks):
            line, first = operand.locate_chunk(number)
            planes = [
                self.fetch_chunk(along, line, first, plane * operand.plane, fetches)
                for plane in range(operand.scheme.planes if operand.plane != 0 else 1)
            ]
            if operand.is_converted:
                values: list[list[Code]] = [[*registers] for registers in planes]
            else:
                values = [[] for _ in operand.tiles]
                for register in planes[0]:
                    statements, numbers = convert_value(
                        register, operand.element, operand.scheme.planes, operand.builder
                    )
                    puts += statements
                    for plane_values, value in zip(values, numbers, strict=True):
                        plane_values.append(value)
            puts += [
                PutTile(tile.name, line, first, tuple(plane_values))
                for tile, plane_values in zip(operand.tiles, values)
            ]
        return fetches, puts

    def fetch_chunk(
        self, along: TileAxis, line: Dim, first: Dim, start: Dim, statements: list[Statement]
    ) -> list[Register]:
        operand = self.operand
        source, buffer = operand.source, operand.source.buffer
        registers = operand.builder.registers(source.name, operand.chunk, buffer.dtype)
        run = RUN if operand.is_transposed or source.runs_deep else 1
        for number in range(0, operand.chunk, run):
            place, mask = self.locate(along, line, first + number, RUN)
            run_registers = registers[number : number + run]
            if run > 1:
                statements.append(fetch_run(run_registers, buffer, start + place, mask))
            else:
                statements.append(define(run_registers[0], fetch(buffer, start + place, mask=mask)))
        return registers
