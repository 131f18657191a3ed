"""WGSL of integer functions that are not operators, for i32, u32, i64 and u64.

Nothing traps: a divisor of 0 gives 0, the least number divided by -1 wraps around, shifts by the width or more give 0.
"""

from __future__ import annotations

from functools import cache

from weft.backends.webgpu.helpers import fill, split_functions

_SIGNED = """
fn weft_divide_$kind(a: $kind, b: $kind) -> $kind {
    let divisor = select(b, 1, (b == 0) | (b == -1));
    return select(select(a / divisor, 0 - a, b == -1), 0, b == 0);
}

fn weft_fmod_$kind(a: $kind, b: $kind) -> $kind {
    // without the operator, which Vulkan leaves undefined for negative numbers
    let divisor = select(b, 1, (b == 0) | (b == -1));
    return a - (a / divisor) * divisor;
}

fn weft_remainder_$kind(a: $kind, b: $kind) -> $kind {
    let rest = weft_fmod_$kind(a, b);
    return select(rest, rest + b, (rest != 0) & ((rest ^ b) < 0));
}

fn weft_sign_$kind(x: $kind) -> $kind {
    return select(select($kind(0), $kind(1), x > 0), $kind(-1), x < 0);
}

fn weft_power_$kind(a: $kind, b: $kind) -> $kind {
    if b < 0 {
        let unit = select(-(b & 1) | 1, 1, a == 1);
        return select(0, unit, (a == 1) | (a == -1));
    }
    return bitcast<$kind>(weft_power_$unsigned(bitcast<$unsigned>(a), bitcast<$unsigned>(b)));
}

fn weft_shift_left_$kind(a: $kind, b: $kind, width: u32) -> $kind {
    return select(a << (u32(b) & $mask), 0, bitcast<$unsigned>(b) >= $unsigned(width));
}

fn weft_shift_right_$kind(a: $kind, b: $kind, width: u32) -> $kind {
    return select(a >> (u32(b) & $mask), 0, bitcast<$unsigned>(b) >= $unsigned(width));
}
"""

_UNSIGNED = """
fn weft_divide_$kind(a: $kind, b: $kind) -> $kind {
    return select(a / select(b, 1, b == 0), 0, b == 0);
}

fn weft_fmod_$kind(a: $kind, b: $kind) -> $kind {
    return select(a % select(b, 1, b == 0), 0, b == 0);
}

fn weft_remainder_$kind(a: $kind, b: $kind) -> $kind {
    return weft_fmod_$kind(a, b);
}

fn weft_sign_$kind(x: $kind) -> $kind {
    return select($kind(0), $kind(1), x != 0);
}

fn weft_power_$kind(a: $kind, b: $kind) -> $kind {
    var result = $kind(1);
    var square = a;
    var exponent = b;
    while exponent != 0 {
        if (exponent & 1) != 0 {
            result *= square;
        }
        square *= square;
        exponent >>= 1u;
    }
    return result;
}

fn weft_shift_left_$kind(a: $kind, b: $kind, width: u32) -> $kind {
    return select(a << (u32(b) & $mask), 0, b >= $kind(width));
}

fn weft_shift_right_$kind(a: $kind, b: $kind, width: u32) -> $kind {
    return select(a >> (u32(b) & $mask), 0, b >= $kind(width));
}
"""

_BOTH = """
fn weft_power_2_$kind(x: $kind) -> $kind {
    return x * x;
}

fn weft_power_3_$kind(x: $kind) -> $kind {
    return x * x * x;
}
"""


@cache
def define_functions(bits: int) -> dict[str, str]:
    """Write the helper functions of signed and unsigned integers with this number of bits."""
    unsigned, mask = f"u{bits}", f"{bits - 1}u"
    signed = fill(_SIGNED + _BOTH, {"kind": f"i{bits}", "unsigned": unsigned, "mask": mask})
    return split_functions(signed) | split_functions(fill(_UNSIGNED + _BOTH, {"kind": unsigned, "mask": mask}))
