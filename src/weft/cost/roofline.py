"""The roofline: what a device was measured to do at most, and the fewest seconds that this leaves for some work.

Where lanes multiply tiles together (tensor cores), arithmetic has a rate for each type of tiles.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import field

from weft.ir.dtypes import DType
from weft.ir.kernel import Kernel
from weft.records import dataclass

_NUMBER = re.compile(r"_\d+$")


@dataclass(frozen=True, slots=True)
class TileArithmetic:
    """What a kernel multiplies tiles of, and how often for each product that it is to compute.

    Numbers in several parts take a product for each pair of parts.
    """

    kind: str
    times: float = 1.0


@dataclass(frozen=True, slots=True)
class Peak:
    """What a device was measured to do at most, with all its threads: float32 operations and bytes read, per second.

    Up to `cache_bytes` that are read over and over come faster; 0 where that was not measured.
    """

    flops: float
    bandwidth: float
    cache_bytes: float = 0.0
    cache_bandwidth: float = 0.0

    def arithmetic(self, tiles: TileArithmetic | None) -> float:  # noqa: ARG002
        """Operations a second, of products of tiles if such are given."""
        return self.flops

    def roofline(self, flops: float, bytes: float, tiles: TileArithmetic | None = None) -> float:
        """The fewest seconds that so much work can take."""
        return max(flops / self.arithmetic(tiles), bytes / self.bandwidth)

    def bound(self, flops: float, bytes: float, tiles: TileArithmetic | None = None) -> str:
        """What keeps so much work from taking less: "arithmetic" or "memory"."""
        return "arithmetic" if flops / self.arithmetic(tiles) >= bytes / self.bandwidth else "memory"


@dataclass(frozen=True, slots=True)
class TilePeak(Peak):
    """The same of a device that multiplies tiles: operations a second by what they are of, as `tile_kind` names it."""

    products: Mapping[str, float] = field(default_factory=dict, hash=False)

    def arithmetic(self, tiles: TileArithmetic | None) -> float:
        """That of the tiles, or of float32 where it is not known."""
        if tiles is None or tiles.kind not in self.products:
            return self.flops
        return self.products[tiles.kind] / tiles.times


def tile_kind(dtype: DType) -> str:
    """Types whose tiles are multiplied at the same rate, as one name; of float32 only some bits take part."""
    if dtype is DType.float32:
        return "tf32"
    if dtype.bits == 8:
        return "float8" if dtype.is_float else "int8"
    return str(dtype)


def tile_arithmetic(kernel: Kernel) -> TileArithmetic | None:
    """The products of tiles in a kernel, which need not have its body any more; None where there are none.

    Tiles for the parts of the same numbers are those that a builder gave one name, and told apart by numbers. Of three
    parts each the six largest products are computed, of two the three largest.
    """
    tiles = [buffer for buffer in kernel.buffers if buffer.tile is not None]
    if not tiles:
        return None
    parts = len(tiles) / len({_NUMBER.sub("", tile.name) for tile in tiles})
    return TileArithmetic(tile_kind(tiles[0].dtype), parts * (parts + 1) / 2)
