"""The tiles of products in shared memory, and their speeds."""

from __future__ import annotations

from weft.cost.tile_times import TileSpeed
from weft.kernels.threads.tile import Tile
from weft.records import dataclass


@dataclass(frozen=True, slots=True)
class RatedTile:
    """A tile with its speed, measured on an NVIDIA H200."""

    tile: Tile
    speed: TileSpeed


RATED_TILES = (
    RatedTile(Tile(8, 16, 16, 8, 8, near=8), TileSpeed(0.65, 0.8, 2)),
    RatedTile(Tile(8, 16, 8, 8, 16), TileSpeed(0.675, 0.8, 3)),
    RatedTile(Tile(8, 16, 8, 4, 16), TileSpeed(0.575, 0.72, 4)),
    RatedTile(Tile(8, 8, 4, 8, 16), TileSpeed(0.3, 0.525, 2)),
    RatedTile(Tile(8, 8, 4, 8, 32, slices=2), TileSpeed(0.525, 0.525, 2, 1.5)),
    RatedTile(Tile(4, 8, 4, 4, 64, slices=4), TileSpeed(0.325, 0.325, 2, 0.5)),
)
