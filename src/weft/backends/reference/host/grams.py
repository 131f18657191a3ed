"""n-grams, counted in rows of words or numbers."""

from __future__ import annotations

from collections.abc import Callable
from itertools import repeat
from typing import Any

import numpy as np

from weft.backends.reference.host.memory import remembered

Array = np.ndarray[Any, Any]
Gram = tuple[int, dict[Any, Any]]  # the column of an n-gram, or -1, and those that begin with it, by what comes next


def tf_idf(
    x: Array,
    *,
    lengths: tuple[int, int],
    skips: int,
    counted: bool,
    weights: tuple[float, ...] | None,
    starts: tuple[int, ...],
    places: tuple[int, ...],
    pool: tuple[Any, ...],
) -> tuple[Array]:
    """How often each n-gram is in a row, or whether it is, times its weight."""
    rows, columns = (1, x.size) if x.ndim == 1 else x.shape
    width = remembered(_width, places)
    first = np.arange(0, rows * width, width)
    if lengths[1] == 1:
        words = remembered(_words, pool, starts, places)
        found = np.fromiter(map(words.get, x.ravel().tolist(), repeat(-1)), np.int64, x.size).reshape(rows, columns)
        hits = (found + first[:, None])[found >= 0]
    else:
        grams = remembered(_grams, lengths, pool, starts, places)
        met = [
            start + place
            for start, line in zip(first.tolist(), x.reshape(rows, columns).tolist())
            for place in _met(line, grams, skips)
        ]
        hits = np.array(met, np.int64)
    result = np.zeros(rows * width, np.float32)
    np.add.at(result, hits, np.float32(1))  # a number of another type is added ten times slower
    if not counted:
        result = np.minimum(result, 1)
    result = result.reshape(*x.shape[:-1], width)
    return (result if weights is None else result * remembered(_scale, weights, places),)


def _words(pool: tuple[Any, ...], starts: tuple[int, ...], places: tuple[int, ...]) -> dict[Any, int]:
    return dict(zip(pool[: starts[1] if len(starts) > 1 else None], places))


def _grams(
    lengths: tuple[int, int], pool: tuple[Any, ...], starts: tuple[int, ...], places: tuple[int, ...]
) -> dict[Any, Gram]:
    """The pool, where n-grams of one element come first, then those of two, ..., as a tree."""
    grams: dict[Any, Gram] = {}
    number = 0
    for length, (start, end) in enumerate(zip(starts, (*starts[1:], len(pool))), start=1):
        for begin in range(start, end, length):
            place, number = places[number], number + 1
            if not lengths[0] <= length <= lengths[1]:
                continue
            level = grams
            for element in pool[begin : begin + length - 1]:
                level = level.setdefault(element, (-1, {}))[1]
            last = pool[begin + length - 1]
            level[last] = (place, level[last][1] if last in level else {})
    return grams


def _met(row: list[Any], grams: dict[Any, Gram], skips: int) -> list[int]:
    """The column of each known n-gram at each place, with 0, 1, ... elements skipped between its parts."""
    met = []
    for step in range(1, skips + 2):
        for start, gram in enumerate(map(grams.get, row), step):
            if gram is None:
                continue
            place, following = gram
            if place >= 0 and step == 1:
                met.append(place)
            while following and start < len(row):
                gram = following.get(row[start])
                if gram is None:
                    break
                place, following = gram
                if place >= 0:
                    met.append(place)
                start += step
    return met


def _width(places: tuple[int, ...]) -> int:
    return max(places) + 1


def _scale(weights: tuple[float, ...], places: tuple[int, ...]) -> Array:
    scale = np.zeros(_width(places), np.float32)
    scale[list(places)] = weights
    return scale


GRAMS: dict[str, Callable[..., tuple[Any, ...]]] = {"tf_idf": tf_idf}
