"""Test histograms and calibration methods against numpy."""

from __future__ import annotations

import numpy as np
import pytest

from weft.ir.arrays import Array
from weft.quantization.ranges import BINS, METHODS, ValueRange, make_parameters

SEED = 3


def quantize_dequantize(numbers: Array, low: float, high: float, dtype: str = "uint8") -> Array:
    parameters = make_parameters(low, high, dtype)
    limits = np.iinfo(dtype)
    integers = np.clip(np.rint(numbers / parameters.scale) + parameters.zero_point, limits.min, limits.max)
    return (integers - parameters.zero_point) * parameters.scale


def observe(*parts: Array) -> ValueRange:
    values = ValueRange()
    for part in parts:
        values.add(part)
    return values


def test_counts_do_not_depend_on_the_order() -> None:
    random = np.random.default_rng(SEED)
    numbers = random.standard_normal(10_000).astype(np.float32)
    numbers[77] = 40  # widens the histogram
    parts = observe(numbers[:50], numbers[50:100], numbers[100:])
    assert (parts.low, parts.high) == (numbers.min(), numbers.max())
    middles, counts = parts.bins()
    assert counts.sum() == numbers.size
    width = 2 * 64 / BINS  # at most: the first part's largest, doubled
    for limit in (-1.0, -0.1, 0.0, 0.1, 1.0):
        below = int(counts[middles < limit].sum())
        assert abs(below - int((numbers < limit).sum())) <= int((np.abs(numbers - limit) <= width).sum())


def test_infinities_are_noted() -> None:
    values = observe(np.array([1.0, np.inf, np.nan], np.float32))
    assert not values.is_finite
    assert (values.low, values.high) == (0.0, 1.0)


@pytest.mark.parametrize("method", sorted(METHODS))
def test_ranges_lie_within_the_observed_range(method: str) -> None:
    random = np.random.default_rng(SEED)
    for numbers in (random.standard_normal(999), random.random(999), -random.random(999), np.zeros(5), np.ones(5)):
        values = observe(numbers.astype(np.float32))
        low, high = values.choose(method)
        assert min(numbers.min(), 0) - 1e-6 <= low <= 0 <= high <= max(numbers.max(), 0) + 1e-6


def test_mse_has_the_least_error() -> None:
    numbers = np.random.default_rng(SEED).standard_t(3, 20_000).astype(np.float32)
    values = observe(numbers)
    errors = {
        method: float(((quantize_dequantize(numbers, *values.choose(method)) - numbers) ** 2).mean())
        for method in METHODS
    }
    assert errors["mse"] == min(errors.values()) < errors["minmax"]


def test_percentiles_exclude_outliers() -> None:
    numbers = np.random.default_rng(SEED).standard_normal(100_000).astype(np.float32)
    numbers[0] = 1000
    low, high = observe(numbers).choose("percentile")
    assert np.mean((numbers < low) | (numbers > high)) < 1e-3
    assert high < 10


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
@pytest.mark.parametrize(("low", "high"), [(-1.0, 3.0), (0.0, 5.0), (-2.0, 0.0), (2.0, 3.0), (0.0, 0.0), (0.0, 1e-45)])
def test_zero_is_exact(low: float, high: float, dtype: str) -> None:
    parameters = make_parameters(low, high, dtype)
    limits = np.iinfo(dtype)
    assert limits.min <= parameters.zero_point <= limits.max
    assert np.isfinite(parameters.scale)
    assert parameters.scale > 0
    assert quantize_dequantize(np.zeros(1), low, high, dtype)[0] == 0
    ends = np.array([min(low, 0.0), max(high, 0.0)])
    if high > 1e-30 or low < 0:
        assert np.abs(quantize_dequantize(ends, low, high, dtype) - ends).max() <= parameters.scale * 0.51
