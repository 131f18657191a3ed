"""Count n-grams in rows of words or numbers."""

from __future__ import annotations

from collections.abc import Callable
from itertools import repeat
from typing import Any

import numpy as np

from weft.backends.reference.host.table_cache import cached_table
from weft.ir.arrays import Array

Gram = tuple[int, dict[Any, Any]]  # the column of an n-gram or -1, and its continuations by their next element


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
    """Count each n-gram in a row, or test for it, and multiply by its weight."""
    rows, columns = (1, x.size) if x.ndim == 1 else x.shape
    width = cached_table(_width, places)
    first = np.arange(0, rows * width, width)
    if lengths[1] == 1:
        words = cached_table(_words, pool, starts, places)
        matches = np.fromiter(map(words.get, x.ravel().tolist(), repeat(-1)), np.int64, x.size).reshape(rows, columns)
        hits = (matches + first[:, None])[matches >= 0]
    else:
        grams = cached_table(_grams, lengths, pool, starts, places)
        hit_columns = [
            start + place
            for start, line in zip(first.tolist(), x.reshape(rows, columns).tolist())
            for place in _match_ngrams(line, grams, skips)
        ]
        hits = np.array(hit_columns, np.int64)
    result = np.zeros(rows * width, np.float32)
    np.add.at(result, hits, np.float32(1))  # adding a number of another type is ten times slower
    if not counted:
        result = np.minimum(result, 1)
    result = result.reshape(*x.shape[:-1], width)
    return (result if weights is None else result * cached_table(_scale, weights, places),)


def _words(pool: tuple[Any, ...], starts: tuple[int, ...], places: tuple[int, ...]) -> dict[Any, int]:
    return dict(zip(pool[: starts[1] if len(starts) > 1 else None], places))


def _grams(
    lengths: tuple[int, int], pool: tuple[Any, ...], starts: tuple[int, ...], places: tuple[int, ...]
) -> dict[Any, Gram]:
    """Build a trie of the pool, in which n-grams of one element come first, then those of two, and so on."""
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


def _match_ngrams(row: list[Any], grams: dict[Any, Gram], skips: int) -> list[int]:
    """List the columns of the n-grams in a row, with 0, 1, ... elements skipped between their elements."""
    columns = []
    for step in range(1, skips + 2):
        for start, gram in enumerate(map(grams.get, row), step):
            if gram is None:
                continue
            place, following = gram
            if place >= 0 and step == 1:
                columns.append(place)
            while following and start < len(row):
                gram = following.get(row[start])
                if gram is None:
                    break
                place, following = gram
                if place >= 0:
                    columns.append(place)
                start += step
    return columns


def _width(places: tuple[int, ...]) -> int:
    return max(places) + 1


def _scale(weights: tuple[float, ...], places: tuple[int, ...]) -> Array:
    scale = np.zeros(_width(places), np.float32)
    scale[list(places)] = weights
    return scale


NGRAMS: dict[str, Callable[..., tuple[Any, ...]]] = {"tf_idf": tf_idf}
