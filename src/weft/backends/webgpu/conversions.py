"""Conversions between element types as WGSL expressions, in registers and between registers and storage."""

from __future__ import annotations

from weft.backends.numerics import minifloats
from weft.backends.webgpu.helpers import Helpers, fill
from weft.backends.webgpu.terms import define_function
from weft.backends.webgpu.wgsl_types import MINIFLOATS, Abilities, is_narrow, kind_of
from weft.errors import InternalError
from weft.ir.dtypes import DType


def decode(helpers: Helpers, text: str, dtype: DType) -> str:
    """Convert a storage element, or the low bits of a word, to a register."""
    if dtype is DType.float16 and helpers.abilities.float16:
        return f"f32({text})"
    return _from_word(helpers, text, dtype) if _is_packed(dtype) else text


def encode(helpers: Helpers, text: str, dtype: DType) -> str:
    """Convert a register to a storage element, or to the low bits of a word whose other bits are 0."""
    if dtype is DType.float16 and helpers.abilities.float16:
        return f"f16({text})"
    return _to_word(helpers, text, dtype) if _is_packed(dtype) else text


def round_to_dtype(helpers: Helpers, text: str, dtype: DType) -> str:
    """Round a result to its type where the register is wider than that."""
    if not is_narrow(dtype):
        return text
    if dtype.is_signed:
        return f"extractBits({text}, 0u, {dtype.bits}u)"
    if dtype.is_unsigned:
        return f"({text} & {(1 << dtype.bits) - 1}u)"
    return f"{helpers.use(f'round_{dtype}')}({text})"


def bitcast(helpers: Helpers, text: str, source: DType, target: DType) -> str:
    """Reinterpret the bits as another type."""
    if source is target:
        return text
    if _is_packed(source) or source.bits == 32:
        return _from_word(helpers, _to_word(helpers, text, source), target)
    kinds = [kind_of(dtype, helpers.abilities) for dtype in (source, target)]
    if all(kind.endswith("pair") for kind in kinds):
        return text
    if any(kind.endswith("pair") for kind in kinds):
        raise InternalError("the bits of float64 need 64-bit integers")
    return f"bitcast<{kinds[1]}>({text})"


def _is_packed(dtype: DType) -> bool:
    """Whether elements may share a word of storage."""
    return dtype is DType.bool or dtype.bits < 32


def _to_word(helpers: Helpers, text: str, dtype: DType) -> str:
    """Convert a register of at most 32 bits to a word."""
    if dtype is DType.bool:
        return f"u32({text})"
    if dtype is DType.uint32 or (dtype.is_unsigned and is_narrow(dtype)):
        return text
    if dtype.is_signed and is_narrow(dtype):
        return f"(bitcast<u32>({text}) & {(1 << dtype.bits) - 1}u)"
    return f"{helpers.use(f'store_{dtype}')}({text})" if is_narrow(dtype) else f"bitcast<u32>({text})"


def _from_word(helpers: Helpers, text: str, dtype: DType) -> str:
    """Convert the low bits of a word to a register."""
    if dtype is DType.bool:
        return f"(({text} & 255u) != 0u)"
    if dtype.is_unsigned:
        return round_to_dtype(helpers, text, dtype)
    if dtype.is_signed:
        return round_to_dtype(helpers, f"bitcast<i32>({text})", dtype)
    return f"{helpers.use(f'load_{dtype}')}({text})" if is_narrow(dtype) else f"bitcast<f32>({text})"


# -- casts -----------------------------------------------------------------------------------------------------------


def cast(helpers: Helpers, text: str, source: DType, target: DType) -> str:
    """Convert between element types; floats truncate towards zero."""
    if source is target:
        return text
    if target is DType.bool:
        return _compare_with_zero(text, kind_of(source, helpers.abilities))
    if source.is_float and target.is_float:
        return _float_to_float(helpers, text, source, target)
    if source.is_float:
        return round_to_dtype(helpers, _float_to_integer(helpers, text, source, target), target)
    if target.is_float:
        return round_to_dtype(helpers, _integer_to_float(helpers, text, source, target), target)
    return _integer_to_integer(helpers, text, source, target)


def _compare_with_zero(text: str, kind: str) -> str:
    if kind == "f32":  # by its bits: an adapter may flush subnormal numbers to 0
        return f"((bitcast<u32>({text}) << 1u) != 0u)"
    if kind == "f64":
        return f"(!({text} == 0.0))"
    return f"any({text} != vec2<u32>(0u))" if kind.endswith("pair") else f"({text} != 0)"


def _float_to_float(helpers: Helpers, text: str, source: DType, target: DType) -> str:
    if target is DType.float64:
        return f"f64({text})"
    if source is DType.float64:
        rounds_twice = target is DType.float16 or target in MINIFLOATS
        text = f"{helpers.use('odd_f32_from_f64')}({text})" if rounds_twice else f"f32({text})"
    return round_to_dtype(helpers, text, target)


def _float_to_integer(helpers: Helpers, text: str, source: DType, target: DType) -> str:
    """Convert through int64, whose range saturates; narrower targets wrap around, and NaN gives 0."""
    float_kind, integer_kind = kind_of(source, helpers.abilities), kind_of(target, helpers.abilities)
    if integer_kind not in ("i32", "u32"):
        return f"{helpers.use(f'{integer_kind}_from_{float_kind}')}({text})"
    if float_kind == "f32":
        word = f"{helpers.use('low_word_from_f32')}({text})"
    elif helpers.abilities.int64:
        word = f"u32({helpers.use('i64_from_f64')}({text}))"
    else:
        word = f"{helpers.use('signed_pair_from_f64')}({text}).x"
    return word if integer_kind == "u32" else f"bitcast<i32>({word})"


def _integer_to_float(helpers: Helpers, text: str, source: DType, target: DType) -> str:
    integer_kind, float_kind = kind_of(source, helpers.abilities), kind_of(target, helpers.abilities)
    if integer_kind.endswith("pair"):
        return f"{helpers.use(f'{float_kind}_from_{integer_kind}')}({text})"
    if integer_kind == "bool":
        return f"select({float_kind}(0.0), {float_kind}(1.0), {text})"
    return f"{float_kind}({text})"


def _integer_to_integer(helpers: Helpers, text: str, source: DType, target: DType) -> str:
    source_kind, target_kind = (kind_of(dtype, helpers.abilities) for dtype in (source, target))
    if target_kind.endswith("pair"):
        if source_kind.endswith("pair"):
            return text
        if source_kind == "i32":
            return f"{helpers.use('pair_from_i32')}({text})"
        return f"vec2<u32>({text if source_kind == 'u32' else f'u32({text})'}, 0u)"
    if source_kind.endswith("pair"):
        source_kind, text = "u32", f"({text}).x"
    if source_kind != target_kind:
        text = _convert_kind(helpers, text, source_kind, target_kind)
    return text if _includes(target, source) else round_to_dtype(helpers, text, target)


def _convert_kind(helpers: Helpers, text: str, source_kind: str, target_kind: str) -> str:
    """Convert an integer to another width or sign; it wraps around."""
    if source_kind in ("i32", "bool") and target_kind.endswith("64") and not helpers.abilities.widens:
        wide = f"{helpers.use('i64_from_i32')}({text if source_kind == 'i32' else f'i32({text})'})"
        return wide if target_kind == "i64" else f"bitcast<u64>({wide})"
    if source_kind == "bool":
        return f"{target_kind}({text})" if target_kind.endswith("32") else f"{target_kind}(i32({text}))"
    if source_kind[1:] == target_kind[1:]:
        return f"bitcast<{target_kind}>({text})"
    if source_kind == "i32" and target_kind == "u64":
        return f"bitcast<u64>(i64({text}))"
    if source_kind == "u32" and target_kind == "i64":  # naga would extend the sign
        return f"bitcast<i64>(u64({text}))"
    if source_kind == "i64" and target_kind == "u32":
        return f"u32(bitcast<u64>({text}))"
    if source_kind == "u64" and target_kind == "i32":
        return f"i32(bitcast<i64>({text}))"
    return f"{target_kind}({text})"


def _includes(wide: DType, narrow: DType) -> bool:
    """Whether an integer type has all numbers of another one."""
    if narrow is DType.bool:
        return True
    return wide.limits[0] <= narrow.limits[0] and narrow.limits[1] <= wide.limits[1]


# -- WGSL ------------------------------------------------------------------------------------------------------------

_LOW_WORD = """
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

_INT64_FROM_INT32 = """
fn weft_i64_from_i32(x: i32) -> i64 {
    return bitcast<i64>(u64(bitcast<u32>(x) ^ 0x80000000u)) - 2147483648li;
}
"""

_INT64_FROM_FLOAT = """
fn weft_i64_from_$kind(x: $kind) -> i64 {
    let inside = abs(x) < 9223372036854775808.0;
    let extreme = select(0x7fffffffffffffffli, -0x7fffffffffffffffli - 1li, x < 0.0);
    return select(select(extreme, 0li, weft_is_nan_$kind(x)), i64(select(0.0, x, inside)), inside);
}

fn weft_u64_from_$kind(x: $kind) -> u64 {
    let inside = (x < 18446744073709551616.0) & (x > 0.0);
    let extreme = select(0xfffffffffffffffflu, 0lu, (x <= 0.0) | weft_is_nan_$kind(x));
    return select(extreme, u64(select(0.0, x, inside)), inside);
}
"""


def define_conversions(abilities: Abilities) -> str:
    """Write the helper functions of conversions."""
    texts = [_LOW_WORD]
    if abilities.int64:
        texts += [_INT64_FROM_INT32, fill(_INT64_FROM_FLOAT, {"kind": "f32"})]
    if abilities.float64:
        texts.append(define_function("odd_f32_from_f64", {"x": "f64"}, "f32", minifloats.round_to_odd))
    if abilities.int64 and abilities.float64:
        texts.append(fill(_INT64_FROM_FLOAT, {"kind": "f64"}))
    return "".join(texts)
