"""exp, log, tanh, erf, power, sin and their like as vector polynomials in LLVM IR, for float32 and float64.

One algorithm serves both widths, with polynomials of its own for each; `tan` and `power` of float32 are computed in
float64. There is no call into a library, and no branch but the rare one that reduces huge arguments of sin, cos and
tan. float32 results are within 2 ulp of the true value, float64 results within 4, over the whole range; special values
follow C99.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from weft.backends.llvm import exponentials, trigonometry
from weft.backends.llvm.terms import Term

_FUNCTIONS: dict[str, Callable[..., Term]] = {
    "exp": exponentials.exp,
    "log": exponentials.log,
    "log1p": exponentials.log1p,
    "sinh": exponentials.sinh,
    "cosh": exponentials.cosh,
    "tanh": exponentials.tanh,
    "asinh": exponentials.asinh,
    "acosh": exponentials.acosh,
    "atanh": exponentials.atanh,
    "erf": exponentials.erf,
    "power": exponentials.power,
    "sin": trigonometry.sin,
    "cos": trigonometry.cos,
    "tan": trigonometry.tan,
    "asin": trigonometry.asin,
    "acos": trigonometry.acos,
    "atan": trigonometry.atan,
}

ELEMENTARY: frozenset[str] = frozenset(_FUNCTIONS)


def elementary(builder: Any, name: str, *values: Any) -> Any:
    """A function of ELEMENTARY applied to float or double values, or to vectors of them."""
    return _FUNCTIONS[name](*(Term(builder, value) for value in values)).value
