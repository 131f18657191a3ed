"""The integer dtype of positions that kernels store: 32 bits, which takes half the registers, unless a size needs 64.

A dynamic size that might not fit has a guard (`weft.opset.language`), so only constant sizes can be too large here.
Devices with 32-bit indices reject larger tensors when a plan is made.
"""

from __future__ import annotations

from weft.ir import dims
from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.ir.kernel import Code, Integer
from weft.kernels.lower.operations import cast


def position_dtype(size: Dim) -> DType:
    """Choose the dtype of positions along an axis."""
    return DType.int64 if isinstance(size, int) and size > dims.LARGEST_POSITION else DType.int32


def as_position(value: Dim, dtype: DType) -> Code:
    """Convert a position to the dtype chosen for its axis."""
    return cast(Integer(value), dtype)
