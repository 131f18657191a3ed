"""LLVM IR that reduces the arguments of sin, cos and tan to a quarter turn.

A few subtractions are enough unless the argument is large: a vector with such a lane calls `weft.reduce`, a function of
the same module that multiplies by enough bits of 1 / pi.
"""

from __future__ import annotations

import itertools
from math import pi

from weft.backends.llvm import assembly as ir
from weft.backends.llvm.builder import IRBuilder
from weft.backends.llvm.instructions import declare
from weft.backends.llvm.terms import Term, any_lane
from weft.backends.llvm.types import INT32, INT64
from weft.backends.numerics.coefficients import HALF_PI, HALF_PI_PARTS, INVERSE_PI
from weft.backends.numerics.elementary import LARGEST_ANGLE
from weft.backends.numerics.terms import absolute, choose, fma

_INT128 = ir.IntType(128)
_WORDS = "weft.inverse_pi"
_REDUCE = "weft.reduce"


def reduce_angle(x: Term) -> tuple[Term, Term, Term]:
    """(r, s, n) with x == n pi / 2 + r + s, |r| <= pi / 4 and a tiny s; only the last bits of the integer n count."""
    builder = x.builder
    shifted = fma(x, 2.0 / pi, x.magic)
    count = shifted - x.magic
    first, second, third, fourth = HALF_PI_PARTS[x.bits]
    exact = fma(count, -second, fma(count, -first, x))  # exact, because both parts have few bits
    rest, low = fma(count, -third, exact), count * -fourth
    quadrant = shifted.as_integer()
    large = absolute(x) > LARGEST_ANGLE[x.bits]
    start = builder.block
    with builder.if_then(any_lane(large).value, unlikely=True):
        far_rest, far_quadrant = _reduce_lanes(choose(large, x, LARGEST_ANGLE[x.bits]))
        far = choose(large, far_rest, rest), choose(large, 0.0, low), choose(large, far_quadrant, quadrant)
        end = builder.block
    merged = []
    for near_term, far_term in zip((rest, low, quadrant), far):
        phi = builder.phi(near_term.value.type)
        phi.add_incoming(near_term.value, start)
        phi.add_incoming(far_term.value, end)
        merged.append(Term(builder, phi))
    return merged[0], merged[1], merged[2]


def _reduce_lanes(x: Term) -> tuple[Term, Term]:
    """Call `weft.reduce` for one lane after the other."""
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
    next_lane = builder.add(lane, INT32(1))
    for phi, first_value, next_value in (
        (lane, INT32(0), next_lane),
        (rests, ir.Constant(kind, None), next_rests),
        (quadrants, ir.Constant(integers, None), next_quadrants),
    ):
        phi.add_incoming(first_value, entry)
        phi.add_incoming(next_value, body)
    builder.cbranch(builder.icmp_unsigned("<", next_lane, INT32(kind.count)), body, done)
    builder.position_at_end(done)
    return Term(builder, next_rests), Term(builder, next_quadrants)


def _reduce_lane(x: Term) -> tuple[Term, Term]:
    builder = x.builder
    wide = x if x.bits == 64 else x.widen()
    pair = builder.call(_declare_reduction(builder.module), [wide.value])
    rest, quadrant = (Term(builder, builder.extract_value(pair, number)) for number in (0, 1))
    if x.bits == 64:
        return rest, quadrant
    return rest.narrow(), Term(builder, builder.trunc(quadrant.value, INT32))


def _declare_reduction(module: ir.Module) -> ir.Function:
    """`{double rest, i64 quadrant} weft.reduce(double x)`, for |x| of at least 2^12."""
    declared = module.globals.get(_REDUCE)
    if isinstance(declared, ir.Function):
        return declared
    result = ir.LiteralStructType([ir.DoubleType(), INT64])
    function = ir.Function(module, ir.FunctionType(result, [ir.DoubleType()]), _REDUCE)
    function.linkage = "internal"
    for attribute in ("noinline", "nounwind", "cold"):
        function.attributes.add(attribute)
    builder = IRBuilder(function.append_basic_block())
    x = Term(builder, function.args[0])
    turns = _count_turns(x)
    quadrant = builder.trunc((turns + (1 << 125)).logical_shift_right(126).value, INT64)
    rest = _to_radians((turns << 2) >> 2) + (x - x)  # NaN for infinity
    pair = builder.insert_value(ir.Constant(result, ir.Undefined), rest.value, 0)
    builder.ret(builder.insert_value(pair, quadrant, 1))
    return function


def _count_turns(x: Term) -> Term:
    """x / (2 pi) modulo 1, in units of 2^-128."""
    builder = x.builder
    bits = x.as_integer()
    exponent = bits.logical_shift_right(52) & 0x7FF
    position = exponent - (1075 - 64)  # of the bit in the words that is worth 2^-exponent
    mantissa = (bits & ((1 << 52) - 1)) | (1 << 52)
    first, shift = position.logical_shift_right(6), position & 63
    table = _declare_words(builder.module)
    words = [
        builder.load(builder.gep(table, [INT64(0), (first + number).value], source_etype=table.value_type), typ=INT64)
        for number in range(4)
    ]
    funnel = declare(builder, "llvm.fshl.i64", ir.FunctionType(INT64, [INT64] * 3))
    high, middle, low = (Term(builder, builder.call(funnel, [a, b, shift.value])) for a, b in itertools.pairwise(words))
    wide = _to_int128(mantissa)
    lower = (wide * _to_int128(low)).logical_shift_right(64) + wide * _to_int128(middle)
    total = lower + (_to_int128(mantissa * high) << 64)
    return choose(x < 0.0, -total, total)


def _declare_words(module: ir.Module) -> ir.GlobalVariable:
    declared = module.globals.get(_WORDS)
    if isinstance(declared, ir.GlobalVariable):
        return declared
    kind = ir.ArrayType(INT64, len(INVERSE_PI))
    return ir.GlobalVariable(module, kind, _WORDS, ir.Constant(kind, list(INVERSE_PI)))


def _to_int128(number: Term) -> Term:
    return Term(number.builder, number.builder.zext(number.value, _INT128))


def _to_radians(turns: Term) -> Term:
    """Convert signed turns, in units of 2^-128, to an angle through three exact floats, which lose no bits."""
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
