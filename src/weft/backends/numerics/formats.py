"""The layout of floats with at most 8 bits, and how they represent overflow and NaN, which ml_dtypes defines."""

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
    """Sign, exponent and fraction, in this order; codes are without the sign unless stated."""

    fraction: int  # bits
    bias: int
    sign: int  # mask of the sign bit; 0 for formats without one
    largest: int  # code
    too_large: int  # code that larger numbers are rounded to
    nan: int  # code with its sign; in formats without NaN, the code that it is converted to
    has_negative_zero: bool

    @property
    def nan_is_negative_zero(self) -> bool:
        """Whether NaN has the code that would be a negative zero."""
        return self.nan == self.sign and not self.has_negative_zero

    @property
    def least_nan(self) -> int | None:
        """The smallest code such that it and all larger codes are NaN; None in formats without NaN codes."""
        if self.nan_is_negative_zero or self.too_large == self.largest:
            return None
        return self.largest + (2 if self.too_large & (self.sign - 1) == self.largest + 1 != self.nan else 1)


@cache
def get_format(dtype: DType) -> Format:
    kind = dtype.numpy
    describe: Any = ml_dtypes.finfo
    info = describe(kind)

    def encode(number: float) -> int:
        return int(np.float32(number).astype(kind).view(np.uint8))

    sign = 0 if dtype is DType.float8e8m0 else 1 << (dtype.bits - 1)
    bias = 1 - round(log2(float(info.smallest_normal))) if sign else _BIAS
    with np.errstate(invalid="ignore", over="ignore"):
        return Format(
            fraction=int(info.nmant),
            bias=bias,
            sign=sign,
            largest=encode(float(info.max)),
            too_large=encode(np.inf),
            nan=encode(np.nan),
            has_negative_zero=bool(sign) and encode(-0.0) != encode(0.0),
        )
