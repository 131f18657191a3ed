"""Runs of outputs with the same taps inside the input, against each tap separately."""

from __future__ import annotations

import numpy as np
import pytest

from weft.cost.tap_runs import find_tap_runs, find_worthwhile_runs, remaining_products
from weft.ir import dims
from weft.ir.program import Convolve


@pytest.mark.parametrize("seed", range(40))
def test_runs_have_the_taps_inside_the_input(seed: int) -> None:
    random = np.random.default_rng(seed)
    size, taps = int(random.integers(1, 30)), int(random.integers(1, 4))
    stride, dilation, pad = int(random.integers(1, 4)), int(random.integers(1, 20)), int(random.integers(0, 20))
    count = max((size + 2 * pad - (taps - 1) * dilation - 1) // stride + 1, 0)
    runs = find_tap_runs(size, taps, count, stride, dilation, pad)
    if sum(run.count for run in runs) < count:
        assert len(runs) > 3, "too many to be of use"
    for run in runs:
        for output in range(run.first, run.first + run.count):
            inside = [tap for tap in range(taps) if 0 <= output * stride - pad + tap * dilation < size]
            assert inside == list(range(run.tap, run.tap + run.taps))


def test_where_runs_are_worth_it() -> None:
    wide = Convolve((1, 1), (18, 18), ((18, 18), (18, 18)), 1)
    usual = Convolve((1, 1), (1, 1), ((1, 1), (1, 1)), 1)
    runs = find_worthwhile_runs(wide, (28, 28), (3, 3), (28, 28))
    assert runs is not None
    assert remaining_products(runs, (3, 3)) == pytest.approx((48 / 84) ** 2)
    assert find_worthwhile_runs(usual, (28, 28), (3, 3), (28, 28)) is None
    assert find_worthwhile_runs(wide, (dims.symbol("h"), 28), (3, 3), (dims.symbol("h"), 28)) is None
