"""Scalar functions, for tensors and elements."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

from weft.ir.dtypes import DType
from weft.opset.tensor import Element, T, Tensor, apply, elementwise

MOST_ARGUMENTS = 64  # of one map


def minimum(a: T, b: Any) -> T:
    return apply("minimum", a, b)


def maximum(a: T, b: Any) -> T:
    return apply("maximum", a, b)


def clamp(x: T, low: Any, high: Any) -> T:
    return minimum(maximum(x, low), high)


def fmod(a: T, b: Any) -> T:
    """Compute the remainder with the sign of the dividend."""
    return apply("fmod", a, b)


def absolute(x: T) -> T:
    return apply("absolute", x)


def sign(x: T) -> T:
    return apply("sign", x)


def floor(x: T) -> T:
    return apply("floor", x)


def ceil(x: T) -> T:
    return apply("ceil", x)


def round_half_even(x: T) -> T:
    return apply("round_half_even", x)


def truncate(x: T) -> T:
    return apply("truncate", x)


def sqrt(x: T) -> T:
    return apply("sqrt", x)


def exp(x: T) -> T:
    return apply("exp", x)


def log(x: T) -> T:
    return apply("log", x)


def log1p(x: T) -> T:
    """Compute log(1 + x), accurate for small x."""
    return apply("log1p", x)


def sin(x: T) -> T:
    return apply("sin", x)


def cos(x: T) -> T:
    return apply("cos", x)


def tan(x: T) -> T:
    return apply("tan", x)


def asin(x: T) -> T:
    return apply("asin", x)


def acos(x: T) -> T:
    return apply("acos", x)


def atan(x: T) -> T:
    return apply("atan", x)


def sinh(x: T) -> T:
    return apply("sinh", x)


def cosh(x: T) -> T:
    return apply("cosh", x)


def tanh(x: T) -> T:
    return apply("tanh", x)


def asinh(x: T) -> T:
    return apply("asinh", x)


def acosh(x: T) -> T:
    return apply("acosh", x)


def atanh(x: T) -> T:
    return apply("atanh", x)


def erf(x: T) -> T:
    return apply("erf", x)


def sigmoid(x: T) -> T:
    """Compute 1 / (1 + exp(-x)); overflow of exp gives the right limit."""
    return 1.0 / (1.0 + exp(-x))


def is_nan(x: T) -> T:
    return apply("is_nan", x)


def is_inf(x: T) -> T:
    return apply("is_inf", x)


def equal(a: T, b: Any) -> T:
    return apply("equal", a, b)


def not_equal(a: T, b: Any) -> T:
    return apply("not_equal", a, b)


def logical_xor(a: T, b: Any) -> T:
    return apply("logical_xor", a, b)


def bit_and(a: T, b: Any) -> T:
    return apply("bit_and", a, b)


def bit_or(a: T, b: Any) -> T:
    return apply("bit_or", a, b)


def bit_xor(a: T, b: Any) -> T:
    return apply("bit_xor", a, b)


def bit_not(x: T) -> T:
    return apply("bit_not", x)


def shift_left(a: T, b: Any) -> T:
    return apply("shift_left", a, b)


def shift_right(a: T, b: Any) -> T:
    return apply("shift_right", a, b)


def where(condition: T, a: Any, b: Any) -> T:
    """Choose a where the condition holds, else b."""
    return apply("select", condition, a, b)


def cast(x: T, dtype: DType) -> T:
    """Convert to a dtype: floats to integers truncate, a bool is whether a number is not 0."""
    return apply("cast", x, dtype=dtype)


def bitcast(x: T, dtype: DType) -> T:
    """Reinterpret bits as another dtype of the same width."""
    return apply("bitcast", x, dtype=dtype)


def wide_dtype(dtype: DType) -> DType:
    """Return the dtype to compute in: float32 for narrower floats, else the dtype itself."""
    return dtype if dtype is DType.float64 or not dtype.is_float else DType.float32


def elementwise_wide(function: Callable[..., Element], *arguments: Tensor) -> Tensor:
    """Apply `elementwise` in float32 where floats are narrower, and cast the result back."""
    dtype = arguments[0].dtype
    if not dtype.is_float or dtype.bits >= 32:
        return elementwise(function, *arguments)
    return elementwise(lambda *v: cast(function(*(cast(e, DType.float32) for e in v)), dtype), *arguments)


def fold(join: Callable[..., Element], arguments: Sequence[Tensor]) -> Tensor:
    """Compute join(join(a, b), c) … for every element, in maps of at most MOST_ARGUMENTS each."""
    total, *rest = arguments
    while True:
        chunk, rest = rest[: MOST_ARGUMENTS - 1], rest[MOST_ARGUMENTS - 1 :]
        total = elementwise(lambda *v: reduce(join, v), total, *chunk)
        if not rest:
            return total


def fold_wide(
    join: Callable[..., Element],
    arguments: Sequence[Tensor],
    finish: Callable[[Element], Element] = lambda total: total,
) -> Tensor:
    """Apply `fold` and `finish` in float32 where floats are narrower, and cast the result back."""
    if len(arguments) <= MOST_ARGUMENTS:
        return elementwise_wide(lambda *v: finish(reduce(join, v)), *arguments)
    dtype = arguments[0].dtype
    wide = DType.float32 if dtype.is_float and dtype.bits < 32 else dtype
    total = fold(join, [elementwise(lambda e: cast(e, wide), argument) for argument in arguments])
    return elementwise(lambda e: cast(finish(e), dtype), total)
