"""Pairwise coupling of probabilities: the same bits in any batch, and the properties of the method."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from weft.backends.reference.host.coupling import couple_probabilities


@pytest.mark.parametrize("count", [2, 3, 5, 9])
def test_rows_have_the_same_bits_in_any_batch(count: int) -> None:
    chances = np.random.default_rng(count).uniform(0.01, 0.99, (40, count * (count - 1) // 2)).astype(np.float32)
    (together,) = couple_probabilities(chances, count=count)
    alone = [couple_probabilities(row[None], count=count)[0][0] for row in chances]
    np.testing.assert_array_equal(together, alone)
    np.testing.assert_allclose(together.sum(axis=1), 1, rtol=1e-5)


def test_consistent_pairs_give_their_probabilities() -> None:
    shares = np.array([0.5, 0.3, 0.15, 0.05])
    chances = [[shares[a] / (shares[a] + shares[b]) for a, b in combinations(range(4), 2)]]
    (coupled,) = couple_probabilities(np.array(chances, np.float32), count=4)
    np.testing.assert_allclose(coupled[0], shares, atol=2e-3)


def test_nan() -> None:
    for rows in (1, 50):
        (coupled,) = couple_probabilities(np.full((rows, 3), np.nan, np.float32), count=3)
        assert coupled.shape == (rows, 3)
    assert couple_probabilities(np.zeros((0, 3), np.float32), count=3)[0].shape == (0, 3)
