"""WGSL of exponentials, logarithms, hyperbolic functions and erf."""

from __future__ import annotations

from functools import cache

from weft.backends.numerics import coefficients
from weft.backends.webgpu.helpers import fill, functions_in, number
from weft.backends.webgpu.precision import common_values, ln2, opaque, split

_TEXT = """
fn weft_power_of_two_$kind(exponent: i32) -> $kind {
    return bitcast<$kind>($bits(exponent + $bias) << $fraction);
}

fn weft_scaled_$kind(x: $kind, exponent: i32) -> $kind {
    // in two steps, so that only the last one is rounded or overflows
    let half = exponent >> 1u;
    return x * weft_power_of_two_$kind(half) * weft_power_of_two_$kind(exponent - half);
}

fn weft_without_powers_$kind(x: $kind, count: $kind) -> $kind {
    // x - count ln 2
    return fma($same_count, -$ln_low, fma(count, -$ln_high, x));
}

fn weft_exp_$kind(x: $kind) -> $kind {
    let bounded = select(select(x, $exp_least, x < $exp_least), $exp_most, x > $exp_most);
    let count = round(bounded * 1.4426950408889634);
    let rest = weft_without_powers_$kind(bounded, count);
    return weft_unless_nan_$kind(x, weft_scaled_$kind($EXP(rest), i32(count)));
}

fn weft_expm1_near_$kind(x: $kind) -> $kind {
    return fma(x * x, $EXPM1(x), x);
}

fn weft_quarter_exp_$kind(y: $kind) -> $kind {
    // exp(y) / 4 for y >= 0, or so large a number that twice the result overflows
    let bounded = select(y, $sinh_most, y > $sinh_most);
    let count = round(bounded * 1.4426950408889634);
    let rest = weft_without_powers_$kind(bounded, count);
    let scale = weft_power_of_two_$kind(i32(count) - 2);
    return weft_unless_nan_$kind(y, fma(scale, weft_expm1_near_$kind(rest), scale));
}

fn weft_sinh_$kind(x: $kind) -> $kind {
    let z = x * x;
    let small = fma(x * z, $SINH(z), x);
    let quarter = weft_quarter_exp_$kind(abs(x));
    let large = weft_with_sign_$kind((quarter - 0.0625 / quarter) * 2.0, x);
    return select(large, small, abs(x) < 1.0);
}

fn weft_cosh_$kind(x: $kind) -> $kind {
    let quarter = weft_quarter_exp_$kind(abs(x));
    return (quarter + 0.0625 / quarter) * 2.0;
}

fn weft_tanh_$kind(x: $kind) -> $kind {
    let y = abs(x);
    let z = y * y;
    let small = fma(y * z, $TANH(z), y);
    let doubled = 2.0 * select(y, $tanh_one, y > $tanh_one);
    let count = round(doubled * 1.4426950408889634);
    let rest = weft_without_powers_$kind(doubled, count);
    let grown = $EXP(rest) * weft_power_of_two_$kind(i32(count));
    let result = select(1.0 - 2.0 / (grown + 1.0), small, y < 0.625);
    return weft_unless_nan_$kind(x, weft_with_sign_$kind(result, x));
}

fn weft_erf_$kind(x: $kind) -> $kind {
    // 1 - exp(log(erfc |x|)), where the logarithm is a polynomial in -|x|
    let y = -select(abs(x), $erf_one, abs(x) > $erf_one);
    let logarithm = fma(y, $ERF(y), y);
    let count = round(logarithm * 1.4426950408889634);
    let rest = weft_without_powers_$kind(logarithm, count);
    let scale = weft_power_of_two_$kind(i32(count));
    let result = fma(scale, weft_expm1_near_$kind(rest), scale - 1.0);
    return weft_unless_nan_$kind(x, weft_with_sign_$kind(result, x));
}

fn weft_exponent_$kind(bits: $bits) -> $int {
    // of a positive normal number, so that without it the number is within a factor sqrt 2 of 1
    return ($int(bits) - $half_root_bits) >> $fraction;
}

fn weft_log_sum_$kind(exponent: $kind, f: $kind) -> $kind {
    // exponent ln 2 + log(1 + f)
    let s = f / (f + 2.0);
    let z = s * s;
    let tail = fma(-z, $LOG(z), f);
    return fma(exponent, $ln_high, fma(exponent, $ln_low, fma(-s, tail, f)));
}

fn weft_log_$kind(x: $kind) -> $kind {
    let bits = bitcast<$bits>(x);
    let tiny = bits < $hidden;
    let lifted = select(bits, bitcast<$bits>($kind(bits)), tiny);
    let exponent = weft_exponent_$kind(lifted);
    let mantissa = bitcast<$kind>(lifted - ($bits(exponent) << $fraction));
    let count = $kind(exponent) + select($kind(0.0), $kind($subnormal_exponent), tiny);
    let result = weft_log_sum_$kind(count, mantissa - 1.0);
    let outside = select(weft_make_$kind($nan), x, bits == $infinity);
    let special = select(outside, weft_make_$kind($negative_infinity), (bits & $size_mask) == 0);
    return select(result, special, (bits == 0) | (bits >= $infinity));
}

fn weft_log1p_finite_$kind(x: $kind, more: $kind) -> $kind {
    // log(1 + x) + more ln 2
    let bits = bitcast<$bits>(x + 1.0);
    let exponent = weft_exponent_$kind(bits);
    let moved = $bits(exponent) << $fraction;
    let scale = bitcast<$kind>($one_bits - moved);
    let near = fma(x, scale, scale - 1.0);
    let far = bitcast<$kind>(bits - moved) - 1.0;
    return weft_log_sum_$kind($kind(exponent) + more, select(near, far, x > $far));
}

fn weft_log1p_$kind(x: $kind) -> $kind {
    let bits = bitcast<$bits>(x);
    let result = weft_with_sign_$kind(weft_log1p_finite_$kind(x, 0.0), x);
    let beyond = select(weft_make_$kind($nan), weft_make_$kind($negative_infinity), x == -1.0);
    return select(result, select(x, beyond, x <= -1.0), (x <= -1.0) | ((bits & $size_mask) >= $infinity));
}

fn weft_asinh_$kind(x: $kind) -> $kind {
    let y = abs(x);
    let z = y * y;
    let small = fma(y * z, $ASINH(z), y);
    let large = y > $far;
    let grown = y + z / (sqrt(z + 1.0) + 1.0);
    let result = weft_log1p_finite_$kind(select(grown, y, large), select($kind(0.0), $kind(1.0), large));
    let inside = select(result, small, y < 0.7);
    return weft_with_sign_$kind(select(inside, y, bitcast<$bits>(y) >= $infinity), x);
}

fn weft_acosh_$kind(x: $kind) -> $kind {
    let y = x - 1.0;
    let large = x > $far;
    let grown = select(y + sqrt(fma(y, y, y + y)), x, large);
    let result = weft_log1p_finite_$kind(grown, select($kind(0.0), $kind(1.0), large));
    let root = sqrt(y + y);
    let small = fma(root * y, $ACOSH(y), root);
    let inside = select(select(result, small, x < 1.5), weft_make_$kind($nan), x < 1.0);
    return select(inside, x, (bitcast<$bits>(x) & $size_mask) > $infinity || bitcast<$bits>(x) == $infinity);
}

fn weft_atanh_$kind(x: $kind) -> $kind {
    let y = abs(x);
    let z = y * y;
    let small = fma(y * z, $ATANH(z), y);
    let large = weft_log1p_finite_$kind((y + y) / (1.0 - y), 0.0) * 0.5;
    let beyond = select(weft_make_$kind($nan), weft_make_$kind($infinity), y == 1.0);
    let result = select(select(beyond, large, y < 1.0), small, y < 0.5);
    return weft_with_sign_$kind(result, x);
}
"""

# by the width of the float: where exp overflows and is 0 for certain, and where sinh, tanh and erf need no more
_LIMITS = {
    32: {"exp_most": 89.0, "exp_least": -104.0, "sinh_most": 89.5, "tanh_one": 9.1, "erf_one": 3.93},
    64: {"exp_most": 710.0, "exp_least": -746.0, "sinh_most": 710.5, "tanh_one": 19.2, "erf_one": 5.93},
}
_FAR = {32: 2.0**25, 64: 2.0**54}  # from here on, 1 + x is x
_SHORT = {32: 15, 64: 41}  # bits, so that products with exponents are exact


@cache
def functions(bits: int) -> dict[str, str]:
    """Those of floats of so many bits."""
    high, low = split(ln2(), [_SHORT[bits]])
    values = common_values(bits) | {"ln_high": high, "ln_low": low, "far": number(_FAR[bits])}
    values["same_count"] = opaque("count", 1, bits)
    values |= {name: number(limit) for name, limit in _LIMITS[bits].items()}
    first, *others = (term * (-1) ** degree for degree, term in enumerate(coefficients.ERF[bits]))
    names = ("EXP", "EXPM1", "SINH", "TANH", "LOG", "ASINH", "ACOSH", "ATANH")
    tables = {name: getattr(coefficients, name)[bits] for name in names} | {"ERF": (first - 1.0, *others)}
    return functions_in(fill(_TEXT, values, tables))
