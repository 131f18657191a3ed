"""Exponentials, logarithms, hyperbolic functions, erf and power as vector polynomials."""

from __future__ import annotations

from math import inf, nan

from weft.backends.llvm import assembly as ir
from weft.backends.llvm.terms import (
    Term,
    absolute,
    at_least,
    at_most,
    call,
    choose,
    fma,
    odd_polynomial,
    polynomial,
    square_root,
    with_sign,
)
from weft.backends.numerics.coefficients import (
    ACOSH,
    ASINH,
    ATANH,
    ERF,
    EXP,
    EXP2_WIDE,
    EXPM1,
    LN2,
    LOG,
    LOG_TAIL,
    LOG_WIDE,
    SINH,
    TANH,
)

LOG2_E = 1.4426950408889634
# by the width of the float: where exp overflows, where its result may be subnormal, where it is 0 for certain
_EXP_OVERFLOW = {32: 88.72283935546875, 64: 709.7827128933841}
_EXP_SMALL = {32: -80.0, 64: -700.0}
_EXP_ZERO = {32: -104.0, 64: -746.0}
_SINH_OVERFLOW = {32: 89.5, 64: 710.5}
_TANH_ONE = {32: 9.1, 64: 19.2}
_ERF_ONE = {32: 3.93, 64: 5.93}
_SMALLEST_NORMAL = {32: 2.0**-126, 64: 2.0**-1022}
_HALF_ROOT_BITS = {32: 0x3F3504F3, 64: 0x3FE6A09E667F3BCD}  # of sqrt(1/2)


# -- exponentials ----------------------------------------------------------------------------------------------------


def exp(x: Term, low: Term | None = None) -> Term:
    """e to the power x (+ low, a small correction)."""
    whole, rest = _reduce(at_least(x, _EXP_ZERO[x.bits]))
    if low is not None:
        rest = rest + low
    scaled = polynomial(rest, EXP[x.bits]).as_integer() + (whole << x.fraction)
    lift = 64  # keeps what will be subnormal in the normal range
    small = (scaled + (lift << x.fraction)).as_float() * 2.0**-lift
    result = choose(x < _EXP_SMALL[x.bits], small, scaled.as_float())
    return choose(x.is_not_below(_EXP_OVERFLOW[x.bits]), x * inf, result)


def _reduce(x: Term, accurate: bool = True) -> tuple[Term, Term]:
    """(n, r) with x == n ln 2 + r and |r| <= ln 2 / 2; n in the last bits of an integer."""
    shifted = fma(x, LOG2_E, x.magic)
    count = shifted - x.magic
    high, low = LN2[x.bits]
    rest = fma(count, -high, x)
    return shifted.as_integer(), fma(count, -low, rest) if accurate else rest


def _expm1_parts(x: Term, exponent: int = 0, accurate: bool = True) -> tuple[Term, Term]:
    """(p, s) with exp(x) == s (1 + p) 2^-exponent and s a power of two; x is not so large that s overflows."""
    whole, rest = _reduce(x, accurate)
    scale = ((whole << x.fraction) + (x.one + (exponent << x.fraction))).as_float()
    return fma(rest * rest, polynomial(rest, EXPM1[x.bits]), rest), scale


def sinh(x: Term) -> Term:
    quarter = _quarter_exp(absolute(x))
    large = (quarter - 0.0625 / quarter) * 2.0
    return choose(absolute(x) < 1.0, odd_polynomial(x, SINH[x.bits]), with_sign(large, x))


def cosh(x: Term) -> Term:
    quarter = _quarter_exp(absolute(x))
    return (quarter + 0.0625 / quarter) * 2.0


def _quarter_exp(y: Term) -> Term:
    """exp(y) / 4 for y >= 0, or so large a number that twice the result overflows."""
    p, scale = _expm1_parts(at_most(y, _SINH_OVERFLOW[y.bits]), -2)
    return fma(scale, p, scale)


def tanh(x: Term) -> Term:
    """1 - 2 / (exp(2|x|) + 1), but for a small x."""
    y = absolute(x)
    bounded = at_most(y, _TANH_ONE[x.bits])
    whole, rest = _reduce(bounded + bounded, accurate=False)
    grown = (polynomial(rest, EXP[x.bits]).as_integer() + (whole << x.fraction)).as_float()
    large = fma(1.0 / (grown + 1.0), -2.0, 1.0)
    return with_sign(choose(y >= 0.625, large, odd_polynomial(y, TANH[x.bits])), x)  # NaN comes out of the latter


def erf(x: Term) -> Term:
    """1 - exp(log(erfc |x|)), where the logarithm is a polynomial in -|x|."""
    negative = at_least(-absolute(x), -_ERF_ONE[x.bits])
    first, *others = (coefficient * (-1) ** degree for degree, coefficient in enumerate(ERF[x.bits]))
    logarithm = fma(negative, polynomial(negative, (first - 1.0, *others)), negative)
    p, scale = _expm1_parts(logarithm, accurate=False)
    return with_sign(fma(scale, p, scale - 1.0), x)


# -- logarithms ------------------------------------------------------------------------------------------------------


def log(x: Term) -> Term:
    exponent, mantissa = _normalise(x)
    result = choose(x < inf, _log_sum(exponent, mantissa - 1.0), x)
    return choose(x.equals(0.0), -inf, choose(x < 0.0, nan, result))


def _normalise(x: Term) -> tuple[Term, Term]:
    """(e, m) with x == 2^e m and m within a factor sqrt 2 of 1; e is a float. Any finite x > 0."""
    tiny = x < _SMALLEST_NORMAL[x.bits]
    lift = 64
    exponent, mantissa = _split(choose(tiny, x * 2.0**lift, x))
    number = _to_float(exponent)
    return choose(tiny, number - lift, number), mantissa


def _split(x: Term) -> tuple[Term, Term]:
    """(e, m) as above, with an integer e, for a normal x."""
    bits = x.as_integer()
    exponent = (bits - _HALF_ROOT_BITS[x.bits]) >> x.fraction
    return exponent, (bits - (exponent << x.fraction)).as_float()


def _to_float(number: Term) -> Term:
    """A small integer as a float."""
    magic = number.as_float().magic
    return (number + number.as_float().constant(magic).as_integer()).as_float() - magic


def _log_sum(exponent: Term, f: Term) -> Term:
    """e ln 2 + log(1 + f), with log(1 + f) = f - s (f - R) and s = f / (2 + f)."""
    s = f / (f + 2.0)
    z = s * s
    tail = fma(-z, polynomial(z, LOG[f.bits]), f)
    high, low = LN2[f.bits]
    return fma(exponent, high, fma(exponent, low, fma(-s, tail, f)))


def log1p(x: Term) -> Term:
    result = choose(x < inf, with_sign(_log1p_finite(x), x), x)
    return choose(x.equals(-1.0), -inf, choose(x < -1.0, nan, result))


def _log1p_finite(x: Term, doubled: Term | None = None) -> Term:
    """log(1 + x), plus log 2 where the mask says so."""
    total = x + 1.0
    part = total - 1.0
    lost = (1.0 - (total - part)) + (x - part)
    exponent, mantissa = _split(total)
    scale = (x.as_integer().constant(x.one) - (exponent << x.fraction)).as_float()
    correction = choose(x < 2.0**60, lost * scale, 0.0)
    number = _to_float(exponent)
    return _log_sum(number if doubled is None else choose(doubled, number + 1.0, number), (mantissa - 1.0) + correction)


def asinh(x: Term) -> Term:
    y = absolute(x)
    large = y > 2.0 ** (x.fraction + 2)
    grown = y + y * y / (square_root(fma(y, y, 1.0)) + 1.0)
    result = _log1p_finite(choose(large, y, grown), large)
    result = choose(y < 0.7, odd_polynomial(y, ASINH[x.bits]), choose(y < inf, result, y))
    return with_sign(result, x)


def acosh(x: Term) -> Term:
    y = x - 1.0
    large = x > 2.0 ** (x.fraction + 2)
    result = _log1p_finite(choose(large, x, y + square_root(fma(y, y, y + y))), large)
    root = square_root(y + y)
    small = fma(root * y, polynomial(y, ACOSH[x.bits]), root)
    return choose(x < 1.0, nan, choose(x < 1.5, small, choose(x < inf, result, x)))


def atanh(x: Term) -> Term:
    y = absolute(x)
    large = choose(y < 1.0, _log1p_finite((y + y) / (1.0 - y)) * 0.5, choose(y.equals(1.0), x.constant(inf), nan))
    return with_sign(choose(y < 0.5, odd_polynomial(y, ATANH[x.bits]), large), x)


# -- power -----------------------------------------------------------------------------------------------------------


def power(x: Term, y: Term) -> Term:
    match _constant(y):
        case 1.0:
            return x
        case 2.0:
            return x * x
        case 3.0:
            return x * x * x
        case -1.0:
            return 1.0 / x
        case 0.5:
            return _root(x)
        case -0.5:
            return 1.0 / _root(x)
    if x.bits == 32:
        x, y = x.widened(), y.widened()
        return _power_cases(x, y, _power_wide(absolute(x), y)).narrowed()
    return _power_cases(x, y, _power_accurate(absolute(x), y))


def _root(x: Term) -> Term:
    """x^0.5, which unlike the square root is 0 for -0 and infinite for -infinity."""
    return choose(x.equals(-inf), inf, square_root(x) + 0.0)


def _constant(x: Term) -> float | None:
    """The number that all of a constant's lanes are."""
    if not isinstance(x.value, ir.Constant) or x.value.constant is None:
        return None
    numbers = x.value.constant if isinstance(x.value.type, ir.VectorType) else [x.value.constant]
    values = {number.constant if isinstance(number, ir.Constant) else number for number in numbers}
    number = values.pop()
    return float(number) if not values and isinstance(number, (int, float)) else None


def _power_wide(x: Term, y: Term) -> Term:
    """x^y for x >= 0, where both are float32 numbers held as float64: 2^-28 is accurate enough."""
    exponent, mantissa = _split(x)
    s = (mantissa - 1.0) / (mantissa + 1.0)
    z = s * s
    log_mantissa = s * fma(z, polynomial(z, LOG_WIDE[64]), 2.0)
    logarithm = _log_cases(x, fma(log_mantissa, LOG2_E, _to_float(exponent)))
    product = y * logarithm
    bounded = at_most(at_least(product, -300.0), 300.0)
    shifted = bounded + x.magic
    scaled = polynomial(bounded - (shifted - x.magic), EXP2_WIDE[64]).as_integer()
    result = (scaled + (shifted.as_integer() << x.fraction)).as_float()
    return choose(product.equals(product), result, product)


def _power_accurate(x: Term, y: Term) -> Term:
    """x^y for x >= 0 in float64."""
    high, low = _log_pair(x)
    high = _log_cases(x, high)
    product = y * high
    rest = fma(y, high, -product) + y * low
    return exp(product, choose(absolute(product) < 800.0, rest, 0.0))


def _log_cases(x: Term, logarithm: Term) -> Term:
    """The logarithm of x >= 0, given what it is where x is finite and not 0."""
    return choose(x.equals(0.0), -inf, choose(x < inf, logarithm, x))


def _log_pair(x: Term) -> tuple[Term, Term]:
    """The logarithm as a sum of two float64 numbers, to some 64 bits: 2s + s z (2/3 + z T(z)), z = s²."""
    exponent, mantissa = _normalise(x)
    divisor = mantissa + 1.0
    f = mantissa - 1.0
    s = f / divisor
    s_low = (fma(-s, divisor, f) - s * (mantissa - (divisor - 1.0))) / divisor
    z = s * s
    z_low = fma(s, s, -z) + (s + s) * s_low
    third, third_low = 2 / 3, 2.0**-53 / 3
    tail = z * polynomial(z, LOG_TAIL[64])
    factor = tail + third
    factor_low = (third - factor) + tail + third_low
    cube, cube_low = _product(z, z_low, factor, factor_low)
    cube, cube_low = _product(s, s_low, cube, cube_low)
    ln2, ln2_low = LN2[64]
    base = exponent * ln2
    base_low = fma(exponent, ln2, -base) + exponent * ln2_low
    first, first_low = _sum(base, s + s)
    second, second_low = _sum(first, cube)
    return _sum(second, first_low + second_low + (base_low + (s_low + s_low) + cube_low))


def _product(a: Term, a_low: Term, b: Term, b_low: Term) -> tuple[Term, Term]:
    high = a * b
    return high, fma(a, b, -high) + (a * b_low + a_low * b)


def _sum(a: Term, b: Term) -> tuple[Term, Term]:
    """a + b and what rounding took from it, for |a| >= |b| or a == 0."""
    high = a + b
    return high, (a - high) + b


def _power_cases(x: Term, y: Term, magnitude: Term) -> Term:
    """The signs and special cases of C99's pow, given |x|^y."""
    size = absolute(x)
    whole = call("llvm.trunc", y).equals(y)
    half = y * 0.5
    odd = whole & ~call("llvm.trunc", half).equals(half)
    magnitude = choose(size.equals(1.0) & absolute(y).equals(inf), 1.0, magnitude)
    result = choose((x.as_integer() < 0) & odd, -magnitude, magnitude)
    result = choose((x < 0.0) & (size < inf) & ~whole, nan, result)
    return choose(x.equals(1.0) | y.equals(0.0), 1.0, result)
