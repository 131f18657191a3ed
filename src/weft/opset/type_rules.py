"""Which types the primitives have a meaning for: the same on all devices, and told when a model is traced."""

from __future__ import annotations

from collections.abc import Sequence

from weft.errors import InvalidModelError
from weft.ir.dtypes import DType
from weft.ir.program import ArgReduce, Contract, Convolve, Cumulate, Pool, Primitive, Reduce, Scatter, Sort
from weft.ir.types import TensorType, Type


class TypeRuleError(InvalidModelError):
    """An op is given a type that it has no meaning for."""


_CHOICES = frozenset({"minimum", "maximum"})
_COMPARISONS = frozenset({"equal", "not_equal", "less", "less_equal", "greater", "greater_equal"})
_MOVES = frozenset({"select", "cast", "bitcast"})
_OF_FLOATS = frozenset({
    "sqrt", "exp", "log", "log1p", "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh",
    "acosh", "atanh", "erf", "is_nan", "is_inf",
})  # fmt: skip


def check_function(function: str, dtype: DType) -> None:
    """Raise TypeRuleError where a scalar function has no meaning for a type."""
    if not _takes(function, dtype):
        raise TypeRuleError(f"{function} of {dtype}")


def _takes(function: str, dtype: DType) -> bool:
    if function in _MOVES:
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
    if function in _OF_FLOATS:
        return dtype.is_float
    return dtype is not DType.bool or function in _COMPARISONS or function in _CHOICES


def check_primitive(primitive: Primitive, operands: Sequence[Type]) -> None:
    """Raise TypeRuleError where a primitive has no meaning for the type of its first operand."""
    if not operands or not isinstance(operands[0], TensorType):
        return
    dtype = operands[0].dtype
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
