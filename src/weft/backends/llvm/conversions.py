"""Conversions between element types, on scalars and on vectors."""

from __future__ import annotations

from weft.backends.llvm import assembly as ir
from weft.backends.llvm.instructions import Builder, Value, like, splat
from weft.backends.llvm.terms import Term
from weft.backends.llvm.types import INT32, INT64, MINIFLOATS, SMALL_INTEGERS, memory_type, register_type
from weft.backends.numerics import minifloats
from weft.backends.numerics.formats import get_format
from weft.ir.dtypes import DType


def decode(builder: Builder, value: Value, dtype: DType) -> Value:
    """Convert an element from memory to its register."""
    if dtype is DType.bool:
        return builder.icmp_unsigned("!=", value, ir.Constant(value.type, None))
    if dtype is DType.bfloat16 or dtype in MINIFLOATS:
        code = Term(builder, builder.zext(value, like(value, INT32)))
        is_bfloat16 = dtype is DType.bfloat16
        return (minifloats.widen_bfloat16(code) if is_bfloat16 else minifloats.widen(code, get_format(dtype))).value
    return _wrap(builder, value, dtype) if dtype in SMALL_INTEGERS else value


def encode(builder: Builder, value: Value, dtype: DType) -> Value:
    """Convert a register to an element in memory."""
    if dtype is DType.bool:
        return builder.zext(value, like(value, memory_type(dtype)))
    if dtype is DType.bfloat16:
        return narrow_bfloat16(builder, value)
    if dtype in MINIFLOATS:
        code = minifloats.narrow(Term(builder, value), get_format(dtype))
        return builder.trunc(code.value, like(value, memory_type(dtype)))
    return builder.and_(value, splat(value.type, (1 << dtype.bits) - 1)) if dtype in SMALL_INTEGERS else value


def round_to_dtype(builder: Builder, value: Value, dtype: DType) -> Value:
    """Round a result to its type where registers are wider than that."""
    if dtype is DType.bfloat16 or dtype in MINIFLOATS:
        return decode(builder, encode(builder, value, dtype), dtype)
    return _wrap(builder, value, dtype) if dtype in SMALL_INTEGERS else value


def _wrap(builder: Builder, value: Value, dtype: DType) -> Value:
    """Extend the low bits of a byte to a number."""
    if dtype.is_unsigned:
        return builder.and_(value, splat(value.type, (1 << dtype.bits) - 1))
    unused = splat(value.type, 8 - dtype.bits)
    return builder.ashr(builder.shl(value, unused), unused)


def bitcast(builder: Builder, value: Value, source: DType, target: DType) -> Value:
    """Reinterpret the bits as another type."""
    bits = builder.bitcast(encode(builder, value, source), like(value, memory_type(target)))
    return decode(builder, bits, target)


def cast(builder: Builder, value: Value, source: DType, target: DType) -> Value:
    """Convert between element types; floats truncate towards zero."""
    if source is target:
        return value
    if target is DType.bool:
        zero = ir.Constant(value.type, None)
        return builder.fcmp_unordered("!=", value, zero) if source.is_float else builder.icmp_signed("!=", value, zero)
    if source.is_float and target.is_float:
        return _float_to_float(builder, value, source, target)
    if source.is_float:
        return round_to_dtype(builder, _float_to_integer(builder, value, source, target), target)
    kind = like(value, register_type(target))
    if target.is_float:
        unsigned = source is DType.bool or source.is_unsigned
        return round_to_dtype(builder, builder.uitofp(value, kind) if unsigned else builder.sitofp(value, kind), target)
    if _integer_bits(source) > _integer_bits(target):
        value = builder.trunc(value, kind)
    elif _integer_bits(source) < _integer_bits(target):
        value = builder.sext(value, kind) if source.is_signed else builder.zext(value, kind)
    return round_to_dtype(builder, value, target)


def _float_to_float(builder: Builder, value: Value, source: DType, target: DType) -> Value:
    kind = like(value, register_type(target))
    if source is DType.float64 and (target is DType.float16 or target in MINIFLOATS):
        # in two steps: without float16 arithmetic, a direct conversion from float64 would call a library
        value = minifloats.round_to_odd(Term(builder, value)).value
    if _float_bits(value.type) < _float_bits(kind):
        value = builder.fpext(value, kind)
    elif _float_bits(value.type) > _float_bits(kind):
        value = builder.fptrunc(value, kind)
    return round_to_dtype(builder, value, target)


def cast_within_int32(builder: Builder, value: Value, target: DType) -> Value:
    """Convert a float32 within int32's range, or NaN, which gives 0, to a narrower integer."""
    number = builder.fptosi(_replace_nan(builder, value), like(value, INT32))
    return builder.trunc(number, like(value, register_type(target)))


def round_within_int32(builder: Builder, value: Value, offset: int, target: DType) -> Value:
    """Round a float32 to the nearest integer (ties to even) and add an offset; NaN gives 0.

    |value| < 2**22: a sum with 1.5 * 2**23 has no fraction, and its low bits are those of the integer.
    """
    kind = like(value, INT32)
    shifted = builder.fadd(value, splat(value.type, 1.5 * 2**23))
    number = builder.add(builder.bitcast(shifted, kind), splat(kind, offset))
    number = builder.select(builder.fcmp_ordered("ord", value, value), number, ir.Constant(kind, None))
    return builder.trunc(number, like(value, register_type(target)))


def _replace_nan(builder: Builder, value: Value) -> Value:
    return builder.select(builder.fcmp_ordered("ord", value, value), value, ir.Constant(value.type, None))


def _float_to_integer(builder: Builder, value: Value, source: DType, target: DType) -> Value:
    """Convert through int64, whose range saturates; narrower targets wrap around, and NaN gives 0."""
    if source is DType.float16:
        value = builder.fpext(value, like(value, ir.FloatType()))
    number = _saturate(builder, value, like(value, INT64), target is not DType.uint64)
    return number if _integer_bits(target) == 64 else builder.trunc(number, like(value, register_type(target)))


def _saturate(builder: Builder, value: Value, wide: ir.Type, signed: bool) -> Value:
    """Convert to 64 bits, saturating; NaN gives 0. LLVM's own saturating conversion splits vectors."""
    low, high = (-(2**63), 2**63) if signed else (0, 2**64)
    value = _replace_nan(builder, value)
    below = builder.fcmp_ordered("<", value, splat(value.type, float(low)))
    above = builder.fcmp_ordered(">=", value, splat(value.type, float(high)))
    safe = builder.select(builder.or_(below, above), ir.Constant(value.type, None), value)
    number = builder.fptosi(safe, wide) if signed else builder.fptoui(safe, wide)
    number = builder.select(below, splat(wide, low), number)
    return builder.select(above, splat(wide, high - 1), number)


def narrow_bfloat16(builder: Builder, value: Value) -> Value:
    """Round float32 to the bits of the nearest bfloat16, ties to even."""
    instruction = builder.bfloat16_bits(value)
    if instruction is not None:
        return instruction
    bits = minifloats.round_bfloat16(Term(builder, value)).logical_shift_right(16)
    return builder.trunc(bits.value, like(value, memory_type(DType.bfloat16)))


def saturate_bfloat16(builder: Builder, value: Value) -> Value:
    """Truncate finite float32 that would round to an infinite bfloat16; return others unchanged."""
    bits = builder.bitcast(value, like(value, INT32))
    largest = builder.and_(bits, splat(bits.type, 0x7FFF8000))
    overflows = builder.icmp_signed("==", largest, splat(bits.type, 0x7F7F8000))
    cut = builder.and_(bits, splat(bits.type, -0x10000))
    return builder.bitcast(builder.select(overflows, cut, bits), value.type)


def _float_bits(kind: ir.Type) -> int:
    element = kind.element if isinstance(kind, ir.VectorType) else kind
    return {"half": 16, "float": 32, "double": 64}[element.text]


def _integer_bits(dtype: DType) -> int:
    """The width of an integer type in registers."""
    return 1 if dtype is DType.bool else max(dtype.bits, 8)
