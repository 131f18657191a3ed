"""How the columns of a product's right operand are taken: vectors, several of them side by side in a panel.

What remains of the columns after the whole panels are single vectors, of which only the last may have idle lanes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from weft.ir import dims
from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.ir.target import VectorTarget
from weft.kernels.build.multiply_add import accumulator_type
from weft.records import dataclass

Array = np.ndarray[Any, Any]
_SIDE_BY_SIDE = 2  # vectors of a panel: a number of the left operand is taken for each of them


@dataclass(frozen=True, slots=True)
class Panels:
    """`columns` as vectors of `lanes`, `width` of them in a panel."""

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
        """Columns of an operand with its vectors filled up with zeros: packed, or in panels alone."""
        step = self.lanes if packed else self.step
        return dims.ceildiv(self.columns, step) * step

    @property
    def are_full(self) -> bool:
        """Whether no lane is ever idle."""
        return isinstance(self.columns, int) and self.columns % self.lanes == 0

    def packed_shape(self, heads: int, sums: int) -> tuple[int, int]:
        """Of what `pack` gives."""
        assert isinstance(self.columns, int)
        return heads, sums * -(-self.columns // self.lanes) * self.lanes

    def pack(self, array: Array) -> Array:
        """[heads, sums, columns] as [heads, elements]: panels of [sums, step], then vectors of [sums, lanes]."""
        heads, sums, _ = array.shape
        return self.pack_parts(heads, sums, array.dtype, lambda columns: array[:, :, columns])

    def pack_parts(self, heads: int, sums: int, dtype: Any, part: Callable[[slice], Array]) -> Array:
        """The same from some columns at a time."""
        assert isinstance(self.columns, int)
        packed = np.zeros(self.packed_shape(heads, sums), dtype)
        first = 0
        while first < self.columns:
            count = self.step if first + self.step <= self.columns else self.lanes
            columns = slice(first, min(first + count, self.columns))
            place = packed[:, sums * first : sums * (first + count)].reshape(heads, sums, count)
            place[:, :, : columns.stop - first] = part(columns)
            first += count
        return packed


def panels_for(target: VectorTarget, dtype: DType, columns: Dim) -> Panels:
    """Columns in panels as the target's registers have room for them."""
    lanes = lanes_for(target, dtype, columns)
    narrow = isinstance(columns, int) and columns <= lanes
    return Panels(columns, lanes, 1 if narrow else _SIDE_BY_SIDE)


def lanes_for(target: VectorTarget, dtype: DType, columns: Dim) -> int:
    """A vector register of columns, or fewer where there are no more columns."""
    least = max(target.vector_bytes // 16, 2)
    lanes = target.vector_bytes // max(accumulator_type(dtype).bits // 8, 4)
    if isinstance(columns, int):
        while lanes > least and lanes // 2 >= columns:
            lanes //= 2
    return lanes


def tile_height(target: VectorTarget, width: int) -> int:
    """Rows whose accumulators fit the registers, beside a panel's step and a number to broadcast.

    More than eight would save little of the panels' way from the second cache, and cost code.
    """
    return max(1, min((target.vector_registers - 4) // width, 8))
