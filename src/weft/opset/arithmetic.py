"""Arithmetic, element by element."""

from __future__ import annotations

import operator

from weft.ir.dtypes import DType
from weft.opset import functions
from weft.opset.functions import cast, fold, maximum, minimum, widened_fold
from weft.opset.language import Element, Tensor, elementwise, reshape
from weft.opset.registry import op, require


@op("Identity")
def identity(x: Tensor) -> Tensor:
    return x


@op("Add", since=7)
def add(a: Tensor, b: Tensor) -> Tensor:
    return elementwise(operator.add, a, b)


@op("Sub", since=7)
def subtract(a: Tensor, b: Tensor) -> Tensor:
    return elementwise(operator.sub, a, b)


@op("Mul", since=7)
def multiply(a: Tensor, b: Tensor) -> Tensor:
    return elementwise(operator.mul, a, b)


@op("Div", since=7)
def divide(a: Tensor, b: Tensor) -> Tensor:
    return elementwise(operator.truediv, a, b)


@op("Mod", since=10)
def modulo(a: Tensor, b: Tensor, *, fmod: int = 0) -> Tensor:
    return elementwise(functions.fmod if fmod else operator.mod, a, b)


@op("Pow", since=7)
def power(base: Tensor, exponent: Tensor) -> Tensor:
    common = _power_type(base.dtype, exponent.dtype)
    return elementwise(lambda x, y: cast(cast(x, common) ** cast(y, common), base.dtype), base, exponent)


def _power_type(base: DType, exponent: DType) -> DType:
    """The type to compute a power in; the result is cast back to that of the base."""
    if base is exponent:
        return base
    if base.is_integer:
        return DType.int64 if exponent.is_integer else DType.float64
    return DType.float64 if DType.float64 in (base, exponent) else DType.float32


@op("Sum", since=6)
def sum_(*terms: Tensor) -> Tensor:
    require(bool(terms), "a sum needs at least one input")
    return widened_fold(operator.add, terms)


@op("Mean", since=6)
def mean(*terms: Tensor) -> Tensor:
    require(bool(terms), "a mean needs at least one input")
    return widened_fold(operator.add, terms, lambda total: total / len(terms))


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


@op("Neg", since=6)
def negate(x: Tensor) -> Tensor:
    return elementwise(operator.neg, x)


@op("Reciprocal", since=6)
def reciprocal(x: Tensor) -> Tensor:
    return elementwise(lambda v: 1 / v, x)


@op("Abs", since=6)
def absolute(x: Tensor) -> Tensor:
    return elementwise(functions.absolute, x)


@op("Sqrt", since=6)
def sqrt(x: Tensor) -> Tensor:
    return elementwise(functions.sqrt, x)


@op("Exp", since=6)
def exp(x: Tensor) -> Tensor:
    return elementwise(functions.exp, x)


@op("Log", since=6)
def log(x: Tensor) -> Tensor:
    return elementwise(functions.log, x)


@op("Sign", since=9)
def sign(x: Tensor) -> Tensor:
    return elementwise(functions.sign, x)


@op("Floor", since=6)
def floor(x: Tensor) -> Tensor:
    return elementwise(functions.floor, x)


@op("Ceil", since=6)
def ceil(x: Tensor) -> Tensor:
    return elementwise(functions.ceil, x)


@op("Round", since=11)
def round_(x: Tensor) -> Tensor:
    return elementwise(functions.round_half_even, x)


@op("Sin", since=7)
def sin(x: Tensor) -> Tensor:
    return elementwise(functions.sin, x)


@op("Cos", since=7)
def cos(x: Tensor) -> Tensor:
    return elementwise(functions.cos, x)


@op("Tan", since=7)
def tan(x: Tensor) -> Tensor:
    return elementwise(functions.tan, x)


@op("Asin", since=7)
def asin(x: Tensor) -> Tensor:
    return elementwise(functions.asin, x)


@op("Acos", since=7)
def acos(x: Tensor) -> Tensor:
    return elementwise(functions.acos, x)


@op("Atan", since=7)
def atan(x: Tensor) -> Tensor:
    return elementwise(functions.atan, x)


@op("Sinh", since=9)
def sinh(x: Tensor) -> Tensor:
    return elementwise(functions.sinh, x)


@op("Cosh", since=9)
def cosh(x: Tensor) -> Tensor:
    return elementwise(functions.cosh, x)


@op("Tanh", since=6)
def tanh(x: Tensor) -> Tensor:
    return elementwise(functions.tanh, x)


@op("Asinh", since=9)
def asinh(x: Tensor) -> Tensor:
    return elementwise(functions.asinh, x)


@op("Acosh", since=9)
def acosh(x: Tensor) -> Tensor:
    return elementwise(functions.acosh, x)


@op("Atanh", since=9)
def atanh(x: Tensor) -> Tensor:
    return elementwise(functions.atanh, x)


@op("Erf", since=9)
def erf(x: Tensor) -> Tensor:
    return elementwise(functions.erf, x)
