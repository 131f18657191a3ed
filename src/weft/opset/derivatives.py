"""Derivatives of scalar expressions, in reverse: from the adjoint of an expression to those of its loads.

The adjoint of a value is the derivative of the final result by it. Functions whose result is not a float, or that are
piecewise constant, have no derivative.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import pi, sqrt
from typing import Any

from weft.errors import UnsupportedModelError
from weft.ir.scalar import Apply, Load, Scalar
from weft.opset import functions
from weft.opset.functions import cast, exp, floor, log, truncate, where
from weft.opset.tensor import Element, literal


def adjoints(scalar: Scalar, adjoint: Element) -> Iterator[tuple[Load, Element]]:
    """Yield each load that the expression depends on smoothly, with the load's adjoint."""
    match scalar:
        case Load(dtype=dtype) if dtype.is_float:
            yield scalar, adjoint
        case Apply("cast", (argument,), _) if argument.dtype.is_float:
            yield from adjoints(argument, cast(adjoint, argument.dtype))
        case Apply("select", (condition, first, second), dtype) if dtype.is_float:
            chosen = Element(condition)
            yield from adjoints(first, where(chosen, adjoint, 0))
            yield from adjoints(second, where(chosen, 0, adjoint))
        case Apply(function, (argument,), dtype) if dtype.is_float:
            slope = _unary_derivative(function, Element(argument), Element(scalar))
            if slope is not None:
                yield from adjoints(argument, adjoint * slope)
        case Apply(function, (first, second), dtype) if dtype.is_float:
            shares = _binary_adjoints(function, adjoint, Element(scalar), Element(first), Element(second))
            yield from adjoints(first, shares[0])
            yield from adjoints(second, shares[1])


def _binary_adjoints(function: str, g: Any, y: Any, a: Any, b: Any) -> tuple[Element, Element]:
    """Return the adjoints of the two arguments, from the adjoint g of the result y."""
    match function:
        case "add":
            return g, g
        case "subtract":
            return g, -g
        case "multiply":
            return g * b, g * a
        case "divide":
            return g / b, -g * y / b
        case "remainder":
            return g, -g * floor(a / b)
        case "fmod":
            return g, -g * truncate(a / b)
        case "minimum":
            return where(a <= b, g, 0), where(a <= b, 0, g)
        case "maximum":
            return where(a >= b, g, 0), where(a >= b, 0, g)
        case "power":
            positive = a > 0
            return g * b * a ** (b - 1), where(positive, g * y * log(where(positive, a, 1)), 0)
        case _:
            raise UnsupportedModelError(f"weft has no derivative of {function}")


def _unary_derivative(function: str, x: Any, y: Any) -> Any:
    """Return the derivative of y = function(x); None where it is 0 almost everywhere."""
    match function:
        case "negate":
            return literal(-1, x.dtype)
        case "absolute":
            return functions.sign(x)
        case "sqrt":
            return 0.5 / y
        case "exp":
            return y
        case "log":
            return 1 / x
        case "log1p":
            return 1 / (1 + x)
        case "sin":
            return functions.cos(x)
        case "cos":
            return -functions.sin(x)
        case "tan":
            return 1 + y * y
        case "asin":
            return 1 / functions.sqrt(1 - x * x)
        case "acos":
            return -1 / functions.sqrt(1 - x * x)
        case "atan":
            return 1 / (1 + x * x)
        case "sinh":
            return functions.cosh(x)
        case "cosh":
            return functions.sinh(x)
        case "tanh":
            return 1 - y * y
        case "asinh":
            return 1 / functions.sqrt(x * x + 1)
        case "acosh":
            return 1 / functions.sqrt(x * x - 1)
        case "atanh":
            return 1 / (1 - x * x)
        case "erf":
            return 2 / sqrt(pi) * exp(-x * x)
        case _:
            return None
