"""Elementary functions, each defined once for all languages, for float32 and float64.

Each language subclasses `Elementary` and implements the steps that differ. `power` is defined by each language, because
its extra digits come from fma and float64 in LLVM and from split numbers in WGSL. float32 results are
within 2 ulp of the true value and float64 results within 4, over the whole range; special values follow C99.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from math import inf, nan
from typing import ClassVar, Generic

from weft.backends.numerics.coefficients import (
    ACOSH,
    ASIN,
    ASINH,
    ATAN,
    ATANH,
    COS,
    ERF,
    EXP,
    EXPM1,
    HALF_PI,
    LOG,
    SIN,
    SINH,
    TANH,
)
from weft.backends.numerics.terms import (
    T,
    absolute,
    at_least,
    at_most,
    choose,
    fma,
    is_odd,
    let,
    odd_polynomial,
    polynomial,
    square_root,
    with_sign,
)

ELEMENTARY = frozenset("exp log log1p sinh cosh tanh asinh acosh atanh erf power sin cos tan asin acos atan".split())
LOG2_E = 1.4426950408889634
EXP_ZERO = {32: -104.0, 64: -746.0}  # exp is 0 at and below these arguments
LARGEST_ANGLE = {32: 12000.0, 64: 3000000.0}  # beyond it, products with the parts of pi / 2 are inexact
# by the width of the float: where sinh overflows, and where tanh and erf are 1
_SINH_OVERFLOW = {32: 89.5, 64: 710.5}
_TANH_ONE = {32: 9.1, 64: 19.2}
_ERF_ONE = {32: 3.93, 64: 5.93}
_ASIN_MIDDLE = 0.6


class Elementary(ABC, Generic[T]):
    ln2: ClassVar[Mapping[int, tuple[float, ...]]]  # by the width of the float: the high part and the rest

    # -- steps that each language implements -------------------------------------------------------------------------

    @abstractmethod
    def clamp_exponent(self, x: T) -> T:
        """Bound the argument of exp to where `scale_exp` is right."""

    @abstractmethod
    def split_by_ln2(self, x: T, accurate: bool = True) -> tuple[T, T]:
        """(n, r) with x == n ln 2 + r and |r| <= ln 2 / 2; n has the form that the next three methods take."""

    @abstractmethod
    def scale_exp(self, x: T, mantissa: T, n: T) -> T:
        """exp(x), given as mantissa 2^n, for any x: also where it is 0, subnormal, infinite or NaN."""

    @abstractmethod
    def scale(self, x: T, n: T) -> T:
        """x 2^n; neither x nor the result is subnormal."""

    @abstractmethod
    def power_of_two(self, n: T, offset: int) -> T:
        """2^(n + offset)."""

    @abstractmethod
    def normalise(self, x: T) -> tuple[T, T]:
        """(e, m) with x == 2^e m and m within a factor sqrt 2 of 1; e is a float. Any finite x > 0."""

    @abstractmethod
    def finish_log(self, x: T, is_finite: T, result: T) -> T:
        """The logarithm of any x, given that of finite x > 0."""

    @abstractmethod
    def log1p_finite(self, x: T, doubled: T | None = None) -> T:
        """log(1 + x), plus log 2 where the mask holds; x is finite and larger than -1."""

    @abstractmethod
    def multiply_add(self, a: T, b: T, c: float) -> T:
        """a b + c, rounded once or twice, whichever is cheaper."""

    @abstractmethod
    def is_finite(self, x: T) -> T:
        """Whether x is a number less than infinity; unspecified for -infinity."""

    @abstractmethod
    def unless_nan(self, x: T, result: T) -> T:
        """The result, but NaN if x is NaN, for which compilers may have computed another result."""

    @abstractmethod
    def nan_beyond_one(self, y: T, result: T) -> T:
        """The result, but NaN where y > 1, because it was computed from the root of a negative number."""

    @abstractmethod
    def reduce_angle(self, x: T) -> tuple[T, T | None, T]:
        """(r, s, n) with x == n pi / 2 + r + s, |r| <= pi / 4 and a tiny s; only the last two bits of n count."""

    @abstractmethod
    def negate_in_quadrants(self, x: T, quadrant: T) -> T:
        """-x in the quadrants 2 and 3, modulo 4."""

    # -- exponentials ------------------------------------------------------------------------------------------------

    def exp(self, x: T, low: T | None = None) -> T:
        """e to the power x (+ low, a small correction)."""
        n, rest = self.split_by_ln2(self.clamp_exponent(x))
        if low is not None:
            rest = rest + low
        return self.scale_exp(x, polynomial(rest, EXP[x.bits]), n)

    def _expm1_parts(self, x: T, offset: int = 0, accurate: bool = True) -> tuple[T, T]:
        """(p, s) with exp(x) == s (1 + p) 2^-offset and s a power of two; x is not so large that s overflows."""
        n, rest = self.split_by_ln2(x, accurate)
        scale = let("scale", self.power_of_two(n, offset))
        return fma(rest * rest, polynomial(rest, EXPM1[x.bits]), rest), scale

    def _quarter_exp(self, y: T) -> T:
        """exp(y) / 4 for y >= 0; if that overflows when doubled, any number that does."""
        p, scale = self._expm1_parts(let("bounded", at_most(y, _SINH_OVERFLOW[y.bits])), -2)
        return let("quarter", self.unless_nan(y, fma(scale, p, scale)))

    def sinh(self, x: T) -> T:
        quarter = self._quarter_exp(absolute(x))
        large = let("large", (quarter - 0.0625 / quarter) * 2.0)
        return choose(absolute(x) < 1.0, odd_polynomial(x, SINH[x.bits]), with_sign(large, x))

    def cosh(self, x: T) -> T:
        quarter = self._quarter_exp(absolute(x))
        return (quarter + 0.0625 / quarter) * 2.0

    def tanh(self, x: T) -> T:
        """1 - 2 / (exp(2|x|) + 1), except for a small x."""
        y = let("y", absolute(x))
        bounded = let("bounded", at_most(y, _TANH_ONE[x.bits]))
        n, rest = self.split_by_ln2(let("doubled", bounded + bounded), accurate=False)
        grown = let("grown", self.scale(polynomial(rest, EXP[x.bits]), n))
        large = let("large", fma(1.0 / (grown + 1.0), -2.0, 1.0))
        result = choose(y >= 0.625, large, odd_polynomial(y, TANH[x.bits]))  # the polynomial gives NaN for NaN
        return self.unless_nan(x, with_sign(result, x))

    def erf(self, x: T) -> T:
        """1 - exp(log(erfc |x|)), where the logarithm is a polynomial in -|x|."""
        y = let("y", at_least(let("negative", -absolute(x)), -_ERF_ONE[x.bits]))
        first, *others = (coefficient * (-1) ** degree for degree, coefficient in enumerate(ERF[x.bits]))
        logarithm = let("logarithm", fma(y, polynomial(y, (first - 1.0, *others)), y))
        p, scale = self._expm1_parts(logarithm, accurate=False)
        return self.unless_nan(x, with_sign(fma(scale, p, scale - 1.0), x))

    # -- logarithms --------------------------------------------------------------------------------------------------

    def log(self, x: T) -> T:
        exponent, mantissa = self.normalise(x)
        is_finite = self.is_finite(x)
        return self.finish_log(x, is_finite, self.log_sum(exponent, let("f", mantissa - 1.0)))

    def log_sum(self, exponent: T, f: T) -> T:
        """e ln 2 + log(1 + f), with log(1 + f) = f - s (f - R) and s = f / (2 + f)."""
        s = let("s", f / (f + 2.0))
        z = let("z", s * s)
        tail = let("tail", fma(-z, polynomial(z, LOG[f.bits]), f))
        high, low = self.ln2[f.bits]
        return fma(exponent, high, fma(exponent, low, fma(-s, tail, f)))

    def log1p(self, x: T) -> T:
        result = let("result", choose(self.is_finite(x), with_sign(self.log1p_finite(x), x), x))
        return choose(x.equals(-1.0), -inf, choose(x < -1.0, nan, result))

    def asinh(self, x: T) -> T:
        y = let("y", absolute(x))
        large = let("large", y > 2.0 ** (x.fraction + 2))
        grown = y + y * y / (square_root(self.multiply_add(y, y, 1.0)) + 1.0)
        result = let("result", self.log1p_finite(choose(large, y, grown), large))
        result = choose(y < 0.7, odd_polynomial(y, ASINH[x.bits]), choose(self.is_finite(y), result, y))
        return with_sign(result, x)

    def acosh(self, x: T) -> T:
        y = let("y", x - 1.0)
        large = let("large", x > 2.0 ** (x.fraction + 2))
        grown = y + square_root(fma(y, y, y + y))
        result = let("result", self.log1p_finite(choose(large, x, grown), large))
        root = let("root", square_root(y + y))
        small = let("small", fma(root * y, polynomial(y, ACOSH[x.bits]), root))
        return choose(x < 1.0, nan, choose(x < 1.5, small, choose(self.is_finite(x), result, x)))

    def atanh(self, x: T) -> T:
        y = let("y", absolute(x))
        inside = y < 1.0
        logarithm = self.log1p_finite((y + y) / (1.0 - y)) * 0.5
        large = let("large", choose(inside, logarithm, choose(y.equals(1.0), x.constant(inf), nan)))
        return with_sign(choose(y < 0.5, odd_polynomial(y, ATANH[x.bits]), large), x)

    # -- angles ------------------------------------------------------------------------------------------------------

    def sin(self, x: T) -> T:
        sine, cosine, quadrant = self._near_angle(x)
        return self.negate_in_quadrants(choose(is_odd(quadrant), cosine, sine), quadrant)

    def cos(self, x: T) -> T:
        sine, cosine, quadrant = self._near_angle(x)
        return self.negate_in_quadrants(choose(is_odd(quadrant), sine, cosine), quadrant + 1)

    def tan(self, x: T) -> T:
        sine, cosine, quadrant = self._near_angle(x)
        odd = is_odd(quadrant)
        return choose(odd, -cosine, sine) / choose(odd, sine, cosine)

    def _near_angle(self, x: T) -> tuple[T, T, T]:
        """The sine and cosine of x modulo a quarter turn, and the number of quarter turns."""
        rest, low, quadrant = self.reduce_angle(x)
        z = let("z", rest * rest)
        odd = fma(rest * z, polynomial(z, SIN[x.bits]), rest if low is None else low)
        sine = odd if low is None else rest + odd
        cosine = let("cosine", fma(z * z, polynomial(z, COS[x.bits]), fma(z, -0.5, 1.0)))
        return let("sine", with_sign(sine, rest)), cosine, quadrant

    def asin(self, x: T) -> T:
        y = let("y", absolute(x))
        small = let("small", y < _ASIN_MIDDLE)
        value = self._asin_part(y, small)
        high, low = HALF_PI[x.bits]
        return with_sign(choose(small, value, high - (value + value - low)), x)

    def acos(self, x: T) -> T:
        y = let("y", absolute(x))
        small = let("small", y < _ASIN_MIDDLE)
        value = self._asin_part(y, small)
        high, low = HALF_PI[x.bits]
        middle = let("middle", high - (with_sign(value, x) - low))
        double = let("double", value + value)
        outer = choose(x < 0.0, 2.0 * high - (double - 2.0 * low), double)
        return choose(small, middle, outer)

    def _asin_part(self, y: T, small: T) -> T:
        """asin(y), or asin(sqrt((1 - y) / 2)) where y is not small; NaN beyond 1."""
        z = let("z", choose(small, y * y, fma(y, -0.5, 0.5)))
        s = let("s", choose(small, y, square_root(z)))
        return let("value", self.nan_beyond_one(y, fma(s * z, polynomial(z, ASIN[y.bits]), s)))

    def atan(self, x: T) -> T:
        y = let("y", absolute(x))
        large = let("large", y > 1.0)
        value = let("value", odd_polynomial(let("t", choose(large, 1.0 / y, y)), ATAN[x.bits]))
        high, low = HALF_PI[x.bits]
        return with_sign(choose(large, high - (value - low), value), x)
