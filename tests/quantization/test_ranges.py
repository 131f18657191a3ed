"""Histograms and the ranges that are chosen from them, against what numpy makes of all numbers at once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from weft.quantization.ranges import BINS, METHODS, ValueRange, code_scale

Array = np.ndarray[Any, Any]
SEED = 3


def rounded(numbers: Array, low: float, high: float, dtype: str = "uint8") -> Array:
    """Numbers as codes and back."""
    scale = code_scale(low, high, dtype)
    limits = np.iinfo(dtype)
    codes = np.clip(np.rint(numbers / scale.scale) + scale.zero, limits.min, limits.max)
    return (codes - scale.zero) * scale.scale


def seen(*parts: Array) -> ValueRange:
    values = ValueRange()
    for part in parts:
        values.add(part)
    return values


def test_counts_do_not_depend_on_how_numbers_come() -> None:
    random = np.random.default_rng(SEED)
    numbers = random.standard_normal(10_000).astype(np.float32)
    numbers[77] = 40  # after which the histogram is wider
    parts = seen(numbers[:50], numbers[50:100], numbers[100:])
    assert (parts.low, parts.high) == (numbers.min(), numbers.max())
    middles, counts = parts.bins()
    assert counts.sum() == numbers.size
    width = 2 * 64 / BINS  # at most: the first part's largest, doubled
    for at in (-1.0, -0.1, 0.0, 0.1, 1.0):
        below = int(counts[middles < at].sum())
        assert abs(below - int((numbers < at).sum())) <= int((np.abs(numbers - at) <= width).sum())


def test_numbers_without_an_end_are_told() -> None:
    values = seen(np.array([1.0, np.inf, np.nan], np.float32))
    assert not values.is_finite
    assert (values.low, values.high) == (0.0, 1.0)


@pytest.mark.parametrize("method", sorted(METHODS))
def test_ranges_lie_within_what_was_seen(method: str) -> None:
    random = np.random.default_rng(SEED)
    for numbers in (random.standard_normal(999), random.random(999), -random.random(999), np.zeros(5), np.ones(5)):
        values = seen(numbers.astype(np.float32))
        low, high = values.chosen(method)
        assert min(numbers.min(), 0) - 1e-6 <= low <= 0 <= high <= max(numbers.max(), 0) + 1e-6


def test_the_least_error_is_less_than_that_of_the_whole_range() -> None:
    numbers = np.random.default_rng(SEED).standard_t(3, 20_000).astype(np.float32)
    values = seen(numbers)
    errors = {method: float(((rounded(numbers, *values.chosen(method)) - numbers) ** 2).mean()) for method in METHODS}
    assert errors["mse"] == min(errors.values()) < errors["minmax"]


def test_percentiles_leave_a_few_out() -> None:
    numbers = np.random.default_rng(SEED).standard_normal(100_000).astype(np.float32)
    numbers[0] = 1000
    low, high = seen(numbers).chosen("percentile")
    assert np.mean((numbers < low) | (numbers > high)) < 1e-3
    assert high < 10


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
@pytest.mark.parametrize(("low", "high"), [(-1.0, 3.0), (0.0, 5.0), (-2.0, 0.0), (2.0, 3.0), (0.0, 0.0), (0.0, 1e-45)])
def test_zero_has_a_code(low: float, high: float, dtype: str) -> None:
    scale = code_scale(low, high, dtype)
    limits = np.iinfo(dtype)
    assert limits.min <= scale.zero <= limits.max
    assert np.isfinite(scale.scale)
    assert scale.scale > 0
    assert rounded(np.zeros(1), low, high, dtype)[0] == 0
    ends = np.array([min(low, 0.0), max(high, 0.0)])
    if high > 1e-30 or low < 0:
        assert np.abs(rounded(ends, low, high, dtype) - ends).max() <= scale.scale * 0.51
