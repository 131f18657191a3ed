"""One step of a sum of products, as a target does it best."""

from __future__ import annotations

from weft.ir.dtypes import DType
from weft.ir.kernel import Call, Code, Number
from weft.ir.target import Target


def accumulator_type(dtype: DType) -> DType:
    """What products of a type are summed up in."""
    return DType.float32 if dtype in (DType.float16, DType.bfloat16) else dtype


def widened(code: Code, dtype: DType) -> Code:
    """A value in the type that sums have."""
    return code if code.dtype is dtype else Call("cast", (code,), dtype)


def accumulate(unsigned: str, target: Target, left: Code, right: Code, total: Code) -> Code:
    """The total with what two elements give added; `unsigned` names the operand of uint8 where they are words."""
    match unsigned:
        case "left":
            return dot_of_bytes(target, left, right, total)
        case "right":
            return dot_of_bytes(target, right, left, total)
        case _:
            return multiply_add(target, left, right, total)


def dot_of_bytes(target: Target, unsigned: Code, signed: Code, total: Code) -> Code:
    """Four uint8 times four int8, added to a total; byte by byte where the target has no instruction for it."""
    if target.dot_product_8:
        return Call("dot4", (unsigned, signed, total), DType.int32)
    for byte in range(4):
        low = Call("shift_right", (unsigned, Number(8 * byte, DType.int32)), DType.int32)
        a = Call("bit_and", (low, Number(255, DType.int32)), DType.int32)
        high = Call("shift_left", (signed, Number(24 - 8 * byte, DType.int32)), DType.int32)
        b = Call("shift_right", (high, Number(24, DType.int32)), DType.int32)
        total = multiply_add(target, a, b, total)
    return total


def multiply_add(target: Target, a: Code, b: Code, c: Code) -> Code:
    """a * b + c, as the target does it best."""
    if c.dtype.is_float and not target.fused_multiply_add:
        return Call("add", (Call("multiply", (a, b), c.dtype), c), c.dtype)
    return Call("fma", (a, b, c), c.dtype)
