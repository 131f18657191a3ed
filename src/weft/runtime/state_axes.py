"""Axes of a state: the dim along which an input grows, and indices of its elements."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from weft.ir.specs import TensorSpec
    from weft.ir.state import StatePair


def growing_dim(spec: TensorSpec, pair: StatePair) -> str:
    """Return the name of the dim along which an input grows."""
    assert pair.axis is not None
    return str((spec.shape or ())[pair.axis])


def first_elements(axis: int, count: int) -> tuple[slice, ...]:
    """Index the first elements along an axis."""
    return (*(slice(None),) * axis, slice(count))


def elements_between(axis: int, start: int, end: int) -> tuple[slice, ...]:
    """Index the elements of a range along an axis."""
    return (*(slice(None),) * axis, slice(start, end))
