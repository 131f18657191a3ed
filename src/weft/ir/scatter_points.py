"""Analyse which points of a scatter update different elements.

Two points of the domain update the same element only if all their indices agree. An axis of the domain is disjoint if
one of the indices is the axis itself, or the axis shifted by what depends only on other disjoint axes: points that
differ along it never update the same element.
"""

from __future__ import annotations

from weft.ir import dims
from weft.ir.access import find_axes
from weft.ir.dims import Dim
from weft.ir.program import Scatter
from weft.ir.scalar import Apply, Index, Scalar


def find_index_axes(primitive: Scatter) -> list[int | None]:
    """Return, for each index, the axis of the domain that it equals, if any."""
    alone = {dims.axis(axis, size): axis for axis, size in enumerate(primitive.domain) if size != 1}
    return [alone.get(index.value) if isinstance(index, Index) else None for index in primitive.indices]


def find_disjoint_axes(primitive: Scatter) -> list[int]:
    """Return the axes along which no two points update the same element."""
    if primitive.distinct:
        return list(range(len(primitive.domain)))
    disjoint = {axis for axis in find_index_axes(primitive) if axis is not None}
    for axis, size in enumerate(primitive.domain):
        position = dims.axis(axis, size)
        if axis not in disjoint and any(_is_shifted(index, position, disjoint) for index in primitive.indices):
            disjoint.add(axis)
    return sorted(disjoint)


def has_distinct_points(primitive: Scatter) -> bool:
    """Whether no two points update the same element; an axis of size 1 has no two points."""
    disjoint = find_disjoint_axes(primitive)
    return all(axis in disjoint or size == 1 for axis, size in enumerate(primitive.domain))


def _is_shifted(index: Scalar, position: Dim, fixed: set[int]) -> bool:
    """Whether an index is a position plus what depends only on data and on the `fixed` axes."""
    match index:
        case Index(value):
            return position != 0 and find_axes(Index(value - position)) <= fixed
        case Apply("add", (left, right)):
            return any(
                _is_shifted(term, position, fixed) and find_axes(shift) <= fixed
                for term, shift in ((left, right), (right, left))
            )
        case _:
            return False
