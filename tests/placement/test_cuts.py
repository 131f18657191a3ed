"""The minimum cut is the smallest of all cuts."""

from __future__ import annotations

import random
from itertools import product

import pytest

from weft.placement.cuts import SINK, SOURCE, Network


@pytest.mark.parametrize("seed", range(40))
def test_no_other_cut_is_smaller(seed: int) -> None:
    rng = random.Random(seed)
    inner = rng.randint(1, 7)
    network = Network()
    nodes = [SOURCE, SINK, *(network.node() for _ in range(inner))]
    pairs = [(a, b) for a, b in product(nodes, nodes) if a != b and a != SINK and b != SOURCE]
    edges = [(a, b, rng.choice([0.0, 1.0, 2.5, 4.0])) for a, b in pairs if rng.random() < 0.5]
    for edge in edges:
        network.edge(*edge)

    def cost(side: set[int]) -> float:
        return sum(capacity for a, b, capacity in edges if a in side and b not in side)

    cuts = [
        {SOURCE, *(node for node, taken in zip(nodes[2:], bits) if taken)} for bits in product((0, 1), repeat=inner)
    ]
    found = network.first_side()
    assert SOURCE in found
    assert SINK not in found
    assert cost(found) == pytest.approx(min(map(cost, cuts))), f"seed {seed}"
