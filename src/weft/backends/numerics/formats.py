"""The layout of floats of 8 bits and fewer.

What a format does with numbers that are too large, and with NaN, is asked of the library that defines it.
"""

from __future__ import annotations

from functools import cache
from math import log2
from typing import Any

import ml_dtypes
import numpy as np

from weft.ir.dtypes import DType
from weft.records import dataclass

_BIAS = 127  # of float32


@dataclass(frozen=True, slots=True)
class Format:
    """Sign, exponent and fraction, in this order; codes are without the sign."""

    fraction: int  # bits
    bias: int
    sign: int  # the bit of the sign, 0 where there is none
    largest: int  # code
    too_large: int  # what becomes of larger numbers
    nan: int  # with its sign; where there is none, what becomes of it
    has_negative_zero: bool

    @property
    def nan_is_negative_zero(self) -> bool:
        """Whether NaN has the code that would be a negative zero."""
        return self.nan == self.sign and not self.has_negative_zero

    @property
    def least_nan(self) -> int | None:
        """The least code of a NaN, where all larger ones are NaN as well; None where there is none of these."""
        if self.nan_is_negative_zero or self.too_large == self.largest:
            return None
        return self.largest + (2 if self.too_large & (self.sign - 1) == self.largest + 1 != self.nan else 1)


@cache
def format_of(dtype: DType) -> Format:
    kind = dtype.numpy
    describe: Any = ml_dtypes.finfo
    info = describe(kind)

    def code(number: float) -> int:
        return int(np.float32(number).astype(kind).view(np.uint8))

    sign = 0 if dtype is DType.float8e8m0 else 1 << (dtype.bits - 1)
    bias = 1 - round(log2(float(info.smallest_normal))) if sign else _BIAS
    with np.errstate(invalid="ignore", over="ignore"):
        return Format(
            fraction=int(info.nmant),
            bias=bias,
            sign=sign,
            largest=code(float(info.max)),
            too_large=code(np.inf),
            nan=code(np.nan),
            has_negative_zero=bool(sign) and code(-0.0) != code(0.0),
        )
