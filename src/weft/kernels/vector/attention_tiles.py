"""Tiles of query rows: how rows are split into tiles."""

from __future__ import annotations

from weft.ir import dims
from weft.ir.dims import Dim
from weft.ir.kernel import Buffer
from weft.records import dataclass

LOW_HEIGHT = 4  # rows of the tiles that cover the remaining rows


@dataclass(frozen=True, slots=True)
class QueryTiles:
    """`count` tiles of `height` rows, from tile `first` and row `row` on; the last may extend past the end."""

    height: int
    first: Dim
    count: Dim
    row: Dim


@dataclass(frozen=True, slots=True)
class TileRows:
    """A tile of query rows: its first row, its index in the block, and views of its local memory."""

    height: int
    row: Dim
    slot: Dim
    query: Buffer
    query_words: Buffer
    sum: Buffer
    largest: Buffer
    total: Buffer
    scores: Buffer
    weights: Buffer


def split_rows(rows: Dim, height: int) -> list[QueryTiles]:
    """Split rows into tiles, evenly if their number is known."""
    if isinstance(rows, int):
        tiles = max(1, -(-rows // height))
        tall = -(-rows // tiles)
        count = rows - tiles * (tall - 1)
        first = QueryTiles(tall, 0, count, 0)
        return [first] if count == tiles else [first, QueryTiles(tall - 1, count, tiles - count, count * tall)]
    whole_tiles = dims.floordiv(rows, height)
    low_tiles = dims.ceildiv(rows - whole_tiles * height, LOW_HEIGHT)
    return [QueryTiles(height, 0, whole_tiles, 0), QueryTiles(LOW_HEIGHT, whole_tiles, low_tiles, whole_tiles * height)]


def split_groups(rows: Dim, height: int, group: int) -> list[QueryTiles]:
    """Split an unknown number of rows, a multiple of `group`, so that a single group has a tile without other rows."""
    if isinstance(rows, int):
        return split_rows(rows, height)
    if 2 * group > height:
        tiles = -(-group // height)
        even = -(-group // tiles)
        return [QueryTiles(even, 0, dims.ceildiv(rows, even), 0)]
    tall = height // group * group
    whole_tiles = dims.floordiv(rows, tall)
    low_tiles = dims.floordiv(rows - whole_tiles * tall, group)
    return [QueryTiles(tall, 0, whole_tiles, 0), QueryTiles(group, whole_tiles, low_tiles, whole_tiles * tall)]


def cover_exactly(tiles: list[QueryTiles], rows: Dim) -> bool:
    """Whether tiles certainly end with the last row."""
    last = tiles[-1]
    return last.row + last.count * last.height == rows
