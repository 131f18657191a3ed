"""The cases to convert: an estimator, its inputs, and options of the converter; and training data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Case:
    """`fit` returns the trained estimator; `inputs` are for both the estimator and the converted model."""

    name: str
    fit: Callable[[], Any]
    inputs: dict[str, Array]
    options: dict[str, Any] = field(default_factory=dict)
    opset: int | dict[str, int] | None = None
    converter: str = "skl2onnx"


def features(rows: int = 40, columns: int = 4, seed: int = 0) -> Array:
    """Draw random features."""
    return np.random.default_rng(seed).normal(size=(rows, columns)).astype(np.float32)


def classes(x: Array, count: int = 3) -> Array:
    """Return a class for each row, computed from its features."""
    score = x @ np.linspace(1, -1, x.shape[1]) + 0.5 * x[:, 0] * x[:, 1]
    return np.digitize(score, np.quantile(score, np.linspace(0, 1, count + 1)[1:-1]))


def regression_targets(x: Array, targets: int = 1) -> Array:
    """Return one or several numbers for each row, computed from its features."""
    y = np.stack([np.sin(x[:, 0] + shift) + x[:, 1] * shift - x[:, 2] for shift in range(1, targets + 1)], 1)
    return y[:, 0] if targets == 1 else y


X = features()
C2, C3 = classes(X, 2), classes(X, 3)
Y, Y2 = regression_targets(X), regression_targets(X, 2)
WORDS = np.array(["low", "mid", "top"])
PROBE = features(7, seed=1)
