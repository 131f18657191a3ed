"""Stop strings: compare any division of a text into pieces with a search at one character after the other."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.generation.stops import StopStrings

LETTERS = "abé😀"
texts = st.text(LETTERS, max_size=30)
stop_lists = st.lists(st.text(LETTERS, min_size=1, max_size=5), max_size=4)


def cut(text: str, stops: list[str]) -> tuple[str, str | None]:
    """Return the text before the stop string that is complete first, and that stop string."""
    for end in range(len(text) + 1):
        complete = [stop for stop in stops if text[:end].endswith(stop)]
        if complete:
            longest = max(complete, key=len)
            return text[: end - len(longest)], longest
    return text, None


@given(texts, stop_lists, st.lists(st.integers(0, 30), max_size=6))
def test_pieces(text: str, stops: list[str], cuts: list[int]) -> None:
    matcher = StopStrings(stops)
    bounds = [0, *sorted(min(position, len(text)) for position in cuts), len(text)]
    result = ""
    expected, match = cut(text, stops)
    for start, end in itertools.pairwise(bounds):
        result += matcher.put(text[start:end])
        assert expected.startswith(result)
    if matcher.match is None:
        result += matcher.finish()
    assert (result, matcher.match) == (expected, match)


@given(texts, stop_lists)
def test_holds_back_no_more_than_needed(text: str, stops: list[str]) -> None:
    matcher = StopStrings(stops)
    shown = matcher.put(text)
    if matcher.match is None:
        rest = text[len(shown) :]
        assert text.startswith(shown)
        assert not rest or any(stop.startswith(rest) for stop in stops)


@pytest.mark.parametrize(
    ("pieces", "stops", "shown"),
    [
        (["Hel", "lo\n", "\nUser", ": hi"], ["\n\nUser:"], ["Hel", "lo", "", ""]),
        (["a<", "b<|e", "nd|> c"], ["<|end|>"], ["a", "<b", ""]),
        (["xab", "cd"], ["abcd", "bc"], ["x", "a"]),
        (["ab"], [], ["ab"]),
    ],
)
def test_streams(pieces: list[str], stops: list[str], shown: list[str]) -> None:
    matcher = StopStrings(stops)
    assert [matcher.put(piece) for piece in pieces] == shown


def test_nothing_follows_a_stop_string() -> None:
    matcher = StopStrings(["."])
    assert matcher.put("One. Two") == "One"
    assert matcher.put("three") == matcher.finish() == ""
    assert matcher.match == "."
