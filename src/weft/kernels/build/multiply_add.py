"""One step of a sum of products, with the best instructions of a target."""

from __future__ import annotations

from weft.ir.dtypes import DType
from weft.ir.kernel import Call, Code, Number
from weft.ir.target import Target, VectorTarget
from weft.kernels.lower.operations import cast


def accumulator_dtype(dtype: DType) -> DType:
    """Return the dtype that products of a dtype are summed in."""
    return DType.float32 if dtype.is_float and dtype.bits <= 16 else dtype


PAIRS = "pairs"  # words of two bfloat16 each


def sum_dtype(words: str, dtype: DType) -> DType:
    """Return the dtype of sums of products; `words` as in `accumulate`."""
    return DType.float32 if words == PAIRS else accumulator_dtype(dtype)


def convert_factor(words: str, code: Code, dtype: DType) -> Code:
    """Convert an element of an operand for `accumulate`: to the dtype of the sums, unless words hold pairs."""
    return code if words == PAIRS else cast(code, dtype)


def accumulate(words: str, target: Target, left: Code, right: Code, total: Code) -> Code:
    """Add the product of two elements to a total.

    `words` is "" for plain elements, PAIRS for words of two bfloat16, and for words of four bytes the side, "left" or
    "right", that is unsigned.
    """
    match words:
        case "left":
            return dot_bytes(target, left, right, total)
        case "right":
            return dot_bytes(target, right, left, total)
        case "pairs":  # PAIRS
            return dot_pairs(target, left, right, total)
        case _:
            return multiply_add(target, left, right, total)


def dot_bytes(target: Target, unsigned: Code, signed: Code, total: Code) -> Code:
    """Add the dot product of four uint8 and four int8; byte by byte if the target has no instruction for it."""
    if target.dot_product_8:
        return Call("dot4", (unsigned, signed, total), DType.int32)
    for byte in range(4):
        low = Call("shift_right", (unsigned, Number(8 * byte, DType.int32)), DType.int32)
        a = Call("bit_and", (low, Number(255, DType.int32)), DType.int32)
        high = Call("shift_left", (signed, Number(24 - 8 * byte, DType.int32)), DType.int32)
        b = Call("shift_right", (high, Number(24, DType.int32)), DType.int32)
        total = multiply_add(target, a, b, total)
    return total


def dot_pairs(target: Target, left: Code, right: Code, total: Code) -> Code:
    """Add the dot product of two pairs of bfloat16; widened in registers if the target has no instruction for it."""
    if isinstance(target, VectorTarget) and target.dot_product_16:
        return Call("dot2", (left, right, total), DType.float32)
    for upper in (False, True):
        a, b = (_widen_half(word, upper) for word in (left, right))
        total = multiply_add(target, a, b, total)
    return total


def decode_quantized(target: Target, word: Code, bits: int, position: int) -> Code:
    """Decode the 2, 4 or 8 bit number at index `position` of a word to float32, minus half of its range."""
    shifted = word
    if position:
        shifted = Call("shift_right", (word, Number(bits * position, DType.int32)), DType.int32)
    if bits < 8 and isinstance(target, VectorTarget) and target.lookup_16:
        return Call(f"code{bits}", (shifted,), DType.float32)
    code = Call("bit_and", (shifted, Number(2**bits - 1, DType.int32)), DType.int32)
    centred = Call("subtract", (code, Number(2 ** (bits - 1), DType.int32)), DType.int32)
    return Call("cast", (centred,), DType.float32)


def _widen_half(word: Code, upper: bool) -> Code:
    """Widen one bfloat16 of a word to the float32 whose upper half it is."""
    if upper:
        bits = Call("bit_and", (word, Number(-65536, DType.int32)), DType.int32)
    else:
        bits = Call("shift_left", (word, Number(16, DType.int32)), DType.int32)
    return Call("bitcast", (bits,), DType.float32)


def multiply_add(target: Target, a: Code, b: Code, c: Code) -> Code:
    """Build a * b + c, fused if the target can."""
    if c.dtype.is_float and not target.fused_multiply_add:
        return Call("add", (Call("multiply", (a, b), c.dtype), c), c.dtype)
    return Call("fma", (a, b, c), c.dtype)
