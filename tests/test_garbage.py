"""Thresholds of the search for cycles: raised inside, and as they were afterwards."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from weft.garbage import THRESHOLD, collect_rarely


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)


def test_raised_inside_and_back_after_the_outermost() -> None:
    gc.set_threshold(500, 7, 9)
    with collect_rarely():
        with collect_rarely():
            assert gc.get_threshold()[0] == THRESHOLD
        assert gc.get_threshold()[0] == THRESHOLD
    assert gc.get_threshold() == (500, 7, 9)


def test_back_after_an_error() -> None:
    gc.set_threshold(500, 7, 9)
    with pytest.raises(KeyError), collect_rarely():
        raise KeyError
    assert gc.get_threshold() == (500, 7, 9)


@pytest.mark.parametrize("first", [0, 2 * THRESHOLD])
def test_who_searches_seldom_already_is_left_alone(first: int) -> None:
    gc.set_threshold(first, 7, 9)
    with collect_rarely():
        assert gc.get_threshold()[0] == first
    assert gc.get_threshold() == (first, 7, 9)


def test_what_another_set_meanwhile_stays() -> None:
    with collect_rarely():
        gc.set_threshold(300, 7, 9)
    assert gc.get_threshold() == (300, 7, 9)
