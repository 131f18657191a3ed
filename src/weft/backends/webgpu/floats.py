"""WGSL of float functions that need no polynomial: extremes, quotients, remainders, signs, tests for NaN.

NaN is tested by its bits, because compilers may assume that there is none.
"""

from __future__ import annotations

from functools import cache

from weft.backends.webgpu.helpers import fill, leading_zeros, split_functions
from weft.backends.webgpu.precision import template_values

_TEXT = """
fn weft_make_$kind(bits: $bits) -> $kind {
    // of constants that WGSL does not let a program write
    return bitcast<$kind>(bits);
}

fn weft_is_nan_$kind(x: $kind) -> bool {
    return (bitcast<$bits>(x) & $size_mask) > $infinity;
}

fn weft_is_inf_$kind(x: $kind) -> bool {
    return (bitcast<$bits>(x) & $size_mask) == $infinity;
}

fn weft_unless_nan_$kind(x: $kind, result: $kind) -> $kind {
    // compilers turn a choice between a number and a bound into a minimum, which drops NaN
    return select(result, x, weft_is_nan_$kind(x));
}

fn weft_with_sign_$kind(size: $kind, sign: $kind) -> $kind {
    return bitcast<$kind>((bitcast<$bits>(size) & $size_mask) | (bitcast<$bits>(sign) & ~$bits($size_mask)));
}

fn weft_maximum_$kind(a: $kind, b: $kind) -> $kind {
    return select(b, a, (a > b) | weft_is_nan_$kind(a));
}

fn weft_minimum_$kind(a: $kind, b: $kind) -> $kind {
    return select(b, a, (a < b) | weft_is_nan_$kind(a));
}

fn weft_divide_$kind(a: $kind, b: $kind) -> $kind {
    // a reciprocal must not be subnormal, which adapters may take for 0
    let size = bitcast<$bits>(b) & $size_mask;
    let huge = (size > $huge) & (size < $infinity);
    let quotient = a / bitcast<$kind>(bitcast<$bits>(b) - select($bits(0), $bits($two_exponents), huge));
    return select(quotient, quotient * 0.25, huge);
}

fn weft_sign_$kind(x: $kind) -> $kind {
    let unit = select(select($kind(0.0), $kind(1.0), x > 0.0), $kind(-1.0), x < 0.0);
    return select(unit, x, weft_is_nan_$kind(x));
}

fn weft_fmod_$kind(a: $kind, b: $kind) -> $kind {
    let size = bitcast<$bits>(a) & $size_mask;
    let divisor = bitcast<$bits>(b) & $size_mask;
    if (size >= $infinity) | (divisor > $infinity) | (divisor == 0) {
        return weft_make_$kind($nan);
    }
    if size < divisor {
        return a;
    }
    // long division of the fractions, $spare bits at a time
    let least = i32(max(divisor >> $fraction, 1));
    let part = select(divisor, (divisor & $fraction_mask) | $hidden, divisor >= $hidden);
    var rest = select(size, (size & $fraction_mask) | $hidden, size >= $hidden) % part;
    var steps = u32(i32(max(size >> $fraction, 1)) - least);
    while (steps > 0u) & (rest != 0) {
        let count = min(steps, $spare);
        rest = (rest << count) % part;
        steps -= count;
    }
    if rest == 0 {
        return weft_with_sign_$kind(0.0, a);
    }
    let count = min($zeros - $spare, u32(least - 1));
    let moved = rest << count;
    let normal = moved - $hidden + ($bits(least - i32(count)) << $fraction);
    return weft_with_sign_$kind(bitcast<$kind>(select(moved, normal, moved >= $hidden)), a);
}

fn weft_remainder_$kind(a: $kind, b: $kind) -> $kind {
    let rest = weft_fmod_$kind(a, b);
    return select(rest, rest + b, ((rest < 0.0) & (b > 0.0)) | ((rest > 0.0) & (b < 0.0)));
}
"""

# for adapters that divide as loosely as Vulkan allows
_CORRECTED = """
fn weft_corrected_f32(a: f32, b: f32) -> f32 {
    // a quotient that is some units off, put right by what it leaves; not where that could be subnormal
    let quotient = weft_divide_f32(a, b);
    let rest = fma(-quotient, b, a);
    let better = fma(rest, 1.0f / b, quotient);
    let size = bitcast<u32>(quotient) & 0x7fffffffu;
    let dividend = bitcast<u32>(a) & 0x7fffffffu;
    let divisor = bitcast<u32>(b) & 0x7fffffffu;
    let inside = (min(size, min(dividend, divisor)) > 0x1a000000u) & (max(size, max(dividend, divisor)) < 0x65000000u);
    return select(quotient, better, inside);
}
"""


@cache
def define_functions(bits: int) -> dict[str, str]:
    """Write the helper functions of floats with this number of bits."""
    values = template_values(bits)
    infinity, hidden = int(values["infinity"], 16), int(values["hidden"], 16)
    values |= {
        "spare": f"{bits - hidden.bit_length()}u",
        "zeros": leading_zeros("rest", bits),
        "huge": hex(infinity - 3 * hidden),
        "two_exponents": hex(2 * hidden),
    }
    corrected = split_functions(_CORRECTED) if bits == 32 else {}
    return split_functions(fill(_TEXT, values)) | corrected
