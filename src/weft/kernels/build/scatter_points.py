"""Locate the element of a scatter's result that a point of its domain updates."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from weft.ir import dims
from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.ir.kernel import Call, Code, Integer
from weft.ir.layout import offset
from weft.ir.program import Scatter
from weft.ir.scalar import Index, Scalar
from weft.ir.scatter_points import find_index_axes
from weft.kernels.lower.expressions import Lowering
from weft.kernels.lower.operations import and_masks, logical_and, logical_not
from weft.kernels.lower.tensors import StoredTensor
from weft.records import dataclass


@dataclass(frozen=True, slots=True)
class Point:
    """An element of the result at offset `place` (+ `indirect`, which depends on data), where `inside` holds.

    `wrong` lists the conditions under which an index is out of range.
    """

    place: Dim
    indirect: Code | None
    inside: Code | None
    wrong: tuple[Code, ...]


def find_contiguous_axis(primitive: Scatter, result: StoredTensor) -> int | None:
    """Return the disjoint axis along which the result's elements are contiguous."""
    for axis, stride in zip(find_index_axes(primitive), result.strides, strict=True):
        if stride == 1 and axis is not None:
            return axis
    return None


def locate_point(
    indices: Iterable[tuple[Scalar, Dim, Dim]], lowering: Lowering, mask: Code | None, checked: bool
) -> Point:
    """Locate the element that the (index, size, stride) of each axis of the result select."""
    inside = mask
    positions: list[Dim] = []
    strides: list[Dim] = []
    indirect: Code | None = None
    wrong: list[Code] = []
    for index, size, stride in indices:
        if isinstance(index, Index) and _is_inside(index.value, size):
            positions.append(lowering.index(index.value))
            strides.append(stride)
            continue
        position = lowering.keep(lowering.code(index))
        fits = lowering.keep(_within(position, lowering.index(size)))
        wrong.append(and_masks(mask, logical_not(fits)))
        inside = and_masks(inside, fits)
        scaled = position if stride == 1 else Call("multiply", (position, Integer(stride)), DType.int64)
        indirect = scaled if indirect is None else Call("add", (indirect, scaled), DType.int64)
    return Point(offset(strides, positions), indirect, inside, tuple(wrong) if checked else ())


def list_indices(primitive: Scatter, result: StoredTensor, strides: Sequence[Dim]) -> list[tuple[Scalar, Dim, Dim]]:
    """List the (index, size, stride) of each axis for `locate_point`."""
    return list(zip(primitive.indices, result.shape, strides, strict=True))


def _is_inside(index: Dim, size: Dim) -> bool:
    return dims.is_at_least(index, 0) and dims.is_at_least(size - 1, index)


def _within(position: Code, size: Dim) -> Code:
    low = Call("greater_equal", (position, Integer(0)), DType.bool)
    return logical_and(low, Call("less", (position, Integer(size)), DType.bool))
