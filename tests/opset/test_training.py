"""Optimiser steps, against the formulas of the specification in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from opset.oracle import check, node_model, random_array, run_weft

from weft.errors import WeftError

DOMAIN = "ai.onnx.preview.training"
RATE = np.array(0.1, np.float32)


def states(kinds: int, dtype: Any = np.float32) -> list[Any]:
    """Create two variables of different shapes, with squares that are not negative."""
    return [random_array(kind * 2 + n, shape, dtype, low=0.1, high=2) for kind in range(kinds) for n, shape in
            enumerate([(3,), (2, 4)])]  # fmt: skip


def compare(op: str, count: int, kinds: int, step: Any, dtype: Any = np.float32, **attributes: Any) -> None:
    arguments = states(kinds, dtype)
    grouped = [[arguments[kind * 2 + n].astype(np.float64) for kind in range(kinds)] for n in range(2)]
    results = [step(*group) for group in grouped]
    expected = [result[kind].astype(dtype) for kind in range(kinds - 1) for result in results]
    inputs = [RATE.astype(dtype), np.array(count, np.int64), *arguments]
    check(op, inputs, opset=1, domain=DOMAIN, outputs=len(expected), expected=expected, rtol=1e-5, **attributes)


@pytest.mark.parametrize("count", [0, 3])
@pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=lambda d: d.__name__)
def test_adagrad(count: int, dtype: Any) -> None:
    def step(x: Any, g: Any, h: Any) -> tuple[Any, Any]:
        g = 0.01 * x + g
        h = h + g * g
        return x - 0.1 / (1 + count * 0.2) * g / (np.sqrt(h) + 1e-3), h

    attributes = {"norm_coefficient": 0.01, "epsilon": 1e-3, "decay_factor": 0.2}
    compare("Adagrad", count, 3, step, dtype, **attributes)


@pytest.mark.parametrize("count", [0, 3])
def test_adam(count: int) -> None:
    def step(x: Any, g: Any, v: Any, h: Any) -> tuple[Any, Any, Any]:
        g = 0.01 * x + g
        v, h = 0.8 * v + 0.2 * g, 0.95 * h + 0.05 * g * g
        rate = 0.1 * np.sqrt(1 - 0.95**count) / (1 - 0.8**count) if count else 0.1
        return 0.9 * (x - rate * v / (np.sqrt(h) + 1e-3)), v, h

    attributes = {"alpha": 0.8, "beta": 0.95, "epsilon": 1e-3, "norm_coefficient": 0.01, "norm_coefficient_post": 0.1}
    compare("Adam", count, 4, step, **attributes)


@pytest.mark.parametrize("count", [0, 3])
@pytest.mark.parametrize("mode", ["standard", "nesterov"])
def test_momentum(mode: str, count: int) -> None:
    def step(x: Any, g: Any, v: Any) -> tuple[Any, Any]:
        g = 0.01 * x + g
        v = 0.9 * v + (0.5 if count else 1) * g
        return x - 0.1 * (v if mode == "standard" else g + 0.9 * v), v

    compare("Momentum", count, 3, step, mode=mode, alpha=0.9, beta=0.5, norm_coefficient=0.01)


def test_mistakes() -> None:
    inputs = [RATE, np.array(0, np.int64), *states(2)]
    with pytest.raises(WeftError, match="multiple of 3"):
        run_weft(node_model("Adagrad", inputs, opset=1, domain=DOMAIN), inputs)
