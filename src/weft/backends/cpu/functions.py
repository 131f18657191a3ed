"""LLVM instructions for scalar functions, on scalars and on vectors alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir

from weft.backends.cpu.dot4 import dot4
from weft.backends.cpu.elementary import ELEMENTARY, elementary
from weft.backends.cpu.types import BIT, INT32, INT64, POINTER, register_type, vector
from weft.errors import InternalError
from weft.ir.dtypes import DType

Builder = Any  # llvmlite is untyped
Value = Any


def apply(builder: Builder, function: str, values: Sequence[Value], kinds: Sequence[DType], result: DType) -> Value:
    """A function of `weft.ir.scalar.FUNCTIONS` (or fma); values are all scalars or all vectors."""
    if function == "cast":
        return cast(builder, values[0], kinds[0], result)
    if function == "bitcast":
        return _bitcast(builder, values[0], kinds[0], result)
    if function == "select":
        return builder.select(values[0], values[1], values[2])
    if function == "dot4":
        return dot4(builder, *values)
    kind = kinds[0]
    if function in ELEMENTARY and kind.is_float:
        return _elementary(builder, function, values, kind)
    table = _FLOAT if kind.is_float else _BOOL if kind is DType.bool and function in _BOOL else _INTEGER
    if function not in table:
        raise InternalError(f"no code for {function} of {kind}")
    value = table[function](builder, kind, *values)
    if kind is DType.bfloat16 and result is DType.bfloat16:
        value = widen_bfloat16(builder, narrow_bfloat16(builder, value))
    return value


def _elementary(builder: Builder, function: str, values: Sequence[Value], kind: DType) -> Value:
    if kind in (DType.float32, DType.float64):
        return elementary(builder, function, *values)
    wide = [cast(builder, value, kind, DType.float32) for value in values]
    return cast(builder, elementary(builder, function, *wide), DType.float32, kind)


# -- conversions -----------------------------------------------------------------------------------------------------


def cast(builder: Builder, value: Value, source: DType, target: DType) -> Value:
    """Conversion between element types; floats truncate towards zero."""
    if source is target:
        return value
    kind = _like(value, register_type(target))
    if target is DType.bool:
        zero = ir.Constant(value.type, None)
        return builder.fcmp_unordered("!=", value, zero) if source.is_float else builder.icmp_signed("!=", value, zero)
    if source.is_float and target.is_float:
        if target is DType.bfloat16:
            narrow = value if source is not DType.float64 else builder.fptrunc(value, _like(value, ir.FloatType()))
            narrow = narrow if source is not DType.float16 else builder.fpext(value, _like(value, ir.FloatType()))
            return widen_bfloat16(builder, narrow_bfloat16(builder, narrow))
        if value.type == kind:
            return value
        if source is DType.float64 and target is DType.float16:
            value = _round_to_odd(builder, value)
        return builder.fpext(value, kind) if _float_bits(source) < _float_bits(target) else builder.fptrunc(value, kind)
    if source.is_float:
        return _float_to_integer(builder, value, source, target)
    if target.is_float:
        wide = _like(value, ir.FloatType()) if target is DType.bfloat16 else kind
        unsigned = source is DType.bool or source.is_unsigned
        number = builder.uitofp(value, wide) if unsigned else builder.sitofp(value, wide)
        return widen_bfloat16(builder, narrow_bfloat16(builder, number)) if target is DType.bfloat16 else number
    if _int_bits(source) > _int_bits(target):
        return builder.trunc(value, kind)
    if _int_bits(source) == _int_bits(target):
        return value
    return builder.sext(value, kind) if source.is_signed else builder.zext(value, kind)


def cast_within_int32(builder: Builder, value: Value, target: DType) -> Value:
    """A float32 within int32's bounds (or NaN, which gives 0) as a narrower integer."""
    number = builder.fptosi(_without_nan(builder, value), _like(value, INT32))
    return builder.trunc(number, _like(value, register_type(target)))


def _without_nan(builder: Builder, value: Value) -> Value:
    return builder.select(builder.fcmp_ordered("ord", value, value), value, ir.Constant(value.type, None))


def _float_to_integer(builder: Builder, value: Value, source: DType, target: DType) -> Value:
    """Through int64, wrapping around where the target is narrower; out of its range the extremes, NaN gives 0."""
    if source in (DType.float16, DType.bfloat16) and source is DType.float16:
        value = builder.fpext(value, _like(value, ir.FloatType()))
    number = _saturated(builder, value, _like(value, INT64), target is not DType.uint64)
    return number if _int_bits(target) == 64 else builder.trunc(number, _like(value, register_type(target)))


def _saturated(builder: Builder, value: Value, wide: Any, signed: bool) -> Value:
    """64 bits, the nearest of them out of range, 0 for NaN. LLVM's own conversion takes vectors apart."""
    low, high = (-(2**63), 2**63) if signed else (0, 2**64)
    value = _without_nan(builder, value)
    below = builder.fcmp_ordered("<", value, _splat(value.type, float(low)))
    above = builder.fcmp_ordered(">=", value, _splat(value.type, float(high)))
    safe = builder.select(builder.or_(below, above), ir.Constant(value.type, None), value)
    number = builder.fptosi(safe, wide) if signed else builder.fptoui(safe, wide)
    number = builder.select(below, _splat(wide, low), number)
    return builder.select(above, _splat(wide, high - 1), number)


def _round_to_odd(builder: Builder, value: Value) -> Value:
    """float64 as float32, inexact ones with an odd last bit: rounding that to float16 equals rounding at once.

    Processors without float16 arithmetic have no such conversion, and compilers call a library that is not there.
    """
    nearest = builder.fptrunc(value, _like(value, ir.FloatType()))
    bits = builder.bitcast(nearest, _like(value, INT32))
    back = builder.fpext(nearest, value.type)
    absolute = _intrinsic(builder, "llvm.fabs", [value.type], value.type, [value])
    too_far = builder.fcmp_ordered(">", _intrinsic(builder, "llvm.fabs", [value.type], value.type, [back]), absolute)
    towards_zero = builder.sub(bits, builder.zext(too_far, bits.type))
    odd = builder.or_(towards_zero, _splat(bits.type, 1))
    chosen = builder.select(builder.fcmp_ordered("!=", back, value), odd, bits)
    return builder.bitcast(chosen, nearest.type)


def widen_bfloat16(builder: Builder, value: Value) -> Value:
    """16 bits as the float32 whose upper half they are."""
    wide = builder.zext(value, _like(value, INT32))
    return builder.bitcast(builder.shl(wide, _splat(wide.type, 16)), _like(value, ir.FloatType()))


def narrow_bfloat16(builder: Builder, value: Value) -> Value:
    """float32 rounded to nearest even, as 16 bits."""
    bits = builder.bitcast(value, _like(value, INT32))
    lowest = builder.and_(builder.lshr(bits, _splat(bits.type, 16)), _splat(bits.type, 1))
    rounded = builder.add(bits, builder.add(lowest, _splat(bits.type, 0x7FFF)))
    quiet = builder.or_(bits, _splat(bits.type, 0x400000))
    chosen = builder.select(builder.fcmp_unordered("uno", value, value), quiet, rounded)
    return builder.trunc(builder.lshr(chosen, _splat(bits.type, 16)), _like(value, ir.IntType(16)))


def _bitcast(builder: Builder, value: Value, source: DType, target: DType) -> Value:
    if source is DType.bool:
        value = builder.zext(value, _like(value, ir.IntType(8)))
    if source is DType.bfloat16:
        value = narrow_bfloat16(builder, value)
    if target is DType.bool:
        return builder.icmp_unsigned("!=", value, ir.Constant(value.type, None))
    if target is DType.bfloat16:
        return widen_bfloat16(builder, builder.bitcast(value, _like(value, ir.IntType(16))))
    return builder.bitcast(value, _like(value, register_type(target)))


# -- arithmetic ------------------------------------------------------------------------------------------------------


def _float_remainder(builder: Builder, kind: DType, a: Value, b: Value) -> Value:
    rest = builder.frem(a, b)
    wrong = builder.and_(
        builder.fcmp_ordered("!=", rest, ir.Constant(a.type, None)),
        builder.xor(
            builder.fcmp_ordered("<", rest, ir.Constant(a.type, None)),
            builder.fcmp_ordered("<", b, ir.Constant(a.type, None)),
        ),
    )
    return builder.select(wrong, builder.fadd(rest, b), rest)


def _float_extreme(name: str, order: str) -> Callable[..., Value]:
    def extreme(builder: Builder, kind: DType, a: Value, b: Value) -> Value:
        for constant, other in ((b, a), (a, b)):
            if isinstance(constant, ir.Constant) and not _has_nan(constant):  # one instruction will do
                return builder.select(builder.fcmp_ordered(order, constant, other), constant, other)
        function = _declare(builder, f"llvm.{name}.{_suffix(a.type)}", ir.FunctionType(a.type, [a.type, b.type]))
        return builder.call(function, [a, b], fastmath=("nsz",))  # whichever zero: that saves instructions

    return extreme


def _has_nan(constant: ir.Constant) -> bool:
    """Whether a float constant may be NaN."""
    parts = constant.constant if isinstance(constant.type, ir.VectorType) else [constant]
    return any(not isinstance(part.constant, float) or part.constant != part.constant for part in parts)


def _float_sign(builder: Builder, kind: DType, x: Value) -> Value:
    zero = ir.Constant(x.type, None)
    one = _intrinsic(builder, "llvm.copysign", [x.type], x.type, [_splat(x.type, 1.0), x])
    is_zero = builder.fcmp_unordered("ueq", x, zero)
    return builder.select(is_zero, x, one)


def _integer_sign(builder: Builder, kind: DType, x: Value) -> Value:
    zero = ir.Constant(x.type, None)
    positive = builder.zext(builder.icmp_signed("!=", x, zero), x.type)
    if kind.is_unsigned:
        return positive
    return builder.select(builder.icmp_signed("<", x, zero), _splat(x.type, -1), positive)


def _unary_intrinsic(name: str) -> Callable[..., Value]:
    return lambda builder, kind, x: _intrinsic(builder, f"llvm.{name}", [x.type], x.type, [x])


def _fma(builder: Builder, kind: DType, a: Value, b: Value, c: Value) -> Value:
    return _intrinsic(builder, "llvm.fma", [a.type], a.type, [a, b, c])


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
    """Truncating; 0 for a zero divisor, and the least number divided by -1 wraps around: no traps."""
    safe, zero = _safe_divisor(builder, kind, a, b)
    quotient = builder.udiv(a, safe) if kind.is_unsigned else builder.sdiv(a, safe)
    if kind.is_signed:
        negated = builder.sub(ir.Constant(a.type, None), a)
        quotient = builder.select(builder.icmp_signed("==", b, _splat(b.type, -1)), negated, quotient)
    return builder.select(zero, ir.Constant(a.type, None), quotient)


def _safe_divisor(builder: Builder, kind: DType, a: Value, b: Value) -> tuple[Value, Value]:
    zero = builder.icmp_signed("==", b, ir.Constant(b.type, None))
    unsafe = zero
    if kind.is_signed:
        unsafe = builder.or_(zero, builder.icmp_signed("==", b, _splat(b.type, -1)))
    return builder.select(unsafe, _splat(b.type, 1), b), zero


def _integer_remainder(floor: bool) -> Callable[..., Value]:
    def remainder(builder: Builder, kind: DType, a: Value, b: Value) -> Value:
        safe, zero = _safe_divisor(builder, kind, a, b)
        if kind.is_unsigned:
            return builder.select(zero, ir.Constant(a.type, None), builder.urem(a, safe))
        rest = builder.srem(a, safe)
        if floor:
            nothing = ir.Constant(a.type, None)
            wrong = builder.and_(
                builder.icmp_signed("!=", rest, nothing), builder.icmp_signed("<", builder.xor(rest, safe), nothing)
            )
            rest = builder.select(wrong, builder.add(rest, safe), rest)
        return builder.select(zero, ir.Constant(a.type, None), rest)

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
        width = _splat(b.type, kind.bits)
        outside = builder.icmp_unsigned(">=", b, width)
        amount = builder.select(outside, ir.Constant(b.type, None), b)
        if left:
            shifted = builder.shl(a, amount)
        else:
            shifted = builder.ashr(a, amount) if kind.is_signed else builder.lshr(a, amount)
        return builder.select(outside, ir.Constant(a.type, None), shifted)

    return shift


def _integer_power(builder: Builder, kind: DType, a: Value, b: Value) -> Value:
    """By squaring, over all bits of the exponent; a negative exponent gives what truncation leaves: 0, 1 or -1."""
    one, zero = _splat(a.type, 1), ir.Constant(a.type, None)
    result, square = one, a
    for bit in range(min(kind.bits, 63)):
        odd = builder.icmp_signed("!=", builder.and_(builder.lshr(b, _splat(b.type, bit)), _splat(b.type, 1)), zero)
        result = builder.select(odd, builder.mul(result, square), result)
        square = builder.mul(square, square)
    if kind.is_unsigned:
        return result
    unit = builder.select(
        builder.icmp_signed("==", a, one),
        one,
        builder.select(
            builder.icmp_signed("==", a, _splat(a.type, -1)),
            builder.select(builder.trunc(b, _like(b, BIT)), _splat(a.type, -1), one),
            zero,
        ),
    )
    return builder.select(builder.icmp_signed("<", b, zero), unit, result)


_COMPARISONS = {
    "equal": "==",
    "not_equal": "!=",
    "less": "<",
    "less_equal": "<=",
    "greater": ">",
    "greater_equal": ">=",
}

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
        "==", _intrinsic(builder, "llvm.fabs", [x.type], x.type, [x]), _splat(x.type, float("inf"))
    ),
    **{name: _compare_float(order) for name, order in _COMPARISONS.items()},
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
    **{name: _compare_integer(order) for name, order in _COMPARISONS.items()},
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


def integer_operation(builder: Builder, operation: str, a: Value, b: Value, positive: bool) -> Value:
    """The compounds of index arithmetic; `positive`: a >= 0 and b > 0 are certain."""
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


# -- vectors ---------------------------------------------------------------------------------------------------------


def broadcast(builder: Builder, value: Value, lanes: int) -> Value:
    """A scalar in every lane."""
    kind = vector(value.type, lanes)
    if isinstance(value, ir.Constant):
        return ir.Constant(kind, [value.constant] * lanes)
    single = builder.insert_element(ir.Constant(kind, ir.Undefined), value, INT32(0))
    return builder.shuffle_vector(single, ir.Constant(kind, ir.Undefined), ir.Constant(vector(INT32, lanes), None))


def opaque(builder: Builder, address: Value) -> Value:
    """The same address, as one that LLVM does not compute again at each use to save registers."""
    return builder.asm(ir.FunctionType(POINTER, [POINTER]), "", "=r,0", [address], side_effect=False)


def across(builder: Builder, kind: str, value: Value, dtype: DType) -> Value:
    """All lanes combined, halving by halving, so that the order is always the same."""
    name = {"sum": "add", "product": "multiply", "maximum": "maximum", "minimum": "minimum"}[kind]
    lanes = value.type.count
    while lanes > 1:
        lanes //= 2
        undefined = ir.Constant(value.type, ir.Undefined)
        halves = [
            builder.shuffle_vector(
                value, undefined, ir.Constant(vector(INT32, lanes), list(range(start, start + lanes)))
            )
            for start in (0, lanes)
        ]
        value = apply(builder, name, halves, [dtype, dtype], dtype)
    return builder.extract_element(value, INT32(0))


def any_lane(builder: Builder, mask: Value) -> Value:
    """Whether a mask holds in some lane."""
    bits = builder.bitcast(mask, ir.IntType(mask.type.count))
    return builder.icmp_unsigned("!=", bits, ir.Constant(bits.type, 0))


def transpose(builder: Builder, rows: Sequence[Value]) -> list[Value]:
    """A square of vectors with rows and columns exchanged: halves of ever smaller squares change places."""
    rows, lanes = list(rows), len(rows)
    distance = lanes // 2
    while distance:
        chosen = vector(INT32, lanes)
        upper = [lane if not lane & distance else lanes + lane - distance for lane in range(lanes)]
        lower = [lane + distance if not lane & distance else lanes + lane for lane in range(lanes)]
        for number in range(lanes):
            if not number & distance:
                pair = rows[number], rows[number + distance]
                rows[number] = builder.shuffle_vector(*pair, ir.Constant(chosen, upper))
                rows[number + distance] = builder.shuffle_vector(*pair, ir.Constant(chosen, lower))
        distance //= 2
    return rows


def pattern_load(
    builder: Builder,
    kind: Any,
    address: Callable[[int], Value],
    places: Sequence[int],
    align: int,
    mask: Value | None = None,
) -> Value:
    """Elements at constant places, from vectors of neighbours: nothing is read beyond the least and the greatest.

    `address` gives where the element at a place lies. With a mask, only what its lanes ask for is read.
    """
    lanes = kind.count
    low, high = min(places), max(places)
    starts = [low] if high - low < lanes else [*range(low, high - lanes + 1, lanes), high - lanes + 1]
    sources = [min((place - low) // lanes, len(starts) - 1) for place in places]
    parts = []
    for number, start in enumerate(starts):
        wanted = {place - start: lane for lane, place in enumerate(places) if sources[lane] == number}
        inside = _part_mask(builder, lanes, high - start + 1, wanted, places, mask)
        if inside is None:
            parts.append(builder.load(address(start), align=align, typ=kind))
        else:
            parts.append(masked_load(builder, kind, address(start), inside, align))
    result = parts[0]
    for number in range(max(len(parts) - 1, 1)):
        following = parts[number + 1] if len(parts) > 1 else ir.Constant(kind, ir.Undefined)
        order = []
        for lane, (place, source) in enumerate(zip(places, sources, strict=True)):
            if source == number + 1:
                order.append(lanes + place - starts[source])
            else:
                order.append(place - low if number == 0 and source == 0 else lane)
        result = builder.shuffle_vector(result, following, ir.Constant(vector(INT32, lanes), order))
    return result


def _part_mask(
    builder: Builder, lanes: int, length: int, wanted: dict[int, int], places: Sequence[int], mask: Value | None
) -> Value | None:
    """Which of a vector of neighbours may be read; None for all. `wanted` names a lane for each that is asked for."""
    if mask is None:
        return None if length >= lanes else ir.Constant(vector(BIT, lanes), [lane < length for lane in range(lanes)])
    if len(set(places)) < lanes:  # several lanes share an element: whichever asks for it
        pairs = [
            (element, [n for n, place in enumerate(places) if place == places[lane]])
            for element, lane in wanted.items()
        ]
        rounds = max((len(users) for _, users in pairs), default=0)
    else:
        pairs, rounds = [(element, [lane]) for element, lane in wanted.items()], 1
    nothing = ir.Constant(mask.type, None)
    total: Value | None = None
    for turn in range(rounds):
        order = [lanes] * lanes
        for element, users in pairs:
            order[element] = users[turn] if turn < len(users) else lanes
        part = builder.shuffle_vector(mask, nothing, ir.Constant(vector(INT32, lanes), order))
        total = part if total is None else builder.or_(total, part)
    return total


def masked_load(builder: Builder, kind: Any, address: Value, mask: Value, align: int) -> Value:
    name = f"llvm.masked.load.{_suffix(kind)}.p0"
    function = _declare(builder, name, ir.FunctionType(kind, [POINTER, INT32, mask.type, kind]))
    return builder.call(function, [address, INT32(align), mask, ir.Constant(kind, None)])


def masked_store(builder: Builder, value: Value, address: Value, mask: Value, align: int) -> None:
    name = f"llvm.masked.store.{_suffix(value.type)}.p0"
    function = _declare(builder, name, ir.FunctionType(ir.VoidType(), [value.type, POINTER, INT32, mask.type]))
    builder.call(function, [value, address, INT32(align), mask])


def vector_addresses(builder: Builder, base: Value, places: Value, element: Any) -> Value:
    """base + places elements, one pointer a lane."""
    addresses = builder.gep(base, [places], source_etype=element)
    addresses.type = vector(POINTER, places.type.count)  # llvmlite takes it for one pointer
    return addresses


def gather(builder: Builder, kind: Any, addresses: Value, mask: Value, align: int) -> Value:
    pointers = vector(POINTER, kind.count)
    name = f"llvm.masked.gather.{_suffix(kind)}.v{kind.count}p0"
    function = _declare(builder, name, ir.FunctionType(kind, [pointers, INT32, mask.type, kind]))
    return builder.call(function, [addresses, INT32(align), mask, ir.Constant(kind, None)])


def scatter(builder: Builder, value: Value, addresses: Value, mask: Value, align: int) -> None:
    pointers = vector(POINTER, value.type.count)
    name = f"llvm.masked.scatter.{_suffix(value.type)}.v{value.type.count}p0"
    function = _declare(builder, name, ir.FunctionType(ir.VoidType(), [value.type, pointers, INT32, mask.type]))
    builder.call(function, [value, addresses, INT32(align), mask])


# -- helpers ---------------------------------------------------------------------------------------------------------


def _intrinsic(builder: Builder, name: str, overloads: Sequence[Any], result: Any, values: Sequence[Value]) -> Value:
    full = ".".join([name, *map(_suffix, overloads)])
    function = _declare(builder, full, ir.FunctionType(result, [value.type for value in values]))
    return builder.call(function, values)


def _declare(builder: Builder, name: str, signature: ir.FunctionType) -> ir.Function:
    module = builder.module
    return module.globals[name] if name in module.globals else ir.Function(module, signature, name)


def _suffix(kind: Any) -> str:
    if isinstance(kind, ir.VectorType):
        return f"v{kind.count}{_suffix(kind.element)}"
    if isinstance(kind, ir.IntType):
        return f"i{kind.width}"
    return {ir.HalfType: "f16", ir.FloatType: "f32", ir.DoubleType: "f64"}[type(kind)]


def _like(value: Value, element: Any) -> Any:
    """The element type, or a vector of it as long as the value."""
    return vector(element, value.type.count) if isinstance(value.type, ir.VectorType) else element


def _splat(kind: Any, number: float) -> Any:
    return ir.Constant(kind, [number] * kind.count) if isinstance(kind, ir.VectorType) else ir.Constant(kind, number)


def _float_bits(dtype: DType) -> int:
    return 32 if dtype is DType.bfloat16 else dtype.bits


def _int_bits(dtype: DType) -> int:
    return 1 if dtype is DType.bool else dtype.bits
