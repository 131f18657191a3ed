"""Columns of a product in parts: as many as fill vectors, and what remains in narrower ones, so that few lanes idle."""

from __future__ import annotations

from collections.abc import Sequence

from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.ir.target import VectorTarget
from weft.kernels.build.multiply_add import accumulator_type
from weft.kernels.vector.panels import Panels, panels_for, tile_height
from weft.records import dataclass

_MOST_PARTS = 3
_ENDS = 16  # multiplications that the start and the end of a sum cost as much as
_HALVES = (3, 5)  # half vectors that are worth a panel of their own
_LEAST_HEIGHT = 5  # of its tiles
_LEAST = 10_000  # multiplications for each column, from which on a further part pays


@dataclass(frozen=True, slots=True)
class Columns:
    """Some of the columns."""

    first: int
    panels: Panels


def split_columns(columns: int, rows: Dim, depth: int, target: VectorTarget, dtype: DType) -> tuple[Columns, ...]:
    """All columns of a product with so many rows, each a sum of `depth` products."""
    lanes = target.vector_bytes * 8 // max(accumulator_type(dtype).bits, 32) // 2
    for halves in _HALVES:
        if columns == halves * lanes and tile_height(target, halves) >= _LEAST_HEIGHT:
            return (Columns(0, Panels(columns, lanes, halves)),)
    work = rows * depth
    small = isinstance(work, int) and work < _LEAST
    return _split(columns, depth, target, dtype, 1 if small else _MOST_PARTS)


def _split(columns: int, depth: int, target: VectorTarget, dtype: DType, most: int) -> tuple[Columns, ...]:
    panels = panels_for(target, dtype, columns)
    whole = (Columns(0, panels),)
    narrower = panels.lanes if columns > panels.lanes else panels.lanes // 2
    head = columns // narrower * narrower if narrower else 0
    if most == 1 or head in (0, columns):
        return whole
    rest = _split(columns - head, depth, target, dtype, most - 1)
    first = Columns(0, Panels(head, narrower, panels.width))
    parts = (first, *(Columns(head + part.first, part.panels) for part in rest))
    each = target.vector_bytes * 8 // max(accumulator_type(dtype).bits, 32)
    return min(whole, parts, key=lambda found: _vectors(found, each, depth))


def _vectors(parts: Sequence[Columns], each: int, depth: int) -> float:
    """Vectors to multiply; one of half a register or less takes half the time, and each sum has a start and an end."""
    total = 0.0
    for part in parts:
        vectors = part.panels.stored(packed=True)
        assert isinstance(vectors, int)
        total += vectors // part.panels.lanes * (max(part.panels.lanes / each, 0.5) + _ENDS / max(depth, 1))
    return total
