"""Conversions between element types as WGSL expressions, in registers and between registers and storage."""

from __future__ import annotations

from weft.backends.webgpu.helpers import Helpers
from weft.backends.webgpu.wgsl_types import MINIFLOATS, Abilities, is_narrow, kind_of
from weft.errors import InternalError
from weft.ir.dtypes import DType


def loaded(helpers: Helpers, text: str, dtype: DType) -> str:
    """What a storage element, or the low bits of a word, holds."""
    if dtype is DType.float16 and helpers.abilities.float16:
        return f"f32({text})"
    return _from_bits(helpers, text, dtype) if _is_packed(dtype) else text


def stored(helpers: Helpers, text: str, dtype: DType) -> str:
    """A register as a storage element, or as the low bits of a word whose others are 0."""
    if dtype is DType.float16 and helpers.abilities.float16:
        return f"f16({text})"
    return _bits(helpers, text, dtype) if _is_packed(dtype) else text


def rounded(helpers: Helpers, text: str, dtype: DType) -> str:
    """A result in a register that is wider than its type, as the type would have it."""
    if not is_narrow(dtype):
        return text
    if dtype.is_signed:
        return f"extractBits({text}, 0u, {dtype.bits}u)"
    if dtype.is_unsigned:
        return f"({text} & {(1 << dtype.bits) - 1}u)"
    return f"{helpers.use(f'round_{dtype}')}({text})"


def bitcast(helpers: Helpers, text: str, source: DType, target: DType) -> str:
    """The same bits as another type."""
    if source is target:
        return text
    if _is_packed(source) or source.bits == 32:
        return _from_bits(helpers, _bits(helpers, text, source), target)
    kinds = [kind_of(dtype, helpers.abilities) for dtype in (source, target)]
    if all(kind.endswith("pair") for kind in kinds):
        return text
    if any(kind.endswith("pair") for kind in kinds):
        raise InternalError("the bits of float64 need 64-bit integers")
    return f"bitcast<{kinds[1]}>({text})"


def _is_packed(dtype: DType) -> bool:
    """Whether elements may share a word of storage."""
    return dtype is DType.bool or dtype.bits < 32


def _bits(helpers: Helpers, text: str, dtype: DType) -> str:
    """A register of 32 bits or fewer as a word."""
    if dtype is DType.bool:
        return f"u32({text})"
    if dtype is DType.uint32 or (dtype.is_unsigned and is_narrow(dtype)):
        return text
    if dtype.is_signed and is_narrow(dtype):
        return f"(bitcast<u32>({text}) & {(1 << dtype.bits) - 1}u)"
    return f"{helpers.use(f'store_{dtype}')}({text})" if is_narrow(dtype) else f"bitcast<u32>({text})"


def _from_bits(helpers: Helpers, text: str, dtype: DType) -> str:
    """The low bits of a word as a register."""
    if dtype is DType.bool:
        return f"(({text} & 255u) != 0u)"
    if dtype.is_unsigned:
        return rounded(helpers, text, dtype)
    if dtype.is_signed:
        return rounded(helpers, f"bitcast<i32>({text})", dtype)
    return f"{helpers.use(f'load_{dtype}')}({text})" if is_narrow(dtype) else f"bitcast<f32>({text})"


# -- casts -----------------------------------------------------------------------------------------------------------


def cast(helpers: Helpers, text: str, source: DType, target: DType) -> str:
    """Conversion between element types; floats truncate towards zero."""
    if source is target:
        return text
    if target is DType.bool:
        return _truth(text, kind_of(source, helpers.abilities))
    if source.is_float and target.is_float:
        return _float_to_float(helpers, text, source, target)
    if source.is_float:
        return rounded(helpers, _float_to_integer(helpers, text, source, target), target)
    if target.is_float:
        return rounded(helpers, _integer_to_float(helpers, text, source, target), target)
    return _integer_to_integer(helpers, text, source, target)


def _truth(text: str, kind: str) -> str:
    if kind == "f32":  # by its bits, since an adapter may take subnormal numbers for 0
        return f"((bitcast<u32>({text}) << 1u) != 0u)"
    if kind == "f64":
        return f"(!({text} == 0.0))"
    return f"any({text} != vec2<u32>(0u))" if kind.endswith("pair") else f"({text} != 0)"


def _float_to_float(helpers: Helpers, text: str, source: DType, target: DType) -> str:
    if target is DType.float64:
        return f"f64({text})"
    if source is DType.float64:
        once = target is DType.float16 or target in MINIFLOATS
        text = f"{helpers.use('odd_f32_from_f64')}({text})" if once else f"f32({text})"
    return rounded(helpers, text, target)


def _float_to_integer(helpers: Helpers, text: str, source: DType, target: DType) -> str:
    """Through int64, wrapping around where the target is narrower; out of its range the extremes, NaN gives 0."""
    real, whole = kind_of(source, helpers.abilities), kind_of(target, helpers.abilities)
    if whole not in ("i32", "u32"):
        return f"{helpers.use(f'{whole}_from_{real}')}({text})"
    if real == "f32":
        word = f"{helpers.use('low_word_from_f32')}({text})"
    elif helpers.abilities.int64:
        word = f"u32({helpers.use('i64_from_f64')}({text}))"
    else:
        word = f"{helpers.use('signed_pair_from_f64')}({text}).x"
    return word if whole == "u32" else f"bitcast<i32>({word})"


def _integer_to_float(helpers: Helpers, text: str, source: DType, target: DType) -> str:
    whole, real = kind_of(source, helpers.abilities), kind_of(target, helpers.abilities)
    if whole.endswith("pair"):
        return f"{helpers.use(f'{real}_from_{whole}')}({text})"
    return f"select({real}(0.0), {real}(1.0), {text})" if whole == "bool" else f"{real}({text})"


def _integer_to_integer(helpers: Helpers, text: str, source: DType, target: DType) -> str:
    given, wanted = (kind_of(dtype, helpers.abilities) for dtype in (source, target))
    if wanted.endswith("pair"):
        if given.endswith("pair"):
            return text
        if given == "i32":
            return f"{helpers.use('pair_from_i32')}({text})"
        return f"vec2<u32>({text if given == 'u32' else f'u32({text})'}, 0u)"
    if given.endswith("pair"):
        given, text = "u32", f"({text}).x"
    if given != wanted:
        text = _converted(helpers, text, given, wanted)
    return text if _holds(target, source) else rounded(helpers, text, target)


def _converted(helpers: Helpers, text: str, given: str, wanted: str) -> str:
    """An integer of another width or sign; what does not fit is cut off."""
    if given in ("i32", "bool") and wanted.endswith("64") and not helpers.abilities.widens:
        wide = f"{helpers.use('i64_from_i32')}({text if given == 'i32' else f'i32({text})'})"
        return wide if wanted == "i64" else f"bitcast<u64>({wide})"
    if given == "bool":
        return f"{wanted}({text})" if wanted.endswith("32") else f"{wanted}(i32({text}))"
    if given[1:] == wanted[1:]:
        return f"bitcast<{wanted}>({text})"
    if given == "i32" and wanted == "u64":
        return f"bitcast<u64>(i64({text}))"
    if given == "u32" and wanted == "i64":  # naga would extend the sign
        return f"bitcast<i64>(u64({text}))"
    if given == "i64" and wanted == "u32":
        return f"u32(bitcast<u64>({text}))"
    if given == "u64" and wanted == "i32":
        return f"i32(bitcast<i64>({text}))"
    return f"{wanted}({text})"


def _holds(wide: DType, narrow: DType) -> bool:
    """Whether an integer type has all numbers of another."""
    if narrow is DType.bool:
        return True
    (least, most), (low, high) = narrow.limits, wide.limits
    return low <= least and most <= high


# -- WGSL ------------------------------------------------------------------------------------------------------------

SINGLE = """
fn weft_low_word_from_f32(x: f32) -> u32 {
    if abs(x) < 2147483648.0 {
        return bitcast<u32>(i32(x));
    }
    let bits = bitcast<u32>(x);
    let size = bits & 0x7fffffffu;
    if size >= 0x5f000000u {
        // 2^63 and more: the last word of the extremes, or nothing
        return select(0u, 0xffffffffu, bits <= 0x7f800000u);
    }
    let count = (size >> 23u) - 150u;
    let word = select(((size & 0x7fffffu) | 0x800000u) << (count & 31u), 0u, (count >= 32u) & (size >= 0x4b000000u));
    return select(word, 0u - word, bits > 0x7fffffffu);
}
"""

WIDE_INTEGERS = """
fn weft_i64_from_i32(x: i32) -> i64 {
    return bitcast<i64>(u64(bitcast<u32>(x) ^ 0x80000000u)) - 2147483648li;
}

fn weft_i64_from_f32(x: f32) -> i64 {
    let inside = abs(x) < 9223372036854775808.0;
    let extreme = select(0x7fffffffffffffffli, -0x7fffffffffffffffli - 1li, x < 0.0);
    return select(select(extreme, 0li, weft_is_nan_f32(x)), i64(select(0.0, x, inside)), inside);
}

fn weft_u64_from_f32(x: f32) -> u64 {
    let inside = (x < 18446744073709551616.0) & (x > 0.0);
    let extreme = select(0xfffffffffffffffflu, 0lu, (x <= 0.0) | weft_is_nan_f32(x));
    return select(extreme, u64(select(0.0, x, inside)), inside);
}
"""

DOUBLE = """
fn weft_odd_f32_from_f64(x: f64) -> f32 {
    // inexact ones with an odd last bit: rounding that again equals rounding at once
    let nearest = f32(x);
    let back = f64(nearest);
    let bits = bitcast<u32>(nearest);
    let odd = (bits - u32(abs(back) > abs(x))) | 1u;
    return bitcast<f32>(select(bits, odd, (back < x) | (back > x)));
}
"""

DOUBLE_WITH_WIDE_INTEGERS = """
fn weft_i64_from_f64(x: f64) -> i64 {
    let inside = abs(x) < 9223372036854775808.0;
    let extreme = select(0x7fffffffffffffffli, -0x7fffffffffffffffli - 1li, x < 0.0);
    return select(select(extreme, 0li, weft_is_nan_f64(x)), i64(select(0.0, x, inside)), inside);
}

fn weft_u64_from_f64(x: f64) -> u64 {
    let inside = (x < 18446744073709551616.0) & (x > 0.0);
    let extreme = select(0xfffffffffffffffflu, 0lu, (x <= 0.0) | weft_is_nan_f64(x));
    return select(extreme, u64(select(0.0, x, inside)), inside);
}
"""


def wgsl(abilities: Abilities) -> str:
    """The helper functions of conversions."""
    texts = [SINGLE]
    if abilities.int64:
        texts.append(WIDE_INTEGERS)
    if abilities.float64:
        texts.append(DOUBLE)
    if abilities.int64 and abilities.float64:
        texts.append(DOUBLE_WITH_WIDE_INTEGERS)
    return "".join(texts)
