"""WGSL of sin, cos, tan and their inverses.

Arguments are reduced by a few subtractions; those too large for that take a detour, a product with enough bits of
1 / pi in integers.
"""

from __future__ import annotations

from functools import cache
from math import pi

from weft.backends.numerics import coefficients
from weft.backends.webgpu.helpers import fill, functions_in, leading_zeros, number
from weft.backends.webgpu.precision import common_values, half_pi, opaque, split

_TEXT = """
fn weft_near_turn_$kind(x: $kind, count: $kind) -> $kind {
    // x - count quarter turns
    return $reduction;
}

fn weft_wide_product_$bits(a: $bits, b: $bits) -> vec2<$bits> {
    let first = (a & $low_half) * (b & $low_half);
    let second = (a >> $half) * (b & $low_half) + (first >> $half);
    let third = (a & $low_half) * (b >> $half) + (second & $low_half);
    let high = (a >> $half) * (b >> $half) + (second >> $half) + (third >> $half);
    return vec2<$bits>((third << $half) | (first & $low_half), high);
}

fn weft_inverse_turn_$bits(place: u32) -> $bits {
    // a word of the bits of 1 / 2 pi
    switch place {
        $words
        default: {
            return $bits(0);
        }
    }
}

fn weft_far_turn_$kind(x: $kind) -> vec2<$kind> {
    // what is left after a number of quarter turns, and that number modulo 4, for large numbers
    let size = bitcast<$bits>(x) & $size_mask;
    let mantissa = (size & $fraction_mask) | $hidden;
    let position = u32(size >> $fraction) - $origin;
    let place = position / $width;
    let shift = position % $width;
    let first = weft_inverse_turn_$bits(place);
    let second = weft_inverse_turn_$bits(place + 1u);
    let third = weft_inverse_turn_$bits(place + 2u);
    let fourth = weft_inverse_turn_$bits(place + 3u);
    let back = ($width - shift) & ($width - 1u);
    let kept = select($bits(0), ~$bits(0), shift != 0u);
    let low = weft_wide_product_$bits(mantissa, (third << shift) | ((fourth >> back) & kept));
    let middle = weft_wide_product_$bits(mantissa, (second << shift) | ((third >> back) & kept));
    let high = mantissa * ((first << shift) | ((second >> back) & kept));
    let next = low.y + middle.x;
    let top = high + middle.y + select($bits(0), $bits(1), next < low.y);
    // turns as a fraction: the nearest quarter, and what is left of it with as many bits as there are
    let quadrant = (top + $eighth) >> $quarter;
    var upper = (top << 2u) | (next >> $quarter);
    var lower = (next << 2u) | (low.x >> $quarter);
    let negative = upper > $size_mask;
    if negative {
        lower = ~lower + 1;
        upper = ~upper + select($bits(0), $bits(1), lower == 0);
    }
    let zeros = min($zeros, $width - 1u);
    let moved = (upper << zeros) | select($bits(0), lower >> (($width - zeros) & ($width - 1u)), zeros != 0u);
    let scale = weft_power_of_two_$kind(-i32(zeros) - $width);
    let large = $kind(moved & ~$bits($low_half)) * scale;
    let small = $kind(moved & $low_half) * scale;
    let rest = large * $half_pi_high + (large * $half_pi_low + small * $half_pi);
    let signed = select(rest, -rest, negative != (x < 0.0));
    let turned = select(quadrant, 4 - quadrant, x < 0.0) & 3;
    return vec2<$kind>(select(signed, weft_make_$kind($nan), size >= $infinity), $kind(turned));
}

fn weft_turn_$kind(x: $kind) -> vec2<$kind> {
    if abs(x) <= $largest {
        let count = i32(round(x * $two_by_pi));
        let rest = weft_near_turn_$kind(x, $kind(count));
        return vec2<$kind>(select(rest, x, count == 0), $kind(count & 3));
    }
    return weft_far_turn_$kind(x);
}

fn weft_sin_near_$kind(x: $kind) -> $kind {
    let z = x * x;
    return weft_with_sign_$kind(fma(x * z, $SIN(z), x), x);
}

fn weft_cos_near_$kind(x: $kind) -> $kind {
    let z = x * x;
    return fma(z * z, $COS(z), fma(z, -0.5, 1.0));
}

fn weft_sin_$kind(x: $kind) -> $kind {
    let turn = weft_turn_$kind(x);
    let quadrant = u32(turn.y);
    let size = select(weft_sin_near_$kind(turn.x), weft_cos_near_$kind(turn.x), (quadrant & 1u) != 0u);
    return select(size, -size, quadrant >= 2u);
}

fn weft_cos_$kind(x: $kind) -> $kind {
    let turn = weft_turn_$kind(x);
    let quadrant = u32(turn.y);
    let size = select(weft_cos_near_$kind(turn.x), weft_sin_near_$kind(turn.x), (quadrant & 1u) != 0u);
    return select(size, -size, (quadrant == 1u) | (quadrant == 2u));
}

fn weft_tan_$kind(x: $kind) -> $kind {
    let turn = weft_turn_$kind(x);
    let sine = weft_sin_near_$kind(turn.x);
    let cosine = weft_cos_near_$kind(turn.x);
    let odd = (u32(turn.y) & 1u) != 0u;
    return select(sine, -cosine, odd) / select(cosine, sine, odd);
}

fn weft_asin_near_$kind(y: $kind) -> $kind {
    // asin(y), or asin(sqrt((1 - y) / 2)) where y is not small; NaN beyond 1
    let small = y < $asin_middle;
    let z = select(fma(y, -0.5, 0.5), y * y, small);
    let s = select(sqrt(z), y, small);
    let result = fma(s * z, $ASIN(z), s);
    return select(result, weft_make_$kind($nan), bitcast<$bits>(y) > $one_bits);
}

fn weft_asin_$kind(x: $kind) -> $kind {
    let y = abs(x);
    let value = weft_asin_near_$kind(y);
    let large = $half_pi - (value + value - $half_pi_rest);
    return weft_with_sign_$kind(select(large, value, y < $asin_middle), x);
}

fn weft_acos_$kind(x: $kind) -> $kind {
    let y = abs(x);
    let value = weft_asin_near_$kind(y);
    let middle = $half_pi - (weft_with_sign_$kind(value, x) - $half_pi_rest);
    let outer = select(value + value, 2.0 * $half_pi - (value + value - 2.0 * $half_pi_rest), x < 0.0);
    return select(outer, middle, y < $asin_middle);
}

fn weft_atan_$kind(x: $kind) -> $kind {
    let y = abs(x);
    let large = y > 1.0;
    let t = select(y, 1.0 / y, large);
    let z = t * t;
    let value = fma(t * z, $ATAN(z), t);
    return weft_with_sign_$kind(select(value, $half_pi - (value - $half_pi_rest), large), x);
}
"""

# beyond it, the number of quarter turns is too long for exact products with the parts of pi / 2
_LARGEST = {32: 12000.0, 64: 3000000.0}
_PARTS = {32: [11, 11, 11, 11], 64: [32, 32, 32]}  # bits of the parts, without the last
_ASIN_MIDDLE = 0.6


@cache
def functions(bits: int) -> dict[str, str]:
    """Those of floats of so many bits."""
    quarter = half_pi()
    high, low = split(quarter, [bits // 4])
    reduction = "x"
    for number_of, part in enumerate(split(quarter, _PARTS[bits])):
        reduction = f"fma({opaque('count', number_of, bits)}, -{part}, {reduction})"
    common = common_values(bits)
    values = common | {
        "reduction": reduction,
        "half": f"{bits // 2}u",
        "low_half": hex((1 << bits // 2) - 1),
        "words": "\n        ".join(_words(bits)),
        "width": f"{bits}",
        "origin": f"{int(common['bias']) + int(common['fraction'][:-1]) - bits}u",
        "zeros": leading_zeros("upper", bits),
        "eighth": hex(1 << (bits - 3)),
        "quarter": f"{bits - 2}u",
        "half_pi_high": high,
        "half_pi_low": low,
        "half_pi": number(coefficients.HALF_PI[bits][0]),
        "half_pi_rest": number(coefficients.HALF_PI[bits][1]),
        "two_by_pi": number(2.0 / pi),
        "largest": number(_LARGEST[bits]),
        "asin_middle": number(_ASIN_MIDDLE),
    }
    tables = {name: getattr(coefficients, name)[bits] for name in ("SIN", "COS", "ASIN", "ATAN")}
    return functions_in(fill(_TEXT, values, tables))


def _words(bits: int) -> list[str]:
    """Cases of a switch: the words of 1 / 2 pi after one of zeros, as far as the largest number needs them."""
    _, *wide = coefficients.INVERSE_PI
    words = wide if bits == 64 else [part for word in wide for part in (word >> 32, word & 0xFFFFFFFF)][:8]
    suffix = "lu" if bits == 64 else "u"
    return [f"case {place}u: {{ return {word:#x}{suffix}; }}" for place, word in enumerate(words, 1)]
