"""Scalar functions of shaders against numpy in a wider type, Python's integers and ml_dtypes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from accuracy import errors, needs_longdouble, samples, true_values
from backends.webgpu.shaders import ALL, PLAIN, Array, Expression, call, comparable, run, run_stored

from weft.backends.numerics.elementary import ELEMENTARY
from weft.backends.webgpu.library import Abilities, Library
from weft.errors import InternalError
from weft.ir.dtypes import DType

UNARY = sorted(ELEMENTARY - {"power"})
LIMIT = {"float32": 2.0, "float64": 4.0}  # ulp
QUOTIENT_LIMIT = 2.5  # what Vulkan allows float32's division; roots are hardly better
OTHER_LIMITS = {"tan": 4.0, "asin": QUOTIENT_LIMIT, "acos": QUOTIENT_LIMIT}  # with a quotient or a root
SAMPLES = {"float32": 1 << 20, "float64": 1 << 17}
FLOATS = ["float32", pytest.param("float64", marks=needs_longdouble)]
COMPARISONS = ["equal", "not_equal", "less", "less_equal", "greater", "greater_equal"]
INTEGERS = [dtype for dtype in DType if dtype.is_integer]
MINIFLOATS = [dtype for dtype in DType if dtype.is_float and dtype.bits <= 8]


def compute(names: Sequence[str], arrays: Sequence[Array], dtype: DType, abilities: Abilities = ALL) -> list[Array]:
    """Functions of one dtype's numbers that give such numbers."""
    kinds = [dtype] * len(arrays)
    return run(abilities, [(call(name, kinds, dtype), dtype) for name in names], arrays, kinds)


def decide(names: Sequence[str], arrays: Sequence[Array], dtype: DType, abilities: Abilities = ALL) -> list[Array]:
    """Predicates of one dtype's numbers."""
    kinds = [dtype] * len(arrays)
    return run(abilities, [(call(name, kinds, DType.bool), DType.bool) for name in names], arrays, kinds)


def check(name: str, got: Array, true: Array, arguments: Sequence[Array], limit: float) -> float:
    distance = errors(got, true)
    if got.dtype == np.float32:
        distance = np.where(comparable([*arguments, true]), distance, 0)
    worst = int(distance.argmax())
    place = ", ".join(repr(argument[worst]) for argument in arguments)
    message = f"{name}({place}) = {got[worst]!r}, {distance[worst]:.3f} ulp from {true[worst]!r}"
    assert distance[worst] <= limit, message
    return float(distance[worst])


def assert_same(name: str, got: Array, expected: Array, arguments: Sequence[Array]) -> None:
    same = (got == expected) | ((got != got) & (expected != expected))
    if got.dtype == np.float32:
        same |= ~comparable([*arguments, expected])
    wrong = np.flatnonzero(~same)
    cases = [(*(argument[n] for argument in arguments), got[n], expected[n]) for n in wrong[:5]]
    assert not len(wrong), f"{name}: {len(wrong)} of {len(got)} differ, (arguments, got, expected): {cases}"


# -- elementary functions --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", FLOATS)
def test_elementary_functions_are_within_their_limits(dtype: str) -> None:
    numbers = samples(dtype, SAMPLES[dtype])
    actual = [got for half in (UNARY[::2], UNARY[1::2]) for got in compute(half, [numbers], DType(dtype))]
    for name, got in zip([*UNARY[::2], *UNARY[1::2]], actual):
        limit = max(OTHER_LIMITS.get(name, 0.0), LIMIT[dtype])
        print(f"{name} {dtype}: {check(name, got, true_values(name, numbers), [numbers], limit):.3f} ulp")


@pytest.mark.parametrize("dtype", FLOATS)
def test_power_is_within_its_limit(dtype: str) -> None:
    bases, exponents = samples(dtype, SAMPLES[dtype], 1), samples(dtype, SAMPLES[dtype], 2)
    generator = np.random.default_rng(3)
    count, span = len(bases), 100 if dtype == "float32" else 745
    positive = np.exp(generator.normal(size=count) * np.exp(generator.uniform(-14, 1.5, count))).astype(dtype)
    limit = span / np.maximum(np.abs(np.log(positive.astype(np.float64))), 1e-9)
    fitting = (generator.uniform(-1, 1, count) * limit).astype(dtype)  # results of every size
    whole = np.round(np.clip(fitting, -1e6, 1e6))
    cases = [(bases, generator.permutation(exponents)), (positive, fitting), (-positive, whole)]
    arguments = [np.concatenate(parts) for parts in zip(*cases)]
    (got,) = compute(["power"], arguments, DType(dtype))
    print(f"power {dtype}: {check('power', got, true_values('power', *arguments), arguments, LIMIT[dtype]):.3f} ulp")


@pytest.mark.parametrize("dtype", FLOATS)
def test_power_of_special_values_is_as_in_c(dtype: str) -> None:
    facts = np.finfo(dtype)
    numbers = [0, 0.5, 1, 2, 3, 4, 2.5, 1e7 + 1, facts.max, facts.tiny, facts.smallest_subnormal, np.inf]
    values = np.array([*numbers, *(-number for number in numbers), np.nan], dtype)
    arguments = [grid.ravel() for grid in np.meshgrid(values, values)]
    (got,) = compute(["power"], arguments, DType(dtype))
    check("power", got, true_values("power", *arguments), arguments, LIMIT[dtype])


def test_power_with_a_constant_exponent() -> None:
    exponents = [1.0, 2.0, 3.0, -1.0, 0.5, -0.5, 0.25, 0.0]
    bases = samples("float32", 1 << 14)
    actual = run(ALL, [(_raise_to(exponent), DType.float32) for exponent in exponents], [bases], [DType.float32])
    for exponent, got in zip(exponents, actual):
        limit = 3.0 if exponent == -0.5 else QUOTIENT_LIMIT
        check(f"power {exponent}", got, true_values("power", bases, np.full_like(bases, exponent)), [bases], limit)


def _raise_to(exponent: float) -> Expression:
    kinds = [DType.float32, DType.float32]
    return lambda library, arguments: library.call(
        "power", [*arguments, library.literal(exponent, DType.float32)], kinds, DType.float32
    )


def test_values_stay_within_their_bounds() -> None:
    numbers = samples("float32", 1 << 18)
    for name, got in zip(["tanh", "erf"], compute(["tanh", "erf"], [numbers], DType.float32)):
        assert np.nanmax(np.abs(got)) == 1.0, name


# -- floats ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", FLOATS)
def test_float_functions_of_one_number(dtype: str) -> None:
    numbers = np.concatenate([samples(dtype, 1 << 14), np.arange(-40, 41).astype(dtype) / 2])
    exact = {
        "negate": np.negative,
        "absolute": np.absolute,
        "sign": np.sign,
        "floor": np.floor,
        "ceil": np.ceil,
        "round_half_even": np.rint,
        "truncate": np.trunc,
    }
    with np.errstate(invalid="ignore"):
        for name, got in zip(exact, compute(list(exact), [numbers], DType(dtype))):
            expected = exact[name](numbers)
            assert_same(name, got, expected, [numbers])
            zero = (
                (got == 0) & (expected == 0) & (name != "sign")
            )  # whose zero has the sign of its argument, which numpy drops
            np.testing.assert_array_equal(np.signbit(got[zero]), np.signbit(expected[zero]), name)
    (root,) = compute(["sqrt"], [numbers], DType(dtype))
    check("sqrt", root, true_values("sqrt", numbers), [numbers], QUOTIENT_LIMIT)
    for name, got in zip(["is_nan", "is_inf"], decide(["is_nan", "is_inf"], [numbers], DType(dtype))):
        np.testing.assert_array_equal(got, np.isnan(numbers) if name == "is_nan" else np.isinf(numbers))


@pytest.mark.parametrize("dtype", FLOATS)
def test_float_functions_of_two_numbers(dtype: str) -> None:
    a, b = (samples(dtype, 1 << 16, seed) for seed in (1, 2))
    b = np.concatenate([a[:500], np.random.default_rng(0).permutation(b)[500:]])
    exact: dict[str, Callable[..., Array]] = {
        "add": np.add,
        "subtract": np.subtract,
        "multiply": np.multiply,
        "minimum": np.minimum,
        "maximum": np.maximum,
        "fmod": np.fmod,
        "remainder": np.remainder,
    }
    with np.errstate(all="ignore"):
        for name, got in zip(exact, compute(list(exact), [a, b], DType(dtype))):
            expected = exact[name](a, b)
            if name == "remainder":  # as C's fmod, then corrected: an infinite divisor stays
                expected = np.where(np.isinf(b) & np.isfinite(a) & (a != 0) & ((a < 0) != (b < 0)), b, expected)
            rests = [np.fmod(a, b)] if name == "remainder" else []
            assert_same(name, got, expected, [a, b, *rests])
    (quotient,) = compute(["divide"], [a, b], DType(dtype))
    check("divide", quotient, true_values("divide", a, b), [a, b], QUOTIENT_LIMIT)
    is_comparable = comparable([a, b])
    for name, got in zip(COMPARISONS, decide(COMPARISONS, [a, b], DType(dtype))):
        np.testing.assert_array_equal(got[is_comparable], getattr(np, name)(a, b)[is_comparable], name)


def test_fma_is_nearly_exact() -> None:
    generator = np.random.default_rng(0)
    a, b, c = (generator.normal(size=4096).astype(np.float32) for _ in range(3))
    (got,) = compute(["fma"], [a, b, c], DType.float32)
    exact = a.astype(np.float64) * b + c
    assert np.all(np.abs(got - exact) <= 2.0**-23 * (np.abs(a.astype(np.float64) * b) + np.abs(c)))


def test_select() -> None:
    choice = np.array([True, False, True, False])
    a, b = np.array([1, 2, 3, 4], np.float32), np.array([np.nan, 6, np.inf, 8], np.float32)
    kinds = [DType.bool, DType.float32, DType.float32]
    (got,) = run(ALL, [(call("select", kinds, DType.float32), DType.float32)], [choice, a, b], kinds)
    np.testing.assert_array_equal(got, np.where(choice, a, b))


# -- integers --------------------------------------------------------------------------------------------------------


def integers(dtype: DType) -> tuple[Array, Array]:
    """All pairs of some numbers of a type: small ones, extremes, powers of two and others."""
    low, high = (int(limit) for limit in dtype.limits)
    near = [
        *range(-9, 10),
        *(sign * (1 << bit) + more for bit in (4, 7, 16, 31, 32, 47) for sign in (1, -1) for more in (-1, 0, 1)),
    ]
    generator = np.random.default_rng(dtype.bits)
    chosen = {
        low,
        low + 1,
        high,
        high - 1,
        *near,
        *(int(n) for n in generator.integers(low, high, 8, dtype=np.int64 if low else np.uint64)),
    }
    values = np.array(sorted(number for number in chosen if low <= number <= high), object)
    a, b = np.meshgrid(values, values)
    return a.ravel().astype(_wide(dtype)).astype(dtype.numpy), b.ravel().astype(_wide(dtype)).astype(dtype.numpy)


def _wide(dtype: DType) -> str:
    return "uint64" if dtype.is_unsigned else "int64"


def wrap(number: int, dtype: DType) -> int:
    low = int(dtype.limits[0])
    return low + (number - low) % (1 << dtype.bits)


def _truncated(a: int, b: int) -> int:
    return 0 if b == 0 else abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def _integer_power(a: int, b: int, bits: int) -> int:
    if b >= 0:
        return pow(a, b, 1 << bits)
    return {1: 1, -1: -1 if b % 2 else 1}.get(a, 0)


INTEGER_FUNCTIONS: dict[str, Callable[[int, int, int], int]] = {
    "add": lambda a, b, _: a + b,
    "subtract": lambda a, b, _: a - b,
    "multiply": lambda a, b, _: a * b,
    "divide": lambda a, b, _: _truncated(a, b),
    "remainder": lambda a, b, _: a % b if b else 0,
    "fmod": lambda a, b, _: a - b * _truncated(a, b) if b else 0,
    "power": _integer_power,
    "minimum": lambda a, b, _: min(a, b),
    "maximum": lambda a, b, _: max(a, b),
    "bit_and": lambda a, b, _: a & b,
    "bit_or": lambda a, b, _: a | b,
    "bit_xor": lambda a, b, _: a ^ b,
    "shift_left": lambda a, b, bits: a << b if 0 <= b < bits else 0,
    "shift_right": lambda a, b, bits: a >> b if 0 <= b < bits else 0,
}
INTEGER_UNARY: dict[str, Callable[[int], int]] = {
    "negate": lambda a: -a,
    "absolute": abs,
    "sign": lambda a: (a > 0) - (a < 0),
    "bit_not": lambda a: ~a,
    "floor": lambda a: a,
    "ceil": lambda a: a,
    "round_half_even": lambda a: a,
    "truncate": lambda a: a,
}


def with_abilities(dtypes: Sequence[DType]) -> list[object]:
    """Types of 64 bits once more as pairs of words."""
    plain = [pytest.param(dtype, PLAIN, id=f"{dtype}-pair") for dtype in dtypes if dtype.bits == 64]
    return [*(pytest.param(dtype, ALL, id=str(dtype)) for dtype in dtypes), *plain]


@pytest.mark.parametrize(("dtype", "abilities"), with_abilities(INTEGERS))
def test_integer_functions(dtype: DType, abilities: Abilities) -> None:
    a, b = integers(dtype)
    numbers = [(int(x), int(y)) for x, y in zip(a, b)]
    for name, got in zip(INTEGER_FUNCTIONS, compute(list(INTEGER_FUNCTIONS), [a, b], dtype, abilities)):
        function = INTEGER_FUNCTIONS[name]
        expected = _array((wrap(function(x, y, dtype.bits), dtype) for x, y in numbers), dtype, len(a))
        assert_same(f"{name} of {dtype}", got, expected, [a, b])
    for name, got in zip(INTEGER_UNARY, compute(list(INTEGER_UNARY), [a], dtype, abilities)):
        expected = _array((wrap(INTEGER_UNARY[name](x), dtype) for x, _ in numbers), dtype, len(a))
        assert_same(f"{name} of {dtype}", got, expected, [a])
    for name, got in zip(COMPARISONS, decide(COMPARISONS, [a, b], dtype, abilities)):
        expected = getattr(np, name)(a.astype(_wide(dtype)), b.astype(_wide(dtype)))
        assert_same(f"{name} of {dtype}", got, expected, [a, b])
    (got,) = compute(["fma"], [a, b, b], dtype, abilities)
    assert_same("fma", got, _array((wrap(x * y + y, dtype) for x, y in numbers), dtype, len(a)), [a, b])


def _array(numbers: object, dtype: DType, count: int) -> Array:
    return np.fromiter(numbers, _wide(dtype), count).astype(dtype.numpy)  # type: ignore[call-overload]


def test_dot4_multiplies_unsigned_by_signed_bytes() -> None:
    generator = np.random.default_rng(0)
    bytes_, signed = generator.integers(0, 256, (512, 4), np.uint8), generator.integers(-128, 128, (512, 4), np.int8)
    bytes_[0], signed[0], bytes_[1], signed[1] = 255, -128, 255, 127
    totals = generator.integers(-(2**31), 2**31, 512, np.int32)
    (got,) = compute(["dot4"], [bytes_.view(np.int32)[:, 0], signed.view(np.int32)[:, 0], totals], DType.int32)
    np.testing.assert_array_equal(got, totals + (bytes_.astype(np.int32) * signed).sum(1, np.int32))


@pytest.mark.parametrize("abilities", [ALL, PLAIN], ids=["native", "pairs"])
def test_literals(abilities: Abilities) -> None:
    cases: list[tuple[float, DType]] = [(True, DType.bool), (False, DType.bool)]
    for dtype in INTEGERS:
        cases += [(number, dtype) for number in (0, 1, *dtype.limits)]
    cases += [(number, DType.float32) for number in (0.0, -0.0, 1.0, -2.5, 0.1, 1e-45, 3e38, math.inf, -math.inf)]
    cases += [
        (0.1, DType.float16),
        (1e-7, DType.float16),
        (1e9, DType.float16),
        (0.1, DType.bfloat16),
        (300, DType.int8),
    ]
    cases += [(3, DType.float32), (0.3, DType.float8e4m3fn), (0.3, DType.float4e2m1)]
    expressions: list[tuple[Expression, DType]] = [(_constant(value, dtype), dtype) for value, dtype in cases]
    for (value, dtype), got in zip(cases, run(abilities, expressions, [np.zeros(1, np.float32)], [DType.float32])):
        with np.errstate(over="ignore"):
            number = wrap(int(value), dtype) if dtype.is_integer else value
            expected = np.array(number).astype(dtype.numpy).astype(got.dtype)
        assert got[0] == expected, (value, dtype)
        if dtype.is_float:
            assert np.signbit(got[0]) == np.signbit(expected)
    arguments = [np.zeros(1, np.float32)]
    (nan,) = run(abilities, [(_constant(math.nan, DType.float32), DType.float32)], arguments, [DType.float32])
    assert np.isnan(nan[0])


def _constant(value: float, dtype: DType) -> Expression:
    return lambda library, _: library.literal(value, dtype)


@pytest.mark.parametrize("abilities", [ALL, PLAIN], ids=["native", "pairs"])
@pytest.mark.parametrize("kind", ["sum", "product", "maximum", "minimum"])
def test_combine(kind: str, abilities: Abilities) -> None:
    a, b = np.array([3, -7, 2**40], np.int64), np.array([-5, 7, 2**33 + 1], np.int64)
    combine: Expression = lambda library, arguments: library.combine(kind, DType.int64, *arguments)  # noqa: E731
    (got,) = run(abilities, [(combine, DType.int64)], [a, b], [DType.int64, DType.int64])
    expected = {"sum": np.add, "product": np.multiply, "maximum": np.maximum, "minimum": np.minimum}[kind](a, b)
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("abilities", [ALL, PLAIN], ids=["native", "pairs"])
def test_indices(abilities: Abilities) -> None:
    numbers = np.array([0, 1, -1, 2**31 - 1, -(2**31)], np.int32)
    widen: Expression = lambda library, arguments: library.from_index(arguments[0])  # noqa: E731
    again: Expression = lambda library, arguments: library.to_index(library.from_index(arguments[0]))  # noqa: E731
    wide, same = run(abilities, [(widen, DType.int64), (again, DType.int32)], [numbers], [DType.int32])
    np.testing.assert_array_equal(wide, numbers.astype(np.int64))
    np.testing.assert_array_equal(same, numbers)


# -- bools -----------------------------------------------------------------------------------------------------------


def test_bool_functions() -> None:
    a, b = np.array([False, False, True, True]), np.array([False, True, False, True])
    pairs = {
        "logical_and": np.logical_and,
        "logical_or": np.logical_or,
        "logical_xor": np.logical_xor,
        "bit_and": np.bitwise_and,
        "bit_or": np.bitwise_or,
        "bit_xor": np.bitwise_xor,
        "minimum": np.minimum,
        "maximum": np.maximum,
        "add": np.add,
        "multiply": np.multiply,
        **{name: getattr(np, name) for name in COMPARISONS},
    }
    for name, got in zip(pairs, decide(list(pairs), [a, b], DType.bool)):
        np.testing.assert_array_equal(got, pairs[name](a, b), name)
    for name, got in zip(["logical_not", "bit_not"], decide(["logical_not", "bit_not"], [a], DType.bool)):
        np.testing.assert_array_equal(got, ~a, name)


# -- narrow floats ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [dtype for dtype in MINIFLOATS if dtype is not DType.float8e8m0])
def test_arithmetic_of_minifloats_rounds_each_result(dtype: DType) -> None:
    codes = np.arange(1 << dtype.bits, dtype=np.uint8).view(dtype.numpy)
    left, right = (part.reshape(-1).copy() for part in np.meshgrid(codes, codes))
    names = ["add", "subtract", "multiply"]
    with np.errstate(all="ignore"):
        for name, got in zip(names, compute(names, [left, right], dtype)):
            assert_same(f"{name} of {dtype}", got, getattr(np, name)(left, right).astype(np.float32), [left, right])


@pytest.mark.parametrize("abilities", [ALL, PLAIN], ids=["native", "plain"])
@pytest.mark.parametrize("dtype", [DType.float16, DType.bfloat16])
def test_functions_of_all_numbers_of_16_bits(dtype: DType, abilities: Abilities) -> None:
    numbers = np.arange(1 << 16, dtype=np.uint16).view(dtype.numpy)
    others = np.random.default_rng(0).permutation(numbers)
    wide, other = numbers.astype(np.float32), others.astype(np.float32)
    with np.errstate(all="ignore"):
        unary = {"negate": -wide, "absolute": abs(wide), "floor": np.floor(wide), "round_half_even": np.rint(wide)}
        for name, got in zip(unary, compute(list(unary), [numbers], dtype, abilities)):
            assert_same(f"{name} of {dtype}", got, unary[name], [wide])
        binary = {"add": wide + other, "multiply": wide * other, "maximum": np.maximum(wide, other)}
        for name, got in zip(binary, compute(list(binary), [numbers, others], dtype, abilities)):
            expected = binary[name].astype(dtype.numpy).astype(np.float32)
            assert_same(f"{name} of {dtype}", got, expected, [wide, other, binary[name]])
        names = ["exp", "log", "tanh", "erf", "sin", "sqrt"]
        cases = [(name, [wide], got) for name, got in zip(names, compute(names, [numbers], dtype, abilities))]
        cases.append(("divide", [wide, other], compute(["divide"], [numbers, others], dtype, abilities)[0]))
        for name, arguments, got in cases:
            true = true_values(name, *arguments)
            low, high = ((true * side).astype(np.float32).astype(dtype.numpy) for side in (1 - 1e-6, 1 + 1e-6))
            expected = np.where(got == low.astype(np.float32), low, high).astype(np.float32)
            assert_same(f"{name} of {dtype}", got, expected, [*arguments, true])


def test_float64_needs_its_ability() -> None:
    with pytest.raises(InternalError):
        Library(PLAIN).register_type(DType.float64)
    with pytest.raises(InternalError):
        Library(Abilities(int64=False, float64=True, float16=False)).call("exp", ["x"], [DType.float64], DType.float64)


def test_results_in_storage_are_those_of_registers() -> None:
    numbers = samples("float32", 1 << 10)
    kinds = [DType.float32]
    for result in (DType.float32, DType.float16, DType.uint8, DType.int64):
        expression = call("cast", kinds, result)
        (expected,) = run(ALL, [(expression, result)], [numbers], kinds)
        got = run_stored(ALL, expression, [numbers], kinds, result)
        assert_same(str(result), got.astype(expected.dtype), expected, [numbers])
