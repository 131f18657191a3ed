"""Comparisons, logic, and choosing between values."""

from __future__ import annotations

import operator

from weft.opset import functions
from weft.opset.language import Element, Tensor, elementwise
from weft.opset.registry import op


@op("Equal", since=7)
def equal(a: Tensor, b: Tensor) -> Tensor:
    return elementwise(functions.equal, a, b)


@op("Greater", since=7)
def greater(a: Tensor, b: Tensor) -> Tensor:
    return elementwise(operator.gt, a, b)


@op("GreaterOrEqual", since=12)
def greater_or_equal(a: Tensor, b: Tensor) -> Tensor:
    return elementwise(operator.ge, a, b)


@op("Less", since=7)
def less(a: Tensor, b: Tensor) -> Tensor:
    return elementwise(operator.lt, a, b)


@op("LessOrEqual", since=12)
def less_or_equal(a: Tensor, b: Tensor) -> Tensor:
    return elementwise(operator.le, a, b)


@op("And", since=7)
def logical_and(a: Tensor, b: Tensor) -> Tensor:
    return elementwise(operator.and_, a, b)


@op("Or", since=7)
def logical_or(a: Tensor, b: Tensor) -> Tensor:
    return elementwise(operator.or_, a, b)


@op("Xor", since=7)
def logical_xor(a: Tensor, b: Tensor) -> Tensor:
    return elementwise(functions.logical_xor, a, b)


@op("Not")
def logical_not(x: Tensor) -> Tensor:
    return elementwise(operator.invert, x)


@op("Where", since=9)
def where(condition: Tensor, a: Tensor, b: Tensor) -> Tensor:
    return elementwise(functions.where, condition, a, b)


@op("IsNaN", since=9)
def is_nan(x: Tensor) -> Tensor:
    return elementwise(functions.is_nan, x)


@op("IsInf", since=10)
def is_inf(x: Tensor, *, detect_negative: int = 1, detect_positive: int = 1) -> Tensor:
    def element(v: Element) -> Element:
        infinite: Element = functions.is_inf(v)
        if not detect_negative:
            infinite = infinite & (v > 0)
        return infinite if detect_positive else infinite & (v < 0)

    return elementwise(element, x)
