"""Maps of few elements compiled to one Python function: faster than numpy, whose overhead dominates for small arrays.

Only operations with the same results as numpy's: comparisons, selects, loads and index arithmetic. Everything else,
large arrays and failures are left to maps.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import Any, Union

import numpy as np

from weft.ir.arrays import Array
from weft.ir.dims import Axis, Compound, Dim, Symbol
from weft.ir.dtypes import DType
from weft.ir.program import Map
from weft.ir.scalar import COMPARISONS, Apply, Index, Literal, Load, Scalar
from weft.ir.types import Type

SmallMap = Callable[[Sequence[Any], Mapping[str, int]], Union[Array, None]]
MOST_ELEMENTS = 64
MOST_TEXT = 4000  # characters of an expression
_SUPPORTED = {dtype for dtype in DType if dtype.is_integer} | {DType.bool, DType.string, DType.float32, DType.float64}
_LOGIC = {"logical_and": "and", "logical_or": "or", "logical_xor": "!="}
_SIGNS = {"add": "+", "subtract": "-", "multiply": "*"}


class _UnsupportedError(Exception):
    """An expression that cannot be compiled to Python."""


def compile_small_map(primitive: Map, operands: Sequence[Type], result: Type) -> SmallMap | None:
    """Compile a map to a function of operands and sizes, which returns None for too many elements.

    None: the map cannot be compiled.
    """
    if result.shape is None:
        return None
    ranks = [None if type.shape is None else len(type.shape) for type in operands]
    try:
        text = _scalar_text(primitive.expression, ranks)
        sizes = [_dim_text(size) for size in result.shape]
    except _UnsupportedError:
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
        {"float": float, "range": range, "len": len, "at": _check_index, "near": _clip_index, "min": min, "max": max},
        scope,
    )
    return _convert_results(scope["run"], result.dtype)


def _convert_results(run: Callable[..., Any], dtype: DType) -> SmallMap:
    def compute(operands: Sequence[Any], sizes: Mapping[str, int]) -> Array | None:
        computed = run(operands, sizes)
        return None if computed is None else np.array(computed[0], dtype.numpy).reshape(computed[1])

    return compute


def _check_index(index: int, size: int) -> int:
    """Return an index that must be in range."""
    if 0 <= index < size:
        return index
    raise IndexError(index)


def _clip_index(index: int, size: int) -> int:
    """Clip an index whose element is not used if it is out of range."""
    return 0 if index < 0 else index if index < size else size - 1


def _scalar_text(scalar: Scalar, ranks: Sequence[int | None]) -> str:
    match scalar:
        case Literal(value, dtype) if dtype in _SUPPORTED:
            number = value if isinstance(value, str) else np.array(value, dtype.numpy).item()
            return f"({number!r})" if number == number and number not in (inf, -inf) else f"float({str(number)!r})"
        case Index(value):
            return _dim_text(value)
        case Load(operand, indices, dtype, checked) if ranks[operand] == len(indices) and dtype in _SUPPORTED:
            function = "at" if checked else "near"
            position = "0"
            for axis, index in enumerate(indices):
                wrapped = f"{function}({_scalar_text(index, ranks)}, n{operand}_{axis})"
                position = wrapped if axis == 0 else f"({position}) * n{operand}_{axis} + {wrapped}"
            return f"l{operand}[{position}]"
        case Apply(function, arguments, dtype):
            return _apply_text(function, arguments, dtype, ranks)
    raise _UnsupportedError


def _apply_text(function: str, arguments: Sequence[Scalar], dtype: DType, ranks: Sequence[int | None]) -> str:
    texts = [_scalar_text(argument, ranks) for argument in arguments]
    if function in COMPARISONS:
        return f"({texts[0]} {COMPARISONS[function]} {texts[1]})"
    if function in _LOGIC:
        return f"({texts[0]} {_LOGIC[function]} {texts[1]})"
    if function == "logical_not":
        return f"(not {texts[0]})"
    if function == "select":
        return f"({texts[1]} if {texts[0]} else {texts[2]})"
    if function in _SIGNS and dtype is DType.int64:
        return f"({texts[0]} {_SIGNS[function]} {texts[1]})"
    if function == "cast" and arguments[0].dtype is DType.bool and dtype in _SUPPORTED and dtype is not DType.string:
        return f"(1 if {texts[0]} else 0)"
    raise _UnsupportedError


def _dim_text(dim: Dim) -> str:
    if isinstance(dim, int):
        return f"({dim})"
    terms = ["*".join([f"({times})", *map(_atom_text, monomial)]) for monomial, times in dim.terms]
    return f"({' + '.join(terms)})"


def _atom_text(atom: Any) -> str:
    match atom:
        case Symbol(name):
            return f"sizes[{name!r}]"
        case Axis(position):
            return f"i{position}"
        case Compound("min" | "max" as operation, left, right):
            return f"{operation}({_dim_text(left)}, {_dim_text(right)})"
        case Compound(operation, left, right):
            return f"({_dim_text(left)} {operation} {_dim_text(right)})"
    raise _UnsupportedError
