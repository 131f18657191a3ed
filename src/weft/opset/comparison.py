"""Comparisons, logic, and choosing between values."""

from __future__ import annotations

import operator

from weft.opset import functions
from weft.opset.arithmetic import define_binary, define_unary
from weft.opset.language import Element, Tensor, elementwise
from weft.opset.registry import op

equal = define_binary("Equal", 7, functions.equal)
greater = define_binary("Greater", 7, operator.gt)
greater_or_equal = define_binary("GreaterOrEqual", 12, operator.ge)
less = define_binary("Less", 7, operator.lt)
less_or_equal = define_binary("LessOrEqual", 12, operator.le)
logical_and = define_binary("And", 7, operator.and_)
logical_or = define_binary("Or", 7, operator.or_)
logical_xor = define_binary("Xor", 7, functions.logical_xor)
logical_not = define_unary("Not", 1, operator.invert)


@op("Where", since=9)
def where(condition: Tensor, a: Tensor, b: Tensor) -> Tensor:
    return elementwise(functions.where, condition, a, b)


is_nan = define_unary("IsNaN", 9, functions.is_nan)


@op("IsInf", since=10)
def is_inf(x: Tensor, *, detect_negative: int = 1, detect_positive: int = 1) -> Tensor:
    def element(v: Element) -> Element:
        infinite: Element = functions.is_inf(v)
        if not detect_negative:
            infinite = infinite & (v > 0)
        return infinite if detect_positive else infinite & (v < 0)

    return elementwise(element, x)
