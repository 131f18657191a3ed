"""The loops of a product as walks through its operands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from weft.ir import dims
from weft.ir.dims import Dim
from weft.kernels.ending import Ending


@dataclass(frozen=True, slots=True)
class Walk:
    """A loop of a product: how far a step goes in the operands, and along which of the result's axes."""

    size: Dim
    left: Dim = 0
    right: Dim = 0
    axis: int | None = None
    factor: Dim = 1  # positions along the axis


def split_index(index: Dim, sizes: Sequence[Dim]) -> list[Dim]:
    """A row-major position as one along each size."""
    places: list[Dim] = []
    for number in reversed(range(len(sizes))):
        places.insert(0, dims.mod(index, sizes[number]) if number else index)
        index = dims.floordiv(index, sizes[number])
    return places


def merge_walks(walks: Sequence[Walk], ending: Ending | None = None) -> tuple[Walk, ...]:
    """Neighbouring walks that everything steps through alike as one."""
    merged: list[Walk] = []
    for walk in walks:
        if walk.size == 1:
            continue
        if merged and _alike(merged[-1], walk, ending):
            merged[-1] = Walk(merged[-1].size * walk.size, walk.left, walk.right, walk.axis, walk.factor)
        else:
            merged.append(walk)
    return tuple(merged)


def _alike(outer: Walk, inner: Walk, ending: Ending | None) -> bool:
    if outer.left != inner.left * inner.size or outer.right != inner.right * inner.size:
        return False
    if outer.axis is None or inner.axis is None or ending is None:
        return outer.axis is inner.axis
    return ending.steps_alike((outer.axis, outer.factor), (inner.axis, inner.factor), inner.size)
