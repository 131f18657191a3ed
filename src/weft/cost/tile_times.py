"""How long ways to compute a product take where lanes are threads, in microseconds: to tell good ways from bad ones.

With the rates of the device on which the speeds of tiles were measured, times came out right within some percent.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from weft.ir.target import Rates
from weft.records import dataclass

Array = np.ndarray[Any, Any]

FEW = 8  # rows with which a product is bound by memory, and is not for tiles
_MICRO = 1e6  # microseconds of a second; and of what times are for, millions
_MILLIONS = _MICRO * _MICRO  # in a microsecond, of what is given for a second
_SHORTEST = 128  # sums of a part
_MOST_MEGABYTES = 64.0  # of all parts
_ROW_START = 1.0  # microseconds in which lanes that share sums add them up
_LEAST_ROWS = 3  # for tiles that lanes multiply together
_AHEAD_SECONDS = 1e-6  # until bytes that were asked for are there
_NOT_HIDDEN = 0.5  # part of a block's waiting that others of its unit do not hide
_ROW_SPEED = 0.25  # part of a unit's speed that lanes reach which read everything for themselves


class TileShape(Protocol):
    """What counts of a tile."""

    @property
    def rows(self) -> int: ...  # of a lane
    @property
    def columns(self) -> int: ...
    @property
    def height(self) -> int: ...  # of all lanes
    @property
    def width(self) -> int: ...
    @property
    def depth(self) -> int: ...
    @property
    def lanes(self) -> int: ...


@dataclass(frozen=True, slots=True)
class TileSpeed:
    """Which part of a unit's speed blocks of a tile reach: one of them, and as many as a unit holds (`resident`)."""

    alone: float
    full: float
    resident: int
    start: float = 0.0  # microseconds


def tile_time(rates: Rates, tile: TileShape, speed: TileSpeed, parts: int, extents: Array) -> Array:
    """Of tiles in shared memory, never for few rows; `extents` are grids, rows, columns and sums of some products."""
    grid, rows, columns, sums = extents
    blocks = grid * parts * -(-rows // tile.height) * -(-columns // tile.width)
    depth = -(-sums // (parts * tile.depth)) * tile.depth
    each = -(-blocks // rates.compute_units)
    share = (np.minimum(each, speed.resident) - 1) / (speed.resident - 1)
    reached = speed.alone + (speed.full - speed.alone) * share
    multiplied = each * tile.height * tile.width * depth / _MICRO / (_multiply_adds(rates) * reached)
    found = rates.launch_seconds * _MICRO + speed.start + multiplied + _adding(rates, parts, extents)
    return np.where(rows <= FEW, np.inf, found)


@dataclass(frozen=True, slots=True)
class TensorWork:
    """What tile products do for a product: at which speed of a unit, how many for each of it, and bytes of an element
    as tiles have it. Elements that are made so beforehand take `formed` bytes, of the left and the right operand.
    `share` is which part of a tile's speed is reached, `ahead` the bytes that a block has on their way, `written` those
    of an element of the result.
    """

    unit_flops: float
    products: int
    element: float
    formed: tuple[float, float] = (0.0, 0.0)
    share: float = 1.0
    ahead: float = 1e9
    written: float = 4.0


def tensor_time(
    rates: Rates, height: int, width: int, deep: int, speed: TileSpeed, work: TensorWork, parts: int, extents: Array
) -> Array:
    """Of tiles that all lanes of a block multiply together."""
    grid, rows, columns, sums = extents
    blocks = grid * parts * -(-rows // height) * -(-columns // width)
    depth = -(-sums // (parts * deep)) * deep
    each = -(-blocks // rates.compute_units)
    rest = each % speed.resident  # blocks of a unit that are left for its last turn
    share = (rest - 1) / max(speed.resident - 1, 1)
    block = 2 * work.products * height * width * depth / (work.unit_flops * work.share) * _MICRO
    reached = speed.alone + (speed.full - speed.alone) * np.maximum(share, 0)
    last = rest / reached
    multiplied = block * ((each - rest) / speed.full + last)
    ahead = np.minimum(each, speed.resident) * work.ahead / _AHEAD_SECONDS
    reading = each * (height + width) * depth * work.element / np.minimum(rates.unit_bandwidth, ahead) * _MICRO
    once = grid * (rows + columns) * sums * work.element / rates.memory_bandwidth * _MICRO
    writing = work.written * grid * rows * columns / rates.workspace_bandwidth * _MICRO
    waiting = rates.latency_seconds * _MICRO * np.minimum(depth / deep, 4) + speed.start
    waiting = waiting * (1 + _NOT_HIDDEN * (-(-each // speed.resident) - 1))
    found = rates.launch_seconds * _MICRO + waiting + np.maximum(np.maximum(multiplied, reading), once + writing)
    for bytes, across in zip(work.formed, (rows, columns)):
        if bytes:
            found = found + bytes * grid * across * sums / rates.workspace_bandwidth * _MICRO
            found = found + rates.launch_seconds * _MICRO
    return np.where(rows < _LEAST_ROWS, np.inf, found + _adding(rates, parts, extents))


def row_time(rates: Rates, tile: TileShape, parts: int, element: int, extents: Array) -> Array:
    """Of lanes that share the sums of few rows; never where there are more rows than a lane has."""
    grid, rows, columns, sums = extents
    blocks = grid * parts * -(-columns // tile.width)
    each = -(-blocks // rates.compute_units)
    depth = -(-sums // (parts * tile.depth)) * tile.depth
    megabytes = element * tile.width * depth / _MICRO
    waiting = each * depth / tile.depth * (rates.latency_seconds * _MICRO)
    alone, together = rates.unit_bandwidth / _MILLIONS, rates.memory_bandwidth / _MILLIONS
    reading = np.maximum(each * megabytes / alone, blocks * megabytes / together)
    multiplied = each * tile.height * tile.width * depth / _MICRO / (_multiply_adds(rates) * _ROW_SPEED)
    found = rates.launch_seconds * _MICRO + _ROW_START + np.maximum(np.maximum(waiting, reading), multiplied)
    return np.where(rows > tile.height, np.inf, found + _adding(rates, parts, extents))


def direct_time(rates: Rates, tile: TileShape, extents: Array) -> Array:
    """Of lanes that read memory on their own, on a device that runs few of them at a time."""
    grid, rows, columns, sums = extents
    tiles = grid * -(-rows // tile.height) * -(-columns // tile.width)
    each = tile.rows * tile.columns + 2 * (tile.rows + tile.columns)
    speed = rates.compute_units * rates.unit_flops / _MICRO
    found: Array = tiles * tile.lanes * sums * each / speed + rates.launch_seconds * _MICRO
    return found


def _multiply_adds(rates: Rates) -> float:
    """Millions that a unit does in a microsecond at most."""
    return rates.unit_flops / 2 / _MILLIONS


def _adding(rates: Rates, parts: int, extents: Array) -> Array:
    """Of parts being written, read and added up, where there are several; never where they are small or many."""
    grid, rows, columns, sums = extents
    if parts == 1:
        return np.zeros(len(sums))
    megabytes = 4 * parts * grid * rows * columns / _MICRO
    refused = (sums < parts * _SHORTEST) | (megabytes > _MOST_MEGABYTES)
    taken = 2 * megabytes / (rates.workspace_bandwidth / _MILLIONS) + rates.launch_seconds * _MICRO
    return np.where(refused, np.inf, taken)
