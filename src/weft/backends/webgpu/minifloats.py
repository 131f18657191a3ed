"""WGSL of floats of 16 bits and fewer: codes in the low bits of a word, f32 in registers.

All by integers, except for scaling by powers of two that neither begins nor ends among the subnormal numbers of f32:
an adapter may take those for 0.
"""

from __future__ import annotations

from functools import cache

from weft.backends.numerics.formats import Format, format_of
from weft.backends.webgpu.helpers import functions_in, number
from weft.backends.webgpu.wgsl_types import MINIFLOATS
from weft.ir.dtypes import DType

_FRACTION = 23  # bits of f32's fraction
_BIAS = 127
_INFINITY = 0x7F800000
_NAN = 0x7FC00000
_HALF = Format(fraction=10, bias=15, sign=0x8000, largest=0x7BFF, too_large=0x7C00, nan=0x7E00, has_negative_zero=True)

_BFLOAT16 = """
fn weft_load_bfloat16(word: u32) -> f32 {
    return bitcast<f32>(word << 16u);
}

fn weft_rounded_bits_bfloat16(x: f32) -> u32 {
    let bits = bitcast<u32>(x);
    return select(bits + 0x7fffu + ((bits >> 16u) & 1u), bits | 0x400000u, (bits & 0x7fffffffu) > 0x7f800000u);
}

fn weft_store_bfloat16(x: f32) -> u32 {
    return weft_rounded_bits_bfloat16(x) >> 16u;
}

fn weft_round_bfloat16(x: f32) -> f32 {
    return bitcast<f32>(weft_rounded_bits_bfloat16(x) & 0xffff0000u);
}
"""

# not by f32(f16(x)), of which drivers make x
_FLOAT16 = """
fn weft_round_float16(x: f32) -> f32 {
    let bits = bitcast<u32>(x);
    let size = bits & 0x7fffffffu;
    let rounded = (bits + 0xfffu + ((bits >> 13u) & 1u)) & 0xffffe000u;
    let normal = select(rounded, (bits & 0x80000000u) | 0x7f800000u, size >= 0x477ff000u);
    let small = bitcast<u32>(round(x * 16777216.0) * 5.9604644775390625e-8);
    return bitcast<f32>(select(select(normal, small, size < 0x38800000u), bits, size >= 0x7f800000u));
}
"""

_FLOAT8E8M0 = """
fn weft_load_float8e8m0(word: u32) -> f32 {
    // the code is f32's exponent, and 0 is the power of two below its least normal number
    let code = word & 0xffu;
    let bits = select(code << 23u, 0x400000u, code == 0u);
    return bitcast<f32>(select(bits, 0x7fc00000u, code == 255u));
}

fn weft_store_float8e8m0(x: f32) -> u32 {
    // the nearest power of two, the larger of two; none below 0
    let bits = bitcast<u32>(x);
    let code = select((bits + 0x400000u) >> 23u, 0u, bits == 0x400000u);
    return select(code, 255u, (bits == 0u) | (bits > 0x7f800000u));
}
"""

_ROUND = """
fn weft_round_{name}(x: f32) -> f32 {{
    return weft_load_{name}(weft_store_{name}(x));
}}
"""


@cache
def functions() -> dict[str, str]:
    texts = [_BFLOAT16, _FLOAT16, _FLOAT8E8M0]
    for dtype in sorted(MINIFLOATS - {DType.float8e8m0}):
        texts += [_widening(str(dtype), format_of(dtype)), _narrowing(str(dtype), format_of(dtype))]
    texts += [_widening("float16", _HALF), _narrowing("float16", _HALF)]
    texts += [_ROUND.format(name=dtype) for dtype in sorted(MINIFLOATS)]
    return functions_in("".join(texts))


def _widening(name: str, form: Format) -> str:
    """Codes as numbers."""
    lines = [
        f"let size = word & {form.sign - 1}u;",
        f"let normal = (size << {_FRACTION - form.fraction}u) + {(_BIAS - form.bias) << _FRACTION}u;",
        f"let small = bitcast<u32>(f32(size) * {number(2.0 ** (1 - form.bias - form.fraction))});",
        f"var bits = select(normal, small, size < {1 << form.fraction}u);",
    ]
    if form.largest + 1 < form.sign:  # some codes are no numbers
        lines.append(f"bits = select(bits, {_INFINITY}u, size > {form.largest}u);")
    if form.nan_is_negative_zero:
        lines.append(f"bits = select(bits, {_NAN}u, (word & {2 * form.sign - 1}u) == {form.nan}u);")
    elif form.least_nan is not None:
        lines.append(f"bits = select(bits, {_NAN}u, size >= {form.least_nan}u);")
    moved = 31 - (form.sign.bit_length() - 1)
    lines.append(f"return bitcast<f32>(bits | ((word & {form.sign}u) << {moved}u));")
    return _function(f"weft_load_{name}(word: u32) -> f32", lines)


def _narrowing(name: str, form: Format) -> str:
    """Numbers as codes, rounded to nearest even."""
    dropped = _FRACTION - form.fraction
    lines = [
        "let bits = bitcast<u32>(x) & 0x7fffffffu;",
        f"let rounded = (bits + {(1 << (dropped - 1)) - 1}u + ((bits >> {dropped}u) & 1u)) >> {dropped}u;",
        f"let small = u32(round(abs(x) * {number(2.0 ** (form.bias - 1 + form.fraction))}));",
        f"let is_small = bits < {(_BIAS + 1 - form.bias) << _FRACTION}u;",
        f"var code = select(rounded - {(_BIAS - form.bias) << form.fraction}u, small, is_small);",
        f"let negative = select(0u, {form.sign}u, bitcast<u32>(x) > 0x7fffffffu);",
    ]
    if form.nan_is_negative_zero:
        lines += [
            f"let none = (code > {form.largest}u) | (bits > {_INFINITY}u);",
            f"return select(code | select(negative, 0u, code == 0u), {form.nan}u, none);",
        ]
    else:
        lines += [
            f"code = select(code, {form.too_large & (form.sign - 1)}u, code > {form.largest}u);",
            f"code = select(code, {form.nan}u, bits > {_INFINITY}u);",
            "return code ^ negative;",
        ]
    return _function(f"weft_store_{name}(x: f32) -> u32", lines)


def _function(signature: str, lines: list[str]) -> str:
    body = "".join(f"    {line}\n" for line in lines)
    return f"fn {signature} {{\n{body}}}\n\n"
