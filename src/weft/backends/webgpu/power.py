"""WGSL of x^y on floats, with a logarithm that has 1.5 times the bits of the result."""

from __future__ import annotations

from fractions import Fraction
from functools import cache
from math import log

from weft.backends.numerics import coefficients
from weft.backends.webgpu.helpers import fill, number, split_functions
from weft.backends.webgpu.precision import ln2, split, template_values

_TEXT = """
fn weft_high_$kind(x: $kind) -> $kind {
    // the upper half of its bits
    return bitcast<$kind>(bitcast<$bits>(x) & $high_mask);
}

fn weft_settled_$kind(x: $kind, positive: $kind) -> $kind {
    // x itself, computed before it meets others: compilers reorder sums, but not across operations on bits
    return bitcast<$kind>(bitcast<$bits>(x) | (bitcast<$bits>(positive) >> $sign));
}

fn weft_log_parts_$kind(x: $kind) -> vec3<$kind> {
    // the logarithm to base 2 of a positive finite number, as one of half of the bits and a small one; and m
    let normal = weft_normalise_$kind(x);
    let exponent = normal.x;
    let m = normal.y;
    // s = (m - 1) / (m + 1) = s_high + s_low, so that log m = 2 s + 2/3 s^3 + ...
    let f = m - 1.0;
    let m_high = bitcast<$kind>(bitcast<$bits>(m) & $short_mask);
    let divisor = m + 1.0;
    let s_high = weft_high_$kind(f / divisor);
    let most = weft_settled_$kind(f - s_high * (m_high + 1.0), m);
    let s_low = (most - s_high * (m - m_high)) / divisor;
    let square = s_high * s_high;
    let more = (s_high + s_high + s_low) * s_low;
    let z = square + more;
    let z_high = weft_high_$kind(z);
    let z_low = weft_settled_$kind(square - z_high, m) + more;
    let cube = s_high * z_high;
    let cube_high = weft_high_$kind(cube);
    let cube_low = weft_settled_$kind(cube - cube_high, m) + (s_high * z_low + s_low * z);
    let first = s_high * $first_high;
    let third = cube_high * $third_high;
    let tail = (s_high + s_low) * z * z * $TAIL(z);
    let small = fma(s_low, $first_whole, s_high * $first_low)
        + (fma(cube_low, $third_whole, cube_high * $third_low) + tail);
    let high = weft_high_$kind((exponent + first) + (third + small));
    let near = weft_settled_$kind(weft_settled_$kind(exponent - high, m) + first, m);
    return vec3<$kind>(high, weft_settled_$kind(near + third, m) + small, m);
}

fn weft_power_size_$kind(x: $kind, y: $kind) -> $kind {
    // x^y for positive finite x and finite y
    let logarithm = weft_log_parts_$kind(x);
    let bounded = clamp(y, -$exponent_most, $exponent_most);
    let y_high = weft_high_$kind(bounded);
    let product = y_high * logarithm.x;
    let small = fma(bounded, logarithm.y, (bounded - y_high) * logarithm.x);
    let total = product + small;
    let count = round(total);
    let rest = (weft_settled_$kind(product - count, logarithm.z) + small) * $unit;
    let result = weft_scaled_$kind($EXP2(rest), i32(clamp(count, $least, $most)));
    // the total is rounded: results just below the limit have one that is equal to it, and a negative rest
    let overflows = (total > $most) | ((total == $most) & (rest >= 0.0));
    return select(select(result, weft_make_$kind($infinity), overflows), 0.0, total <= $least);
}

fn weft_power_$kind(x: $kind, y: $kind) -> $kind {
    let size = abs(x);
    let negative = bitcast<$bits>(x) > $size_mask;
    let large = bitcast<$bits>(size) == $infinity;
    let zero = bitcast<$bits>(size) == 0;
    let whole = trunc(y) == y;
    let odd = whole & !(trunc(y * 0.5) == y * 0.5);
    var result = weft_power_size_$kind(size, y);
    let grows = select((size > 1.0) == (y > 0.0), (y < 0.0) == zero, large | zero);
    let extreme = select($kind(0.0), weft_make_$kind($infinity), grows);
    result = select(result, extreme, large | zero | weft_is_inf_$kind(y));
    result = select(result, 1.0, (size == 1.0) & weft_is_inf_$kind(y));
    result = select(result, -result, negative & odd);
    let none = (negative & !large & !zero & !whole) | weft_is_nan_$kind(x) | weft_is_nan_$kind(y);
    result = select(result, weft_make_$kind($nan), none);
    return select(result, 1.0, (x == 1.0) | (y == 0.0));
}

fn weft_power_2_$kind(x: $kind) -> $kind {
    return x * x;
}

fn weft_power_3_$kind(x: $kind) -> $kind {
    return x * x * x;
}

fn weft_power_half_$kind(x: $kind) -> $kind {
    // unlike the square root, 0 for -0 and infinite for -infinity
    let bits = bitcast<$bits>(x);
    let root = select(sqrt(x), 0.0, (bits & $size_mask) == 0);
    return select(root, weft_make_$kind($infinity), bits == $negative_infinity);
}

fn weft_power_minus_half_$kind(x: $kind) -> $kind {
    return 1.0 / weft_power_half_$kind(x);
}
"""

_LIMITS = {
    32: {"least": -150.0, "most": 128.0, "exponent_most": 2.0**40},
    64: {"least": -1075.0, "most": 1024.0, "exponent_most": 2.0**80},
}
_HALF = {32: 12, 64: 26}  # bits
_TAIL = {32: 5, 64: 7}  # coefficients


@cache
def define_functions(bits: int) -> dict[str, str]:
    """Write the helper functions of floats with this number of bits."""
    first, third = 2 / ln2(), Fraction(2, 3) / ln2()
    values = template_values(bits) | {
        "first_whole": number(float(first)),
        "third_whole": number(float(third)),
        "unit": "1.0" if bits == 32 else number(log(2.0)),
    }
    for name, value in (("first", first), ("third", third)):
        high, low = split(value, _HALF[bits])
        values |= {f"{name}_high": number(high), f"{name}_low": number(low)}
    values |= {name: number(limit) for name, limit in _LIMITS[bits].items()}
    tail = [term / log(2.0) for term in coefficients.LOG_TAIL[64][: _TAIL[bits]]]
    exponential = coefficients.EXP2_WIDE[64] if bits == 32 else coefficients.EXP[64]
    return split_functions(fill(_TEXT, values, {"TAIL": tail, "EXP2": exponential}))
