"""Elementary functions in LLVM IR, on float and double values and on vectors of them.

There is no call into a library, and no branch except the rare one that reduces huge arguments of sin, cos and tan.
`tan` and `power` of float32 are computed in float64.
"""

from __future__ import annotations

from math import inf, nan

from weft.backends.llvm import power, trigonometry
from weft.backends.llvm.instructions import Builder, Value
from weft.backends.llvm.terms import Term
from weft.backends.numerics.coefficients import LN2
from weft.backends.numerics.elementary import EXP_ZERO, LOG2_E, Elementary
from weft.backends.numerics.terms import at_least, choose, fma

_EXP_OVERFLOW = {32: 88.72283935546875, 64: 709.7827128933841}
_EXP_SMALL = {32: -80.0, 64: -700.0}  # results of smaller arguments may be subnormal
_LIFT = 64  # keeps results that will be subnormal in the normal range


class LlvmElementary(Elementary[Term]):
    ln2 = LN2

    def clamp_exponent(self, x: Term) -> Term:
        return at_least(x, EXP_ZERO[x.bits])

    def split_by_ln2(self, x: Term, accurate: bool = True) -> tuple[Term, Term]:
        """n is in the last bits of an integer."""
        shifted = fma(x, LOG2_E, x.magic)
        count = shifted - x.magic
        high, low = self.ln2[x.bits]
        rest = fma(count, -high, x)
        return shifted.as_integer(), fma(count, -low, rest) if accurate else rest

    def scale_exp(self, x: Term, mantissa: Term, n: Term) -> Term:
        scaled = mantissa.as_integer() + (n << x.fraction)
        small = (scaled + (_LIFT << x.fraction)).as_float() * 2.0**-_LIFT
        result = choose(x < _EXP_SMALL[x.bits], small, scaled.as_float())
        return choose(x.is_not_below(_EXP_OVERFLOW[x.bits]), x * inf, result)

    def scale(self, x: Term, n: Term) -> Term:
        return (x.as_integer() + (n << x.fraction)).as_float()

    def power_of_two(self, n: Term, offset: int) -> Term:
        return ((n << n.fraction) + (n.one + (offset << n.fraction))).as_float()

    def normalise(self, x: Term) -> tuple[Term, Term]:
        return power.normalise(x)

    def finish_log(self, x: Term, is_finite: Term, result: Term) -> Term:
        result = choose(is_finite, result, x)
        return choose(x.equals(0.0), -inf, choose(x < 0.0, nan, result))

    def log1p_finite(self, x: Term, doubled: Term | None = None) -> Term:
        total = x + 1.0
        part = total - 1.0
        lost = (1.0 - (total - part)) + (x - part)
        exponent, mantissa = power.split_exponent(total)
        scale = (x.as_integer().constant(x.one) - (exponent << x.fraction)).as_float()
        correction = choose(x < 2.0**60, lost * scale, 0.0)
        number = power.to_float(exponent)
        if doubled is not None:
            number = choose(doubled, number + 1.0, number)
        return self.log_sum(number, (mantissa - 1.0) + correction)

    def multiply_add(self, a: Term, b: Term, c: float) -> Term:
        return fma(a, b, c)

    def is_finite(self, x: Term) -> Term:
        return x < inf

    def unless_nan(self, x: Term, result: Term) -> Term:
        return result

    def nan_beyond_one(self, y: Term, result: Term) -> Term:
        return result

    def reduce_angle(self, x: Term) -> tuple[Term, Term | None, Term]:
        return trigonometry.reduce_angle(x)

    def negate_in_quadrants(self, x: Term, quadrant: Term) -> Term:
        return (x.as_integer() ^ ((quadrant & 2) << x.bits - 2)).as_float()

    def tan(self, x: Term) -> Term:
        return super().tan(x.widen()).narrow() if x.bits == 32 else super().tan(x)

    def power(self, x: Term, y: Term) -> Term:
        return power.power(x, y, self.exp)


_LLVM = LlvmElementary()


def apply_elementary(builder: Builder, name: str, *values: Value) -> Value:
    """Apply a function of `numerics.elementary.ELEMENTARY`."""
    result: Term = getattr(_LLVM, name)(*(Term(builder, value) for value in values))
    return result.value
