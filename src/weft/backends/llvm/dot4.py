"""The instruction that adds four products of bytes to every lane, on vectors of any width."""

from __future__ import annotations

from weft.backends.llvm import assembly as ir
from weft.backends.llvm.instructions import Builder, Value, declare
from weft.backends.llvm.types import INT32, vector

_WIDTHS = (16, 8, 4)  # lanes that the instruction comes in


def dot4(builder: Builder, unsigned: Value, signed: Value, total: Value) -> Value:
    """total + the sum of four uint8 times four int8, for int32 lanes; a scalar is one lane."""
    if not isinstance(total.type, ir.VectorType):
        single = [
            builder.insert_element(ir.Constant(vector(INT32, 4), None), v, INT32(0)) for v in (unsigned, signed, total)
        ]
        return builder.extract_element(_instruction(builder, *single), INT32(0))
    lanes = total.type.count
    width = next((width for width in _WIDTHS if width <= lanes), _WIDTHS[-1])
    parts = []
    for start in range(0, lanes, width):
        places = [min(lane, lanes - 1) for lane in range(start, start + width)]
        parts.append(_instruction(builder, *(_pick(builder, v, places) for v in (unsigned, signed, total))))
    while len(parts) > 1:
        parts = [_join(builder, parts[n], parts[n + 1]) for n in range(0, len(parts), 2)]
    return parts[0] if parts[0].type.count == lanes else _pick(builder, parts[0], list(range(lanes)))


def _instruction(builder: Builder, unsigned: Value, signed: Value, total: Value) -> Value:
    kind = total.type
    name = f"llvm.x86.avx512.vpdpbusd.{kind.count * 32}"
    function = declare(builder, name, ir.FunctionType(kind, [kind] * 3))
    return builder.call(function, [total, unsigned, signed])


def _pick(builder: Builder, value: Value, places: list[int]) -> Value:
    if places == list(range(value.type.count)):
        return value
    undefined = ir.Constant(value.type, ir.Undefined)
    return builder.shuffle_vector(value, undefined, ir.Constant(vector(INT32, len(places)), places))


def _join(builder: Builder, low: Value, high: Value) -> Value:
    lanes = low.type.count + high.type.count
    return builder.shuffle_vector(low, high, ir.Constant(vector(INT32, lanes), list(range(lanes))))
