"""Conversions between element types."""

from __future__ import annotations

from weft.ir.dtypes import DType, from_number
from weft.opset import functions
from weft.opset.functions import bit_and, bitcast, clamp, is_nan, shift_right, where
from weft.opset.language import Element, Tensor, elementwise, literal
from weft.opset.registry import REQUIRED, ElementType, op, require

_OVERFLOWING = (DType.float8e4m3fn, DType.float8e4m3fnuz, DType.float8e5m2, DType.float8e5m2fnuz)
"""Types for which a plain cast converts too large numbers to infinity or NaN; Cast saturates by default."""


@op("Cast", since=6)
def cast(x: Tensor, *, to: ElementType = REQUIRED, saturate: int = 1, round_mode: str = "up") -> Tensor:
    dtype = from_number(to)
    return elementwise(lambda v: convert(v, dtype, bool(saturate), round_mode), x)


@op("CastLike", since=15)
def cast_like(x: Tensor, target: Tensor, *, saturate: int = 1, round_mode: str = "up") -> Tensor:
    return elementwise(lambda v: convert(v, target.dtype, bool(saturate), round_mode), x)


def convert(v: Element, dtype: DType, saturate: bool = True, round_mode: str = "up") -> Element:
    """Convert by ONNX's rules, which differ from a plain cast for 8-bit floats."""
    if v.dtype is dtype:
        return v
    if v.dtype is DType.string or v.dtype.is_complex:
        return functions.cast(v, dtype)
    if dtype is DType.float8e8m0:
        return _to_power_of_two(v, saturate, round_mode)
    if dtype in _OVERFLOWING and saturate and v.dtype is not DType.bool:
        v = v if v.dtype.is_float and v.dtype.bits > 8 else functions.cast(v, DType.float32)
        v = clamp(v, *dtype.limits)
    return functions.cast(v, dtype)


def _to_power_of_two(v: Element, saturate: bool, round_mode: str) -> Element:
    """Convert to float8e8m0 by exponent and fraction of the float: code c is 2**(c - 127), and 255 is NaN."""
    require(round_mode in ("up", "down", "nearest"), f"round_mode is {round_mode!r}", "use up, down or nearest")
    wide, word, fraction_bits, bias = _LAYOUTS[v.dtype is DType.float64]
    v = functions.cast(v, wide)
    bits = bitcast(v, word)
    exponent = bit_and(shift_right(bits, literal(fraction_bits, word)), 2 * bias + 1)
    one = 1 << fraction_bits
    fraction = bit_and(bits, one - 1)
    is_subnormal = functions.equal(exponent, 0)  # its exponent continues below 0
    fraction = where(is_subnormal, fraction * 2 - one, fraction)
    code = exponent - (bias - 127)
    if round_mode != "down":
        least = 1 if round_mode == "up" else one // 2
        code = where(fraction >= least, code + 1, code)
    if saturate:
        code = clamp(code, 0, 254)
    else:
        lost = (code < 0) | (code > 254) | ((code <= 0) & (fraction < 0))
        code = where(lost, 255, code)
    code = where(is_nan(v), 255, code)
    return bitcast(functions.cast(code, DType.uint8), DType.float8e8m0)


_LAYOUTS = {False: (DType.float32, DType.int32, 23, 127), True: (DType.float64, DType.int64, 52, 1023)}
"""By whether the float is a float64: float and integer type, bits of the fraction, bias of the exponent."""
