"""The largest difference between two values: tensors, texts or sequences.

Differences are relative to the largest magnitude in either tensor, as rounding errors of sums and products are;
relative to each element, numbers near 0 would dominate.
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
    actual: Number


@dataclass(frozen=True, slots=True)
class Difference:
    """The largest difference, as `error`: infinite if values cannot be compared, or only one has a NaN or infinity.

    `note` then says why.
    """

    error: float
    scale: float = 0.0  # the largest magnitude, by which the error is divided
    worst: WorstElement | None = None
    note: str = ""


def difference(expected: Any, actual: Any) -> Difference:
    """Compare two values of any type."""
    if isinstance(expected, (list, tuple)) and isinstance(actual, (list, tuple)):
        return _compare_sequences(expected, actual)
    if not isinstance(expected, np.ndarray) or not isinstance(actual, np.ndarray):
        same = type(expected) is type(actual) and expected == actual
        return Difference(0.0) if same else Difference(math.inf, note="they are not equal")
    if expected.shape != actual.shape:
        return Difference(math.inf, note=f"shapes differ: {list(expected.shape)} and {list(actual.shape)}")
    if not expected.size:
        return Difference(0.0)
    if "O" in (expected.dtype.kind, actual.dtype.kind):
        return _compare_texts(expected, actual)
    return _compare_numbers(expected, actual)


def _compare_sequences(expected: Sequence[Any], actual: Sequence[Any]) -> Difference:
    if len(expected) != len(actual):
        return Difference(math.inf, note=f"lengths differ: {len(expected)} and {len(actual)}")
    parts = [(number, difference(left, right)) for number, (left, right) in enumerate(zip(expected, actual))]
    if not parts:
        return Difference(0.0)
    number, most = max(parts, key=lambda part: part[1].error)
    worst = most.worst
    inner = None if worst is None else WorstElement((number, *worst.index), worst.expected, worst.actual)
    return Difference(most.error, most.scale, inner, most.note)


def _compare_texts(expected: Array, actual: Array) -> Difference:
    differs = np.asarray(expected != actual)
    if not differs.any():
        return Difference(0.0)
    return Difference(math.inf, worst=_describe_element(expected, actual, int(differs.argmax())), note="texts differ")


def _compare_numbers(expected: Array, actual: Array) -> Difference:
    wide = np.complex128 if "c" in (expected.dtype.kind, actual.dtype.kind) else np.float64
    with np.errstate(all="ignore"):
        left, right = expected.astype(wide).reshape(-1), actual.astype(wide).reshape(-1)
        finite = np.isfinite(left) & np.isfinite(right)
        same = (left == right) | (np.isnan(left) & np.isnan(right))
        misplaced = ~finite & ~same
        if misplaced.any():
            worst = _describe_element(expected, actual, int(misplaced.argmax()))
            return Difference(math.inf, worst=worst, note="only one is finite")
        scale = float(max(np.abs(left[finite]).max(initial=0.0), np.abs(right[finite]).max(initial=0.0)))
        distance = np.where(finite, np.abs(left - right), 0.0)
        if not distance.any() and expected.dtype.kind in "iu":  # float64 may round large integers
            distance = np.asarray(expected != actual, np.float64).reshape(-1)
    index = int(distance.argmax())
    error = float(distance[index])
    return Difference(error / scale if error else 0.0, scale, _describe_element(expected, actual, index))


def _describe_element(expected: Array, actual: Array, flat_index: int) -> WorstElement:
    index = tuple(int(i) for i in np.unravel_index(flat_index, expected.shape))
    return WorstElement(index, _to_python(expected[index]), _to_python(actual[index]))


def _to_python(element: Any) -> Number:
    plain = element.item() if isinstance(element, np.generic) else element
    return plain if isinstance(plain, (bool, int, float, complex, str)) else float(plain)
