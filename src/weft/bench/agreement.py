"""How far an engine's outputs are from those of another."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

TOLERANCE = 1e-3  # of the largest magnitude in an output


def difference(expected: Sequence[Any], found: Sequence[Any]) -> float:
    """The largest difference of an element, relative to the largest magnitude of its output; infinite where outputs
    cannot be compared at all.
    """
    if len(expected) != len(found):
        return math.inf
    return max(map(_difference, expected, found), default=0.0)


def _difference(expected: Any, found: Any) -> float:
    if isinstance(expected, (list, tuple)) and isinstance(found, (list, tuple)):
        return difference(expected, found)
    if isinstance(expected, dict) and isinstance(found, dict):
        same_keys = list(expected) == list(found)
        return difference(list(expected.values()), list(found.values())) if same_keys else math.inf
    if expected is None or found is None:
        return 0.0 if expected is found else math.inf
    left, right = np.asarray(expected), np.asarray(found)
    if left.shape != right.shape:
        return math.inf
    if left.dtype.kind in "OUS" or right.dtype.kind in "OUS":
        return 0.0 if np.array_equal(left, right) else math.inf
    wide = np.complex128 if "c" in (left.dtype.kind, right.dtype.kind) else np.float64
    return _numeric(left.astype(wide), right.astype(wide))


def _numeric(left: np.ndarray[Any, Any], right: np.ndarray[Any, Any]) -> float:
    """NaN and infinities must be at the same places."""
    finite = np.isfinite(left)
    if not np.array_equal(finite, np.isfinite(right)) or not np.array_equal(left[~finite], right[~finite], True):
        return math.inf
    largest = float(np.abs(left[finite]).max(initial=0.0))
    error = float(np.abs(left[finite] - right[finite]).max(initial=0.0))
    return error / largest if largest else (math.inf if error else 0.0)
