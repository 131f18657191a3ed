"""Scalar functions on numpy arrays and on object arrays of symbolic integers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from weft.backends.reference.special import erf
from weft.ir import dims
from weft.ir.arrays import Array
from weft.ir.dims import Equality, Expr, UndecidedError
from weft.ir.dtypes import DType, from_numpy


def apply_function(name: str, arguments: list[Array], dtype: DType) -> Array:
    """Apply a function of `weft.ir.scalar.FUNCTIONS` to arrays of numbers, broadcasting."""
    if name == "cast":
        return cast(arguments[0], dtype)
    if name == "bitcast":
        return arguments[0].view(dtype.numpy)
    if name in _VIA_FLOAT64 and arguments[0].dtype.kind in "iub":
        arguments = [argument.astype(np.float64) for argument in arguments]
    result = np.asarray(_FUNCTIONS[name](*arguments))
    return result.astype(dtype.numpy) if result.dtype != dtype.numpy else result


def apply_symbolic(name: str, arguments: list[Array], dtype: DType) -> Array:
    """Apply a function to object arrays of dims; UndecidedError where the result depends on the sizes."""
    if name in ("cast", "bitcast"):
        if not (dtype.is_integer or dtype is DType.bool):
            raise UndecidedError("sizes as floating-point numbers")
        convert = _to_bool if dtype is DType.bool else _to_integer
        return convert_symbolic(_vectorize(convert, 1)(arguments[0]), dtype)
    function = _SYMBOLIC.get(name)
    if function is None:
        raise UndecidedError(f"{name} of sizes")
    return convert_symbolic(_vectorize(function, len(arguments))(*arguments), dtype)


def convert_symbolic(content: Array, dtype: DType) -> Array:
    """Convert symbolic integers to a dtype: numbers wrap around, and a size must provably fit a narrow type.

    Types of 32 and 64 bits are assumed to be wide enough for sizes: see `Trace`.
    """
    if not dtype.is_integer:
        return content
    converted = np.empty(content.shape, object)
    converted[...] = np.frompyfunc(partial(_convert_element, dtype=dtype), 1, 1)(content)
    return converted


def _convert_element(value: Any, dtype: DType) -> Any:
    if isinstance(value, Equality):
        return value
    low, high = dtype.limits
    if isinstance(value, Expr):
        if dtype.bits < 32 and not (dims.is_at_least(value, int(low)) and dims.is_at_least(int(high), value)):
            raise UndecidedError(f"whether {value} fits {dtype}")
        return value
    return wrap(int(value), dtype)


def wrap(number: int, dtype: DType) -> int:
    """Wrap an integer around to the range of an integer type."""
    bits = number & ((1 << dtype.bits) - 1)
    return bits - (1 << dtype.bits) if dtype.is_signed and bits >> (dtype.bits - 1) else bits


def cast(x: Array, dtype: DType) -> Array:
    """Convert as numpy does, through types that both dtypes support, and through text for strings."""
    source = from_numpy(x.dtype)
    if source is dtype:
        return x
    if source is DType.string:
        return _parse(x, dtype)
    if dtype is DType.string:
        return _format(x, source)
    if dtype is DType.bool:
        return np.not_equal(x, np.zeros((), x.dtype))
    if source.is_complex and not dtype.is_complex:
        x, source = x.real, from_numpy(x.real.dtype)
    if source.is_float and dtype.is_integer:
        return _float_to_integer(x, dtype)
    if "V" in (x.dtype.kind, dtype.numpy.kind):
        x = x.astype(np.int64 if dtype.is_integer else np.float64)
    return x.astype(dtype.numpy)


def _float_to_integer(x: Array, dtype: DType) -> Array:
    """Truncate; a number that does not fit wraps around through int64 instead of trapping."""
    wide = np.trunc(x.astype(np.float64))
    if dtype is DType.uint64:
        half = float(2**63)
        upper = wide >= half
        low = np.where(upper, wide - half, wide).astype(np.int64).astype(np.uint64)
        return np.asarray(low + np.where(upper, np.uint64(2**63), np.uint64(0)))
    return wide.astype(np.int64).astype(dtype.numpy)


def _parse(x: Array, dtype: DType) -> Array:
    if dtype.is_float or dtype.is_complex:
        read: Callable[[str], Any] = complex if dtype.is_complex else float
        numbers = np.array([read(str(text)) for text in x.flat], np.complex128 if dtype.is_complex else np.float64)
    else:
        numbers = np.array([_parse_integer(str(text)) for text in x.flat], np.uint64)
    return np.reshape(cast(numbers, dtype), x.shape)


def _parse_integer(text: str) -> int:
    """Parse an integer as 64 bits of two's complement; a fraction is truncated."""
    try:
        number = int(text)
    except ValueError:
        number = int(float(text))
    return number & 0xFFFF_FFFF_FFFF_FFFF


def _format(x: Array, dtype: DType) -> Array:
    result = np.empty(x.size, object)
    result[:] = [_format_number(value, dtype) for value in x.flat]
    return np.reshape(result, x.shape)


def _format_number(value: Any, dtype: DType) -> str:
    """Format a number as ONNX does: bools as 0 and 1, float32 with 8 digits."""
    if dtype.is_complex:
        return str(value)
    if not dtype.is_float:
        return str(int(value))
    number = float(value)
    if np.isnan(number):
        return "NaN"
    if np.isinf(number):
        return "INF" if number > 0 else "-INF"
    return repr(number).removesuffix(".0") if dtype is DType.float64 else f"{number:.8g}"


def _divide(a: Array, b: Array) -> Array:
    if a.dtype.kind not in "iu":
        return a / b
    quotient = a // np.where(b == 0, np.ones((), b.dtype), b)
    if a.dtype.kind == "i":  # floor to truncation
        quotient = quotient + ((quotient < 0) & (quotient * b != a)).astype(quotient.dtype)
    return np.where(b == 0, np.zeros((), a.dtype), quotient)


def _power(a: Array, b: Array) -> Array:
    if a.dtype.kind in "iu" and np.any(b < 0):
        return np.power(a.astype(np.float64), b.astype(np.float64))
    result = np.power(a, b)
    if a.dtype.kind == "f" and b.size == 1 and b.item() == 0.5:  # numpy takes the square root, also of -infinity and -0
        return np.where(np.isneginf(a), -a, result + 0)
    return result


def _shift(left: bool) -> Callable[[Array, Array], Array]:
    def shift(a: Array, b: Array) -> Array:
        width = a.dtype.itemsize * 8
        shifted = np.left_shift(a, b % width) if left else np.right_shift(a, b % width)
        return np.where(b >= width, np.zeros((), a.dtype), shifted)

    return shift


def _select(condition: Array, a: Array, b: Array) -> Array:
    return np.where(condition, a, b)


def _through_float32(function: Callable[..., Array]) -> Callable[..., Array]:
    """Wrap a function that ml_dtypes does not implement, to compute in float32."""

    def call(*arguments: Array) -> Array:
        if arguments[0].dtype.kind == "V":
            return function(*(argument.astype(np.float32) for argument in arguments)).astype(arguments[0].dtype)
        return function(*arguments)

    return call


_VIA_FLOAT64 = frozenset(
    [
        "floor",
        "ceil",
        "round_half_even",
        "truncate",
        "sqrt",
        "exp",
        "log",
        "log1p",
        "sin",
        "cos",
        "tan",
        "asin",
        "acos",
        "atan",
        "sinh",
        "cosh",
        "tanh",
        "asinh",
        "acosh",
        "atanh",
        "erf",
    ]
)


def _fused_multiply_add(a: Any, b: Any, c: Any) -> Any:
    """Round once: products of float32 are exact in float64."""
    dtype = np.result_type(a, b, c)
    return (np.float64(a) * np.float64(b) + np.float64(c)).astype(dtype)


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "divide": _divide,
    "remainder": _through_float32(np.remainder),
    "fmod": _through_float32(np.fmod),
    "power": _power,
    "fma": _fused_multiply_add,
    "minimum": np.minimum,
    "maximum": np.maximum,
    "negate": np.negative,
    "absolute": np.absolute,
    "sign": _through_float32(np.sign),
    "floor": np.floor,
    "ceil": np.ceil,
    "round_half_even": _through_float32(np.rint),
    "truncate": _through_float32(np.trunc),
    "sqrt": np.sqrt,
    "exp": np.exp,
    "log": np.log,
    "log1p": np.log1p,
    "sin": np.sin,
    "cos": np.cos,
    "tan": np.tan,
    "asin": np.arcsin,
    "acos": np.arccos,
    "atan": np.arctan,
    "sinh": np.sinh,
    "cosh": np.cosh,
    "tanh": np.tanh,
    "asinh": np.arcsinh,
    "acosh": np.arccosh,
    "atanh": np.arctanh,
    "erf": erf,
    "is_nan": np.isnan,
    "is_inf": np.isinf,
    "equal": np.equal,
    "not_equal": np.not_equal,
    "less": np.less,
    "less_equal": np.less_equal,
    "greater": np.greater,
    "greater_equal": np.greater_equal,
    "logical_and": np.logical_and,
    "logical_or": np.logical_or,
    "logical_xor": np.logical_xor,
    "logical_not": np.logical_not,
    "bit_and": np.bitwise_and,
    "bit_or": np.bitwise_or,
    "bit_xor": np.bitwise_xor,
    "bit_not": np.bitwise_not,
    "shift_left": _shift(left=True),
    "shift_right": _shift(left=False),
    "select": _select,
}


def _symbolic_divide(a: Any, b: Any) -> Any:
    if isinstance(a, int) and isinstance(b, int):
        return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1) if b else 0
    if dims.is_at_least(a, 0) and dims.is_at_least(b, 1):
        return dims.floordiv(a, b)
    raise UndecidedError(f"{a} / {b} truncated")


def _symbolic_remainder(a: Any, b: Any) -> Any:
    if (isinstance(a, int) and isinstance(b, int)) or b == 0 or dims.is_at_least(b, 1):
        return dims.mod(a, b)
    raise UndecidedError(f"{a} % {b}")


def _equal(negated: bool) -> Callable[[Any, Any], bool | Equality]:
    def compare(a: Any, b: Any) -> bool | Equality:
        try:
            return dims.decide_equal(a, b) != negated
        except UndecidedError:
            return Equality(a, b, negated)

    return compare


def _not(value: Any) -> bool | Equality:
    return replace(value, negated=not value.negated) if isinstance(value, Equality) else not value


def _to_integer(value: Any) -> Any:
    return value if isinstance(value, Expr) else int(bool(value) if isinstance(value, Equality) else value)


def _to_bool(value: Any) -> bool | Equality:
    if isinstance(value, Equality):
        return value
    return not dims.decide_equal(value, 0) if isinstance(value, Expr) else bool(value)


_SYMBOLIC: dict[str, Callable[..., Any]] = {
    "add": lambda a, b: a + b,
    "subtract": lambda a, b: a - b,
    "multiply": lambda a, b: a * b,
    "divide": _symbolic_divide,
    "remainder": _symbolic_remainder,
    "minimum": dims.minimum,
    "maximum": dims.maximum,
    "negate": lambda a: -a,
    "equal": _equal(negated=False),
    "not_equal": _equal(negated=True),
    "less": dims.decide_less,
    "less_equal": lambda a, b: not dims.decide_less(b, a),
    "greater": lambda a, b: dims.decide_less(b, a),
    "greater_equal": lambda a, b: not dims.decide_less(a, b),
    "logical_and": lambda a, b: bool(a) and bool(b),
    "logical_or": lambda a, b: bool(a) or bool(b),
    "logical_xor": lambda a, b: bool(a) != bool(b),
    "logical_not": _not,
    "select": lambda condition, a, b: a if condition else b,
    "absolute": lambda a: a if dims.is_at_least(a, 0) else -a if dims.is_at_least(-a, 0) else _undecided(a),
}


def _undecided(value: Any) -> Any:
    raise UndecidedError(f"the sign of {value}")


def _vectorize(function: Callable[..., Any], count: int) -> Callable[..., Array]:
    def call(*arguments: Array) -> Array:
        for argument in arguments:
            if any(isinstance(element, (float, str)) for element in argument.flat):
                raise UndecidedError("sizes mixed with other values")
        vectorized = np.frompyfunc(function, count, 1)
        result = np.empty(np.broadcast_shapes(*(argument.shape for argument in arguments)), object)
        result[...] = vectorized(*arguments)
        return result

    return call
