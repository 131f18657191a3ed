"""Strings: object arrays of `str`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from operator import add
from typing import Any

import numpy as np

from weft.backends.reference.host.expressions import compiled

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
    expression = compiled(pattern)
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
    empty separator, or a lone dot as the expression, leaves single characters. Tokens of fewer characters than `least`
    are none.
    """
    texts = list(map(str, x.ravel().tolist()))
    rows: list[list[str]]
    if expression == "." or separators == ("",):
        rows = list(map(list, texts))
    elif expression:
        rows = _found(texts, compiled(expression))
    else:
        rows = [[text] for text in texts]
        for separator in separators:
            divide = _divider(separator)
            rows = [[piece for part in row for piece in divide(part) if len(piece) >= least] for row in rows]
    rows = [[token for token in row if len(token) >= least] for row in rows]
    width = max(map(len, rows), default=0)
    if marked and width:
        rows = [["\x02", *row, "\x03"] for row in rows]
        width += 2
    result = np.empty((len(rows), width), object)
    result.fill(pad)
    for place, row in enumerate(rows):
        result[place, : len(row)] = row
    return (result.reshape(*x.shape, width),)


def _found(texts: list[str], matching: re.Pattern[str]) -> list[list[str]]:
    if not matching.groups:
        rows: list[list[str]] = list(map(matching.findall, texts))
        if not any("" in row for row in rows):
            return rows
    return [[text[slice(*span)] for span in _spans(text, matching)] for text in texts]


def _divider(separator: str) -> Callable[[str], list[str]]:
    """A function that gives what a separator leaves of a text."""
    if (separator and re.escape(separator) == separator) or separator == " ":
        return lambda text: text.split(separator)
    matching = compiled(separator)

    def divide(text: str) -> list[str]:
        parts, start = [], 0
        for first, end in _spans(text, matching):
            parts.append(text[start:first])
            start = max(end, first + 1)  # one that matches nothing takes a character along
        parts.append(text[start:])
        return parts

    return divide


def _spans(text: str, matching: re.Pattern[str]) -> Iterator[tuple[int, int]]:
    """Where an expression matches; behind a match of nothing, it is looked for from the next character on."""
    start = 0
    while start <= len(text) and (found := matching.search(text, start)) is not None:
        yield found.span()
        start = max(found.end(), found.start() + 1)


def string_normalize(
    x: Array, *, case: str, stopwords: tuple[str, ...], case_sensitive: bool, locale: str
) -> tuple[Array]:
    texts = list(map(str, x.ravel().tolist()))
    change: Callable[[str], str] = str if case == "none" else partial(_changed, case=case, locale=locale)
    if stopwords:
        fold = str if case_sensitive else partial(_changed, case="lower" if case == "none" else case, locale=locale)
        unwanted = set(map(fold, stopwords))
        texts = [text for text in texts if fold(text) not in unwanted]
    kept = list(map(change, texts)) or [""]
    return (text_array(kept, (*((1,) * (x.ndim - 1)), len(kept))),)


def _changed(text: str, case: str, locale: str) -> str:
    """Each character on its own in the other case, of which a locale may have its own view; none becomes several."""
    language = locale[:2]
    if text.isascii() and language not in DOTTED:
        return text.lower() if case == "lower" else text.upper()
    changes: Callable[[str], str] = _lower if case == "lower" else _upper
    if locale in ("C", "POSIX"):
        return "".join(changes(letter) if letter.isascii() else letter for letter in text)
    own = DOTTED.get(language, {})
    return "".join(own.get((case, letter)) or changes(letter) for letter in text)


DOTTED = {language: {("lower", "I"): "ı", ("upper", "i"): "İ"} for language in ("tr", "az")}


def _lower(letter: str) -> str:
    return letter.lower()[0]


def _upper(letter: str) -> str:
    return next((other for other in (letter.upper(), letter.title()) if len(other) == 1), letter)


TEXT: dict[str, Callable[..., tuple[Any, ...]]] = {
    "string_concat": string_concat,
    "regex_full_match": regex_full_match,
    "string_split": string_split,
    "tokens": tokens,
    "string_normalize": string_normalize,
}
