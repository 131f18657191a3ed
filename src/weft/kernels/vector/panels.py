"""Panels: the columns of a product's right operand as vectors, several of them side by side.

The columns after the last whole panel are single vectors, of which only the last may have idle lanes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from weft.ir import dims
from weft.ir.arrays import Array
from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.ir.target import VectorTarget
from weft.kernels.build.multiply_add import accumulator_dtype
from weft.records import dataclass

_SIDE_BY_SIDE = 2  # vectors of a panel, which share a broadcast element of the left operand


@dataclass(frozen=True, slots=True)
class Panels:
    """Columns as vectors of `lanes`, `width` of them in a panel."""

    columns: Dim
    lanes: int
    width: int

    @property
    def step(self) -> int:
        """Columns of a panel."""
        return self.lanes * self.width

    @property
    def whole(self) -> Dim:
        """Panels without idle lanes."""
        return dims.floordiv(self.columns, self.step)

    @property
    def singles(self) -> Dim:
        """Vectors after the whole panels."""
        return dims.ceildiv(self.columns, self.lanes) - self.whole * self.width

    def stored(self, *, packed: bool) -> Dim:
        """Return the columns of an operand with zero padding: to whole vectors if `packed`, else to whole panels."""
        step = self.lanes if packed else self.step
        return dims.ceildiv(self.columns, step) * step

    @property
    def has_full_lanes(self) -> bool:
        """Whether no lane is ever idle."""
        return isinstance(self.columns, int) and self.columns % self.lanes == 0

    def packed_shape(self, heads: int, sums: int) -> tuple[int, int]:
        """Return the shape of the packed array."""
        assert isinstance(self.columns, int)
        return heads, sums * -(-self.columns // self.lanes) * self.lanes

    def pack(self, array: Array) -> Array:
        """Pack [heads, sums, columns] as [heads, elements]: panels of [sums, step], then vectors of [sums, lanes]."""
        heads, sums, _ = array.shape
        return self.pack_parts(heads, sums, array.dtype, lambda columns: array[:, :, columns])

    def pack_parts(self, heads: int, sums: int, dtype: Any, read_columns: Callable[[slice], Array]) -> Array:
        """Pack an array that is read some columns at a time."""
        assert isinstance(self.columns, int)
        packed = np.zeros(self.packed_shape(heads, sums), dtype)
        first = 0
        while first < self.columns:
            count = self.step if first + self.step <= self.columns else self.lanes
            columns = slice(first, min(first + count, self.columns))
            place = packed[:, sums * first : sums * (first + count)].reshape(heads, sums, count)
            place[:, :, : columns.stop - first] = read_columns(columns)
            first += count
        return packed


def choose_panels(target: VectorTarget, dtype: DType, columns: Dim) -> Panels:
    """Choose panels for a target."""
    lanes = choose_product_lanes(target, dtype, columns)
    narrow = isinstance(columns, int) and columns <= lanes
    return Panels(columns, lanes, 1 if narrow else _SIDE_BY_SIDE)


def choose_product_lanes(target: VectorTarget, dtype: DType, columns: Dim) -> int:
    """Return the lanes of a vector register, or fewer if there are not as many columns."""
    min_lanes = max(target.vector_bytes // 16, 2)
    lanes = target.vector_bytes // max(accumulator_dtype(dtype).bits // 8, 4)
    if isinstance(columns, int):
        while lanes > min_lanes and lanes // 2 >= columns:
            lanes //= 2
    return lanes


def choose_tile_height(target: VectorTarget, width: int) -> int:
    """Return how many rows have accumulators that fit the registers, besides a panel's vectors and a broadcast element.

    More than eight rows would save little L2 traffic of the panels, and make the code longer.
    """
    return max(1, min((target.vector_registers - 4) // width, 8))
