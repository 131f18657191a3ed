"""LLVM IR of x^y: float32 through float64, float64 with a logarithm of two numbers."""

from __future__ import annotations

from collections.abc import Callable
from math import inf, nan

from weft.backends.llvm import assembly as ir
from weft.backends.llvm.terms import Term
from weft.backends.numerics.coefficients import EXP2_WIDE, LN2, LOG_TAIL, LOG_WIDE
from weft.backends.numerics.elementary import LOG2_E
from weft.backends.numerics.terms import absolute, at_least, at_most, choose, fma, polynomial, square_root, truncate

_SMALLEST_NORMAL = {32: 2.0**-126, 64: 2.0**-1022}
_HALF_ROOT_BITS = {32: 0x3F3504F3, 64: 0x3FE6A09E667F3BCD}  # of sqrt(1/2)


def power(x: Term, y: Term, exp: Callable[[Term, Term], Term]) -> Term:
    """x^y, where `exp` takes an argument and a small correction to it."""
    match _find_constant(y):
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
        x, y = x.widen(), y.widen()
        return _finish_power(x, y, _power_wide(absolute(x), y)).narrow()
    return _finish_power(x, y, _power_accurate(absolute(x), y, exp))


def _root(x: Term) -> Term:
    """x^0.5, which unlike the square root is 0 for -0 and infinite for -infinity."""
    return choose(x.equals(-inf), inf, square_root(x) + 0.0)


def _find_constant(x: Term) -> float | None:
    """Return the number that all lanes of a constant have; None if they differ or it is not constant."""
    if not isinstance(x.value, ir.Constant) or x.value.constant is None:
        return None
    numbers = x.value.constant if isinstance(x.value.type, ir.VectorType) else [x.value.constant]
    values = {number.constant if isinstance(number, ir.Constant) else number for number in numbers}
    number = values.pop()
    return float(number) if not values and isinstance(number, (int, float)) else None


def _power_wide(x: Term, y: Term) -> Term:
    """x^y for x >= 0, where both are float32 numbers held as float64: 2^-28 is accurate enough."""
    exponent, mantissa = split_exponent(x)
    s = (mantissa - 1.0) / (mantissa + 1.0)
    z = s * s
    log_mantissa = s * fma(z, polynomial(z, LOG_WIDE[64]), 2.0)
    logarithm = _finish_log(x, fma(log_mantissa, LOG2_E, to_float(exponent)))
    product = y * logarithm
    bounded = at_most(at_least(product, -300.0), 300.0)
    shifted = bounded + x.magic
    scaled = polynomial(bounded - (shifted - x.magic), EXP2_WIDE[64]).as_integer()
    result = (scaled + (shifted.as_integer() << x.fraction)).as_float()
    return choose(product.equals(product), result, product)


def _power_accurate(x: Term, y: Term, exp: Callable[[Term, Term], Term]) -> Term:
    """x^y for x >= 0 in float64."""
    high, low = _log_pair(x)
    high = _finish_log(x, high)
    product = y * high
    rest = fma(y, high, -product) + y * low
    return exp(product, choose(absolute(product) < 800.0, rest, 0.0))


def _finish_log(x: Term, logarithm: Term) -> Term:
    """Complete the logarithm of finite x > 0 for x >= 0."""
    return choose(x.equals(0.0), -inf, choose(x < inf, logarithm, x))


def _log_pair(x: Term) -> tuple[Term, Term]:
    """The logarithm as a sum of two float64 numbers, to some 64 bits: 2s + s z (2/3 + z T(z)), z = s²."""
    exponent, mantissa = normalise(x)
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
    cube, cube_low = _multiply(z, z_low, factor, factor_low)
    cube, cube_low = _multiply(s, s_low, cube, cube_low)
    ln2, ln2_low = LN2[64]
    base = exponent * ln2
    base_low = fma(exponent, ln2, -base) + exponent * ln2_low
    first, first_low = _add(base, s + s)
    second, second_low = _add(first, cube)
    return _add(second, first_low + second_low + (base_low + (s_low + s_low) + cube_low))


def _multiply(a: Term, a_low: Term, b: Term, b_low: Term) -> tuple[Term, Term]:
    """Multiply two numbers that are sums of two floats each; the result is such a sum."""
    high = a * b
    return high, fma(a, b, -high) + (a * b_low + a_low * b)


def _add(a: Term, b: Term) -> tuple[Term, Term]:
    """a + b and its rounding error, for |a| >= |b| or a == 0."""
    high = a + b
    return high, (a - high) + b


def _finish_power(x: Term, y: Term, magnitude: Term) -> Term:
    """Complete |x|^y with the signs and special cases of C99's pow."""
    size = absolute(x)
    is_integer = truncate(y).equals(y)
    half = y * 0.5
    odd = is_integer & ~truncate(half).equals(half)
    magnitude = choose(size.equals(1.0) & absolute(y).equals(inf), 1.0, magnitude)
    result = choose((x.as_integer() < 0) & odd, -magnitude, magnitude)
    result = choose((x < 0.0) & (size < inf) & ~is_integer, nan, result)
    return choose(x.equals(1.0) | y.equals(0.0), 1.0, result)


# -- the exponent and the mantissa of a number -----------------------------------------------------------------------


def normalise(x: Term) -> tuple[Term, Term]:
    """(e, m) with x == 2^e m and m within a factor sqrt 2 of 1; e is a float. Any finite x > 0."""
    tiny = x < _SMALLEST_NORMAL[x.bits]
    lift = 64
    exponent, mantissa = split_exponent(choose(tiny, x * 2.0**lift, x))
    number = to_float(exponent)
    return choose(tiny, number - lift, number), mantissa


def split_exponent(x: Term) -> tuple[Term, Term]:
    """(e, m) like `normalise`, with an integer e, for a normal x."""
    bits = x.as_integer()
    exponent = (bits - _HALF_ROOT_BITS[x.bits]) >> x.fraction
    return exponent, (bits - (exponent << x.fraction)).as_float()


def to_float(number: Term) -> Term:
    """Convert a small integer to a float."""
    magic = number.as_float().magic
    return (number + number.as_float().constant(magic).as_integer()).as_float() - magic
