"""How a tensor lies in memory: the order of its axes, from the outermost to the one whose elements are neighbours."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from weft.ir.dims import Dim, weighted_sum
from weft.ir.types import Shape
from weft.records import dataclass


@dataclass(frozen=True, slots=True)
class Layout:
    """`order[-1]` is the contiguous axis; there are no gaps."""

    order: tuple[int, ...]

    def strides(self, shape: Shape) -> tuple[Dim, ...]:
        """Elements between neighbours along each axis."""
        return _strides(self.order, shape)


@lru_cache(maxsize=4096)
def _strides(order: tuple[int, ...], shape: Shape) -> tuple[Dim, ...]:
    strides: list[Dim] = [1] * len(shape)
    step: Dim = 1
    for axis in reversed(order):
        strides[axis] = step
        step = step * shape[axis]
    return tuple(strides)


def row_major(rank: int) -> Layout:
    return Layout(tuple(range(rank)))


def channels_last(rank: int) -> Layout:
    """[N, C, *S] with the channels as neighbours."""
    return Layout((0, *range(2, rank), 1))


def offset(strides: Sequence[Dim], indices: Sequence[Dim]) -> Dim:
    """Where the element at `indices` lies."""
    return weighted_sum(strides, indices)
