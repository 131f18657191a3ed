"""One step of a sum of products, as a target does it best."""

from __future__ import annotations

from weft.ir.dtypes import DType
from weft.ir.kernel import Call, Code, Number
from weft.ir.target import Target, VectorTarget


def accumulator_type(dtype: DType) -> DType:
    """What products of a type are summed up in."""
    return DType.float32 if dtype in (DType.float16, DType.bfloat16) else dtype


def widened(code: Code, dtype: DType) -> Code:
    """A value in the type that sums have."""
    return code if code.dtype is dtype else Call("cast", (code,), dtype)


PAIRS = "pairs"  # what words are that hold two bfloat16 each


def sums_type(words: str, dtype: DType) -> DType:
    """What products are summed up in; `words` as `accumulate` takes it."""
    return DType.float32 if words == PAIRS else accumulator_type(dtype)


def factor(words: str, code: Code, dtype: DType) -> Code:
    """An element of an operand as `accumulate` takes it, where sums are of a type."""
    return code if words == PAIRS else widened(code, dtype)


def accumulate(words: str, target: Target, left: Code, right: Code, total: Code) -> Code:
    """The total with what two elements give added.

    Where elements are words, `words` names the operand of uint8 (of four bytes each), or they are pairs of bfloat16.
    """
    match words:
        case "left":
            return dot_of_bytes(target, left, right, total)
        case "right":
            return dot_of_bytes(target, right, left, total)
        case "pairs":
            return dot_of_pairs(target, left, right, total)
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


def dot_of_pairs(target: Target, left: Code, right: Code, total: Code) -> Code:
    """Two bfloat16 times two others, added to a total; widened in registers where there is no instruction for it."""
    if isinstance(target, VectorTarget) and target.dot_product_16:
        return Call("dot2", (left, right, total), DType.float32)
    for upper in (False, True):
        a, b = (_widened_half(word, upper) for word in (left, right))
        total = multiply_add(target, a, b, total)
    return total


def number_of_code(target: Target, word: Code, bits: int, position: int) -> Code:
    """Number `position` of those of 2, 4 or 8 bits in a word, less half of their range, as a float32."""
    moved = word
    if position:
        moved = Call("shift_right", (word, Number(bits * position, DType.int32)), DType.int32)
    if bits < 8 and isinstance(target, VectorTarget) and target.lookup_16:
        return Call(f"code{bits}", (moved,), DType.float32)
    code = Call("bit_and", (moved, Number(2**bits - 1, DType.int32)), DType.int32)
    centred = Call("subtract", (code, Number(2 ** (bits - 1), DType.int32)), DType.int32)
    return Call("cast", (centred,), DType.float32)


def _widened_half(word: Code, upper: bool) -> Code:
    """One of the bfloat16 in a word as a float32, whose upper half it is."""
    if upper:
        bits = Call("bit_and", (word, Number(-65536, DType.int32)), DType.int32)
    else:
        bits = Call("shift_left", (word, Number(16, DType.int32)), DType.int32)
    return Call("bitcast", (bits,), DType.float32)


def multiply_add(target: Target, a: Code, b: Code, c: Code) -> Code:
    """a * b + c, as the target does it best."""
    if c.dtype.is_float and not target.fused_multiply_add:
        return Call("add", (Call("multiply", (a, b), c.dtype), c), c.dtype)
    return Call("fma", (a, b, c), c.dtype)
