"""Split the columns of a product into parts that fill vectors, and a remainder in narrower ones: few lanes idle."""

from __future__ import annotations

from collections.abc import Sequence

from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.ir.target import VectorTarget
from weft.kernels.build.multiply_add import accumulator_dtype
from weft.kernels.vector.panels import Panels, choose_panels, choose_tile_height
from weft.records import dataclass

_MAX_PARTS = 3
_SUM_OVERHEAD = 16  # multiplications that cost as much as starting and ending a sum
_HALF_VECTORS = (3, 5)  # numbers of half vectors that are worth a panel
_MIN_HEIGHT = 5  # rows of the tiles of such a panel
_MIN_WORK = 10_000  # multiplications per column for another part to pay


@dataclass(frozen=True, slots=True)
class ColumnPart:
    """Columns from `first` on, as panels."""

    first: int
    panels: Panels


def split_columns(columns: int, rows: Dim, depth: int, target: VectorTarget, dtype: DType) -> tuple[ColumnPart, ...]:
    """Split the columns of a product with `rows` rows, each element a sum of `depth` products."""
    lanes = target.vector_bytes * 8 // max(accumulator_dtype(dtype).bits, 32) // 2
    for halves in _HALF_VECTORS:
        if columns == halves * lanes and choose_tile_height(target, halves) >= _MIN_HEIGHT:
            return (ColumnPart(0, Panels(columns, lanes, halves)),)
    work = rows * depth
    small = isinstance(work, int) and work < _MIN_WORK
    return _split(columns, depth, target, dtype, 1 if small else _MAX_PARTS)


def _split(columns: int, depth: int, target: VectorTarget, dtype: DType, max_parts: int) -> tuple[ColumnPart, ...]:
    panels = choose_panels(target, dtype, columns)
    unsplit = (ColumnPart(0, panels),)
    narrower = panels.lanes if columns > panels.lanes else panels.lanes // 2
    head = columns // narrower * narrower if narrower else 0
    if max_parts == 1 or head in (0, columns):
        return unsplit
    remainder = _split(columns - head, depth, target, dtype, max_parts - 1)
    first = ColumnPart(0, Panels(head, narrower, panels.width))
    parts = (first, *(ColumnPart(head + part.first, part.panels) for part in remainder))
    full_lanes = target.vector_bytes * 8 // max(accumulator_dtype(dtype).bits, 32)
    return min(unsplit, parts, key=lambda split: _count_vectors(split, full_lanes, depth))


def _count_vectors(parts: Sequence[ColumnPart], full_lanes: int, depth: int) -> float:
    """Count the vectors to multiply; one of half a register or less counts half, plus an overhead per sum."""
    total = 0.0
    for part in parts:
        vectors = part.panels.stored(packed=True)
        assert isinstance(vectors, int)
        total += (
            vectors // part.panels.lanes * (max(part.panels.lanes / full_lanes, 0.5) + _SUM_OVERHEAD / max(depth, 1))
        )
    return total
