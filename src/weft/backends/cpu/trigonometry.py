"""sin, cos, tan and their inverses as vector polynomials.

Arguments are reduced by three or four subtractions; a vector with a lane too large for that takes a detour through
`weft.reduce`, a function of the same module that multiplies by enough bits of 1 / pi.
"""

from __future__ import annotations

from math import pi
from typing import Any

from llvmlite import ir

from weft.backends.cpu.coefficients import ASIN, ATAN, COS_QUARTER, HALF_PI, INVERSE_PI, PI, SIN, SIN_QUARTER
from weft.backends.cpu.terms import Term, absolute, any_lane, choose, fma, polynomial, square_root, with_sign
from weft.backends.cpu.types import BIT, INT32, INT64

# beyond it, the number of half turns times PI's first part is not exact
_LARGEST = {32: 12000.0, 64: 3000000.0}
_ASIN_MIDDLE = 0.6
_INT128 = ir.IntType(128)
_WORDS = "weft.inverse_pi"
_REDUCE = "weft.reduce"


def sin(x: Term) -> Term:
    return _sine(*_reduce(x, 0.0, 1.0))


def cos(x: Term) -> Term:
    return _sine(*_reduce(x, 0.5, 1.0))


def _sine(rest: Term, flip: Term) -> Term:
    z = rest * rest
    value = fma(rest * z, polynomial(z, SIN[rest.bits]), rest)
    return (with_sign(value, rest).as_integer() ^ flip).as_float()


def tan(x: Term) -> Term:
    if x.bits == 32:
        return tan(x.widened()).narrowed()
    rest, flip = _reduce(x, 0.0, 0.5)
    z = rest * rest
    sine = fma(rest * z, polynomial(z, SIN_QUARTER[64]), rest)
    cosine = fma(z * z, polynomial(z, COS_QUARTER[64]), fma(z, -0.5, 1.0))
    odd = flip < 0
    return choose(x.equals(0.0), x, choose(odd, -cosine, sine) / choose(odd, sine, cosine))


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
    s = choose(large, 1.0 / y, y)
    z = s * s
    value = fma(s * z, polynomial(z, ATAN[x.bits]), s)
    high, low = HALF_PI[x.bits]
    return with_sign(choose(large, high - (value - low), value), x)


# -- reduction -------------------------------------------------------------------------------------------------------


def _reduce(x: Term, before: float, step: float) -> tuple[Term, Term]:
    """(r, flip) with x + before pi == n step pi + r and |r| <= step pi / 2; the sign bit of flip is set for odd n."""
    builder = x.builder
    shifted = fma(x, 1.0 / (step * pi), before / step) + x.magic
    count = shifted - x.magic - before / step
    rest = x
    for part in PI[x.bits]:
        rest = fma(count, -part * step, rest)
    flip = shifted.as_integer() << x.bits - 1
    large = absolute(x) > _LARGEST[x.bits]
    start = builder.block
    with builder.if_then(any_lane(large).value, likely=False):
        exact = choose(large, x, _LARGEST[x.bits])
        far_rest, far_flip = _reduce_lanes(exact, before, step)
        far_rest, far_flip = choose(large, far_rest, rest), choose(large, far_flip, flip)
        end = builder.block
    merged = []
    for near, far in ((rest, far_rest), (flip, far_flip)):
        phi = builder.phi(near.value.type)
        phi.add_incoming(near.value, start)
        phi.add_incoming(far.value, end)
        merged.append(Term(builder, phi))
    return merged[0], merged[1]


def _reduce_lanes(x: Term, before: float, step: float) -> tuple[Term, Term]:
    """`weft.reduce` for each lane in turn."""
    kind, builder = x.value.type, x.builder
    flips = x.as_integer().value.type
    if not isinstance(kind, ir.VectorType):
        return _reduce_lane(x, before, step)
    entry = builder.block
    body, done = builder.append_basic_block("lane"), builder.append_basic_block("lanes.done")
    builder.branch(body)
    builder.position_at_end(body)
    lane, rests, signs = builder.phi(INT32), builder.phi(kind), builder.phi(flips)
    rest, flip = _reduce_lane(Term(builder, builder.extract_element(x.value, lane)), before, step)
    next_rests = builder.insert_element(rests, rest.value, lane)
    next_signs = builder.insert_element(signs, flip.value, lane)
    following = builder.add(lane, INT32(1))
    for phi, first, then in (
        (lane, INT32(0), following),
        (rests, ir.Constant(kind, None), next_rests),
        (signs, ir.Constant(flips, None), next_signs),
    ):
        phi.add_incoming(first, entry)
        phi.add_incoming(then, body)
    builder.cbranch(builder.icmp_unsigned("<", following, INT32(kind.count)), body, done)
    builder.position_at_end(done)
    return Term(builder, next_rests), Term(builder, next_signs)


def _reduce_lane(x: Term, before: float, step: float) -> tuple[Term, Term]:
    builder = x.builder
    wide = x if x.bits == 64 else x.widened()
    pair = builder.call(_reduction(builder.module), [wide.value, BIT(before == 0.5), BIT(step == 0.5)])
    rest, odd = Term(builder, builder.extract_value(pair, 0)), builder.extract_value(pair, 1)
    flip = Term(builder, builder.zext(odd, x.as_integer().value.type)) << x.bits - 1
    return rest if x.bits == 64 else rest.narrowed(), flip


def _reduction(module: Any) -> Any:
    """`{double rest, i1 odd} weft.reduce(double x, i1 cosine, i1 halves)`: see `_reduce`; |x| is at least 2^12."""
    if _REDUCE in module.globals:
        return module.globals[_REDUCE]
    result = ir.LiteralStructType([ir.DoubleType(), BIT])
    function = ir.Function(module, ir.FunctionType(result, [ir.DoubleType(), BIT, BIT]), _REDUCE)
    function.linkage = "internal"
    function.attributes.add("noinline")
    function.attributes.add("nounwind")
    builder = ir.IRBuilder(function.append_basic_block())
    x, cosine, halves = (Term(builder, argument) for argument in function.args)
    turns = _half_turns(x)
    turns = choose(halves, turns << 1, turns)
    turns = turns + choose(cosine, turns.constant(1 << 126), 0)
    odd = (turns + (1 << 126)) < 0
    rest = _to_radians((turns << 1) >> 1)
    rest = choose(halves, rest * 0.5, rest) + (x - x)  # NaN for infinity
    pair = builder.insert_value(ir.Constant(result, ir.Undefined), rest.value, 0)
    builder.ret(builder.insert_value(pair, odd.value, 1))
    return function


def _half_turns(x: Term) -> Term:
    """x / pi modulo 2 as 128 bits, one of them before the point."""
    builder = x.builder
    bits = x.as_integer()
    exponent = bits.logical_shift_right(52) & 0x7FF
    position = exponent - (1075 - 64)  # in the words, of the bit that 2^-exponent makes the unit
    mantissa = (bits & ((1 << 52) - 1)) | (1 << 52)
    first, shift = position.logical_shift_right(6), position & 63
    table = _words(builder.module)
    words = [
        builder.load(
            builder.gep(table, [INT64(0), (first + number).value], source_etype=table.value_type), typ=INT64
        )
        for number in range(4)
    ]
    signature = ir.FunctionType(INT64, [INT64] * 3)
    name = "llvm.fshl.i64"
    module = builder.module
    funnel = module.globals[name] if name in module.globals else ir.Function(module, signature, name)
    high, middle, low = (
        Term(builder, builder.call(funnel, [a, b, shift.value])) for a, b in zip(words, words[1:])
    )
    wide = _to_int128(mantissa)
    lower = (wide * _to_int128(low)).logical_shift_right(64) + wide * _to_int128(middle)
    total = lower + (_to_int128(mantissa * high) << 64)
    return choose(x < 0.0, -total, total)


def _words(module: Any) -> Any:
    if _WORDS in module.globals:
        return module.globals[_WORDS]
    kind = ir.ArrayType(INT64, len(INVERSE_PI))
    table = ir.GlobalVariable(module, kind, _WORDS)
    table.linkage, table.global_constant, table.initializer = "internal", True, ir.Constant(kind, list(INVERSE_PI))
    return table


def _to_int128(number: Term) -> Term:
    return Term(number.builder, number.builder.zext(number.value, _INT128))


def _to_radians(turns: Term) -> Term:
    """Signed half turns, in units of 2^-127, as an angle: in three exact pieces, so that none of its bits is lost."""
    builder = turns.builder
    high = Term(builder, builder.trunc((turns >> 64).value, INT64))
    low = Term(builder, builder.trunc(turns.value, INT64))
    double = ir.DoubleType()
    first = Term(builder, builder.sitofp((high & ~0xFFFFFFFF).value, double))
    second = Term(builder, builder.uitofp((high & 0xFFFFFFFF).value, double))
    third = Term(builder, builder.uitofp(low.value, double)) * 2.0**-64
    number = (first + (second + third)) * 2.0**-63
    pi_high, pi_low = (2.0 * part for part in HALF_PI[64])
    return fma(number, pi_high, number * pi_low)
