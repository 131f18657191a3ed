"""Exact quotients of sizes and indices, for coordinates without rounding errors.

A `Ratio` is a numerator (a size, or an index of a map) over a positive size. Rounding one gives an index, and so plain
integer arithmetic in the kernels.
"""

from __future__ import annotations

from fractions import Fraction
from math import gcd
from typing import Any, Union

import numpy as np

from weft.ir import dims
from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.opset.functions import cast
from weft.opset.tensor import Element, index
from weft.records import dataclass

Exact = Union["Ratio", int, Fraction]


@dataclass(frozen=True, slots=True)
class Ratio:
    numerator: Any  # a Dim, or an Element that is an index
    denominator: Dim = 1

    def __add__(self, other: Exact) -> Ratio:
        other = _to_ratio(other)
        if self.denominator == other.denominator:
            return _reduce(self.numerator + other.numerator, self.denominator)
        return _reduce(
            self.numerator * other.denominator + other.numerator * self.denominator,
            self.denominator * other.denominator,
        )

    def __sub__(self, other: Exact) -> Ratio:
        return self + _to_ratio(other) * -1

    def __mul__(self, other: Exact) -> Ratio:
        other = _to_ratio(other)
        return _reduce(self.numerator * other.numerator, self.denominator * other.denominator)

    def __truediv__(self, other: Exact) -> Ratio:
        """The divisor must be a positive size."""
        other = _to_ratio(other)
        return self * Ratio(other.denominator, other.numerator)

    __radd__ = __add__
    __rmul__ = __mul__

    def __rsub__(self, other: Exact) -> Ratio:
        return self * -1 + other

    def floor(self) -> Any:
        if isinstance(self.numerator, Element):
            return self.numerator // self.denominator
        return dims.floordiv(self.numerator, self.denominator)

    def ceil(self) -> Any:
        return (self * -1).floor() * -1

    def fraction(self, dtype: DType) -> Element:
        """Return the fractional part, in [0, 1)."""
        remainder = self.numerator % self.denominator
        return cast(_to_element(remainder), dtype) / cast(_to_element(self.denominator), dtype)


def find_simple_ratio(number: float) -> Ratio:
    """Find a ratio with small terms that rounds to this float32: 0.7 is 7/10."""
    single = np.float32(number)
    exact = Fraction(float(single))
    limit = 1
    while True:
        candidate = exact.limit_denominator(limit)
        if np.float32(float(candidate)) == single:
            return Ratio(candidate.numerator, candidate.denominator)
        limit *= 2


def _to_ratio(value: Exact) -> Ratio:
    match value:
        case Ratio():
            return value
        case Fraction():
            return Ratio(value.numerator, value.denominator)
        case _:
            return Ratio(value)


def _reduce(numerator: Any, denominator: Dim) -> Ratio:
    if isinstance(numerator, int) and isinstance(denominator, int):
        common = gcd(numerator, denominator) or 1
        return Ratio(numerator // common, denominator // common)
    return Ratio(numerator, denominator)


def _to_element(value: Element | Dim) -> Element:
    return value if isinstance(value, Element) else index(value)
