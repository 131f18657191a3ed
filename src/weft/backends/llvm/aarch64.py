"""Arm instructions on vectors of any width: dot products of int8 and bfloat16."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from weft.backends.llvm import assembly as ir
from weft.backends.llvm.instructions import Builder, Value, declare
from weft.backends.llvm.types import vector
from weft.backends.llvm.vectors import DotProducts, split_lanes

_WIDTHS = (4,)  # lanes of the instructions
_BYTES = vector(ir.IntType(8), 16)
_HIGH_BITS = -0x7F7F7F80  # of all four bytes of a word: each is -128, and flips a uint8 to an int8 that is 128 less


def _mixed_products(builder: Builder, unsigned: Value, signed: Value, total: Value) -> Value:
    return _multiply_bytes(builder, "usdot", total, unsigned, signed)


def _centred_products(builder: Builder, unsigned: Value, signed: Value, total: Value) -> Value:
    """Compute (u - 128) * s, and subtract -128 * s, which all rows of a tile share."""
    kind, lanes = total.type, total.lanes
    high_bits = ir.Constant(kind, [_HIGH_BITS] * lanes)
    sums = _multiply_bytes(builder, "sdot", total, builder.xor(unsigned, high_bits), signed)
    return builder.sub(sums, _multiply_bytes(builder, "sdot", ir.Constant(kind, None), high_bits, signed))


def _multiply_bytes(builder: Builder, instruction: str, total: Value, left: Value, right: Value) -> Value:
    name = f"llvm.aarch64.neon.{instruction}.v4i32.v16i8"
    function = declare(builder, name, ir.FunctionType(total.type, [total.type, _BYTES, _BYTES]))
    return builder.call(function, [total, builder.bitcast(left, _BYTES), builder.bitcast(right, _BYTES)])


def _pair_products(builder: Builder, left: Value, right: Value, total: Value) -> Value:
    halves = vector(ir.BFloatType(), 8)
    name = "llvm.aarch64.neon.bfdot.v4f32.v8bf16"
    function = declare(builder, name, ir.FunctionType(total.type, [total.type, halves, halves]))
    return builder.call(function, [total, builder.bitcast(left, halves), builder.bitcast(right, halves)])


DOT_PRODUCTS = DotProducts(
    dot4=partial(split_lanes, _WIDTHS, _mixed_products), dot2=partial(split_lanes, _WIDTHS, _pair_products)
)
SIGNED_DOT_PRODUCTS = replace(DOT_PRODUCTS, dot4=partial(split_lanes, _WIDTHS, _centred_products))  # without i8mm
