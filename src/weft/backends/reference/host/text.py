"""Strings: object arrays of `str`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from operator import add
from typing import Any

import numpy as np

from weft.backends.reference.host.expressions import compile_expression
from weft.ir.arrays import Array


def text_array(strings: Iterable[str], shape: tuple[int, ...]) -> Array:
    """Convert strings to an object array."""
    items = list(strings)
    flat = np.empty(len(items), object)
    flat[:] = items
    return flat.reshape(shape)


def string_concat(x: Array, y: Array) -> tuple[Array]:
    a, b = (x, y) if x.shape == y.shape else np.broadcast_arrays(x, y)
    return (text_array(map(add, map(str, a.ravel().tolist()), map(str, b.ravel().tolist())), a.shape),)


def regex_full_match(x: Array, *, pattern: str) -> tuple[Array]:
    expression = compile_expression(pattern)
    matches = [expression.fullmatch(str(text)) is not None for text in x.flat]
    return (np.array(matches, bool).reshape(x.shape),)


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
    """Split each string into tokens, padded to the longest row; `marked` rows begin and end with control characters.

    Tokens match the expression, or are left between separators, which are applied one after the other. A single empty
    separator, or a dot as the expression, gives single characters. Tokens shorter than `least` are dropped.
    """
    texts = list(map(str, x.ravel().tolist()))
    rows: list[list[str]]
    if expression == "." or separators == ("",):
        rows = list(map(list, texts))
    elif expression:
        rows = _find_tokens(texts, compile_expression(expression))
    else:
        rows = [[text] for text in texts]
        for separator in separators:
            split = _make_splitter(separator)
            rows = [[piece for part in row for piece in split(part) if len(piece) >= least] for row in rows]
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


def _find_tokens(texts: list[str], matching: re.Pattern[str]) -> list[list[str]]:
    if not matching.groups:
        rows: list[list[str]] = list(map(matching.findall, texts))
        if not any("" in row for row in rows):
            return rows
    return [[text[slice(*span)] for span in _spans(text, matching)] for text in texts]


def _make_splitter(separator: str) -> Callable[[str], list[str]]:
    """Return a function that splits a text at a separator."""
    if (separator and re.escape(separator) == separator) or separator == " ":
        return lambda text: text.split(separator)
    matching = compile_expression(separator)

    def split(text: str) -> list[str]:
        parts, start = [], 0
        for first, end in _spans(text, matching):
            parts.append(text[start:first])
            start = max(end, first + 1)  # an empty match drops a character
        parts.append(text[start:])
        return parts

    return split


def _spans(text: str, matching: re.Pattern[str]) -> Iterator[tuple[int, int]]:
    """Yield the spans of an expression's matches; after an empty match, the search continues at the next character."""
    start = 0
    while start <= len(text) and (match := matching.search(text, start)) is not None:
        yield match.span()
        start = max(match.end(), match.start() + 1)


def string_normalize(
    x: Array, *, case: str, stopwords: tuple[str, ...], case_sensitive: bool, locale: str
) -> tuple[Array]:
    texts = list(map(str, x.ravel().tolist()))
    change: Callable[[str], str] = str if case == "none" else partial(_change_case, case=case, locale=locale)
    if stopwords:
        fold = str if case_sensitive else partial(_change_case, case="lower" if case == "none" else case, locale=locale)
        unwanted = set(map(fold, stopwords))
        texts = [text for text in texts if fold(text) not in unwanted]
    normalized = list(map(change, texts)) or [""]
    return (text_array(normalized, (*((1,) * (x.ndim - 1)), len(normalized))),)


def _change_case(text: str, case: str, locale: str) -> str:
    """Change the case of each character separately, by the locale; no character becomes several."""
    language = locale[:2]
    if text.isascii() and language not in DOTTED:
        return text.lower() if case == "lower" else text.upper()
    changes: Callable[[str], str] = _lower if case == "lower" else _upper
    if locale in ("C", "POSIX"):
        return "".join(changes(letter) if letter.isascii() else letter for letter in text)
    special_cases = DOTTED.get(language, {})
    return "".join(special_cases.get((case, letter)) or changes(letter) for letter in text)


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
