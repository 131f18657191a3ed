"""The roofline model: a device's measured peak rates, and the minimum time that they imply.

Tensor cores have a rate for each type of tiles.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import field

from weft.ir.dtypes import DType
from weft.ir.kernel import Kernel
from weft.records import dataclass

_SUFFIX = re.compile(r"_\d+$")


@dataclass(frozen=True, slots=True)
class TileArithmetic:
    """The tile type of a kernel, and the number of tile products per product.

    Numbers that are split into several parts take a product for each pair of parts.
    """

    kind: str
    times: float = 1.0


@dataclass(frozen=True, slots=True)
class Peak:
    """Measured peak rates of a device with all its threads: float32 operations and bytes read, per second.

    Data of up to `cache_bytes` is read at `cache_bandwidth`; both are 0 if not measured.
    """

    flops: float
    bandwidth: float
    cache_bytes: float = 0.0
    cache_bandwidth: float = 0.0

    def arithmetic(self, tiles: TileArithmetic | None) -> float:  # noqa: ARG002
        """Return the operations per second, for tile products if given."""
        return self.flops

    def roofline(self, flops: float, bytes: float, tiles: TileArithmetic | None = None) -> float:
        """Return the minimum time of some work."""
        return max(flops / self.arithmetic(tiles), bytes / self.bandwidth)

    def bound(self, flops: float, bytes: float, tiles: TileArithmetic | None = None) -> str:
        """Return the bottleneck of some work: "arithmetic" or "memory"."""
        return "arithmetic" if flops / self.arithmetic(tiles) >= bytes / self.bandwidth else "memory"


@dataclass(frozen=True, slots=True)
class TilePeak(Peak):
    """The peak rates of a device with tensor cores; `products` are operations per second by `tile_kind`."""

    products: Mapping[str, float] = field(default_factory=dict, hash=False)

    def arithmetic(self, tiles: TileArithmetic | None) -> float:
        """Return the rate of tile products, or that of float32 if unknown."""
        if tiles is None or tiles.kind not in self.products:
            return self.flops
        return self.products[tiles.kind] / tiles.times


def tile_kind(dtype: DType) -> str:
    """Return the name shared by types whose tiles are multiplied at the same rate; float32 is rounded to tf32."""
    if dtype is DType.float32:
        return "tf32"
    if dtype.bits == 8:
        return "float8" if dtype.is_float else "int8"
    return str(dtype)


def tile_arithmetic(kernel: Kernel) -> TileArithmetic | None:
    """Return the tile products of a kernel, from its buffers alone, or None if it has none.

    Tiles for the parts of the same numbers share a name and differ in a numeric suffix. Of three parts each, the six
    largest products are computed; of two, the three largest.
    """
    tiles = [buffer for buffer in kernel.buffers if buffer.tile is not None]
    if not tiles:
        return None
    parts = len(tiles) / len({_SUFFIX.sub("", tile.name) for tile in tiles})
    return TileArithmetic(tile_kind(tiles[0].dtype), parts * (parts + 1) / 2)
