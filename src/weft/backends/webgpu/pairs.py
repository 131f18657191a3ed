"""WGSL of 64-bit integers as pairs of u32, the low word first, for adapters without 64-bit integers.

Signed numbers are in two's complement; functions that suit both signs have no sign in their names.
"""

from __future__ import annotations

from functools import cache

from weft.backends.webgpu.helpers import split_functions

_TEXT = """
fn weft_add_pair(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    let low = a.x + b.x;
    return vec2<u32>(low, a.y + b.y + u32(low < a.x));
}

fn weft_subtract_pair(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    return vec2<u32>(a.x - b.x, a.y - b.y - u32(a.x < b.x));
}

fn weft_negate_pair(x: vec2<u32>) -> vec2<u32> {
    return vec2<u32>(0u - x.x, 0u - x.y - u32(x.x != 0u));
}

fn weft_multiply_words(a: u32, b: u32) -> vec2<u32> {
    let first = (a & 0xffffu) * (b & 0xffffu);
    let second = (a >> 16u) * (b & 0xffffu) + (first >> 16u);
    let third = (a & 0xffffu) * (b >> 16u) + (second & 0xffffu);
    return vec2<u32>((third << 16u) | (first & 0xffffu), (a >> 16u) * (b >> 16u) + (second >> 16u) + (third >> 16u));
}

fn weft_multiply_pair(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    let low = weft_multiply_words(a.x, b.x);
    return vec2<u32>(low.x, low.y + a.x * b.y + a.y * b.x);
}

fn weft_fma_pair(a: vec2<u32>, b: vec2<u32>, c: vec2<u32>) -> vec2<u32> {
    return weft_add_pair(weft_multiply_pair(a, b), c);
}

fn weft_equal_pair(a: vec2<u32>, b: vec2<u32>) -> bool {
    return (a.x == b.x) & (a.y == b.y);
}

fn weft_less_signed_pair(a: vec2<u32>, b: vec2<u32>) -> bool {
    return (bitcast<i32>(a.y) < bitcast<i32>(b.y)) | ((a.y == b.y) & (a.x < b.x));
}

fn weft_less_unsigned_pair(a: vec2<u32>, b: vec2<u32>) -> bool {
    return (a.y < b.y) | ((a.y == b.y) & (a.x < b.x));
}

fn weft_is_negative_pair(x: vec2<u32>) -> bool {
    return bitcast<i32>(x.y) < 0;
}

fn weft_absolute_pair(x: vec2<u32>) -> vec2<u32> {
    return select(x, weft_negate_pair(x), weft_is_negative_pair(x));
}

fn weft_sign_signed_pair(x: vec2<u32>) -> vec2<u32> {
    return select(weft_sign_unsigned_pair(x), vec2<u32>(0xffffffffu), weft_is_negative_pair(x));
}

fn weft_sign_unsigned_pair(x: vec2<u32>) -> vec2<u32> {
    return vec2<u32>(u32((x.x | x.y) != 0u), 0u);
}

fn weft_minimum_signed_pair(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    return select(b, a, weft_less_signed_pair(a, b));
}

fn weft_minimum_unsigned_pair(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    return select(b, a, weft_less_unsigned_pair(a, b));
}

fn weft_maximum_signed_pair(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    return select(a, b, weft_less_signed_pair(a, b));
}

fn weft_maximum_unsigned_pair(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    return select(a, b, weft_less_unsigned_pair(a, b));
}

fn weft_move_left_pair(x: vec2<u32>, count: u32) -> vec2<u32> {
    // by less than 64
    let carried = select(x.x >> ((32u - count) & 31u), 0u, count == 0u);
    let near = vec2<u32>(x.x << (count & 31u), (x.y << (count & 31u)) | carried);
    return select(near, vec2<u32>(0u, x.x << (count & 31u)), count >= 32u);
}

fn weft_move_right_pair(x: vec2<u32>, count: u32) -> vec2<u32> {
    // by less than 64, zeros coming in
    let carried = select(x.y << ((32u - count) & 31u), 0u, count == 0u);
    let near = vec2<u32>((x.x >> (count & 31u)) | carried, x.y >> (count & 31u));
    return select(near, vec2<u32>(x.y >> (count & 31u), 0u), count >= 32u);
}

fn weft_shift_left_pair(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    return select(weft_move_left_pair(a, b.x & 63u), vec2<u32>(0u), (b.y != 0u) | (b.x >= 64u));
}

fn weft_shift_right_unsigned_pair(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    return select(weft_move_right_pair(a, b.x & 63u), vec2<u32>(0u), (b.y != 0u) | (b.x >= 64u));
}

fn weft_shift_right_signed_pair(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    let mask = bitcast<u32>(bitcast<i32>(a.y) >> 31u);
    let moved = weft_move_right_pair(a ^ vec2<u32>(mask), b.x & 63u) ^ vec2<u32>(mask);
    return select(moved, vec2<u32>(0u), (b.y != 0u) | (b.x >= 64u));
}

fn weft_leading_zeros_pair(x: vec2<u32>) -> u32 {
    return select(countLeadingZeros(x.y), 32u + countLeadingZeros(x.x), x.y == 0u);
}

fn weft_divide_with_rest_pair(a: vec2<u32>, b: vec2<u32>) -> vec4<u32> {
    // the quotient and the rest of unsigned numbers; both 0 for a divisor of 0
    if (b.x | b.y) == 0u {
        return vec4<u32>(0u);
    }
    if (a.y | b.y) == 0u {
        return vec4<u32>(a.x / b.x, 0u, a.x % b.x, 0u);
    }
    if weft_less_unsigned_pair(a, b) {
        return vec4<u32>(0u, 0u, a);
    }
    var steps = weft_leading_zeros_pair(b) - weft_leading_zeros_pair(a);
    var part = weft_move_left_pair(b, steps);
    var quotient = vec2<u32>(0u);
    var rest = a;
    loop {
        quotient = weft_move_left_pair(quotient, 1u);
        if !weft_less_unsigned_pair(rest, part) {
            rest = weft_subtract_pair(rest, part);
            quotient.x |= 1u;
        }
        if steps == 0u {
            break;
        }
        part = weft_move_right_pair(part, 1u);
        steps -= 1u;
    }
    return vec4<u32>(quotient, rest);
}

fn weft_divide_unsigned_pair(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    return weft_divide_with_rest_pair(a, b).xy;
}

fn weft_divide_signed_pair(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    let quotient = weft_divide_with_rest_pair(weft_absolute_pair(a), weft_absolute_pair(b)).xy;
    return select(quotient, weft_negate_pair(quotient), bitcast<i32>(a.y ^ b.y) < 0);
}

fn weft_fmod_unsigned_pair(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    return weft_divide_with_rest_pair(a, b).zw;
}

fn weft_fmod_signed_pair(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    let rest = weft_divide_with_rest_pair(weft_absolute_pair(a), weft_absolute_pair(b)).zw;
    return select(rest, weft_negate_pair(rest), weft_is_negative_pair(a));
}

fn weft_remainder_unsigned_pair(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    return weft_fmod_unsigned_pair(a, b);
}

fn weft_remainder_signed_pair(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    let rest = weft_fmod_signed_pair(a, b);
    let wrong = ((rest.x | rest.y) != 0u) & (bitcast<i32>(rest.y ^ b.y) < 0);
    return select(rest, weft_add_pair(rest, b), wrong);
}

fn weft_power_unsigned_pair(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    var result = vec2<u32>(1u, 0u);
    var square = a;
    var exponent = b;
    while (exponent.x | exponent.y) != 0u {
        if (exponent.x & 1u) != 0u {
            result = weft_multiply_pair(result, square);
        }
        square = weft_multiply_pair(square, square);
        exponent = weft_move_right_pair(exponent, 1u);
    }
    return result;
}

fn weft_power_signed_pair(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    if weft_is_negative_pair(b) {
        let one = weft_equal_pair(a, vec2<u32>(1u, 0u));
        let negative = weft_equal_pair(a, vec2<u32>(0xffffffffu));
        let odd = select(vec2<u32>(1u, 0u), vec2<u32>(0xffffffffu), (b.x & 1u) != 0u);
        return select(select(vec2<u32>(0u), odd, negative), vec2<u32>(1u, 0u), one);
    }
    return weft_power_unsigned_pair(a, b);
}

fn weft_pair_from_i32(x: i32) -> vec2<u32> {
    return vec2<u32>(bitcast<u32>(x), bitcast<u32>(x >> 31u));
}

fn weft_f32_from_unsigned_pair(x: vec2<u32>) -> f32 {
    if x.y == 0u {
        return f32(x.x);
    }
    // the upper 32 bits from the first one on; the last of them stands for all that are cut off
    let count = countLeadingZeros(x.y);
    let moved = weft_move_left_pair(x, count);
    return f32(moved.y | u32(moved.x != 0u)) * bitcast<f32>((127u + 32u - count) << 23u);
}

fn weft_f32_from_signed_pair(x: vec2<u32>) -> f32 {
    let size = weft_f32_from_unsigned_pair(weft_absolute_pair(x));
    return select(size, -size, weft_is_negative_pair(x));
}

fn weft_pair_from_size(size: f32) -> vec2<u32> {
    // of a finite number from 0 to below 2^64, without its fraction
    if size < 4294967296.0 {
        return vec2<u32>(u32(size), 0u);
    }
    let bits = bitcast<u32>(size);
    return weft_move_left_pair(vec2<u32>((bits & 0x7fffffu) | 0x800000u, 0u), ((bits >> 23u) - 150u) & 63u);
}

fn weft_signed_pair_from_f32(x: f32) -> vec2<u32> {
    let size = abs(x);
    if !(size < 9223372036854775808.0) {
        let extreme = select(vec2<u32>(0xffffffffu, 0x7fffffffu), vec2<u32>(0u, 0x80000000u), x < 0.0);
        return select(extreme, vec2<u32>(0u), weft_is_nan_f32(x));
    }
    let number = weft_pair_from_size(size);
    return select(number, weft_negate_pair(number), x < 0.0);
}

fn weft_unsigned_pair_from_f32(x: f32) -> vec2<u32> {
    if !(x < 18446744073709551616.0) {
        return select(vec2<u32>(0xffffffffu), vec2<u32>(0u), weft_is_nan_f32(x));
    }
    return weft_pair_from_size(max(x, 0.0));
}

fn weft_pair_from_wide_size(size: f64) -> vec2<u32> {
    let high = floor(size * 2.3283064365386963e-10);
    return vec2<u32>(u32(size - high * 4294967296.0), u32(high));
}

fn weft_signed_pair_from_f64(x: f64) -> vec2<u32> {
    let size = trunc(abs(x));
    if !(size < 9223372036854775808.0) {
        let extreme = select(vec2<u32>(0xffffffffu, 0x7fffffffu), vec2<u32>(0u, 0x80000000u), x < 0.0);
        return select(extreme, vec2<u32>(0u), !(x == x));
    }
    let number = weft_pair_from_wide_size(size);
    return select(number, weft_negate_pair(number), x < 0.0);
}

fn weft_unsigned_pair_from_f64(x: f64) -> vec2<u32> {
    if !(x < 18446744073709551616.0) {
        return select(vec2<u32>(0xffffffffu), vec2<u32>(0u), !(x == x));
    }
    return weft_pair_from_wide_size(select(0.0, trunc(x), x > 0.0));
}

fn weft_f64_from_unsigned_pair(x: vec2<u32>) -> f64 {
    return f64(x.y) * 4294967296.0 + f64(x.x);
}

fn weft_f64_from_signed_pair(x: vec2<u32>) -> f64 {
    return f64(bitcast<i32>(x.y)) * 4294967296.0 + f64(x.x);
}
"""


@cache
def define_functions() -> dict[str, str]:
    return split_functions(_TEXT)
