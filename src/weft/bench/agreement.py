"""Compare the outputs of two engines."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

TOLERANCE = 1e-3  # of the largest magnitude in an output


def difference(expected: Sequence[Any], actual: Sequence[Any]) -> float:
    """Return the largest difference of an element, relative to the largest magnitude of the expected output.

    It is infinite if outputs cannot be compared.
    """
    if len(expected) != len(actual):
        return math.inf
    return max(map(_value_difference, expected, actual), default=0.0)


def _value_difference(expected: Any, actual: Any) -> float:
    if isinstance(expected, (list, tuple)) and isinstance(actual, (list, tuple)):
        return difference(expected, actual)
    if isinstance(expected, dict) and isinstance(actual, dict):
        same_keys = list(expected) == list(actual)
        return difference(list(expected.values()), list(actual.values())) if same_keys else math.inf
    if expected is None or actual is None:
        return 0.0 if expected is actual else math.inf
    left, right = np.asarray(expected), np.asarray(actual)
    if left.shape != right.shape:
        return math.inf
    if left.dtype.kind in "OUS" or right.dtype.kind in "OUS":
        return 0.0 if np.array_equal(left, right) else math.inf
    wide = np.complex128 if "c" in (left.dtype.kind, right.dtype.kind) else np.float64
    return _array_difference(left.astype(wide), right.astype(wide))


def _array_difference(left: np.ndarray[Any, Any], right: np.ndarray[Any, Any]) -> float:
    """Compare arrays, in which NaN and infinities must be at the same indices."""
    finite = np.isfinite(left)
    if not np.array_equal(finite, np.isfinite(right)) or not np.array_equal(left[~finite], right[~finite], True):
        return math.inf
    largest = float(np.abs(left[finite]).max(initial=0.0))
    error = float(np.abs(left[finite] - right[finite]).max(initial=0.0))
    return error / largest if largest else (math.inf if error else 0.0)
