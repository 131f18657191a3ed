"""Operands on their way into the tiles of a tile product.

Where neighbours in memory are neighbours in a line of the tile, 16 bytes of them at a time are moved there as they are.
Else lanes fetch them into registers, make numbers of the tile's type of them, and put those down.
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.ir import dims
from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.ir.kernel import Call, Code, Integer, MoveRun, PutTile, Register, Statement, TileForm, lane
from weft.kernels.lower.kernel_builder import KernelBuilder, define, fetch, fetch_run
from weft.kernels.threads.depth import Depth, DepthPiece
from weft.kernels.threads.number_parts import formed
from weft.kernels.threads.product import Product
from weft.kernels.threads.product_operands import RUN, PieceOfOperand, ProductOperand, all_of, run_direction
from weft.kernels.threads.tensor_tiles import CHUNK, Multiplying, TensorTile
from weft.kernels.threads.tile_axis import TileAxis


class TensorOperand:
    """The tiles of one operand: one for each number that its elements come as."""

    def __init__(
        self, product: Product, builder: KernelBuilder, how: Multiplying, tile: TensorTile, *, is_left: bool
    ) -> None:
        self.builder, self.how, self.tile = builder, how, tile
        dtype, self.element = (product.left, how.left) if is_left else (product.right, how.right)
        self.chunk = CHUNK * 8 // self.element.bits
        plane = product.planes[0 if is_left else 1]
        self.is_formed = plane != 0 or (how.planes == 1 and dtype is self.element)
        direction = run_direction(product, is_left, self.chunk)
        self.is_moved = (
            self.is_formed
            and dims.mod(plane, self.chunk) == 0
            and (direction == "deep" or (direction == "across" and how.can_turn))
        )
        self.side = ProductOperand(product, builder, is_left=is_left, run=self.chunk if self.is_moved else RUN)
        self.turned = self.side.runs_across and how.can_turn
        step = self.chunk if self.is_moved else 1
        self.plane = 0 if plane == 0 else step * builder.named(f"{self.side.name}_plane", dims.floordiv(plane, step))
        extent = tile.height if is_left else tile.width
        self.form = TileForm(extent, tile.depth, tile.stages, self.turned)
        self.tiles = [builder.tile(f"{self.side.name}_tile", self.element, self.form) for _ in range(how.planes)]
        self.per_line = self.form.line_length // self.chunk
        self.total = self.form.lines * self.per_line
        self.count = -(-self.total // tile.lanes)

    def place(self, number: int) -> tuple[Dim, Dim]:
        """The line of a lane's chunk, and where in it that begins; lanes that are more than chunks share them."""
        index: Dim = lane(self.tile.lanes) + number * self.tile.lanes
        if self.total % self.tile.lanes:
            index = dims.mod(index, self.total)
        if self.turned or self.side.is_deep:
            return dims.floordiv(index, self.per_line), dims.mod(index, self.per_line) * self.chunk
        return dims.mod(index, self.form.lines), dims.floordiv(index, self.form.lines) * self.chunk

    def begin(self, hint: str, grid: Sequence[Dim], depth: Depth, piece: DepthPiece) -> _Piece:
        """What all of a piece has in common."""
        statements, here = self.side.begin(hint, grid, depth.outer(piece))
        return _Piece(self, statements, here, grid, depth, piece)


class _Piece:
    """A piece of an operand: what begins it, and what brings it into the tiles."""

    def __init__(
        self,
        operand: TensorOperand,
        begin: list[Statement],
        here: PieceOfOperand,
        grid: Sequence[Dim],
        depth: Depth,
        piece: DepthPiece,
    ) -> None:
        self.operand, self.begin, self.here, self.grid, self.depth, self.piece = (
            operand, begin, here, grid, depth, piece,
        )  # fmt: skip

    def element(self, across: Sequence[Dim], within: Dim) -> tuple[Dim, Code | None]:
        """Where an element lies, and the condition under which there is one."""
        inner = self.depth.inner(self.piece, within)
        tests = [*self.depth.test(self.piece, within), *self.operand.side.tests(self.here, across, inner)]
        return self.operand.side.offset(self.here, self.grid, across, inner), all_of(tests)

    def moves(self, along: TileAxis) -> list[Statement]:
        operand = self.operand
        found: list[Statement] = []
        for number in range(operand.count):
            line, first = operand.place(number)
            if operand.turned:
                place, mask = self.element(along.places(first, operand.chunk), line)
            else:
                place, mask = self.element(along.places(line), first)
            mask = self.there(along, first if operand.turned else line, mask)
            source = operand.side.buffer.name
            found += [
                MoveRun(tile.name, line, first, operand.chunk, source, place + plane * operand.plane, mask)
                for plane, tile in enumerate(operand.tiles)
            ]
        return found

    def there(self, along: TileAxis, within: Dim, mask: Code | None) -> Code | None:
        """A mask for what lies across, too: all blocks would read the last row over and over in place of others."""
        if dims.mod(along.count, along.extent) == 0:
            return mask
        count = Integer(self.operand.builder.named(f"{along.name}s", along.count))
        test = Call("less", (Integer(along.first + within), count), DType.bool)
        return test if mask is None else Call("logical_and", (test, mask), DType.bool)

    def fetched(self, along: TileAxis) -> tuple[list[Statement], list[Statement]]:
        """What fetches, and what puts."""
        operand = self.operand
        fetches: list[Statement] = []
        puts: list[Statement] = []
        for number in range(operand.count):
            line, first = operand.place(number)
            planes = [
                self.fetch_chunk(along, line, first, plane * operand.plane, fetches)
                for plane in range(operand.how.planes if operand.plane != 0 else 1)
            ]
            if operand.is_formed:
                values: list[list[Code]] = [[*registers] for registers in planes]
            else:
                values = [[] for _ in operand.tiles]
                for register in planes[0]:
                    made, numbers = formed(register, operand.element, operand.how.planes, operand.builder)
                    puts += made
                    for kept, value in zip(values, numbers, strict=True):
                        kept.append(value)
            puts += [PutTile(tile.name, line, first, tuple(own)) for tile, own in zip(operand.tiles, values)]
        return fetches, puts

    def fetch_chunk(
        self, along: TileAxis, line: Dim, first: Dim, start: Dim, statements: list[Statement]
    ) -> list[Register]:
        """The elements of a chunk in registers."""
        operand = self.operand
        side, buffer = operand.side, operand.side.buffer
        registers = operand.builder.registers(side.name, operand.chunk, buffer.dtype)
        run = RUN if operand.turned or side.runs_deep else 1
        for part in range(0, operand.chunk, run):
            if operand.turned:
                place, mask = self.element(along.places(first + part, RUN), line)
            else:
                place, mask = self.element(along.places(line), first + part)
            own = registers[part : part + run]
            if run > 1:
                statements.append(fetch_run(own, buffer, start + place, mask))
            else:
                statements.append(define(own[0], fetch(buffer, start + place, mask=mask)))
        return registers
