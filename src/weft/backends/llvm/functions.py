"""LLVM instructions for scalar functions, on scalars and on vectors."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from weft.backends.llvm import assembly as ir
from weft.backends.llvm.conversions import bitcast, cast, round_to_dtype
from weft.backends.llvm.elementary import apply_elementary
from weft.backends.llvm.instructions import Builder, Value, declare, intrinsic, like, splat, suffix
from weft.backends.llvm.types import BIT
from weft.backends.numerics.elementary import ELEMENTARY
from weft.errors import InternalError
from weft.ir.dtypes import DType
from weft.ir.scalar import COMPARISONS


def apply(builder: Builder, function: str, values: Sequence[Value], kinds: Sequence[DType], result: DType) -> Value:
    """Apply a function of `weft.ir.scalar.FUNCTIONS`; values are all scalars or all vectors."""
    if function == "cast":
        return cast(builder, values[0], kinds[0], result)
    if function == "bitcast":
        return bitcast(builder, values[0], kinds[0], result)
    if function == "select":
        return builder.select(values[0], values[1], values[2])
    kind = kinds[0]
    if function in ELEMENTARY and kind.is_float:
        return _apply_elementary(builder, function, values, kind)
    table = _FLOAT if kind.is_float else _BOOL if kind is DType.bool and function in _BOOL else _INTEGER
    if function not in table:
        raise InternalError(f"no code for {function} of {kind}")
    value = table[function](builder, kind, *values)
    return round_to_dtype(builder, value, kind) if result is kind else value


def _apply_elementary(builder: Builder, function: str, values: Sequence[Value], kind: DType) -> Value:
    if kind in (DType.float32, DType.float64):
        return apply_elementary(builder, function, *values)
    wide = [cast(builder, value, kind, DType.float32) for value in values]
    return cast(builder, apply_elementary(builder, function, *wide), DType.float32, kind)


# -- arithmetic ------------------------------------------------------------------------------------------------------


def _float_remainder(builder: Builder, kind: DType, a: Value, b: Value) -> Value:
    rest = builder.frem(a, b)
    has_other_sign = builder.and_(
        builder.fcmp_ordered("!=", rest, ir.Constant(a.type, None)),
        builder.xor(
            builder.fcmp_ordered("<", rest, ir.Constant(a.type, None)),
            builder.fcmp_ordered("<", b, ir.Constant(a.type, None)),
        ),
    )
    return builder.select(has_other_sign, builder.fadd(rest, b), rest)


def _float_extreme(name: str, order: str) -> Callable[..., Value]:
    def extreme(builder: Builder, kind: DType, a: Value, b: Value) -> Value:
        for constant, other in ((b, a), (a, b)):
            if isinstance(constant, ir.Constant) and not _has_nan(constant):  # takes one instruction
                return builder.select(builder.fcmp_ordered(order, constant, other), constant, other)
        function = declare(builder, f"llvm.{name}.{suffix(a.type)}", ir.FunctionType(a.type, [a.type, b.type]))
        return builder.call(function, [a, b], fastmath=("nsz",))  # saves instructions; a zero may have any sign

    return extreme


def _has_nan(constant: ir.Constant) -> bool:
    """Whether a float constant may be NaN."""
    numbers = constant.constant if isinstance(constant.constant, list) else [constant.constant]
    return any(not isinstance(number, float) or number != number for number in numbers)


def _float_sign(builder: Builder, kind: DType, x: Value) -> Value:
    zero = ir.Constant(x.type, None)
    one = intrinsic(builder, "llvm.copysign", [x.type], x.type, [splat(x.type, 1.0), x])
    is_zero = builder.fcmp_ordered("==", x, zero)
    is_nan = builder.fcmp_unordered("uno", x, zero)
    return builder.select(is_zero, zero, builder.select(is_nan, x, one))


def _integer_sign(builder: Builder, kind: DType, x: Value) -> Value:
    zero = ir.Constant(x.type, None)
    positive = builder.zext(builder.icmp_signed("!=", x, zero), x.type)
    if kind.is_unsigned:
        return positive
    return builder.select(builder.icmp_signed("<", x, zero), splat(x.type, -1), positive)


def _unary_intrinsic(name: str) -> Callable[..., Value]:
    return lambda builder, kind, x: intrinsic(builder, f"llvm.{name}", [x.type], x.type, [x])


def _fma(builder: Builder, kind: DType, a: Value, b: Value, c: Value) -> Value:
    return intrinsic(builder, "llvm.fma", [a.type], a.type, [a, b, c])


def _compare_float(order: str) -> Callable[..., Value]:
    if order == "!=":
        return lambda builder, kind, a, b: builder.fcmp_unordered(order, a, b)
    return lambda builder, kind, a, b: builder.fcmp_ordered(order, a, b)


def _compare_integer(order: str) -> Callable[..., Value]:
    def compare(builder: Builder, kind: DType, a: Value, b: Value) -> Value:
        unsigned = kind.is_unsigned or kind is DType.bool
        return builder.icmp_unsigned(order, a, b) if unsigned else builder.icmp_signed(order, a, b)

    return compare


def _integer_divide(builder: Builder, kind: DType, a: Value, b: Value) -> Value:
    """Divide, truncating: a divisor of 0 gives 0, the least number divided by -1 wraps around, and nothing traps."""
    safe, is_zero = _make_divisor_safe(builder, kind, b)
    quotient = builder.udiv(a, safe) if kind.is_unsigned else builder.sdiv(a, safe)
    if kind.is_signed:
        negated = builder.sub(ir.Constant(a.type, None), a)
        quotient = builder.select(builder.icmp_signed("==", b, splat(b.type, -1)), negated, quotient)
    return builder.select(is_zero, ir.Constant(a.type, None), quotient)


def _make_divisor_safe(builder: Builder, kind: DType, b: Value) -> tuple[Value, Value]:
    """Return the divisor, or 1 where a division would trap, and a mask of the lanes where it is 0."""
    is_zero = builder.icmp_signed("==", b, ir.Constant(b.type, None))
    unsafe = is_zero
    if kind.is_signed:
        unsafe = builder.or_(is_zero, builder.icmp_signed("==", b, splat(b.type, -1)))
    return builder.select(unsafe, splat(b.type, 1), b), is_zero


def _integer_remainder(floor: bool) -> Callable[..., Value]:
    def remainder(builder: Builder, kind: DType, a: Value, b: Value) -> Value:
        safe, is_zero = _make_divisor_safe(builder, kind, b)
        if kind.is_unsigned:
            return builder.select(is_zero, ir.Constant(a.type, None), builder.urem(a, safe))
        rest = builder.srem(a, safe)
        if floor:
            zero = ir.Constant(a.type, None)
            has_other_sign = builder.and_(
                builder.icmp_signed("!=", rest, zero), builder.icmp_signed("<", builder.xor(rest, safe), zero)
            )
            rest = builder.select(has_other_sign, builder.add(rest, safe), rest)
        return builder.select(is_zero, ir.Constant(a.type, None), rest)

    return remainder


def _integer_extreme(order: str) -> Callable[..., Value]:
    compare = _compare_integer(order)
    return lambda builder, kind, a, b: builder.select(compare(builder, kind, a, b), a, b)


def _integer_absolute(builder: Builder, kind: DType, x: Value) -> Value:
    if kind.is_unsigned:
        return x
    zero = ir.Constant(x.type, None)
    return builder.select(builder.icmp_signed("<", x, zero), builder.sub(zero, x), x)


def _shift(left: bool) -> Callable[..., Value]:
    def shift(builder: Builder, kind: DType, a: Value, b: Value) -> Value:
        width = splat(b.type, kind.bits)
        outside = builder.icmp_unsigned(">=", b, width)
        amount = builder.select(outside, ir.Constant(b.type, None), b)
        if left:
            shifted = builder.shl(a, amount)
        else:
            shifted = builder.ashr(a, amount) if kind.is_signed else builder.lshr(a, amount)
        return builder.select(outside, ir.Constant(a.type, None), shifted)

    return shift


def _integer_power(builder: Builder, kind: DType, a: Value, b: Value) -> Value:
    """Square for each bit of the exponent; a negative exponent gives the truncated result: 0, 1 or -1."""
    one, zero = splat(a.type, 1), ir.Constant(a.type, None)
    result, square = one, a
    for bit in range(min(kind.bits, 63)):
        odd = builder.icmp_signed("!=", builder.and_(builder.lshr(b, splat(b.type, bit)), splat(b.type, 1)), zero)
        result = builder.select(odd, builder.mul(result, square), result)
        square = builder.mul(square, square)
    if kind.is_unsigned:
        return result
    unit = builder.select(
        builder.icmp_signed("==", a, one),
        one,
        builder.select(
            builder.icmp_signed("==", a, splat(a.type, -1)),
            builder.select(builder.trunc(b, like(b, BIT)), splat(a.type, -1), one),
            zero,
        ),
    )
    return builder.select(builder.icmp_signed("<", b, zero), unit, result)


_FLOAT: dict[str, Callable[..., Value]] = {
    "add": lambda builder, kind, a, b: builder.fadd(a, b),
    "subtract": lambda builder, kind, a, b: builder.fsub(a, b),
    "multiply": lambda builder, kind, a, b: builder.fmul(a, b),
    "divide": lambda builder, kind, a, b: builder.fdiv(a, b),
    "remainder": _float_remainder,
    "fmod": lambda builder, kind, a, b: builder.frem(a, b),
    "minimum": _float_extreme("minimum", "<"),
    "maximum": _float_extreme("maximum", ">"),
    "negate": lambda builder, kind, x: builder.fneg(x),
    "absolute": _unary_intrinsic("fabs"),
    "sign": _float_sign,
    "floor": _unary_intrinsic("floor"),
    "ceil": _unary_intrinsic("ceil"),
    "round_half_even": _unary_intrinsic("roundeven"),
    "truncate": _unary_intrinsic("trunc"),
    "sqrt": _unary_intrinsic("sqrt"),
    "fma": _fma,
    "is_nan": lambda builder, kind, x: builder.fcmp_unordered("uno", x, x),
    "is_inf": lambda builder, kind, x: builder.fcmp_ordered(
        "==", intrinsic(builder, "llvm.fabs", [x.type], x.type, [x]), splat(x.type, float("inf"))
    ),
    **{name: _compare_float(order) for name, order in COMPARISONS.items()},
}

_INTEGER: dict[str, Callable[..., Value]] = {
    "add": lambda builder, kind, a, b: builder.add(a, b),
    "subtract": lambda builder, kind, a, b: builder.sub(a, b),
    "multiply": lambda builder, kind, a, b: builder.mul(a, b),
    "fma": lambda builder, kind, a, b, c: builder.add(builder.mul(a, b), c),
    "divide": _integer_divide,
    "remainder": _integer_remainder(floor=True),
    "fmod": _integer_remainder(floor=False),
    "power": _integer_power,
    "minimum": _integer_extreme("<"),
    "maximum": _integer_extreme(">"),
    "negate": lambda builder, kind, x: builder.sub(ir.Constant(x.type, None), x),
    "absolute": _integer_absolute,
    "sign": _integer_sign,
    **{name: lambda builder, kind, x: x for name in ("floor", "ceil", "round_half_even", "truncate")},
    "bit_and": lambda builder, kind, a, b: builder.and_(a, b),
    "bit_or": lambda builder, kind, a, b: builder.or_(a, b),
    "bit_xor": lambda builder, kind, a, b: builder.xor(a, b),
    "bit_not": lambda builder, kind, x: builder.not_(x),
    "shift_left": _shift(left=True),
    "shift_right": _shift(left=False),
    **{name: _compare_integer(order) for name, order in COMPARISONS.items()},
}

_BOOL: dict[str, Callable[..., Value]] = {
    "logical_and": lambda builder, kind, a, b: builder.and_(a, b),
    "logical_or": lambda builder, kind, a, b: builder.or_(a, b),
    "logical_xor": lambda builder, kind, a, b: builder.xor(a, b),
    "logical_not": lambda builder, kind, x: builder.not_(x),
    "maximum": lambda builder, kind, a, b: builder.or_(a, b),
    "minimum": lambda builder, kind, a, b: builder.and_(a, b),
    "bit_not": lambda builder, kind, x: builder.not_(x),
}


def apply_index_operation(builder: Builder, operation: str, a: Value, b: Value, positive: bool) -> Value:
    """Compute an operation of index arithmetic; `positive`: a >= 0 and b > 0."""
    match operation:
        case "min" | "max":
            return builder.select(builder.icmp_signed("<" if operation == "min" else ">", a, b), a, b)
        case "//" | "%" if positive:
            return builder.udiv(a, b) if operation == "//" else builder.urem(a, b)
        case "%":
            return _integer_remainder(floor=True)(builder, DType.int64, a, b)
        case "//":
            rest = _integer_remainder(floor=True)(builder, DType.int64, a, b)
            return _integer_divide(builder, DType.int64, builder.sub(a, rest), b)
    raise InternalError(f"no code for {operation}")
