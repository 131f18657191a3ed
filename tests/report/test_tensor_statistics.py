"""Statistics of weights, against numpy's."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from weft.report.tensor_statistics import SAMPLE, compute_statistics


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, np.int8, np.int64, ml_dtypes.bfloat16])
def test_small_tensors_are_read_whole(dtype: type) -> None:
    array = (np.random.default_rng(0).standard_normal((40, 50)) * 20).astype(dtype)
    exact = array.astype(np.float64)
    statistics = compute_statistics(array)
    assert (statistics.sampled, statistics.least, statistics.most) == (2000, exact.min(), exact.max())
    assert statistics.mean == pytest.approx(exact.mean())
    assert statistics.deviation == pytest.approx(exact.std())
    assert statistics.zeros == pytest.approx((exact == 0).mean())
    assert statistics.histogram == tuple(np.histogram(exact, 32)[0].tolist())


def test_large_tensors_are_sampled() -> None:
    array = np.random.default_rng(1).standard_normal(3 * SAMPLE).astype(np.float32)
    statistics = compute_statistics(array)
    assert statistics.sampled == SAMPLE
    assert statistics.deviation == pytest.approx(1, abs=0.05)
    assert sum(statistics.histogram) == SAMPLE


def test_nonfinite_elements_are_counted() -> None:
    statistics = compute_statistics(np.array([np.nan, np.inf, -np.inf, 1, 3], np.float32))
    assert (statistics.not_finite, statistics.least, statistics.most, statistics.mean) == (3, 1, 3, 2)
    assert compute_statistics(np.full(4, np.nan, np.float32)).least is None
    huge = compute_statistics(np.array([-1.7e308, 1.7e308]))
    assert huge.deviation is None or np.isfinite(huge.deviation)


def test_other_element_types() -> None:
    assert compute_statistics(np.array(["a", "b" * 100], object)).elements.startswith("a, bbb")
    assert compute_statistics(np.array([True, False])).elements == "true, false"
    assert compute_statistics(np.array([3 + 4j], np.complex64)).most == 5
    assert compute_statistics(np.zeros((0, 3), np.float32)).least is None
