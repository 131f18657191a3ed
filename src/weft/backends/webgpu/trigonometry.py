"""WGSL that reduces the arguments of sin, cos and tan to a quarter turn.

A few subtractions are enough unless the argument is large; it is then multiplied by enough bits of 1 / pi in integers.
"""

from __future__ import annotations

from functools import cache
from math import pi

from weft.backends.numerics.coefficients import HALF_PI, INVERSE_PI
from weft.backends.numerics.elementary import LARGEST_ANGLE
from weft.backends.webgpu.helpers import fill, leading_zeros, number, split_functions
from weft.backends.webgpu.precision import half_pi, opaque, split, template_values

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
"""

_PARTS = {32: [11, 11, 11, 11], 64: [32, 32, 32]}  # bits of the parts, without the last


@cache
def define_functions(bits: int) -> dict[str, str]:
    """Write the helper functions of floats with this number of bits."""
    quarter = half_pi()
    high, low = split(quarter, bits // 4)
    reduction = "x"
    for index, part in enumerate(split(quarter, *_PARTS[bits])):
        reduction = f"fma({opaque('count', index, bits)}, -{number(part)}, {reduction})"
    common = template_values(bits)
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
        "half_pi_high": number(high),
        "half_pi_low": number(low),
        "half_pi": number(HALF_PI[bits][0]),
        "two_by_pi": number(2.0 / pi),
        "largest": number(LARGEST_ANGLE[bits]),
    }
    return split_functions(fill(_TEXT, values))


def _words(bits: int) -> list[str]:
    """Write the cases of a switch: a word of zeros, then as many words of 1 / 2 pi as the largest number needs."""
    _, *wide = INVERSE_PI
    words = wide if bits == 64 else [part for word in wide for part in (word >> 32, word & 0xFFFFFFFF)][:8]
    suffix = "lu" if bits == 64 else "u"
    return [f"case {place}u: {{ return {word:#x}{suffix}; }}" for place, word in enumerate(words, 1)]
