"""Floats of 8 bits and fewer: codes in the low bits of a byte in memory, float32 in registers."""

from __future__ import annotations

from weft.backends.llvm import assembly as ir
from weft.backends.llvm.instructions import Builder, Value, intrinsic, like, splat
from weft.backends.llvm.types import INT32
from weft.backends.numerics.formats import Format, format_of
from weft.ir.dtypes import DType

_BYTE = ir.IntType(8)
_FRACTION = 23  # bits of a float32's fraction
_BIAS = 127


def widen(builder: Builder, value: Value, dtype: DType) -> Value:
    """A code as float32."""
    form = format_of(dtype)
    word, single = like(value, INT32), like(value, ir.FloatType())
    code = builder.zext(value, word)
    if not form.sign:
        return _widen_exponent(builder, code, single, form)
    magnitude = builder.and_(code, splat(word, form.sign - 1))
    moved = builder.shl(magnitude, splat(word, _FRACTION - form.fraction))
    normal = builder.bitcast(builder.add(moved, splat(word, (_BIAS - form.bias) << _FRACTION)), single)
    small = builder.fmul(builder.uitofp(magnitude, single), splat(single, 2.0 ** (1 - form.bias - form.fraction)))
    is_small = builder.icmp_unsigned("<", magnitude, splat(word, 1 << form.fraction))
    number = builder.select(is_small, small, normal)
    number = builder.select(
        builder.icmp_unsigned(">", magnitude, splat(word, form.largest)), splat(single, float("inf")), number
    )
    number = builder.select(_is_nan_code(builder, code, magnitude, form), splat(single, float("nan")), number)
    negative = builder.icmp_unsigned("!=", builder.and_(code, splat(word, form.sign)), splat(word, 0))
    return builder.select(negative, builder.fneg(number), number)


def _is_nan_code(builder: Builder, code: Value, magnitude: Value, form: Format) -> Value:
    if form.nan_is_negative_zero:
        return builder.icmp_unsigned("==", code, splat(code.type, form.nan))
    if form.least_nan is None:
        return splat(like(code, ir.IntType(1)), 0)
    return builder.icmp_unsigned(">=", magnitude, splat(code.type, form.least_nan))


def _widen_exponent(builder: Builder, code: Value, single: Value, form: Format) -> Value:
    """Powers of two: the code is float32's exponent, and 0 is the one below its least normal number."""
    bits = builder.shl(code, splat(code.type, _FRACTION))
    least = builder.icmp_unsigned("==", code, splat(code.type, 0))
    bits = builder.select(least, splat(code.type, 1 << (_FRACTION - 1)), bits)
    number = builder.bitcast(bits, single)
    is_nan = builder.icmp_unsigned("==", code, splat(code.type, form.nan))
    return builder.select(is_nan, splat(single, float("nan")), number)


def narrow(builder: Builder, value: Value, dtype: DType) -> Value:
    """float32 rounded to nearest even, as a code."""
    form = format_of(dtype)
    word = like(value, INT32)
    is_nan = builder.fcmp_unordered("uno", value, value)
    if not form.sign:
        code = _narrow_exponent(builder, value, form)
        return builder.trunc(builder.select(is_nan, splat(word, form.nan), code), like(value, _BYTE))
    size = intrinsic(builder, "llvm.fabs", [value.type], value.type, [value])
    bits = builder.bitcast(size, word)
    dropped = _FRACTION - form.fraction
    lowest = builder.and_(builder.lshr(bits, splat(word, dropped)), splat(word, 1))
    rounded = builder.add(bits, builder.add(lowest, splat(word, (1 << (dropped - 1)) - 1)))
    normal = builder.sub(builder.lshr(rounded, splat(word, dropped)), splat(word, (_BIAS - form.bias) << form.fraction))
    step = splat(value.type, 2.0 ** (1 - form.bias - form.fraction + _FRACTION))  # its last bit is the format's least
    small = builder.sub(builder.bitcast(builder.fadd(size, step), word), builder.bitcast(step, word))
    is_small = builder.fcmp_ordered("<", size, splat(value.type, 2.0 ** (1 - form.bias)))
    code = builder.select(is_small, small, normal)
    negative = builder.icmp_signed("<", builder.bitcast(value, word), splat(word, 0))
    too_large = builder.icmp_signed(">", code, splat(word, form.largest))
    if form.nan_is_negative_zero:
        negative = builder.and_(negative, builder.icmp_unsigned("!=", code, splat(word, 0)))
        code = builder.or_(code, builder.select(negative, splat(word, form.sign), splat(word, 0)))
        code = builder.select(builder.or_(too_large, is_nan), splat(word, form.nan), code)
    else:
        code = builder.select(too_large, splat(word, form.too_large & (form.sign - 1)), code)
        code = builder.select(is_nan, splat(word, form.nan), code)
        code = builder.xor(code, builder.select(negative, splat(word, form.sign), splat(word, 0)))
    return builder.trunc(code, like(value, _BYTE))


def _narrow_exponent(builder: Builder, value: Value, form: Format) -> Value:
    """The nearest power of two, the larger of two; none below 0."""
    bits = builder.bitcast(value, like(value, INT32))
    word = bits.type
    rounded = builder.add(bits, splat(word, 1 << (_FRACTION - 1)))
    code = builder.lshr(rounded, splat(word, _FRACTION))
    exact = builder.icmp_signed("==", bits, splat(word, 1 << (_FRACTION - 1)))  # code 0
    code = builder.select(exact, splat(word, 0), code)
    outside = builder.icmp_signed("<=", bits, splat(word, 0))
    return builder.select(outside, splat(word, form.nan), code)
