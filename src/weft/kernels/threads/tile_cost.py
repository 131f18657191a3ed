"""How long ways to compute a product take, about: microseconds on a large device, to tell good ways from bad ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from weft.kernels.threads.tile import Tile

Array = np.ndarray[Any, Any]

UNITS = 132  # of a device, each of which runs blocks on its own
FEW = 8  # rows with which a product is bound by memory, and is not for tiles
_SHORTEST = 128  # sums of a part
_MOST_MEGABYTES = 64.0  # of all parts
_SPEED = 0.225  # millions of multiply-adds that a unit does in a microsecond at most
_START = 2.0  # microseconds of a launch
_BANDWIDTH = 2.0  # megabytes a microsecond that parts of sums are written and read with
_WEIGHTS_BANDWIDTH = 2.5  # the same for an operand that is read once
_OWN_BANDWIDTH = 0.06  # of one unit
_ROUND_TRIP = 0.35  # microseconds until what lanes read for themselves is there
_ROW_START = 1.0  # microseconds in which lanes that share sums add them up
_ROW_SPEED = 0.25  # part of a unit's speed that lanes reach which read everything for themselves


@dataclass(frozen=True, slots=True)
class TileRate:
    """A tile, and which part of a unit's speed its blocks reach: one of them, and as many as there is `room` for.

    Measured on an H200 (132 units), on which times that come out here were right within some percent.
    """

    tile: Tile
    alone: float
    full: float
    room: int
    start: float = 0.0  # microseconds


TILE_RATES = (
    TileRate(Tile(8, 16, 16, 8, 8, near=8), 0.65, 0.8, 2),
    TileRate(Tile(8, 16, 8, 8, 16), 0.675, 0.8, 3),
    TileRate(Tile(8, 16, 8, 4, 16), 0.575, 0.72, 4),
    TileRate(Tile(8, 8, 4, 8, 16), 0.3, 0.525, 2),
    TileRate(Tile(8, 8, 4, 8, 32, slices=2), 0.525, 0.525, 2, 1.5),
    TileRate(Tile(4, 8, 4, 4, 64, slices=4), 0.325, 0.325, 2, 0.5),
)


def tile_time(rate: TileRate, parts: int, extents: Array) -> Array:
    """Of tiles in shared memory, never for few rows; `extents` are grids, rows, columns and sums of some products."""
    grid, rows, columns, sums = extents
    tile = rate.tile
    blocks = grid * parts * -(-rows // tile.height) * -(-columns // tile.width)
    depth = -(-sums // (parts * tile.depth)) * tile.depth
    each = -(-blocks // UNITS)
    share = (np.minimum(each, rate.room) - 1) / (rate.room - 1)
    speed = rate.alone + (rate.full - rate.alone) * share
    multiplied = each * tile.height * tile.width * depth / 1e6 / (_SPEED * speed)
    found = _START + rate.start + multiplied + _adding(parts, extents)
    return np.where(rows <= FEW, np.inf, found)


def row_time(tile: Tile, parts: int, element: int, extents: Array) -> Array:
    """Of lanes that share the sums of few rows; never where there are more rows than a lane has."""
    grid, rows, columns, sums = extents
    blocks = grid * parts * -(-columns // tile.width)
    each = -(-blocks // UNITS)
    depth = -(-sums // (parts * tile.depth)) * tile.depth
    megabytes = element * tile.width * depth / 1e6
    waiting = each * depth / tile.depth * _ROUND_TRIP
    reading = np.maximum(each * megabytes / _OWN_BANDWIDTH, blocks * megabytes / _WEIGHTS_BANDWIDTH)
    multiplied = each * tile.height * tile.width * depth / 1e6 / (_SPEED * _ROW_SPEED)
    found = _START + _ROW_START + np.maximum(np.maximum(waiting, reading), multiplied) + _adding(parts, extents)
    return np.where(rows > tile.height, np.inf, found)


def direct_time(tile: Tile, extents: Array) -> Array:
    """Of lanes that read memory on their own, on a device that runs few of them at a time."""
    grid, rows, columns, sums = extents
    tiles = grid * -(-rows // tile.height) * -(-columns // tile.width)
    each = tile.rows * tile.columns + 2 * (tile.rows + tile.columns)
    found: Array = tiles * tile.lanes * sums * each / 1e4 + _START
    return found


def _adding(parts: int, extents: Array) -> Array:
    """Of parts being written, read and added up, where there are several; never where they are small or many."""
    grid, rows, columns, sums = extents
    if parts == 1:
        return np.zeros(len(sums))
    megabytes = 4 * parts * grid * rows * columns / 1e6
    refused = (sums < parts * _SHORTEST) | (megabytes > _MOST_MEGABYTES)
    return np.where(refused, np.inf, 2 * megabytes / _BANDWIDTH + _START)
