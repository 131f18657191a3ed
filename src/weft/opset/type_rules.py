"""The element types that primitives accept: the same on all devices, checked while tracing."""

from __future__ import annotations

from collections.abc import Sequence

from weft.errors import InvalidModelError
from weft.ir.dtypes import DType
from weft.ir.program import ArgReduce, Contract, Convolve, Cumulate, Pool, Primitive, Reduce, Scatter, Sort
from weft.ir.types import Type


class TypeRuleError(InvalidModelError):
    """An op is applied to a type that it does not accept."""


_CHOICES = frozenset({"minimum", "maximum"})
_COMPARISONS = frozenset({"equal", "not_equal", "less", "less_equal", "greater", "greater_equal"})
_ANY_TYPE = frozenset({"select", "cast", "bitcast"})
_FLOAT_FUNCTIONS = frozenset({
    "sqrt", "exp", "log", "log1p", "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh",
    "acosh", "atanh", "erf", "is_nan", "is_inf",
})  # fmt: skip


def check_function(function: str, dtype: DType) -> None:
    """Raise TypeRuleError if a scalar function does not accept a type."""
    if not _accepts(function, dtype):
        raise TypeRuleError(f"{function} of {dtype}")


def _accepts(function: str, dtype: DType) -> bool:
    if function in _ANY_TYPE:
        return True
    if dtype is DType.string:
        return function in ("equal", "not_equal")
    if dtype.is_complex:
        return function in ("equal", "not_equal", "add", "subtract", "multiply", "divide", "negate")
    if function.startswith("logical_"):
        return dtype is DType.bool
    if function.startswith("bit_"):
        return dtype.is_integer or dtype is DType.bool
    if function.startswith("shift_"):
        return dtype.is_integer
    if function in _FLOAT_FUNCTIONS:
        return dtype.is_float
    return dtype is not DType.bool or function in _COMPARISONS or function in _CHOICES


def check_primitive(primitive: Primitive, operands: Sequence[Type]) -> None:
    """Raise TypeRuleError if a primitive does not accept the type of its first operand."""
    dtype = operands[0].dtype if operands else None
    if dtype is None:
        return
    match primitive:
        case Reduce(kind) | Pool(kind):
            fits = _is_number(dtype) or (dtype is DType.bool and kind in _CHOICES)
        case ArgReduce() | Sort():
            fits = _is_number(dtype) or dtype is DType.bool
        case Contract() | Convolve() | Cumulate():
            fits = _is_number(dtype)
        case Scatter(reduction=reduction):
            fits = reduction == "none" or _is_number(dtype) or (dtype is DType.bool and reduction in _CHOICES)
        case _:
            return
    if not fits:
        raise TypeRuleError(f"{type(primitive).__name__.lower()} of {dtype}")


def _is_number(dtype: DType) -> bool:
    return dtype.is_integer or dtype.is_float
