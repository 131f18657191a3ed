"""How far one value is from another: two tensors (or strings, or sequences) in, the largest difference and where out.

Differences are relative to the largest magnitude in either tensor, as errors of sums and products are; a difference
of one element alone, relative to that element, would mostly tell of numbers that happen to be near 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Union

import numpy as np

from weft.ir.arrays import Array
from weft.records import dataclass

Number = Union[bool, int, float, complex, str]


@dataclass(frozen=True, slots=True)
class WorstElement:
    """The element that differs most; in a sequence, the first index is the position there."""

    index: tuple[int, ...]
    expected: Number
    found: Number


@dataclass(frozen=True, slots=True)
class Difference:
    """`error` is infinite where two values cannot be compared at all, or one has a NaN or infinity that the other
    lacks; `note` then says why.
    """

    error: float
    scale: float = 0.0  # the largest magnitude, which the error is relative to
    worst: WorstElement | None = None
    note: str = ""


def difference(expected: Any, found: Any) -> Difference:
    """Of two values of any type."""
    if isinstance(expected, (list, tuple)) and isinstance(found, (list, tuple)):
        return _of_sequences(expected, found)
    if not isinstance(expected, np.ndarray) or not isinstance(found, np.ndarray):
        same = type(expected) is type(found) and expected == found
        return Difference(0.0) if same else Difference(math.inf, note="they are not the same")
    if expected.shape != found.shape:
        return Difference(math.inf, note=f"shapes differ: {list(expected.shape)} and {list(found.shape)}")
    if not expected.size:
        return Difference(0.0)
    if "O" in (expected.dtype.kind, found.dtype.kind):
        return _of_texts(expected, found)
    return _of_numbers(expected, found)


def _of_sequences(expected: Sequence[Any], found: Sequence[Any]) -> Difference:
    if len(expected) != len(found):
        return Difference(math.inf, note=f"lengths differ: {len(expected)} and {len(found)}")
    parts = [(number, difference(left, right)) for number, (left, right) in enumerate(zip(expected, found))]
    if not parts:
        return Difference(0.0)
    number, most = max(parts, key=lambda part: part[1].error)
    worst = most.worst
    inner = None if worst is None else WorstElement((number, *worst.index), worst.expected, worst.found)
    return Difference(most.error, most.scale, inner, most.note)


def _of_texts(expected: Array, found: Array) -> Difference:
    differs = np.asarray(expected != found)
    if not differs.any():
        return Difference(0.0)
    return Difference(math.inf, worst=_element(expected, found, int(differs.argmax())), note="texts differ")


def _of_numbers(expected: Array, found: Array) -> Difference:
    wide = np.complex128 if "c" in (expected.dtype.kind, found.dtype.kind) else np.float64
    with np.errstate(all="ignore"):
        left, right = expected.astype(wide).reshape(-1), found.astype(wide).reshape(-1)
        finite = np.isfinite(left) & np.isfinite(right)
        same = (left == right) | (np.isnan(left) & np.isnan(right))
        misplaced = ~finite & ~same
        if misplaced.any():
            worst = _element(expected, found, int(misplaced.argmax()))
            return Difference(math.inf, worst=worst, note="only one is finite")
        scale = float(max(np.abs(left[finite]).max(initial=0.0), np.abs(right[finite]).max(initial=0.0)))
        distance = np.where(finite, np.abs(left - right), 0.0)
        if not distance.any() and expected.dtype.kind in "iu":  # large integers may differ in what float64 leaves out
            distance = np.asarray(expected != found, np.float64).reshape(-1)
    place = int(distance.argmax())
    error = float(distance[place])
    return Difference(error / scale if error else 0.0, scale, _element(expected, found, place))


def _element(expected: Array, found: Array, place: int) -> WorstElement:
    index = tuple(int(i) for i in np.unravel_index(place, expected.shape))
    return WorstElement(index, _number(expected[index]), _number(found[index]))


def _number(element: Any) -> Number:
    plain = element.item() if isinstance(element, np.generic) else element
    return plain if isinstance(plain, (bool, int, float, complex, str)) else float(plain)
