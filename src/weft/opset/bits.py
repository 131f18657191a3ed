"""Bitwise ops."""

from __future__ import annotations

from weft.ir.dtypes import DType, from_number
from weft.opset import functions
from weft.opset.arithmetic import define_binary, define_unary
from weft.opset.functions import where
from weft.opset.language import Element, Tensor, elementwise
from weft.opset.registry import REQUIRED, ElementType, op, require

bitwise_and = define_binary("BitwiseAnd", 18, functions.bit_and)
bitwise_or = define_binary("BitwiseOr", 18, functions.bit_or)
bitwise_xor = define_binary("BitwiseXor", 18, functions.bit_xor)
bitwise_not = define_unary("BitwiseNot", 18, functions.bit_not)


@op("BitShift", since=11)
def bit_shift(x: Tensor, amount: Tensor, *, direction: str = REQUIRED) -> Tensor:
    require(direction in ("LEFT", "RIGHT"), f"direction is {direction!r}", "it must be LEFT or RIGHT")
    require(x.dtype.is_integer, f"only integers can be shifted, not {x.dtype}")
    width = x.dtype.bits

    def shift_signed(v: Element, by: Element) -> Element:
        """Shift; a negative amount, or one of at least the width, gives copies of the sign bit or zeros."""
        inside = (by >= 0) & (by < width)
        if direction == "RIGHT":
            return functions.shift_right(v, where(inside, by, width - 1))
        return where(inside, functions.shift_left(v, where(inside, by, 0)), 0)

    if x.dtype.is_signed:
        return elementwise(shift_signed, x, amount)
    return elementwise(functions.shift_left if direction == "LEFT" else functions.shift_right, x, amount)


@op("BitCast", since=26)
def bit_cast(x: Tensor, *, to: ElementType = REQUIRED) -> Tensor:
    dtype = from_number(to)
    require(DType.string not in (dtype, x.dtype), "strings have no bits to reinterpret")
    require(dtype.bits == x.dtype.bits, f"{x.dtype} of {x.dtype.bits} bits cannot be read as {dtype} of {dtype.bits}")
    return elementwise(lambda v: functions.bitcast(v, dtype), x)
