"""Strings: object arrays of `str`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import lru_cache
from operator import add
from typing import Any

import numpy as np

from weft.errors import ExecutionError

Array = np.ndarray[Any, Any]


def text_array(strings: Iterable[str], shape: tuple[int, ...]) -> Array:
    """Strings as an array of objects."""
    items = list(strings)
    flat = np.empty(len(items), object)
    flat[:] = items
    return flat.reshape(shape)


def string_concat(x: Array, y: Array) -> tuple[Array]:
    a, b = (x, y) if x.shape == y.shape else np.broadcast_arrays(x, y)
    return (text_array(map(add, map(str, a.ravel().tolist()), map(str, b.ravel().tolist())), a.shape),)


def regex_full_match(x: Array, *, pattern: str) -> tuple[Array]:
    expression = _pattern(pattern)
    found = [expression.fullmatch(str(text)) is not None for text in x.flat]
    return (np.array(found, bool).reshape(x.shape),)


def string_split(x: Array, *, delimiter: str, maxsplit: int) -> tuple[Array, Array]:
    texts = map(str, x.flat) if delimiter else (str(text).strip() for text in x.flat)
    parts = [text.split(delimiter or None, maxsplit) for text in texts]
    width = max(map(len, parts), default=0)
    padded = [part for row in parts for part in (*row, *([""] * (width - len(row))))]
    counts = np.array([len(row) for row in parts], np.int64).reshape(x.shape)
    return text_array(padded, (*x.shape, width)), counts


def tokens(
    x: Array, *, marked: bool, least: int, pad: str, separators: tuple[str, ...], expression: str
) -> tuple[Array]:
    """The tokens of each string, padded to the most that one has; `marked` rows begin and end with control characters.

    Tokens are what matches the expression, or what separators leave, each dividing what those before it left. A lone
    empty separator leaves single characters. Tokens of fewer characters than `least` are none.
    """
    texts = map(str, x.ravel().tolist())
    if expression:
        pattern = _pattern(expression)
        rows = [[found.group() for found in pattern.finditer(text) if found.group()] for text in texts]
    elif separators == ("",):
        rows = [list(text) for text in texts]
    else:
        patterns = [_pattern(separator) for separator in separators]
        rows = [_divided(text, patterns, least) for text in texts]
    rows = [[token for token in row if len(token) >= least] for row in rows]
    width = max(map(len, rows), default=0)
    if marked and width:
        rows = [["\x02", *row, "\x03"] for row in rows]
        width += 2
    padded = [token for row in rows for token in (*row, *([pad] * (width - len(row))))]
    return (text_array(padded, (*x.shape, width)),)


def _divided(text: str, patterns: Iterable[re.Pattern[str]], least: int) -> list[str]:
    parts = [text]
    for pattern in patterns:
        parts = [piece for part in parts for piece in _split(part, pattern) if len(piece) >= least]
    return parts


def _split(text: str, pattern: re.Pattern[str]) -> Iterable[str]:
    start = 0
    for found in pattern.finditer(text):
        if found.group():
            yield text[start : found.start()]
            start = found.end()
    yield text[start:]


@lru_cache(maxsize=256)
def _pattern(expression: str) -> re.Pattern[str]:
    try:
        return re.compile(expression, re.ASCII)  # as in RE2, classes are those of ASCII
    except re.error as error:
        raise ExecutionError(f"{expression!r} is no regular expression: {error}") from error


def string_normalize(x: Array, *, case: str, stopwords: tuple[str, ...], case_sensitive: bool) -> tuple[Array]:
    fold: Callable[[str], str] = str if case_sensitive else str.casefold
    unwanted = {fold(word) for word in stopwords}
    texts = list(map(str, x.ravel().tolist()))
    kept = [text for text in texts if fold(text) not in unwanted] if unwanted else texts
    change: Callable[[str], str] = {"lower": str.lower, "upper": str.upper}.get(case, str)
    kept = list(map(change, kept)) or [""]
    return (text_array(kept, (*((1,) * (x.ndim - 1)), len(kept))),)


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
    grams = _grams(starts, pool)
    rows = x if x.ndim == 2 else x.reshape(1, -1)
    result = np.zeros((rows.shape[0], max(places) + 1), np.float32)
    for row, line in zip(rows.tolist(), result):
        for number in _occurrences(row, grams, lengths, skips):
            line[places[number]] += 1
    if not counted:
        result = np.minimum(result, 1)
    if weights is not None:
        scale = np.zeros(result.shape[1], np.float32)
        scale[list(places)] = weights
        result = result * scale
    return (result if x.ndim == 2 else result[0],)


def _grams(starts: tuple[int, ...], pool: tuple[Any, ...]) -> dict[tuple[Any, ...], int]:
    """n-gram -> its number in the pool, where n-grams of one element come first, then those of two, ..."""
    grams: dict[tuple[Any, ...], int] = {}
    number = 0
    for length, (start, end) in enumerate(zip(starts, (*starts[1:], len(pool))), start=1):
        for place in range(start, end, length):
            grams[tuple(pool[place : place + length])] = number
            number += 1
    return grams


def _occurrences(
    row: list[Any], grams: dict[tuple[Any, ...], int], lengths: tuple[int, int], skips: int
) -> Iterable[int]:
    """The number of each known n-gram at each place, with 0, 1, ... elements skipped between its parts."""
    for length in range(lengths[0], lengths[1] + 1):
        for step in range(1, 2 if length == 1 else skips + 2):
            for start in range(len(row) - (length - 1) * step):
                number = grams.get(tuple(row[start : start + (length - 1) * step + 1 : step]))
                if number is not None:
                    yield number


TEXT: dict[str, Callable[..., tuple[Any, ...]]] = {
    "string_concat": string_concat,
    "regex_full_match": regex_full_match,
    "string_split": string_split,
    "tokens": tokens,
    "string_normalize": string_normalize,
    "tf_idf": tf_idf,
}
