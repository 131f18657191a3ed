"""Estimate the time of GPU tilings of a product, in microseconds, to choose among them.

With the rates of the device on which the tile speeds were measured, estimates are accurate within a few percent.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from weft.ir.arrays import Array
from weft.ir.target import Rates
from weft.records import dataclass

FEW = 8  # with up to this many rows, a product is memory-bound
_MICRO = 1e6  # microseconds per second; also the factor between units and millions
_MILLIONS = _MICRO * _MICRO  # converts units per second to millions per microsecond
_SHORTEST = 128  # depth of a partition
_MOST_MEGABYTES = 64.0  # of all partial sums
_ROW_START = 1.0  # microseconds to add the partial sums of lanes
_LEAST_ROWS = 3  # for tensor cores
_AHEAD_SECONDS = 1e-6  # latency of prefetched bytes
_NOT_HIDDEN = 0.5  # fraction of a block's latency that other blocks do not hide
_ROW_SPEED = 0.25  # fraction of peak speed without shared memory


class TileShape(Protocol):
    """The sizes of a tile."""

    @property
    def rows(self) -> int: ...  # per lane
    @property
    def columns(self) -> int: ...
    @property
    def height(self) -> int: ...  # of the block
    @property
    def width(self) -> int: ...
    @property
    def depth(self) -> int: ...
    @property
    def lanes(self) -> int: ...


@dataclass(frozen=True, slots=True)
class TileSpeed:
    """The fraction of a unit's peak that blocks reach: one alone, and as many as fit (`resident`)."""

    alone: float
    full: float
    resident: int
    start: float = 0.0  # microseconds


def tile_time(rates: Rates, tile: TileShape, speed: TileSpeed, parts: int, extents: Array) -> Array:
    """Estimate tiles in shared memory, infinite for few rows; `extents` are grid, rows, columns and depth arrays."""
    grid, rows, columns, sums = extents
    blocks = grid * parts * -(-rows // tile.height) * -(-columns // tile.width)
    depth = -(-sums // (parts * tile.depth)) * tile.depth
    each = -(-blocks // rates.compute_units)
    share = (np.minimum(each, speed.resident) - 1) / (speed.resident - 1)
    reached = speed.alone + (speed.full - speed.alone) * share
    multiplied = each * tile.height * tile.width * depth / _MICRO / (_multiply_adds(rates) * reached)
    time = rates.launch_seconds * _MICRO + speed.start + multiplied + _partial_sum_time(rates, parts, extents)
    return np.where(rows <= FEW, np.inf, time)


@dataclass(frozen=True, slots=True)
class TensorWork:
    """The cost of a product on tensor cores.

    `products` is the number of tile products per product, `element` the bytes of an element in a tile. Operands that
    are converted beforehand take `converted_bytes` per element (left, right). `share` is the fraction of a tile's speed
    that is reached, `ahead` the bytes that a block prefetches, `written` the bytes of an element of the result.
    """

    unit_flops: float
    products: int
    element: float
    converted_bytes: tuple[float, float] = (0.0, 0.0)
    share: float = 1.0
    ahead: float = 1e9
    written: float = 4.0


def tensor_time(
    rates: Rates, height: int, width: int, deep: int, speed: TileSpeed, work: TensorWork, parts: int, extents: Array
) -> Array:
    """Estimate tiles on tensor cores."""
    grid, rows, columns, sums = extents
    blocks = grid * parts * -(-rows // height) * -(-columns // width)
    depth = -(-sums // (parts * deep)) * deep
    each = -(-blocks // rates.compute_units)
    rest = each % speed.resident  # blocks in a unit's last wave
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
    time = rates.launch_seconds * _MICRO + waiting + np.maximum(np.maximum(multiplied, reading), once + writing)
    for bytes, across in zip(work.converted_bytes, (rows, columns)):
        if bytes:
            time = time + bytes * grid * across * sums / rates.workspace_bandwidth * _MICRO
            time = time + rates.launch_seconds * _MICRO
    return np.where(rows < _LEAST_ROWS, np.inf, time + _partial_sum_time(rates, parts, extents))


def row_time(rates: Rates, tile: TileShape, parts: int, element: int, extents: Array) -> Array:
    """Estimate lanes that share the sums of few rows; infinite for more rows than a lane has."""
    grid, rows, columns, sums = extents
    blocks = grid * parts * -(-columns // tile.width)
    each = -(-blocks // rates.compute_units)
    depth = -(-sums // (parts * tile.depth)) * tile.depth
    megabytes = element * tile.width * depth / _MICRO
    waiting = each * depth / tile.depth * (rates.latency_seconds * _MICRO)
    alone, together = rates.unit_bandwidth / _MILLIONS, rates.memory_bandwidth / _MILLIONS
    reading = np.maximum(each * megabytes / alone, blocks * megabytes / together)
    multiplied = each * tile.height * tile.width * depth / _MICRO / (_multiply_adds(rates) * _ROW_SPEED)
    time = rates.launch_seconds * _MICRO + _ROW_START + np.maximum(np.maximum(waiting, reading), multiplied)
    return np.where(rows > tile.height, np.inf, time + _partial_sum_time(rates, parts, extents))


def direct_time(rates: Rates, tile: TileShape, extents: Array) -> Array:
    """Estimate lanes without shared memory, on a device that runs few of them at a time."""
    grid, rows, columns, sums = extents
    tiles = grid * -(-rows // tile.height) * -(-columns // tile.width)
    each = tile.rows * tile.columns + 2 * (tile.rows + tile.columns)
    speed = rates.compute_units * rates.unit_flops / _MICRO
    time: Array = tiles * tile.lanes * sums * each / speed + rates.launch_seconds * _MICRO
    return time


def _multiply_adds(rates: Rates) -> float:
    """Return the peak multiply-adds of a unit, in millions per microsecond."""
    return rates.unit_flops / 2 / _MILLIONS


def _partial_sum_time(rates: Rates, parts: int, extents: Array) -> Array:
    """Estimate writing, reading and adding the partial sums of split-K; infinite if partitions are too small."""
    grid, rows, columns, sums = extents
    if parts == 1:
        return np.zeros(len(sums))
    megabytes = 4 * parts * grid * rows * columns / _MICRO
    unsuitable = (sums < parts * _SHORTEST) | (megabytes > _MOST_MEGABYTES)
    time = 2 * megabytes / (rates.workspace_bandwidth / _MILLIONS) + rates.launch_seconds * _MICRO
    return np.where(unsuitable, np.inf, time)
