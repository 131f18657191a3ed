"""AVX-512 instructions on vectors of any width: dot products of int8 and bfloat16, rounding, and table lookups."""

from __future__ import annotations

from collections.abc import Callable

from weft.backends.llvm import assembly as ir
from weft.backends.llvm.instructions import Builder, Value, declare
from weft.backends.llvm.types import INT32, vector

_WIDTHS = (16, 8, 4)  # lanes of the instructions
_Instruction = Callable[[Builder, Value, Value, Value], Value]


def dot4(builder: Builder, unsigned: Value, signed: Value, total: Value) -> Value:
    """Add the dot product of four uint8 and four int8 to each int32 lane; a scalar is one lane."""
    return _split_lanes(builder, _byte_products, unsigned, signed, total)


def dot2(builder: Builder, left: Value, right: Value, total: Value) -> Value:
    """Add the dot product of two pairs of bfloat16 to each float lane; a scalar is one lane."""
    return _split_lanes(builder, _pair_products, left, right, total)


def half_bits(builder: Builder, value: Value) -> Value:
    """Round float32 to bfloat16 as 16 bits; targets with `dot2` have an instruction for it."""
    lanes = value.type.count if isinstance(value.type, ir.VectorType) else None
    half, bits = ir.BFloatType(), ir.IntType(16)
    rounded = builder.fptrunc(value, half if lanes is None else vector(half, lanes))
    return builder.bitcast(rounded, bits if lanes is None else vector(bits, lanes))


def look_up(builder: Builder, indices: Value, table: list[float]) -> Value:
    """Look up one of 16 floats for each lane by the lowest four bits of an int32; a scalar is one lane."""
    if not isinstance(indices.type, ir.VectorType):
        wide = builder.insert_element(ir.Constant(vector(INT32, 16), None), indices, INT32(0))
        return builder.extract_element(look_up(builder, wide, table), INT32(0))
    lanes, kind = indices.type.count, vector(ir.FloatType(), 16)
    numbers = ir.Constant(kind, table)
    name = "llvm.x86.avx512.permvar.sf.512"
    function = declare(builder, name, ir.FunctionType(kind, [kind, vector(INT32, 16)]))
    parts = []
    for start in range(0, lanes, 16):
        part_lanes = [min(lane, lanes - 1) for lane in range(start, start + 16)]
        parts.append(builder.call(function, [numbers, _pick(builder, indices, part_lanes)]))
    return _concatenate(builder, parts, lanes)


def _split_lanes(builder: Builder, instruction: _Instruction, left: Value, right: Value, total: Value) -> Value:
    if not isinstance(total.type, ir.VectorType):
        single = [
            builder.insert_element(ir.Constant(vector(v.type, _WIDTHS[-1]), None), v, INT32(0))
            for v in (left, right, total)
        ]
        return builder.extract_element(instruction(builder, *single), INT32(0))
    lanes = total.type.count
    width = next((width for width in _WIDTHS if width <= lanes), _WIDTHS[-1])
    parts = []
    for start in range(0, lanes, width):
        part_lanes = [min(lane, lanes - 1) for lane in range(start, start + width)]
        parts.append(instruction(builder, *(_pick(builder, v, part_lanes) for v in (left, right, total))))
    return _concatenate(builder, parts, lanes)


def _byte_products(builder: Builder, unsigned: Value, signed: Value, total: Value) -> Value:
    kind = total.type
    name = f"llvm.x86.avx512.vpdpbusd.{total.lanes * 32}"
    function = declare(builder, name, ir.FunctionType(kind, [kind] * 3))
    return builder.call(function, [total, unsigned, signed])


def _pair_products(builder: Builder, left: Value, right: Value, total: Value) -> Value:
    kind = total.type
    halves = vector(ir.BFloatType(), 2 * total.lanes)
    name = f"llvm.x86.avx512bf16.dpbf16ps.{total.lanes * 32}"
    function = declare(builder, name, ir.FunctionType(kind, [kind, halves, halves]))
    return builder.call(function, [total, builder.bitcast(left, halves), builder.bitcast(right, halves)])


def _pick(builder: Builder, value: Value, lanes: list[int]) -> Value:
    if lanes == list(range(value.lanes)):
        return value
    undefined = ir.Constant(value.type, ir.Undefined)
    return builder.shuffle_vector(value, undefined, ir.Constant(vector(INT32, len(lanes)), lanes))


def _concatenate(builder: Builder, parts: list[Value], lanes: int) -> Value:
    """Concatenate a power of two of vectors, and drop the padding of the last."""
    while len(parts) > 1:
        parts = [_join(builder, parts[n], parts[n + 1]) for n in range(0, len(parts), 2)]
    return parts[0] if lanes % 16 == 0 else _pick(builder, parts[0], list(range(lanes)))


def _join(builder: Builder, low: Value, high: Value) -> Value:
    lanes = low.lanes + high.lanes
    return builder.shuffle_vector(low, high, ir.Constant(vector(INT32, lanes), list(range(lanes))))
