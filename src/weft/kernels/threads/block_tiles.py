"""Products of many rows by block-quantized weights: tiles in shared memory, where weights are decoded.

The sums are those of `block_rows.py`, in the same order: each range has its own sum, which is added to the total.
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.ir import dims
from weft.ir.dtypes import DType
from weft.ir.kernel import Barrier, Call, Number, Register, Statement, lane
from weft.ir.target import ThreadTarget
from weft.kernels.lower.kernel_builder import assign, define, put, repeat
from weft.kernels.lower.memoize import memoize
from weft.kernels.lower.tensors import Launch
from weft.kernels.threads.block_format import GROUP, WordReader
from weft.kernels.threads.depth import DepthTile
from weft.kernels.threads.float_format import FloatReader, WeightFormat
from weft.kernels.threads.lane_slices import LaneSlices
from weft.kernels.threads.product import Product, merge_product_axes
from weft.kernels.threads.shared_staging import SharedStage
from weft.kernels.threads.tile import Tile
from weft.kernels.threads.tile_axis import TileAxis
from weft.kernels.threads.tile_product import TileProductKernel

_F32 = DType.float32
DEPTH = 16  # of tiles: chunks hold whole ones


@memoize
def build_block_tiles(product: Product, block_format: WeightFormat, tile: Tile, target: ThreadTarget) -> Launch:
    """Operands as those of `build_block_rows`; the tile has a depth of 16 and no slices."""
    return _BlockTileKernel(merge_product_axes(product), block_format, tile, target).build_launch()


class _BlockTileKernel(TileProductKernel):
    def __init__(self, product: Product, block_format: WeightFormat, tile: Tile, target: ThreadTarget) -> None:
        self.format = block_format
        super().__init__("unpack_tiles", product, tile, 1, target)

    def declare_right(self, product: Product) -> None:  # noqa: ARG002
        self.reader = self.format.open_reader(self.builder)

    def build_launch(self) -> Launch:
        statements = self.locate_block()
        tile, builder = self.tile, self.builder
        self.sums = [builder.registers(f"sum{row}_", tile.columns, _F32) for row in range(tile.rows)]
        totals = [builder.registers(f"total{row}_", tile.columns, _F32) for row in range(tile.rows)]
        pairs = [pair for rows in zip(totals, self.sums) for pair in zip(*rows)]
        statements += [define(register, Number(0.0, _F32)) for pair in pairs for register in pair]
        stages = [
            SharedStage(self.left, self.rows, self.depth, tile.lanes, _F32, self.grid_positions),
            _DecodedStage(self.format, self.reader, self.columns, tile),
        ]
        last = builder.parameter("last_piece", dims.maximum(self.depth.tiles - 1, 0))
        number, first = builder.variable("piece"), builder.variable("range")
        fetches, puts = self.stage_tiles(stages, "next", dims.minimum(number + 1, last))
        body = (*fetches, *self.multiply(stages), Barrier(), *puts)
        length = builder.parameter("range_pieces", self.format.range_chunks * self.format.chunk // DEPTH)
        pieces = builder.parameter("pieces", self.depth.tiles)
        flush: list[Statement] = []
        for total, own_sum in pairs:
            flush.append(assign(total, Call("add", (total, own_sum), _F32)))
            flush.append(assign(own_sum, Number(0.0, _F32)))
        inner = repeat(number, first * length, dims.minimum((first + 1) * length, pieces), 1, body)
        ranges = builder.parameter("ranges", -(-self.format.chunks // self.format.range_chunks))
        fetches, puts = self.stage_tiles(stages, "first", 0)
        statements += [*fetches, *puts, repeat(first, 0, ranges, 1, (inner, *flush))]
        slices = LaneSlices(tile, totals, _F32, builder)
        return builder.launch(tile.lanes, (*statements, *slices.statements, *self.write(slices)), self.blocks)


class _DecodedStage(SharedStage):
    """The shared tile of the weights: a lane decodes neighbours along the sums of one column."""

    def __init__(
        self,
        block_format: WeightFormat,
        reader: WordReader | FloatReader,
        along: TileAxis,
        tile: Tile,
    ) -> None:
        self.format, self.reader, self.along = block_format, reader, along
        self.builder = along.builder
        self.count = DEPTH * tile.width // tile.lanes  # values of a lane
        self.lines, self.pitch = DEPTH // self.count, tile.width
        here = lane(tile.lanes)
        self.line = dims.floordiv(here, tile.width) if self.lines > 1 else 0
        self.first = dims.mod(here, tile.width) if self.lines > 1 else here
        self.buffers = [
            self.builder.local(f"right{number}", _F32, self.lines * self.pitch) for number in range(self.count)
        ]

    def fetch(self, hint: str, tile: DepthTile) -> tuple[list[Statement], list[list[Register]]]:  # noqa: ARG002
        """Fetch the words of this lane's share of a depth tile, and decode them."""
        block_format, builder = self.format, self.builder
        last_column = builder.parameter("last_padded", block_format.groups * GROUP - 1)
        column = dims.minimum(self.along.first + self.first, last_column)
        group, within = dims.floordiv(column, GROUP), dims.mod(column, GROUP)
        position = DEPTH * tile.number + self.count * self.line
        chunk, rest = dims.floordiv(position, block_format.chunk), dims.mod(position, block_format.chunk)
        statements: list[Statement] = []
        decode = self.reader.open_values(group, within, chunk, rest, self.count, statements)
        return statements, [[decode(number, statements)] for number in range(self.count)]

    def put(self, fetched: Sequence[Sequence[Register]]) -> list[Statement]:
        """Store fetched values to shared memory."""
        place = self.line * self.pitch + self.first
        return [put(buffer, place, value) for buffer, (value,) in zip(self.buffers, fetched)]
