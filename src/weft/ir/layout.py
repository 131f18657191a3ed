"""Memory layouts: the order of a tensor's axes, from the outermost to the contiguous one."""

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
        """Return the stride of each axis, in elements."""
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
    """Return the layout of [N, C, *S] with contiguous channels."""
    return Layout((0, *range(2, rank), 1))


def offset(strides: Sequence[Dim], indices: Sequence[Dim]) -> Dim:
    """Return the offset of the element at `indices`."""
    return weighted_sum(strides, indices)
