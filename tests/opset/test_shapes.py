"""Shape ops against onnxruntime and numpy, at old and new opsets."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from opset.oracle import check, random_array

X = random_array(1, (2, 3, 4))
ONES = random_array(2, (1, 3, 1, 4))


@pytest.mark.parametrize("opset", [7, 11, 13, 21])
@pytest.mark.parametrize(
    ("op", "x", "attributes"),
    [
        ("Size", X, {}),
        ("Size", np.zeros((2, 0), np.float32), {}),
        ("Shape", X, {}),
        ("Shape", np.array(3, np.float32), {}),
        ("Flatten", X, {}),
        ("Flatten", X, {"axis": 0}),
        ("Flatten", X, {"axis": 3}),
        ("Flatten", random_array(3, (5,)), {"axis": 0}),
    ],
)
def test_versions_that_agree(opset: int, op: str, x: Any, attributes: dict[str, Any]) -> None:
    check(op, [x], opset=opset, **attributes)


@pytest.mark.parametrize(("start", "end"), [(0, None), (1, None), (-2, None), (0, -1), (1, 2), (-10, 10), (2, 1)])
def test_shape_range(start: int, end: int | None) -> None:
    attributes = {"start": start} if end is None else {"start": start, "end": end}
    check("Shape", [X], opset=15, **attributes)


@pytest.mark.parametrize("axes", [(0,), (2,), (0, 2), (2, 0), (-2,), (-4, -2)])
def test_squeeze(axes: tuple[int, ...]) -> None:
    check("Squeeze", [ONES], opset=11, axes=axes)
    check("Squeeze", [ONES, np.array(axes, np.int64)], opset=13, constants=[1])
    check("Squeeze", [ONES, np.array(axes, np.int64)], opset=13)


@pytest.mark.parametrize("opset", [11, 13])
def test_squeeze_of_all_ones(opset: int) -> None:
    check("Squeeze", [ONES], opset=opset)


@pytest.mark.parametrize("axes", [(0,), (3,), (0, 4), (4, 0), (-1,), (-5, 1)])
def test_unsqueeze(axes: tuple[int, ...]) -> None:
    if min(axes) >= 0:
        check("Unsqueeze", [X], opset=7, axes=axes)
    check("Unsqueeze", [X], opset=11, axes=axes)
    check("Unsqueeze", [X, np.array(axes, np.int64)], opset=13, constants=[1])


@pytest.mark.parametrize("opset", [7, 13, 14, 21])
@pytest.mark.parametrize("shape", [(4, 6), (0, -1), (-1,), (0, 0, 2, 2), (2, -1, 1, 2), (24, 1)])
def test_reshape(opset: int, shape: tuple[int, ...]) -> None:
    check("Reshape", [X, np.array(shape, np.int64)], opset=opset, constants=[1])
    check("Reshape", [X, np.array(shape, np.int64)], opset=opset)


def test_reshape_to_nothing() -> None:
    empty = np.zeros((0, 4), np.float32)
    check("Reshape", [empty, np.array([2, 0], np.int64)], opset=14, allowzero=1, constants=[1])
    check("Reshape", [empty, np.array([0, 2, 2], np.int64)], opset=13, constants=[1])
