"""AVX-512 instructions on vectors of any width: dot products of int8 and bfloat16, and table lookups."""

from __future__ import annotations

from functools import partial

from weft.backends.llvm import assembly as ir
from weft.backends.llvm.instructions import Builder, Value, declare
from weft.backends.llvm.types import INT32, vector
from weft.backends.llvm.vectors import DotProducts, concatenate, pick_lanes, split_lanes

_WIDTHS = (16, 8, 4)  # lanes of the instructions


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
        parts.append(builder.call(function, [numbers, pick_lanes(builder, indices, part_lanes)]))
    return concatenate(builder, parts, lanes)


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


DOT_PRODUCTS = DotProducts(
    dot4=partial(split_lanes, _WIDTHS, _byte_products), dot2=partial(split_lanes, _WIDTHS, _pair_products)
)
