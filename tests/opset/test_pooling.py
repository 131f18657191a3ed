"""Pools, against onnxruntime or numpy."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from opset.oracle import check, node_model, random_array, run_weft

from weft.errors import WeftError

Array = np.ndarray[Any, Any]

# input, attributes
POOLS: list[tuple[tuple[int, ...], dict[str, Any]]] = [
    ((1, 2, 7), {"kernel_shape": [3]}),
    ((2, 3, 8, 9), {"kernel_shape": [2, 3], "strides": [2, 2]}),
    ((2, 3, 8, 9), {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}),
    ((2, 3, 8, 9), {"kernel_shape": [3, 3], "strides": [3, 2], "pads": [0, 1, 2, 0]}),
    ((2, 3, 8, 9), {"kernel_shape": [3, 3], "auto_pad": "SAME_UPPER", "strides": [2, 2]}),
    ((2, 3, 8, 9), {"kernel_shape": [4, 2], "auto_pad": "SAME_LOWER", "strides": [3, 1]}),
    ((2, 3, 8, 9), {"kernel_shape": [3, 3], "auto_pad": "VALID", "strides": [2, 2]}),
    ((1, 2, 4, 5, 6), {"kernel_shape": [2, 3, 2], "strides": [1, 2, 2], "pads": [1, 1, 0, 0, 1, 1]}),
]
CEILING: list[tuple[tuple[int, ...], dict[str, Any]]] = [
    ((1, 2, 8, 9), {"kernel_shape": [3, 3], "strides": [2, 2]}),
    ((1, 2, 4, 4), {"kernel_shape": [2, 2], "strides": [3, 3]}),
    ((1, 2, 8, 9), {"kernel_shape": [3, 3], "strides": [3, 2], "pads": [1, 1, 1, 1]}),
    ((1, 1, 2, 2), {"kernel_shape": [1, 1], "strides": [2, 2]}),
    ((1, 2, 7), {"kernel_shape": [3], "strides": [3], "pads": [1, 1]}),
]


@pytest.mark.parametrize("case", POOLS, ids=str)
@pytest.mark.parametrize("opset", [7, 10, 11, 19, 22])
@pytest.mark.parametrize("included", [0, 1])
def test_average_pool(case: tuple[Any, ...], opset: int, included: int) -> None:
    shape, attributes = case
    check("AveragePool", [random_array(1, shape)], opset=opset, count_include_pad=included, **attributes)


@pytest.mark.parametrize("case", CEILING, ids=str)
@pytest.mark.parametrize("opset", [10, 11, 19, 22])
def test_average_pool_with_ceiling(case: tuple[Any, ...], opset: int) -> None:
    shape, attributes = case
    check("AveragePool", [random_array(1, shape)], opset=opset, ceil_mode=1, **attributes)


@pytest.mark.parametrize("ceil_mode", [0, 1])
@pytest.mark.parametrize("included", [0, 1])
@pytest.mark.parametrize("dilations", [[1, 1], [2, 3]], ids=str)
def test_average_pool_counts(ceil_mode: int, included: int, dilations: list[int]) -> None:
    """The divisor counts the taps of a window in the tensor or, with count_include_pad, in the tensor and its pads."""
    x, kernel, strides, pads = random_array(1, (2, 1, 9, 10)), (3, 2), (2, 3), (2, 1, 1, 1)
    reference = _averages(x, kernel, strides, pads, dilations, bool(ceil_mode), bool(included))
    check(
        "AveragePool", [x], opset=22, expected=[reference], kernel_shape=kernel, strides=strides, pads=pads,
        dilations=dilations, ceil_mode=ceil_mode, count_include_pad=included,
    )  # fmt: skip


def _averages(x: Array, kernel: Any, strides: Any, pads: Any, dilations: Any, ceil_mode: bool, included: bool) -> Array:
    counts = []
    for axis in range(2):
        size, span = x.shape[2 + axis], dilations[axis] * (kernel[axis] - 1) + 1
        room = size + pads[axis] + pads[2 + axis] - span
        count = -(-room // strides[axis]) + 1 if ceil_mode else room // strides[axis] + 1
        counts.append(count - (ceil_mode and (count - 1) * strides[axis] >= size + pads[axis]))
    result = np.zeros((*x.shape[:2], *counts), np.float32)
    for i, j in product(*map(range, counts)):
        total, taps = np.zeros(x.shape[:2]), 0
        for a, b in product(*map(range, kernel)):
            h, w = i * strides[0] - pads[0] + a * dilations[0], j * strides[1] - pads[1] + b * dilations[1]
            if 0 <= h < x.shape[2] and 0 <= w < x.shape[3]:
                total, taps = total + x[:, :, h, w], taps + 1
            elif included and h < x.shape[2] + pads[2] and w < x.shape[3] + pads[3]:
                taps += 1
        result[:, :, i, j] = total / taps
    return result


@pytest.mark.parametrize("case", POOLS, ids=str)
@pytest.mark.parametrize("opset", [8, 10, 12, 22])
@pytest.mark.parametrize("storage_order", [0, 1])
def test_max_pool(case: tuple[Any, ...], opset: int, storage_order: int) -> None:
    shape, attributes = case
    check("MaxPool", [random_array(1, shape)], opset=opset, outputs=2, storage_order=storage_order, **attributes)


def test_max_pool_numbers_columns_first() -> None:
    x = np.zeros((1, 2, 2, 3, 4), np.float32)
    x[0, 1, 1, 2, 3] = 1
    x[0, 0, 0, 1, 2] = 1
    reference = np.array([0 + 1 * 2 + 2 * 6, 24 + 1 + 2 * 2 + 3 * 6], np.int64).reshape(1, 2, 1, 1, 1)
    ones = np.ones((1, 2, 1, 1, 1), np.float32)
    check("MaxPool", [x], opset=12, outputs=2, expected=[ones, reference], kernel_shape=[2, 3, 4], storage_order=1)


@pytest.mark.parametrize("case", CEILING, ids=str)
@pytest.mark.parametrize("opset", [10, 22])
def test_max_pool_with_ceiling(case: tuple[Any, ...], opset: int) -> None:
    shape, attributes = case
    check("MaxPool", [random_array(1, shape)], opset=opset, ceil_mode=1, outputs=2, **attributes)


@pytest.mark.parametrize("opset", [10, 12])
def test_max_pool_with_dilations(opset: int) -> None:
    options: dict[str, Any] = {"kernel_shape": [3, 2], "dilations": [2, 3], "pads": [1, 1, 2, 1], "strides": [1, 2]}
    check("MaxPool", [random_array(1, (1, 2, 9, 8))], opset=opset, outputs=2, **options)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.float16, np.float64], ids=lambda d: d.__name__)
def test_max_pool_types(dtype: Any) -> None:
    x = random_array(1, (1, 1, 4, 4), dtype, low=0 if dtype == np.uint8 else -9, high=9)
    reference = x.reshape(1, 1, 2, 2, 2, 2).max(axis=(3, 5))
    check("MaxPool", [x], opset=12, expected=[reference], kernel_shape=[2, 2], strides=[2, 2])


def test_max_pool_of_minus_infinity() -> None:
    x = np.full((1, 1, 4), -np.inf, np.float32)
    places = np.array([[[0, 1, 2]]], np.int64)
    check("MaxPool", [x], opset=12, outputs=2, expected=[x[:, :, :3], places], kernel_shape=[2])


@pytest.mark.parametrize("p", [1, 2, 3])
@pytest.mark.parametrize("opset", [7, 11, 18])
@pytest.mark.parametrize("case", POOLS, ids=str)
def test_lp_pool(p: int, opset: int, case: tuple[Any, ...]) -> None:
    shape, attributes = case
    check("LpPool", [random_array(1, shape)], opset=opset, rtol=1e-4, p=p, **attributes)


def test_lp_pool_with_dilations_and_ceiling() -> None:
    x = random_array(1, (1, 1, 8))
    taps = [[0, 2], [3, 5], [6]]
    reference = np.array([[[np.abs(x[0, 0, tap]).sum() for tap in taps]]], np.float32)
    check("LpPool", [x], opset=22, expected=[reference], p=1, kernel_shape=[2], strides=[3], dilations=[2], ceil_mode=1)


@pytest.mark.parametrize("op", ["GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool"])
@pytest.mark.parametrize("shape", [(2, 3, 4), (2, 3, 4, 5), (1, 1, 2, 3, 4)], ids=str)
def test_global_pools(op: str, shape: tuple[int, ...]) -> None:
    check(op, [random_array(1, shape)], opset=7)


def test_global_average_of_narrow_floats_does_not_overflow() -> None:
    x = np.full((1, 1, 300, 300), 100, np.float16)
    check("GlobalAveragePool", [x], opset=22, expected=[np.full((1, 1, 1, 1), 100, np.float16)])


@pytest.mark.parametrize("attributes", [{"kernel_shape": [3]}, {"kernel_shape": [0, 1]}, {}], ids=str)
def test_pools_reject(attributes: dict[str, Any]) -> None:
    inputs = [random_array(1, (1, 1, 4, 4))]
    with pytest.raises(WeftError):
        run_weft(node_model("MaxPool", inputs, opset=12, **attributes), inputs)
