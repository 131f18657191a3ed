"""Arithmetic, element by element."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from weft.ir.dtypes import DType
from weft.opset import functions
from weft.opset.functions import cast, fold, fold_wide, maximum, minimum
from weft.opset.language import Element, Tensor, elementwise, reshape
from weft.opset.registry import op, require


def define_unary(name: str, since: int, function: Callable[[Any], Any]) -> Callable[[Tensor], Tensor]:
    """Define an op that applies a scalar function to each element."""

    def apply_unary(x: Tensor) -> Tensor:
        return elementwise(function, x)

    return op(name, since)(apply_unary)


def define_binary(name: str, since: int, function: Callable[[Any, Any], Any]) -> Callable[[Tensor, Tensor], Tensor]:
    """Define an op that applies a scalar function to the elements of two tensors, which broadcast."""

    def apply_binary(a: Tensor, b: Tensor) -> Tensor:
        return elementwise(function, a, b)

    return op(name, since)(apply_binary)


@op("Identity")
def identity(x: Tensor) -> Tensor:
    return x


add = define_binary("Add", 7, operator.add)
subtract = define_binary("Sub", 7, operator.sub)
multiply = define_binary("Mul", 7, operator.mul)
divide = define_binary("Div", 7, operator.truediv)


@op("Mod", since=10)
def modulo(a: Tensor, b: Tensor, *, fmod: int = 0) -> Tensor:
    return elementwise(functions.fmod if fmod else operator.mod, a, b)


@op("Pow", since=7)
def power(base: Tensor, exponent: Tensor) -> Tensor:
    common = _power_type(base.dtype, exponent.dtype)
    return elementwise(lambda x, y: cast(cast(x, common) ** cast(y, common), base.dtype), base, exponent)


def _power_type(base: DType, exponent: DType) -> DType:
    """Return the type to compute a power in; the result is cast back to that of the base."""
    if base is exponent:
        return base
    if base.is_integer:
        return DType.int64 if exponent.is_integer else DType.float64
    return DType.float64 if DType.float64 in (base, exponent) else DType.float32


@op("Sum", since=6)
def sum_(*terms: Tensor) -> Tensor:
    require(bool(terms), "a sum needs at least one input")
    return fold_wide(operator.add, terms)


@op("Mean", since=6)
def mean(*terms: Tensor) -> Tensor:
    require(bool(terms), "a mean needs at least one input")
    return fold_wide(operator.add, terms, lambda total: total / len(terms))


@op("Max", since=6)
def max_(*candidates: Tensor) -> Tensor:
    require(bool(candidates), "a maximum needs at least one input")
    return fold(maximum, candidates)


@op("Min", since=6)
def min_(*candidates: Tensor) -> Tensor:
    require(bool(candidates), "a minimum needs at least one input")
    return fold(minimum, candidates)


@op("Clip", since=6)
def clip_to_attributes(x: Tensor, *, min: float | None = None, max: float | None = None) -> Tensor:
    def element(v: Element) -> Element:
        v = v if min is None else maximum(v, min)
        return v if max is None else minimum(v, max)

    return elementwise(element, x)


@op("Clip", since=11)
def clip(x: Tensor, min: Tensor | None = None, max: Tensor | None = None) -> Tensor:
    if min is not None:
        x = elementwise(maximum, x, reshape(min, ()))
    return x if max is None else elementwise(minimum, x, reshape(max, ()))


negate = define_unary("Neg", 6, operator.neg)


@op("Reciprocal", since=6)
def reciprocal(x: Tensor) -> Tensor:
    return elementwise(lambda v: 1 / v, x)


absolute = define_unary("Abs", 6, functions.absolute)
sqrt = define_unary("Sqrt", 6, functions.sqrt)
exp = define_unary("Exp", 6, functions.exp)
log = define_unary("Log", 6, functions.log)
sign = define_unary("Sign", 9, functions.sign)
floor = define_unary("Floor", 6, functions.floor)
ceil = define_unary("Ceil", 6, functions.ceil)
round_ = define_unary("Round", 11, functions.round_half_even)
sin = define_unary("Sin", 7, functions.sin)
cos = define_unary("Cos", 7, functions.cos)
tan = define_unary("Tan", 7, functions.tan)
asin = define_unary("Asin", 7, functions.asin)
acos = define_unary("Acos", 7, functions.acos)
atan = define_unary("Atan", 7, functions.atan)
sinh = define_unary("Sinh", 9, functions.sinh)
cosh = define_unary("Cosh", 9, functions.cosh)
tanh = define_unary("Tanh", 6, functions.tanh)
asinh = define_unary("Asinh", 9, functions.asinh)
acosh = define_unary("Acosh", 9, functions.acosh)
atanh = define_unary("Atanh", 9, functions.atanh)
erf = define_unary("Erf", 9, functions.erf)
