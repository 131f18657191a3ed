"""sin, cos, tan and their inverses as vector polynomials.

Arguments are reduced by a few subtractions; a vector with a lane too large for that takes a detour through
`weft.reduce`, a function of the same module that multiplies by enough bits of 1 / pi.
"""

from __future__ import annotations

import itertools
from math import pi
from typing import Any

from weft.backends.llvm import assembly as ir
from weft.backends.llvm.terms import (
    Term,
    absolute,
    any_lane,
    choose,
    fma,
    odd_polynomial,
    polynomial,
    square_root,
    with_sign,
)
from weft.backends.llvm.types import INT32, INT64
from weft.backends.numerics.coefficients import ASIN, ATAN, COS, HALF_PI, HALF_PI_PARTS, INVERSE_PI, SIN

# beyond it, the number of quarter turns is too long for exact products with the first of HALF_PI_PARTS
_LARGEST = {32: 12000.0, 64: 3000000.0}
_ASIN_MIDDLE = 0.6
_INT128 = ir.IntType(128)
_WORDS = "weft.inverse_pi"
_REDUCE = "weft.reduce"


def sin(x: Term) -> Term:
    sine, cosine, quadrant = _near(x)
    return _flip(choose(quadrant.is_odd(), cosine, sine), quadrant)


def cos(x: Term) -> Term:
    sine, cosine, quadrant = _near(x)
    return _flip(choose(quadrant.is_odd(), sine, cosine), quadrant + 1)


def tan(x: Term) -> Term:
    if x.bits == 32:
        return tan(x.widened()).narrowed()
    sine, cosine, quadrant = _near(x)
    odd = quadrant.is_odd()
    return choose(odd, -cosine, sine) / choose(odd, sine, cosine)


def _near(x: Term) -> tuple[Term, Term, Term]:
    """The sine and cosine of what is left of x after a number of quarter turns, and that number."""
    rest, low, quadrant = _reduce(x)
    z = rest * rest
    sine = rest + fma(rest * z, polynomial(z, SIN[x.bits]), low)
    cosine = fma(z * z, polynomial(z, COS[x.bits]), fma(z, -0.5, 1.0))
    return with_sign(sine, rest), cosine, quadrant


def _flip(x: Term, quadrant: Term) -> Term:
    """Negated in the quadrants 2 and 3."""
    return (x.as_integer() ^ ((quadrant & 2) << x.bits - 2)).as_float()


def asin(x: Term) -> Term:
    y = absolute(x)
    small = y < _ASIN_MIDDLE
    value = _asin_small(y, small)
    high, low = HALF_PI[x.bits]
    return with_sign(choose(small, value, high - (value + value - low)), x)


def acos(x: Term) -> Term:
    y = absolute(x)
    small = y < _ASIN_MIDDLE
    value = _asin_small(y, small)
    high, low = HALF_PI[x.bits]
    middle = high - (with_sign(value, x) - low)
    double = value + value
    outer = choose(x < 0.0, 2.0 * high - (double - 2.0 * low), double)
    return choose(small, middle, outer)


def _asin_small(y: Term, small: Term) -> Term:
    """asin(y), or asin(sqrt((1 - y) / 2)) where y is not small; NaN beyond 1."""
    z = choose(small, y * y, fma(y, -0.5, 0.5))
    s = choose(small, y, square_root(z))
    return fma(s * z, polynomial(z, ASIN[y.bits]), s)


def atan(x: Term) -> Term:
    y = absolute(x)
    large = y > 1.0
    value = odd_polynomial(choose(large, 1.0 / y, y), ATAN[x.bits])
    high, low = HALF_PI[x.bits]
    return with_sign(choose(large, high - (value - low), value), x)


# -- reduction -------------------------------------------------------------------------------------------------------


def _reduce(x: Term) -> tuple[Term, Term, Term]:
    """(r, s, n) with x == n pi / 2 + r + s, |r| <= pi / 4 and a tiny s; only the last bits of the integer n count."""
    builder = x.builder
    shifted = fma(x, 2.0 / pi, x.magic)
    count = shifted - x.magic
    first, second, third, fourth = HALF_PI_PARTS[x.bits]
    exact = fma(count, -second, fma(count, -first, x))  # both parts are so short that nothing is rounded
    rest, low = fma(count, -third, exact), count * -fourth
    quadrant = shifted.as_integer()
    large = absolute(x) > _LARGEST[x.bits]
    start = builder.block
    with builder.if_then(any_lane(large).value, unlikely=True):
        far_rest, far_quadrant = _reduce_lanes(choose(large, x, _LARGEST[x.bits]))
        far = choose(large, far_rest, rest), choose(large, 0.0, low), choose(large, far_quadrant, quadrant)
        end = builder.block
    merged = []
    for here, there in zip((rest, low, quadrant), far):
        phi = builder.phi(here.value.type)
        phi.add_incoming(here.value, start)
        phi.add_incoming(there.value, end)
        merged.append(Term(builder, phi))
    return merged[0], merged[1], merged[2]


def _reduce_lanes(x: Term) -> tuple[Term, Term]:
    """`weft.reduce` for each lane in turn."""
    kind, builder = x.value.type, x.builder
    if not isinstance(kind, ir.VectorType):
        return _reduce_lane(x)
    integers = x.as_integer().value.type
    entry = builder.block
    body, done = builder.append_basic_block("lane"), builder.append_basic_block("lanes.done")
    builder.branch(body)
    builder.position_at_end(body)
    lane, rests, quadrants = builder.phi(INT32), builder.phi(kind), builder.phi(integers)
    rest, quadrant = _reduce_lane(Term(builder, builder.extract_element(x.value, lane)))
    next_rests = builder.insert_element(rests, rest.value, lane)
    next_quadrants = builder.insert_element(quadrants, quadrant.value, lane)
    following = builder.add(lane, INT32(1))
    for phi, first, then in (
        (lane, INT32(0), following),
        (rests, ir.Constant(kind, None), next_rests),
        (quadrants, ir.Constant(integers, None), next_quadrants),
    ):
        phi.add_incoming(first, entry)
        phi.add_incoming(then, body)
    builder.cbranch(builder.icmp_unsigned("<", following, INT32(kind.count)), body, done)
    builder.position_at_end(done)
    return Term(builder, next_rests), Term(builder, next_quadrants)


def _reduce_lane(x: Term) -> tuple[Term, Term]:
    builder = x.builder
    wide = x if x.bits == 64 else x.widened()
    pair = builder.call(_reduction(builder.module), [wide.value])
    rest, quadrant = (Term(builder, builder.extract_value(pair, number)) for number in (0, 1))
    if x.bits == 64:
        return rest, quadrant
    return rest.narrowed(), Term(builder, builder.trunc(quadrant.value, INT32))


def _reduction(module: Any) -> Any:
    """`{double rest, i64 quadrant} weft.reduce(double x)`, for |x| of at least 2^12."""
    if _REDUCE in module.globals:
        return module.globals[_REDUCE]
    result = ir.LiteralStructType([ir.DoubleType(), INT64])
    function = ir.Function(module, ir.FunctionType(result, [ir.DoubleType()]), _REDUCE)
    function.linkage = "internal"
    for attribute in ("noinline", "nounwind", "cold"):
        function.attributes.add(attribute)
    builder = ir.IRBuilder(function.append_basic_block())
    x = Term(builder, function.args[0])
    turns = _turns(x)
    quadrant = builder.trunc((turns + (1 << 125)).logical_shift_right(126).value, INT64)
    rest = _to_radians((turns << 2) >> 2) + (x - x)  # NaN for infinity
    pair = builder.insert_value(ir.Constant(result, ir.Undefined), rest.value, 0)
    builder.ret(builder.insert_value(pair, quadrant, 1))
    return function


def _turns(x: Term) -> Term:
    """x / (2 pi) modulo 1, in units of 2^-128."""
    builder = x.builder
    bits = x.as_integer()
    exponent = bits.logical_shift_right(52) & 0x7FF
    position = exponent - (1075 - 64)  # in the words, of the bit that 2^-exponent makes the unit
    mantissa = (bits & ((1 << 52) - 1)) | (1 << 52)
    first, shift = position.logical_shift_right(6), position & 63
    table = _words(builder.module)
    words = [
        builder.load(builder.gep(table, [INT64(0), (first + number).value], source_etype=table.value_type), typ=INT64)
        for number in range(4)
    ]
    signature = ir.FunctionType(INT64, [INT64] * 3)
    name = "llvm.fshl.i64"
    module = builder.module
    funnel = module.globals[name] if name in module.globals else ir.Function(module, signature, name)
    high, middle, low = (Term(builder, builder.call(funnel, [a, b, shift.value])) for a, b in itertools.pairwise(words))
    wide = _to_int128(mantissa)
    lower = (wide * _to_int128(low)).logical_shift_right(64) + wide * _to_int128(middle)
    total = lower + (_to_int128(mantissa * high) << 64)
    return choose(x < 0.0, -total, total)


def _words(module: Any) -> Any:
    if _WORDS in module.globals:
        return module.globals[_WORDS]
    kind = ir.ArrayType(INT64, len(INVERSE_PI))
    return ir.GlobalVariable(module, kind, _WORDS, ir.Constant(kind, list(INVERSE_PI)))


def _to_int128(number: Term) -> Term:
    return Term(number.builder, number.builder.zext(number.value, _INT128))


def _to_radians(turns: Term) -> Term:
    """Signed turns, in units of 2^-128, as an angle: in three exact pieces, so that none of its bits is lost."""
    builder = turns.builder
    upper = Term(builder, builder.trunc((turns >> 64).value, INT64))
    lower = Term(builder, builder.trunc(turns.value, INT64))
    double = ir.DoubleType()
    first = Term(builder, builder.sitofp((upper & ~0xFFFFFFFF).value, double))
    second = Term(builder, builder.uitofp((upper & 0xFFFFFFFF).value, double))
    third = Term(builder, builder.uitofp(lower.value, double)) * 2.0**-64
    tail = second + third
    number = first + tail
    lost = (first - number) + tail
    high, low = (part * 2.0**-62 for part in HALF_PI[64])
    return fma(number, high, fma(number, low, lost * high))
