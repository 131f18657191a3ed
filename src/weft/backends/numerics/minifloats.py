"""Conversions between float32 and narrower floats, whose codes are in the low bits of 32-bit integers.

They use integers, because a device may flush subnormal float32 numbers to 0. The only float operations scale normal
numbers by powers of two to normal numbers.
"""

from __future__ import annotations

from weft.backends.numerics.formats import Format
from weft.backends.numerics.terms import T, absolute, choose, is_nan, is_negative, let, nearest_multiple

_FRACTION = 23  # bits of float32's fraction
_BIAS = 127
_INFINITY = 0x7F800000
_NAN = 0x7FC00000
_SIZE = 0x7FFFFFFF  # without the sign
_HALF_EXPONENT = 1 << _FRACTION - 1  # half of the exponent's last place


def widen(code: T, form: Format) -> T:
    """Convert a code to float32."""
    if not form.sign:
        return _widen_power(let("power", code & 0xFF), form)
    size = let("size", code & form.sign - 1)
    normal = let("normal", (size << _FRACTION - form.fraction) + ((_BIAS - form.bias) << _FRACTION))
    small = let("small", (size.to_float() * 2.0 ** (1 - form.bias - form.fraction)).as_integer())
    bits = let("bits", choose(size < 1 << form.fraction, small, normal))
    if form.largest + 1 < form.sign:  # some codes are not numbers
        bits = choose(size > form.largest, _INFINITY, bits)
    if form.nan_is_negative_zero:
        bits = choose((code & 2 * form.sign - 1).equals(form.nan), _NAN, bits)
    elif form.least_nan is not None:
        bits = choose(size >= form.least_nan, _NAN, bits)
    return (bits | ((code & form.sign) << 32 - form.sign.bit_length())).as_float()


def narrow(x: T, form: Format) -> T:
    """Round float32 to the nearest code, ties to even."""
    if not form.sign:
        return _narrow_power(x, form)
    bits = let("bits", x.as_integer() & _SIZE)
    dropped = _FRACTION - form.fraction
    lowest = bits.logical_shift_right(dropped) & 1
    rounded = (bits + ((1 << dropped - 1) - 1) + lowest).logical_shift_right(dropped)
    normal = let("normal", rounded - ((_BIAS - form.bias) << form.fraction))
    small = let("small", nearest_multiple(absolute(x), 2.0 ** (1 - form.bias - form.fraction)))
    code = let("code", choose(bits < (_BIAS + 1 - form.bias) << _FRACTION, small, normal))
    too_large, no_number = code > form.largest, bits > _INFINITY
    negative = let("negative", choose(is_negative(x), code.constant(form.sign), 0))
    if form.nan_is_negative_zero:
        return choose(too_large | no_number, form.nan, code | choose(code.equals(0), 0, negative))
    code = let("code", choose(too_large, form.too_large & form.sign - 1, code))
    return choose(no_number, form.nan, code) ^ negative


def _widen_power(code: T, form: Format) -> T:
    """Convert a power of two: the code is float32's exponent, and 0 is the one below its least normal number."""
    bits = choose(code.equals(0), _HALF_EXPONENT, code << _FRACTION)
    return choose(code.equals(form.nan), _NAN, bits).as_float()


def _narrow_power(x: T, form: Format) -> T:
    """Round to the nearest power of two, the larger of two; NaN for 0 and below."""
    bits = let("bits", x.as_integer())
    rounded = (bits + _HALF_EXPONENT).logical_shift_right(_FRACTION)
    code = choose(bits.equals(_HALF_EXPONENT), 0, rounded)
    return choose((bits <= 0) | (bits > _INFINITY), form.nan, code)


def widen_bfloat16(code: T) -> T:
    return (code << 16).as_float()


def round_bfloat16(x: T) -> T:
    """Round float32 to the nearest bfloat16 (ties to even), in the upper half of the result's bits."""
    bits = let("bits", x.as_integer())
    rounded = let("rounded", bits + ((bits.logical_shift_right(16) & 1) + 0x7FFF))
    quiet = bits | 0x400000
    return choose(is_nan(x), quiet, rounded)


def round_to_odd(x: T) -> T:
    """Convert float64 to float32, with the last bit 1 where inexact: rounding the result again equals rounding once."""
    nearest = let("nearest", x.narrow())
    bits = let("bits", nearest.as_integer())
    back = let("back", nearest.widen())
    size = absolute(x)
    odd = (bits - (absolute(back) > size).to_integer()) | 1
    return choose(back.differs(x), odd, bits).as_float()
