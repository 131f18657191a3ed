"""Scalar functions, for tensors and elements."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

from weft.ir.dtypes import DType
from weft.opset.tensor import Element, Tensor, apply, elementwise

MOST_ARGUMENTS = 64  # of one map


def minimum(a: Any, b: Any) -> Any:
    return apply("minimum", a, b)


def maximum(a: Any, b: Any) -> Any:
    return apply("maximum", a, b)


def clamp(x: Any, low: Any, high: Any) -> Any:
    return minimum(maximum(x, low), high)


def fmod(a: Any, b: Any) -> Any:
    """Compute the remainder with the sign of the dividend."""
    return apply("fmod", a, b)


def absolute(x: Any) -> Any:
    return apply("absolute", x)


def sign(x: Any) -> Any:
    return apply("sign", x)


def floor(x: Any) -> Any:
    return apply("floor", x)


def ceil(x: Any) -> Any:
    return apply("ceil", x)


def round_half_even(x: Any) -> Any:
    return apply("round_half_even", x)


def truncate(x: Any) -> Any:
    return apply("truncate", x)


def sqrt(x: Any) -> Any:
    return apply("sqrt", x)


def exp(x: Any) -> Any:
    return apply("exp", x)


def log(x: Any) -> Any:
    return apply("log", x)


def log1p(x: Any) -> Any:
    """Compute log(1 + x), accurate for small x."""
    return apply("log1p", x)


def sin(x: Any) -> Any:
    return apply("sin", x)


def cos(x: Any) -> Any:
    return apply("cos", x)


def tan(x: Any) -> Any:
    return apply("tan", x)


def asin(x: Any) -> Any:
    return apply("asin", x)


def acos(x: Any) -> Any:
    return apply("acos", x)


def atan(x: Any) -> Any:
    return apply("atan", x)


def sinh(x: Any) -> Any:
    return apply("sinh", x)


def cosh(x: Any) -> Any:
    return apply("cosh", x)


def tanh(x: Any) -> Any:
    return apply("tanh", x)


def asinh(x: Any) -> Any:
    return apply("asinh", x)


def acosh(x: Any) -> Any:
    return apply("acosh", x)


def atanh(x: Any) -> Any:
    return apply("atanh", x)


def erf(x: Any) -> Any:
    return apply("erf", x)


def sigmoid(x: Any) -> Any:
    """Compute 1 / (1 + exp(-x)); overflow of exp gives the right limit."""
    return 1.0 / (1.0 + exp(-x))


def is_nan(x: Any) -> Any:
    return apply("is_nan", x)


def is_inf(x: Any) -> Any:
    return apply("is_inf", x)


def equal(a: Any, b: Any) -> Any:
    return apply("equal", a, b)


def not_equal(a: Any, b: Any) -> Any:
    return apply("not_equal", a, b)


def logical_xor(a: Any, b: Any) -> Any:
    return apply("logical_xor", a, b)


def bit_and(a: Any, b: Any) -> Any:
    return apply("bit_and", a, b)


def bit_or(a: Any, b: Any) -> Any:
    return apply("bit_or", a, b)


def bit_xor(a: Any, b: Any) -> Any:
    return apply("bit_xor", a, b)


def bit_not(x: Any) -> Any:
    return apply("bit_not", x)


def shift_left(a: Any, b: Any) -> Any:
    return apply("shift_left", a, b)


def shift_right(a: Any, b: Any) -> Any:
    return apply("shift_right", a, b)


def where(condition: Any, a: Any, b: Any) -> Any:
    """Choose a where the condition holds, else b."""
    return apply("select", condition, a, b)


def cast(x: Tensor | Element, dtype: DType) -> Any:
    """Convert to a dtype: floats to integers truncate, a bool is whether a number is not 0."""
    return apply("cast", x, dtype=dtype)


def bitcast(x: Tensor | Element, dtype: DType) -> Any:
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
