"""Points of a scatter: which element of the result each falls on.

Two points of the domain meet in one element only where all indices agree. So along an axis of the domain that is an
index by itself they never do: it is `free`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from weft.ir import dims
from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.ir.kernel import Call, Code, Integer
from weft.ir.layout import offset
from weft.ir.program import Scatter
from weft.ir.scalar import Index, Scalar
from weft.kernels.lower.expressions import Lowering
from weft.kernels.lower.tensors import StoredTensor
from weft.records import dataclass


@dataclass(frozen=True, slots=True)
class Point:
    """An element of the result, at `place` (+ `indirect`, that data decides), where `inside` holds.

    `wrong` are the conditions under which an index is out of range.
    """

    place: Dim
    indirect: Code | None
    inside: Code | None
    wrong: tuple[Code, ...]


def own_axes(primitive: Scatter) -> list[int | None]:
    """For each index, the axis of the domain that it is by itself."""
    alone = {dims.axis(axis, size): axis for axis, size in enumerate(primitive.domain) if size != 1}
    return [alone.get(index.value) if isinstance(index, Index) else None for index in primitive.indices]


def free_axes(primitive: Scatter) -> list[int]:
    """The axes along which no two points meet."""
    own = own_axes(primitive)
    return [axis for axis in range(len(primitive.domain)) if axis in own]


def neighbour_axis(primitive: Scatter, result: StoredTensor) -> int | None:
    """The free axis along which the result's elements are neighbours."""
    for axis, stride in zip(own_axes(primitive), result.strides, strict=True):
        if stride == 1 and axis is not None:
            return axis
    return None


def find_point(
    indices: Iterable[tuple[Scalar, Dim, Dim]], lowering: Lowering, mask: Code | None, checked: bool
) -> Point:
    """Where (index, size, stride) for each axis of the result lead."""
    inside = mask
    fixed: list[Dim] = []
    strides: list[Dim] = []
    indirect: Code | None = None
    wrong: list[Code] = []
    for index, size, stride in indices:
        if isinstance(index, Index) and _is_inside(index.value, size):
            fixed.append(lowering.index(index.value))
            strides.append(stride)
            continue
        position = lowering.keep(lowering.code(index))
        fits = lowering.keep(_within(position, lowering.index(size)))
        wrong.append(_masked(Call("logical_not", (fits,), DType.bool), mask))
        inside = fits if inside is None else Call("logical_and", (inside, fits), DType.bool)
        scaled = position if stride == 1 else Call("multiply", (position, Integer(stride)), DType.int64)
        indirect = scaled if indirect is None else Call("add", (indirect, scaled), DType.int64)
    return Point(offset(strides, fixed), indirect, inside, tuple(wrong) if checked else ())


def all_indices(primitive: Scatter, result: StoredTensor, strides: Sequence[Dim]) -> list[tuple[Scalar, Dim, Dim]]:
    """The indices of a scatter as `find_point` takes them; strides as the kernel sees them."""
    return list(zip(primitive.indices, result.shape, strides, strict=True))


def _masked(check: Code, mask: Code | None) -> Code:
    return check if mask is None else Call("logical_and", (mask, check), DType.bool)


def _is_inside(index: Dim, size: Dim) -> bool:
    return dims.is_at_least(index, 0) and dims.is_at_least(size - 1, index)


def _within(position: Code, size: Dim) -> Code:
    low = Call("greater_equal", (position, Integer(0)), DType.bool)
    return Call("logical_and", (low, Call("less", (position, Integer(size)), DType.bool)), DType.bool)
