"""The loops of a product as loop axes through its operands."""

from __future__ import annotations

from collections.abc import Sequence

from weft.ir import dims
from weft.ir.dims import Dim
from weft.kernels.build.epilogue import EpilogueAccess
from weft.records import dataclass


@dataclass(frozen=True, slots=True)
class LoopAxis:
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


def merge_loop_axes(loop_axes: Sequence[LoopAxis], epilogue: EpilogueAccess | None = None) -> tuple[LoopAxis, ...]:
    """Neighbouring loop axes that everything steps through alike as one."""
    merged: list[LoopAxis] = []
    for loop_axis in loop_axes:
        if loop_axis.size == 1:
            continue
        if merged and _alike(merged[-1], loop_axis, epilogue):
            merged[-1] = LoopAxis(
                merged[-1].size * loop_axis.size, loop_axis.left, loop_axis.right, loop_axis.axis, loop_axis.factor
            )
        else:
            merged.append(loop_axis)
    return tuple(merged)


def _alike(outer: LoopAxis, inner: LoopAxis, epilogue: EpilogueAccess | None) -> bool:
    if outer.left != inner.left * inner.size or outer.right != inner.right * inner.size:
        return False
    if outer.axis is None or inner.axis is None or epilogue is None:
        return outer.axis is inner.axis
    return epilogue.steps_alike((outer.axis, outer.factor), (inner.axis, inner.factor), inner.size)
