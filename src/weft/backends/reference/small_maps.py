"""Maps of few elements as one Python function: for so few, what numpy does before it computes takes longer than that.

Only what Python computes as numpy does: comparisons, choices, loads, and index arithmetic. All else, what is large and
what fails is left to maps.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import Any, Union

import numpy as np

from weft.ir.dims import Axis, Compound, Dim, Symbol
from weft.ir.dtypes import DType
from weft.ir.program import Map
from weft.ir.scalar import COMPARISONS, Apply, Index, Literal, Load, Scalar
from weft.ir.types import TensorType, Type

Array = np.ndarray[Any, Any]
SmallMap = Callable[[Sequence[Any], Mapping[str, int]], Union[Array, None]]
MOST_ELEMENTS = 64
MOST_TEXT = 4000  # characters of an expression
_SUITED = {dtype for dtype in DType if dtype.is_integer} | {DType.bool, DType.string, DType.float32, DType.float64}
_LOGIC = {"logical_and": "and", "logical_or": "or", "logical_xor": "!="}
_SIGNS = {"add": "+", "subtract": "-", "multiply": "*"}


class _UnsuitedError(Exception):
    """An expression that is not for Python."""


def small_map(primitive: Map, operands: Sequence[Type], result: Type) -> SmallMap | None:
    """A function of operands and sizes; it gives None where a map has too many elements. None: there is none."""
    if not isinstance(result, TensorType) or result.shape is None:
        return None
    ranks = [len(type.shape) if isinstance(type, TensorType) and type.shape is not None else None for type in operands]
    try:
        text = _scalar(primitive.expression, ranks)
        sizes = [_dim(size) for size in result.shape]
    except _UnsuitedError:
        return None
    if len(text) > MOST_TEXT:
        return None
    loops = "".join(f" for i{axis} in range(d{axis})" for axis in range(len(sizes)))
    lines = [f"d{axis} = {size}" for axis, size in enumerate(sizes)]
    lines.append(f"if {' * '.join(['1', *(f'd{axis}' for axis in range(len(sizes)))])} > {MOST_ELEMENTS}: return None")
    for number, rank in enumerate(ranks):
        names = "".join(f"n{number}_{axis}, " for axis in range(rank or 0))
        lines.append(f"a = operands[{number}]; l{number} = a.ravel().tolist()")
        lines.append(f"if len(l{number}) == 0 or a.size > {16 * MOST_ELEMENTS}: return None")
        if names:
            lines.append(f"{names} = a.shape".replace(",  =", ", ="))
    lines.append(f"return [{text}{loops or ' for _ in (0,)'}], ({''.join(f'd{axis}, ' for axis in range(len(sizes)))})")
    scope: dict[str, Any] = {}
    body = "".join(f"    {line}\n" for line in lines)
    exec(
        f"def run(operands, sizes):\n{body}",
        {"float": float, "range": range, "len": len, "at": _at, "near": _near, "min": min, "max": max},
        scope,
    )
    return _finished(scope["run"], result.dtype)


def _finished(run: Callable[..., Any], dtype: DType) -> SmallMap:
    def compute(operands: Sequence[Any], sizes: Mapping[str, int]) -> Array | None:
        made = run(operands, sizes)
        return None if made is None else np.array(made[0], dtype.numpy).reshape(made[1])

    return compute


def _at(index: int, size: int) -> int:
    """An index that must be in range."""
    if 0 <= index < size:
        return index
    raise IndexError(index)


def _near(index: int, size: int) -> int:
    """An index of what is not used where it is out of range."""
    return 0 if index < 0 else index if index < size else size - 1


def _scalar(scalar: Scalar, ranks: Sequence[int | None]) -> str:
    match scalar:
        case Literal(value, dtype) if dtype in _SUITED:
            held = value if isinstance(value, str) else np.array(value, dtype.numpy).item()
            return f"({held!r})" if held == held and held not in (inf, -inf) else f"float({str(held)!r})"
        case Index(value):
            return _dim(value)
        case Load(operand, indices, dtype, checked) if ranks[operand] == len(indices) and dtype in _SUITED:
            function = "at" if checked else "near"
            place = "0"
            for axis, index in enumerate(indices):
                own = f"{function}({_scalar(index, ranks)}, n{operand}_{axis})"
                place = own if axis == 0 else f"({place}) * n{operand}_{axis} + {own}"
            return f"l{operand}[{place}]"
        case Apply(function, arguments, dtype):
            return _apply(function, arguments, dtype, ranks)
    raise _UnsuitedError


def _apply(function: str, arguments: Sequence[Scalar], dtype: DType, ranks: Sequence[int | None]) -> str:
    given = [_scalar(argument, ranks) for argument in arguments]
    if function in COMPARISONS:
        return f"({given[0]} {COMPARISONS[function]} {given[1]})"
    if function in _LOGIC:
        return f"({given[0]} {_LOGIC[function]} {given[1]})"
    if function == "logical_not":
        return f"(not {given[0]})"
    if function == "select":
        return f"({given[1]} if {given[0]} else {given[2]})"
    if function in _SIGNS and dtype is DType.int64:
        return f"({given[0]} {_SIGNS[function]} {given[1]})"
    if function == "cast" and arguments[0].dtype is DType.bool and dtype in _SUITED and dtype is not DType.string:
        return f"(1 if {given[0]} else 0)"
    raise _UnsuitedError


def _dim(dim: Dim) -> str:
    if isinstance(dim, int):
        return f"({dim})"
    terms = ["*".join([f"({times})", *map(_atom, monomial)]) for monomial, times in dim.terms]
    return f"({' + '.join(terms)})"


def _atom(atom: Any) -> str:
    match atom:
        case Symbol(name):
            return f"sizes[{name!r}]"
        case Axis(position):
            return f"i{position}"
        case Compound("min" | "max" as operation, left, right):
            return f"{operation}({_dim(left)}, {_dim(right)})"
        case Compound(operation, left, right):
            return f"({_dim(left)} {operation} {_dim(right)})"
    raise _UnsuitedError
