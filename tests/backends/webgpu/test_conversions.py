"""Conversions of shaders against numpy, ml_dtypes and Python's integers: every code of narrow types, and all pairs."""

from __future__ import annotations

import numpy as np
import pytest
from accuracy import samples
from backends.webgpu.shaders import ALL, PAIRS, PLAIN, Array, Expression, call, comparable, run, run_stored

from weft.backends.webgpu.library import Abilities, Library
from weft.ir.dtypes import DType

NUMERIC = [dtype for dtype in DType if not dtype.is_complex and dtype is not DType.string]
NARROW = [dtype for dtype in NUMERIC if dtype is not DType.bool and dtype.bits < 32]
MINIFLOATS = [dtype for dtype in DType if dtype.is_float and dtype.bits <= 8]
ABILITIES = {"native": ALL, "plain": PLAIN, "pairs": PAIRS}


def codes(dtype: DType) -> Array:
    """Every number of a narrow type."""
    return np.arange(1 << dtype.bits, dtype=f"u{dtype.numpy.itemsize}").view(dtype.numpy)


def floats() -> Array:
    """Every exponent with many fractions, halfway cases and their neighbours among them; infinities and NaN."""
    upper = np.arange(1 << 16, dtype=np.uint32) << 16
    return np.concatenate([upper + low for low in (0, 1, 0x7FFF, 0x8000, 0xFFFF)]).view(np.float32)


def numbers(dtype: DType) -> Array:
    """Numbers of a type: all of a narrow one."""
    if dtype is DType.bool:
        return np.array([False, True])
    if dtype in NARROW:
        return codes(dtype)
    if dtype.is_integer:
        low, high = (int(limit) for limit in dtype.limits)
        powers = [sign * (1 << bit) + more for bit in range(64) for sign in (1, -1) for more in (-1, 0, 1)]
        halfway = [(1 << 40) + (1 << 16) + more for more in (-1, 0, 1)] + [
            (3 << 39) + (1 << 16) + more for more in (-1, 0, 1)
        ]
        generator = np.random.default_rng(dtype.bits)
        shifts = generator.integers(0, dtype.bits, 200)
        spread = [int(n) >> int(shift) for n, shift in zip(generator.integers(0, high, 200, np.uint64), shifts)]
        chosen = {low, high, *powers, *halfway, *spread, *(-number for number in spread)}
        in_range = sorted(number for number in chosen if low <= number <= high)
        return np.array(in_range, "uint64" if dtype.is_unsigned else "int64").astype(dtype.numpy)
    edges = np.array([2.0**bit * factor for bit in range(7, 66) for factor in (0.999999999, 1.0, 1.5, -1.0, -1.5)])
    with np.errstate(over="ignore"):
        return np.concatenate([samples(dtype.value, 1 << 12), edges.astype(dtype.numpy)])


def saturate(x: Array, dtype: DType) -> Array:
    """Convert floats to int64, or to uint64 if that is the target, saturating; NaN gives 0."""
    wide = np.trunc(np.nan_to_num(x.astype(np.float64), nan=0.0, posinf=np.inf, neginf=-np.inf))
    kind, low, high = (np.uint64, 0.0, 2.0**64) if dtype is DType.uint64 else (np.int64, -(2.0**63), 2.0**63)
    inside = (wide >= low) & (wide < high)
    limits = np.iinfo(kind)
    extremes = np.where(wide < 0, limits.min, np.array(limits.max, kind))
    return np.where(inside, np.where(inside, wide, 0).astype(kind), extremes.astype(kind))


def wrap(x: Array, dtype: DType) -> Array:
    """Wrap 64-bit integers around to a narrower type."""
    if dtype.bits == 64:
        return x.view(dtype.numpy)
    low, mask = int(dtype.limits[0]), (1 << dtype.bits) - 1
    return (((x.view(np.int64) - low) & mask) + low).astype(dtype.numpy)


def expected_cast(x: Array, source: DType, target: DType) -> Array:
    with np.errstate(all="ignore"):
        if source.is_float:
            wide = x.astype(np.float32 if source.bits < 32 else source.numpy)
            if target is DType.bool:
                return wide != 0
            return wrap(saturate(wide, target), target) if target.is_integer else wide.astype(target.numpy)
        whole = x.astype(np.uint64 if source.is_unsigned else np.int64)
        if target is DType.bool:
            return whole != 0
        if target.is_integer:
            return wrap(whole, target)
        return whole.astype(target.numpy) if target.bits >= 32 else whole.astype(np.float32).astype(target.numpy)


def assert_same(label: str, got: Array, expected: Array, inputs: Array) -> None:
    expected = expected.astype(got.dtype)
    same = (got == expected) | ((got != got) & (expected != expected))
    wrong = np.flatnonzero(~same & comparable([inputs, expected]))
    cases = [(inputs[n], got[n], expected[n]) for n in wrong[:5]]
    assert not len(wrong), f"{label}: {len(wrong)} of {len(got)} differ, (argument, got, expected): {cases}"


def supported_dtypes(abilities: Abilities) -> list[DType]:
    return [dtype for dtype in NUMERIC if abilities.float64 or dtype is not DType.float64]


@pytest.mark.parametrize(
    ("source", "abilities"),
    [
        pytest.param(source, abilities, id=f"{source}-{name}")
        for name, abilities in ABILITIES.items()
        for source in supported_dtypes(abilities)
    ],
)
def test_casts_to_all_types(source: DType, abilities: Abilities) -> None:
    inputs = numbers(source)
    targets = [target for target in supported_dtypes(abilities) if target is not DType.float64 or abilities.int64]
    actual = run(abilities, [(call("cast", [source], target), target) for target in targets], [inputs], [source])
    for target, got in zip(targets, actual):
        if source is not DType.float64 or target not in MINIFLOATS:  # which ml_dtypes rounds twice; see below
            assert_same(f"{source} to {target}", got, expected_cast(inputs, source, target), inputs)
    if DType.float64 in supported_dtypes(abilities) and not abilities.int64:
        got = run_stored(abilities, call("cast", [source], DType.float64), [inputs], [source], DType.float64)
        assert_same(f"{source} to float64", got, expected_cast(inputs, source, DType.float64), inputs)


@pytest.mark.parametrize("abilities", [ALL, PLAIN], ids=["native", "plain"])
@pytest.mark.parametrize("dtype", [DType.float16, DType.bfloat16, *MINIFLOATS])
def test_floats_are_rounded_to_nearest_even(dtype: DType, abilities: Abilities) -> None:
    inputs = floats()
    with np.errstate(all="ignore"):
        expected = inputs.astype(dtype.numpy)
    actual = run_stored(abilities, call("cast", [DType.float32], dtype), [inputs], [DType.float32], dtype)
    nan = np.isnan(inputs)
    unsigned = f"u{dtype.numpy.itemsize}"
    differs = (actual.view(unsigned) != expected.view(unsigned)) & ~(nan & np.isnan(actual))
    wrong = np.flatnonzero(differs & comparable([inputs]))
    assert not len(wrong), [(inputs[n], actual.view(unsigned)[n], expected.view(unsigned)[n]) for n in wrong[:5]]


@pytest.mark.parametrize("dtype", [dtype for dtype in MINIFLOATS if dtype is not DType.float8e8m0])
def test_doubles_are_rounded_once(dtype: DType) -> None:
    sizes = codes(dtype)[: 1 << (dtype.bits - 1)].astype(np.float64)
    sizes = sizes[np.isfinite(sizes)]  # by their codes, so that even ones have even codes
    middles = (sizes[:-1] + sizes[1:]) / 2
    for inputs, chosen in (
        (middles, sizes[np.arange(len(middles)) + np.arange(len(middles)) % 2]),
        (middles * (1 + 2.0**-50), sizes[1:]),
        (middles * (1 - 2.0**-50), sizes[:-1]),
        (sizes * (1 + 2.0**-50), sizes),
    ):
        (actual,) = run(ALL, [(call("cast", [DType.float64], dtype), dtype)], [inputs], [DType.float64])
        assert_same(str(dtype), actual, chosen, inputs)
        (actual,) = run(ALL, [(call("cast", [DType.float64], dtype), dtype)], [-inputs], [DType.float64])
        assert_same(str(dtype), actual, -chosen, -inputs)


def test_doubles_become_the_nearest_power_of_two() -> None:
    inputs = np.array([1.0, 1.4999999999999998, 1.5, 1.5000000000000002, 2.9999999999999996, 3.0, 2.0**-127, -1.0, 0.0])
    (actual,) = run(
        ALL, [(call("cast", [DType.float64], DType.float8e8m0), DType.float8e8m0)], [inputs], [DType.float64]
    )
    assert_same("float8e8m0", actual, np.array([1.0, 1.0, 2.0, 2.0, 2.0, 4.0, 2.0**-127, np.nan, np.nan]), inputs)


@pytest.mark.parametrize("abilities", [ALL, PLAIN], ids=["native", "plain"])
@pytest.mark.parametrize("dtype", NARROW)
def test_storage_keeps_every_code(dtype: DType, abilities: Abilities) -> None:
    inputs = codes(dtype)
    actual = run_stored(abilities, lambda _, texts: texts[0], [inputs], [dtype], dtype)
    unsigned = f"u{dtype.numpy.itemsize}"
    with np.errstate(invalid="ignore"):
        same = (actual.view(unsigned) == inputs.view(unsigned)) | ((actual != actual) & (inputs != inputs))
    assert same.all(), np.flatnonzero(~same)


def test_storage_types() -> None:
    library, plain = Library(ALL), Library(PLAIN)
    assert library.storage_type(DType.float16) == "f16"
    assert (plain.storage_type(DType.float16), plain.elements_in_word(DType.float16)) == ("u32", 2)
    assert (library.storage_type(DType.bfloat16), library.elements_in_word(DType.bfloat16)) == ("u32", 2)
    assert (library.storage_type(DType.bool), library.elements_in_word(DType.bool)) == ("u32", 4)
    assert (library.storage_type(DType.int4), library.elements_in_word(DType.int4)) == ("u32", 4)
    assert (library.storage_type(DType.int64), plain.storage_type(DType.int64)) == ("i64", "vec2<u32>")
    assert library.elements_in_word(DType.float64) == plain.elements_in_word(DType.uint64) == 1


@pytest.mark.parametrize("abilities", [ALL, PLAIN], ids=["native", "plain"])
@pytest.mark.parametrize(
    "group",
    [
        (DType.float32, DType.int32, DType.uint32),
        (DType.float16, DType.bfloat16, DType.int16, DType.uint16),
        (DType.int8, DType.uint8, DType.float8e4m3fn, DType.float8e5m2),
        (DType.int64, DType.uint64, DType.float64),
    ],
)
def test_bitcasts(group: tuple[DType, ...], abilities: Abilities) -> None:
    group = tuple(dtype for dtype in group if dtype in supported_dtypes(abilities))
    generator = np.random.default_rng(0)
    for source in group:
        bits = generator.integers(0, 256, 512 * source.numpy.itemsize, np.uint8)
        inputs = bits.view(source.numpy)
        inputs = inputs[inputs == inputs]  # bitcasts need not keep codes of NaN
        expressions: list[tuple[Expression, DType]] = [(call("bitcast", [source], target), target) for target in group]
        for target, got in zip(group, run(abilities, expressions, [inputs], [source])):
            assert_same(f"{source} as {target}", got, inputs.view(target.numpy), inputs)


@pytest.mark.parametrize("abilities", [ALL, PLAIN], ids=["native", "plain"])
@pytest.mark.parametrize("source", [DType.bool, DType.int8, DType.int32, DType.uint32, DType.int64, DType.uint64])
def test_casts_of_literals(source: DType, abilities: Abilities) -> None:
    """Cast literals: not all conversions are constant expressions of WGSL."""
    targets = [DType.float32, DType.float64, DType.float16, DType.int32, DType.int64, DType.uint8, DType.uint64]
    targets = [target for target in targets if target in supported_dtypes(abilities)]
    values = [False, True] if source is DType.bool else [0, 1, 3, *(int(limit) for limit in source.limits)]
    if source.bits == 64:
        values.append(9007199791611905)  # more than once between numbers of float32

    def cast_literal(value: int, target: DType) -> Expression:
        return lambda library, _: library.call("cast", [library.literal(value, source)], [source], target)

    cases = [(value, target) for value in values for target in targets]
    inputs = [np.zeros(1, np.float32)]
    expressions: list[tuple[Expression, DType]] = [(cast_literal(*case), case[1]) for case in cases]
    with np.errstate(all="ignore"):
        for (value, target), got in zip(cases, run(abilities, expressions, inputs, [DType.float32])):
            expected = np.array(value, source.numpy).astype(target.numpy)
            assert got[0] == expected.astype(got.dtype), (value, target)
