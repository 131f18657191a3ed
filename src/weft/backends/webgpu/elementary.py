"""Elementary functions in WGSL, for f32 and f64.

The builtins of WGSL may be off by many units in the last place; these are off by a few over the whole range.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from math import inf, nan
from typing import ClassVar

from weft.backends.numerics.elementary import ELEMENTARY, EXP_ZERO, LOG2_E, Elementary
from weft.backends.numerics.terms import choose, let
from weft.backends.webgpu import power, trigonometry
from weft.backends.webgpu.helpers import fill, number, split_functions
from weft.backends.webgpu.precision import ln2, opaque, split, template_values
from weft.backends.webgpu.terms import Term, define_function

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

fn weft_exponent_$kind(bits: $bits) -> $int {
    // of a positive normal number, so that without it the number is within a factor sqrt 2 of 1
    return ($int(bits) - $half_root_bits) >> $fraction;
}

fn weft_normalise_$kind(x: $kind) -> vec2<$kind> {
    // the exponent and the mantissa of a positive finite number; the bits of a subnormal number are an integer
    let bits = bitcast<$bits>(x);
    let tiny = bits < $hidden;
    let lifted = select(bits, bitcast<$bits>($kind(bits)), tiny);
    let exponent = weft_exponent_$kind(lifted);
    let mantissa = bitcast<$kind>(lifted - ($bits(exponent) << $fraction));
    return vec2<$kind>($kind(exponent) + select($kind(0.0), $kind($subnormal_exponent), tiny), mantissa);
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
"""

_EXP_OVERFLOW = {32: 89.0, 64: 710.0}
_FAR = {32: 2.0**25, 64: 2.0**54}  # 1 + x rounds to x from here on
_SHORT = {32: 15, 64: 41}  # bits, so that products with exponents are exact


class WgslElementary(Elementary[Term]):
    """Tests NaN and subnormal numbers by their bits: compilers may assume no NaN, adapters flush subnormals to 0."""

    ln2: ClassVar[Mapping[int, tuple[float, ...]]] = {bits: split(ln2(), short) for bits, short in _SHORT.items()}

    def clamp_exponent(self, x: Term) -> Term:
        low, high = EXP_ZERO[x.bits], _EXP_OVERFLOW[x.bits]
        return let("bounded", choose(x > high, high, choose(x < low, low, x)))

    def split_by_ln2(self, x: Term, accurate: bool = True) -> tuple[Term, Term]:
        """n is a float; `accurate` makes no difference, since the high part of ln 2 is short."""
        n = let("count", x.make(x.kind, f"round({(x * LOG2_E).text})"))
        return n, let("rest", x.call("without_powers", n))

    def scale_exp(self, x: Term, mantissa: Term, n: Term) -> Term:
        return self.unless_nan(x, mantissa.call("scaled", n.make("i32", f"i32({n.text})")))

    def scale(self, x: Term, n: Term) -> Term:
        return x * self.power_of_two(n, 0)

    def power_of_two(self, n: Term, offset: int) -> Term:
        exponent = f"i32({n.text})" + (f" - {-offset}" if offset else "")
        return n.make(n.kind, f"weft_power_of_two_{n.kind}({exponent})")

    def normalise(self, x: Term) -> tuple[Term, Term]:
        normal = let("normal", x.call("normalise"))
        return x.make(x.kind, f"{normal.text}.x"), x.make(x.kind, f"{normal.text}.y")

    def finish_log(self, x: Term, is_finite: Term, result: Term) -> Term:
        bits, infinity = let("bits", x.as_integer()), _bits_of_infinity(x)
        beyond = let("beyond", choose(bits.equals(infinity), x, nan))
        special = let("special", choose((bits & (1 << x.bits - 1) - 1).equals(0), -inf, beyond))
        return choose(bits.equals(0) | (bits >= infinity), special, result)

    def log1p_finite(self, x: Term, doubled: Term | None = None) -> Term:
        one = x.make(x.kind, f"{x.kind}(1.0)")
        return x.call("log1p_finite", one.constant(0.0) if doubled is None else choose(doubled, one, 0.0))

    def multiply_add(self, a: Term, b: Term, c: float) -> Term:
        return a * b + c

    def is_finite(self, x: Term) -> Term:
        return (x.as_integer() & (1 << x.bits - 1) - 1) < _bits_of_infinity(x)

    def unless_nan(self, x: Term, result: Term) -> Term:
        return x.call("unless_nan", result)

    def nan_beyond_one(self, y: Term, result: Term) -> Term:
        return choose(y.as_integer() > y.one, nan, result)

    def reduce_angle(self, x: Term) -> tuple[Term, Term | None, Term]:
        turn = let("turn", x.call("turn"))
        return x.make(x.kind, f"{turn.text}.x"), None, let("quadrant", x.make("u32", f"u32({turn.text}.y)"))

    def negate_in_quadrants(self, x: Term, quadrant: Term) -> Term:
        size = let("size", x)
        return choose((quadrant & 2).equals(2), -size, size)


def _bits_of_infinity(x: Term) -> int:
    return (1 << x.bits - 1) - (1 << x.fraction)


@cache
def define_functions(bits: int) -> dict[str, str]:
    """Write the helper functions of floats with this number of bits."""
    definitions, kind = WgslElementary(), f"f{bits}"
    high, low = definitions.ln2[bits]
    values = template_values(bits) | {"ln_high": number(high), "ln_low": number(low), "far": number(_FAR[bits])}
    values["same_count"] = opaque("count", 1, bits)
    texts = [fill(_TEXT, values)]
    texts += [
        define_function(f"{name}_{kind}", {"x": kind}, kind, getattr(definitions, name))
        for name in sorted(ELEMENTARY - {"power"})
    ]
    texts.append(define_function(f"log_sum_{kind}", {"exponent": kind, "f": kind}, kind, definitions.log_sum))
    return split_functions("".join(texts)) | trigonometry.define_functions(bits) | power.define_functions(bits)
