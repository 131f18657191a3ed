"""`collect_rarely` raises the garbage collector's threshold and restores it."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from weft.garbage import THRESHOLD, collect_rarely


@pytest.fixture(autouse=True)
def restore_threshold() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)


def test_raised_until_the_outermost_block_ends() -> None:
    gc.set_threshold(500, 7, 9)
    with collect_rarely():
        with collect_rarely():
            assert gc.get_threshold()[0] == THRESHOLD
        assert gc.get_threshold()[0] == THRESHOLD
    assert gc.get_threshold() == (500, 7, 9)


def test_restored_after_an_error() -> None:
    gc.set_threshold(500, 7, 9)
    with pytest.raises(KeyError), collect_rarely():
        raise KeyError
    assert gc.get_threshold() == (500, 7, 9)


@pytest.mark.parametrize("first", [0, 2 * THRESHOLD])
def test_higher_and_disabled_thresholds_do_not_change(first: int) -> None:
    gc.set_threshold(first, 7, 9)
    with collect_rarely():
        assert gc.get_threshold()[0] == first
    assert gc.get_threshold() == (first, 7, 9)


def test_a_threshold_set_inside_the_block_stays() -> None:
    with collect_rarely():
        gc.set_threshold(300, 7, 9)
    assert gc.get_threshold() == (300, 7, 9)


def test_new_objects_are_old_afterwards() -> None:
    gc.set_threshold(500, 7, 9)
    with collect_rarely():
        objects: list[list[int]] = [[] for _ in range(10_000)]
    assert any(each is objects for each in gc.get_objects(generation=2))
    assert gc.get_count()[0] < 500  # the next allocation does not scan them
