"""The allocator: blocks with overlapping lifetimes share no byte, and arenas are close to the lower bound."""

from __future__ import annotations

import random
from functools import partial

import pytest
from counting import lines_run
from hypothesis import given, note, settings
from hypothesis import strategies as st

from weft.plan.arena import Lifetime, most_alive, place_blocks


def random_blocks(seed: int, count: int) -> list[Lifetime]:
    chooser = random.Random(seed)
    blocks = []
    for _ in range(count):
        first = chooser.randrange(count)
        last = min(count - 1, first + int(chooser.expovariate(1 / chooser.choice([1, 3, 10]))))
        blocks.append(Lifetime(int(2 ** chooser.uniform(0, 22)), first, last))
    return blocks


@given(seed=st.integers(0, 1 << 30), count=st.integers(0, 60), alignment=st.sampled_from([1, 64, 256]))
@settings(max_examples=200)
def test_no_byte_is_shared(seed: int, count: int, alignment: int) -> None:
    note(f"seed {seed}")
    blocks = random_blocks(seed, count)
    arena = place_blocks(blocks, alignment)
    assert arena == place_blocks(blocks, alignment)
    assert arena.size >= arena.lower_bound
    for number, (block, start) in enumerate(zip(blocks, arena.offsets)):
        assert start % alignment == 0
        assert start >= 0
        assert start + block.size <= arena.size
        for other, begin in list(zip(blocks, arena.offsets))[:number]:
            together = block.first <= other.last and other.first <= block.last
            assert not together or start + block.size <= begin or begin + other.size <= start


@pytest.mark.parametrize("count", [20, 60, 200, 1000])
def test_close_to_the_lower_bound(count: int) -> None:
    for seed in range(5):
        arena = place_blocks(random_blocks(seed, count), 64)
        assert arena.size <= 1.01 * arena.lower_bound, seed


def test_work_grows_with_the_number_of_blocks() -> None:
    few, many = (lines_run(partial(place_blocks, random_blocks(3, count), 64)) for count in (250, 1000))
    assert many < 1.5 * 4 * few
    assert many < 200_000


def test_step_with_the_most_live_bytes() -> None:
    assert most_alive([]) == (0, 0)
    assert most_alive([Lifetime(5, 0, 2), Lifetime(7, 2, 3), Lifetime(6, 3, 3)]) == (13, 3)
