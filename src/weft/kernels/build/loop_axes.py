"""Loop axes of a product: how each loop steps through the operands and the result."""

from __future__ import annotations

from collections.abc import Sequence

from weft.ir import dims
from weft.ir.dims import Dim
from weft.kernels.build.epilogue import EpilogueAccess
from weft.records import dataclass


@dataclass(frozen=True, slots=True)
class LoopAxis:
    """A loop of a product: strides into the operands, and the result's axis that it runs along."""

    size: Dim
    left: Dim = 0
    right: Dim = 0
    axis: int | None = None
    factor: Dim = 1  # positions along the axis per step


def unravel_index(index: Dim, sizes: Sequence[Dim]) -> list[Dim]:
    """Split a row-major index into one index per axis; the first is not reduced modulo its size."""
    indices: list[Dim] = []
    for number in reversed(range(len(sizes))):
        indices.insert(0, dims.mod(index, sizes[number]) if number else index)
        index = dims.floordiv(index, sizes[number])
    return indices


def merge_loop_axes(loop_axes: Sequence[LoopAxis], epilogue: EpilogueAccess | None = None) -> tuple[LoopAxis, ...]:
    """Merge neighbouring loop axes where all operands and the result step uniformly through both."""
    merged: list[LoopAxis] = []
    for loop_axis in loop_axes:
        if loop_axis.size == 1:
            continue
        if merged and _can_merge(merged[-1], loop_axis, epilogue):
            merged[-1] = LoopAxis(
                merged[-1].size * loop_axis.size, loop_axis.left, loop_axis.right, loop_axis.axis, loop_axis.factor
            )
        else:
            merged.append(loop_axis)
    return tuple(merged)


def _can_merge(outer: LoopAxis, inner: LoopAxis, epilogue: EpilogueAccess | None) -> bool:
    if outer.left != inner.left * inner.size or outer.right != inner.right * inner.size:
        return False
    if outer.axis is None or inner.axis is None or epilogue is None:
        return outer.axis is inner.axis
    return epilogue.can_merge_axes((outer.axis, outer.factor), (inner.axis, inner.factor), inner.size)
