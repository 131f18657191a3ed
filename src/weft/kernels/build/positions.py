"""Which integers hold the positions that kernels note down: 32 bits are half as many registers, and mostly enough.

A size that is known only in a run is guarded where it is not known to fit (`weft.opset.language`), so only numbers are
too large here. Devices that count in 32 bits refuse tensors that are too large for that when a plan is made.
"""

from __future__ import annotations

from weft.ir import dims
from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.ir.kernel import Call, Code, Integer


def position_dtype(size: Dim) -> DType:
    """What holds the positions along an axis of a size."""
    return DType.int64 if isinstance(size, int) and size > dims.LARGEST_POSITION else DType.int32


def as_position(value: Dim, dtype: DType) -> Code:
    """A position as such an integer."""
    number = Integer(value)
    return number if dtype is DType.int64 else Call("cast", (number,), dtype)
