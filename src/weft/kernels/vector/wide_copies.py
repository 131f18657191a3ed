"""Copies of narrow numbers as copies of wider ones: a short run of bytes is then a few elements, not many.

Writes of a vector that are not contiguous are one write per element.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from weft.ir import dims
from weft.ir.dims import Axis, Dim
from weft.ir.dtypes import DType
from weft.ir.scalar import Index, Load, Scalar
from weft.kernels.common.maps import Region
from weft.kernels.lower.tensors import StoredTensor
from weft.records import dataclass

_NARROW_BYTES = 2
_WIDE_DTYPES = (DType.int64, DType.int32, DType.int16)


@dataclass(frozen=True, slots=True)
class WideCopy:
    """The arguments of a map that copies wider elements."""

    expression: Scalar
    operand: StoredTensor
    result: StoredTensor
    region: Region | None


def widen_copy(
    expression: Scalar, operands: Sequence[StoredTensor], result: StoredTensor, region: Region | None
) -> WideCopy | None:
    """Return the same copy of the widest elements that all runs consist of; None if the map is no such copy."""
    match expression:
        case Load(0, indices, dtype, False) if (
            dtype is result.dtype and dtype.numpy.itemsize <= _NARROW_BYTES and result.shape
        ):
            pass
        case _:
            return None
    (operand,) = operands
    if not operand.shape:
        return None
    axis, inner = result.layout.order[-1], operand.layout.order[-1]
    positions = [index.value for index in indices if isinstance(index, Index)]
    if len(positions) < len(indices) or any(_depends(at, axis) for n, at in enumerate(positions) if n != inner):
        return None
    place = dims.axis(axis, result.shape[axis])
    first = positions[inner] - place
    whole, start = (result, 0) if region is None else (region.whole, region.start[axis])
    lengths = (result.shape[axis], operand.shape[inner], whole.shape[axis], start, first)
    for wide in _WIDE_DTYPES:
        count = wide.numpy.itemsize // dtype.numpy.itemsize
        if count > 1 and all(isinstance(length, int) and length % count == 0 for length in lengths):
            break
    else:
        return None
    widened = _widen(result, axis, wide, count)
    positions[inner] = dims.axis(axis, widened.shape[axis]) + dims.floordiv(first, count)
    if region is not None:
        starts = tuple(dims.floordiv(at, count) if n == axis else at for n, at in enumerate(region.start))
        region = Region(_widen(whole, axis, wide, count), starts)
    return WideCopy(Load(0, tuple(map(Index, positions)), wide), _widen(operand, inner, wide, count), widened, region)


def _depends(position: Dim, axis: int) -> bool:
    return any(isinstance(atom, Axis) and atom.position == axis for atom in dims.atoms(position))


def _widen(tensor: StoredTensor, axis: int, dtype: DType, count: int) -> StoredTensor:
    shape = tuple(dims.floordiv(size, count) if n == axis else size for n, size in enumerate(tensor.shape))
    return replace(tensor, dtype=dtype, shape=shape)
