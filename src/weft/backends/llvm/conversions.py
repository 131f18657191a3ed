"""Conversions between element types, on scalars and on vectors alike."""

from __future__ import annotations

from typing import Any

from weft.backends.llvm import assembly as ir
from weft.backends.llvm.instructions import Builder, Value, intrinsic, like, splat
from weft.backends.llvm.minifloats import narrow, widen
from weft.backends.llvm.types import INT32, INT64, MINIFLOATS, SMALL_INTEGERS, memory_type, register_type
from weft.ir.dtypes import DType


def loaded(builder: Builder, value: Value, dtype: DType) -> Value:
    """What memory holds, as it is in registers."""
    if dtype is DType.bool:
        return builder.icmp_unsigned("!=", value, ir.Constant(value.type, None))
    if dtype is DType.bfloat16:
        return widen_bfloat16(builder, value)
    if dtype in MINIFLOATS:
        return widen(builder, value, dtype)
    return _wrapped(builder, value, dtype) if dtype in SMALL_INTEGERS else value


def stored(builder: Builder, value: Value, dtype: DType) -> Value:
    """What registers hold, as it is in memory."""
    if dtype is DType.bool:
        return builder.zext(value, like(value, memory_type(dtype)))
    if dtype is DType.bfloat16:
        return narrow_bfloat16(builder, value)
    if dtype in MINIFLOATS:
        return narrow(builder, value, dtype)
    return builder.and_(value, splat(value.type, (1 << dtype.bits) - 1)) if dtype in SMALL_INTEGERS else value


def rounded(builder: Builder, value: Value, dtype: DType) -> Value:
    """A result in registers that are wider than its type, as the type would have it."""
    if dtype is DType.bfloat16 or dtype in MINIFLOATS:
        return loaded(builder, stored(builder, value, dtype), dtype)
    return _wrapped(builder, value, dtype) if dtype in SMALL_INTEGERS else value


def _wrapped(builder: Builder, value: Value, dtype: DType) -> Value:
    """The low bits of a byte as a number."""
    if dtype.is_unsigned:
        return builder.and_(value, splat(value.type, (1 << dtype.bits) - 1))
    unused = splat(value.type, 8 - dtype.bits)
    return builder.ashr(builder.shl(value, unused), unused)


def bitcast(builder: Builder, value: Value, source: DType, target: DType) -> Value:
    """The same bits as another type."""
    bits = builder.bitcast(stored(builder, value, source), like(value, memory_type(target)))
    return loaded(builder, bits, target)


def cast(builder: Builder, value: Value, source: DType, target: DType) -> Value:
    """Conversion between element types; floats truncate towards zero."""
    if source is target:
        return value
    if target is DType.bool:
        zero = ir.Constant(value.type, None)
        return builder.fcmp_unordered("!=", value, zero) if source.is_float else builder.icmp_signed("!=", value, zero)
    if source.is_float and target.is_float:
        return _float_to_float(builder, value, source, target)
    if source.is_float:
        return rounded(builder, _float_to_integer(builder, value, source, target), target)
    kind = like(value, register_type(target))
    if target.is_float:
        unsigned = source is DType.bool or source.is_unsigned
        return rounded(builder, builder.uitofp(value, kind) if unsigned else builder.sitofp(value, kind), target)
    if _integer_bits(source) > _integer_bits(target):
        value = builder.trunc(value, kind)
    elif _integer_bits(source) < _integer_bits(target):
        value = builder.sext(value, kind) if source.is_signed else builder.zext(value, kind)
    return rounded(builder, value, target)


def _float_to_float(builder: Builder, value: Value, source: DType, target: DType) -> Value:
    kind = like(value, register_type(target))
    if source is DType.float64 and (target is DType.float16 or target in MINIFLOATS):
        value = _round_to_odd(builder, value)
    if _float_bits(value.type) < _float_bits(kind):
        value = builder.fpext(value, kind)
    elif _float_bits(value.type) > _float_bits(kind):
        value = builder.fptrunc(value, kind)
    return rounded(builder, value, target)


def cast_within_int32(builder: Builder, value: Value, target: DType) -> Value:
    """A float32 within int32's bounds (or NaN, which gives 0) as a narrower integer."""
    number = builder.fptosi(_without_nan(builder, value), like(value, INT32))
    return builder.trunc(number, like(value, register_type(target)))


def rounded_within(builder: Builder, value: Value, moved: int, target: DType) -> Value:
    """A float32 well within int32's bounds, rounded to even, plus an integer; NaN gives 0.

    Added to 1.5 * 2**23 it has no bits left behind the point, and its low bits are those of the integer.
    """
    kind = like(value, INT32)
    shifted = builder.fadd(value, splat(value.type, 1.5 * 2**23))
    number = builder.add(builder.bitcast(shifted, kind), splat(kind, moved))
    number = builder.select(builder.fcmp_ordered("ord", value, value), number, ir.Constant(kind, None))
    return builder.trunc(number, like(value, register_type(target)))


def _without_nan(builder: Builder, value: Value) -> Value:
    return builder.select(builder.fcmp_ordered("ord", value, value), value, ir.Constant(value.type, None))


def _float_to_integer(builder: Builder, value: Value, source: DType, target: DType) -> Value:
    """Through int64, wrapping around where the target is narrower; out of its range the extremes, NaN gives 0."""
    if source is DType.float16:
        value = builder.fpext(value, like(value, ir.FloatType()))
    number = _saturated(builder, value, like(value, INT64), target is not DType.uint64)
    return number if _integer_bits(target) == 64 else builder.trunc(number, like(value, register_type(target)))


def _saturated(builder: Builder, value: Value, wide: Any, signed: bool) -> Value:
    """64 bits, the nearest of them out of range, 0 for NaN. LLVM's own conversion takes vectors apart."""
    low, high = (-(2**63), 2**63) if signed else (0, 2**64)
    value = _without_nan(builder, value)
    below = builder.fcmp_ordered("<", value, splat(value.type, float(low)))
    above = builder.fcmp_ordered(">=", value, splat(value.type, float(high)))
    safe = builder.select(builder.or_(below, above), ir.Constant(value.type, None), value)
    number = builder.fptosi(safe, wide) if signed else builder.fptoui(safe, wide)
    number = builder.select(below, splat(wide, low), number)
    return builder.select(above, splat(wide, high - 1), number)


def _round_to_odd(builder: Builder, value: Value) -> Value:
    """float64 as float32, inexact ones with an odd last bit: rounding that to float16 equals rounding at once.

    Processors without float16 arithmetic have no such conversion, and compilers call a library that is not there.
    """
    nearest = builder.fptrunc(value, like(value, ir.FloatType()))
    bits = builder.bitcast(nearest, like(value, INT32))
    back = builder.fpext(nearest, value.type)
    absolute = intrinsic(builder, "llvm.fabs", [value.type], value.type, [value])
    too_far = builder.fcmp_ordered(">", intrinsic(builder, "llvm.fabs", [value.type], value.type, [back]), absolute)
    towards_zero = builder.sub(bits, builder.zext(too_far, bits.type))
    odd = builder.or_(towards_zero, splat(bits.type, 1))
    chosen = builder.select(builder.fcmp_ordered("!=", back, value), odd, bits)
    return builder.bitcast(chosen, nearest.type)


def widen_bfloat16(builder: Builder, value: Value) -> Value:
    """16 bits as the float32 whose upper half they are."""
    wide = builder.zext(value, like(value, INT32))
    return builder.bitcast(builder.shl(wide, splat(wide.type, 16)), like(value, ir.FloatType()))


def narrow_bfloat16(builder: Builder, value: Value) -> Value:
    """float32 rounded to nearest even, as 16 bits."""
    at_once = builder.bfloat16_bits(value)
    if at_once is not None:
        return at_once
    bits = builder.bitcast(value, like(value, INT32))
    lowest = builder.and_(builder.lshr(bits, splat(bits.type, 16)), splat(bits.type, 1))
    rounded = builder.add(bits, builder.add(lowest, splat(bits.type, 0x7FFF)))
    quiet = builder.or_(bits, splat(bits.type, 0x400000))
    chosen = builder.select(builder.fcmp_unordered("uno", value, value), quiet, rounded)
    return builder.trunc(builder.lshr(chosen, splat(bits.type, 16)), like(value, ir.IntType(16)))


def saturate_bfloat16(builder: Builder, value: Value) -> Value:
    """Cut off the low bits of finite float32 that would round to an infinite bfloat16; return others unchanged."""
    bits = builder.bitcast(value, like(value, INT32))
    largest = builder.and_(bits, splat(bits.type, 0x7FFF8000))
    overflows = builder.icmp_signed("==", largest, splat(bits.type, 0x7F7F8000))
    cut = builder.and_(bits, splat(bits.type, -0x10000))
    return builder.bitcast(builder.select(overflows, cut, bits), value.type)


def _float_bits(kind: Any) -> int:
    element = kind.element if isinstance(kind, ir.VectorType) else kind
    return {"half": 16, "float": 32, "double": 64}[element.text]


def _integer_bits(dtype: DType) -> int:
    """In registers."""
    return 1 if dtype is DType.bool else max(dtype.bits, 8)
