"""Gathering, scattering and finding, against onnxruntime and numpy."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from opset.oracle import check, node_model, random_array, run_weft

from weft.errors import WeftError

X = random_array(1, (3, 4, 5))


def ints(values: Any) -> Any:
    return np.array(values, np.int64)


@pytest.mark.parametrize("axis", [0, 1, 2, -1])
@pytest.mark.parametrize("indices", [2, -1, [0, 2, -3], [[1, 0], [-1, 2]], np.zeros((0,))], ids=str)
def test_gather(axis: int, indices: Any) -> None:
    check("Gather", [X, ints(indices)], opset=11, axis=axis)
    check("Gather", [X, ints(indices).astype(np.int32)], opset=13, axis=axis, constants=[1])


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float64, np.uint8, np.bool_])
def test_dtypes(dtype: Any) -> None:
    x = random_array(2, (4, 3), dtype, 0, 3)
    rows = ints([3, 0])
    check("Gather", [x, rows], opset=13, expected=[x[rows]])
    check("GatherElements", [x, ints([[0, -1, 2]])], opset=13, expected=[np.take_along_axis(x, ints([[0, 3, 2]]), 0)])
    check("GatherND", [x, ints([[1, 2], [-1, 0]])], opset=13, expected=[x[[1, 3], [2, 0]]])
    expected = np.array(x)
    expected[[1, 3]] = x[[0, 2]]
    check("ScatterND", [x, ints([[1], [-1]]), x[[0, 2]]], opset=13, expected=[expected])


def test_strings() -> None:
    x = np.array(["a", "b", "c"], object)
    check("Gather", [x, ints([2, 0])], opset=13, expected=[x[[2, 0]]])
    check("Compress", [x, np.array([True, False, True])], opset=11, expected=[x[[0, 2]]])
    check(
        "Unique",
        [np.array(["b", "a", "b"], object)],
        opset=11,
        outputs=4,
        expected=[np.array(["a", "b"], object), ints([1, 0]), ints([1, 0, 1]), ints([1, 2])],
    )


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_gather_elements(axis: int) -> None:
    check("GatherElements", [X, random_array(3, (2, 3, 4), np.int64, -3, 2)], opset=11, axis=axis)


@pytest.mark.parametrize("batch", [0, 1])
@pytest.mark.parametrize("depth", [1, 2])
def test_gather_nd(batch: int, depth: int) -> None:
    indices = random_array(4, (3, 2, depth), np.int64, -3, 2)
    check("GatherND", [X, indices], opset=12, batch_dims=batch)


@pytest.mark.parametrize("opset", [9, 11, 13])
def test_scatter_elements(opset: int) -> None:
    indices = np.argsort(random_array(5, (3, 4, 5)), axis=1)[:, :2].astype(np.int64)
    updates = random_array(6, (3, 2, 5))
    check("Scatter" if opset < 11 else "ScatterElements", [X, indices, updates], opset=opset, axis=1)
    check("Scatter" if opset < 11 else "ScatterElements", [X, indices - 4, updates], opset=opset, axis=-2)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64, np.uint8])
@pytest.mark.parametrize("reduction", ["add", "mul", "min", "max"])
def test_scatter_reductions(reduction: str, dtype: Any) -> None:
    x = random_array(7, (4, 5), dtype, 0, 3)
    indices = random_array(8, (6, 5), np.int64, -4, 3)
    updates = random_array(9, (6, 5), dtype, 0, 3)
    check("ScatterElements", [x, indices, updates], opset=18, axis=0, reduction=reduction)
    rows = random_array(10, (6, 1), np.int64, -4, 3)
    check("ScatterND", [x, rows, updates], opset=18, reduction=reduction)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_scatter_reductions_of_narrow_floats(dtype: Any) -> None:
    x, updates = random_array(7, (4, 5), dtype), random_array(9, (6, 5), dtype)
    rows = random_array(10, (6, 1), np.int64, 0, 3)
    wide = x.astype(np.float32)
    np.add.at(wide, rows[:, 0], updates.astype(np.float32))
    check("ScatterND", [x, rows, updates], opset=18, reduction="add", expected=[wide.astype(dtype)])


@pytest.mark.parametrize("mode", ["linear", "circular"])
def test_tensor_scatter(mode: str) -> None:
    cache, update = random_array(11, (2, 3, 6, 4)), random_array(12, (2, 3, 2, 4))
    starts = ints([1, 5 if mode == "circular" else 4])
    expected = np.array(cache)
    for batch, start in enumerate(starts):
        for step in range(2):
            expected[batch, :, (start + step) % 6] = update[batch, :, step]
    check("TensorScatter", [cache, update, starts], opset=24, mode=mode, expected=[expected])
    expected = np.array(cache)
    expected[:, :, :2] = update
    check("TensorScatter", [cache, update], opset=24, mode=mode, expected=[expected])


@pytest.mark.parametrize("dtype", [np.float32, np.int64, np.bool_, np.uint8])
@pytest.mark.parametrize("shape", [(3, 4), (5,), (2, 0), (2, 2, 2)])
def test_non_zero(shape: tuple[int, ...], dtype: Any) -> None:
    check("NonZero", [random_array(13, shape, dtype, 0, 1)], opset=13)


@pytest.mark.parametrize("value", [0, 3])
def test_non_zero_of_a_scalar(value: int) -> None:
    check("NonZero", [np.array(value, np.int64)], opset=13)


@pytest.mark.parametrize("axis", [None, 0, 1, -1])
def test_compress(axis: int | None) -> None:
    condition = np.array([True, False, True])
    check("Compress", [X, condition], opset=11, **({} if axis is None else {"axis": axis}))
    check("Compress", [X, np.array([False, False])], opset=11, **({} if axis is None else {"axis": axis}))


@pytest.mark.parametrize("ordered", [0, 1])
@pytest.mark.parametrize("axis", [None, 0, 1])
def test_unique(axis: int | None, ordered: int) -> None:
    x = random_array(14, (6, 2), np.int64, 0, 1)
    attributes = {} if axis is None else {"axis": axis}
    check("Unique", [x], opset=11, outputs=4, sorted=ordered, **attributes)


@pytest.mark.parametrize(
    ("op", "inputs"),
    [
        ("Gather", [X, ints([3])]),
        ("GatherElements", [X, ints([[[-4]]])]),
        ("GatherND", [X, ints([[0, 4]])]),
        ("ScatterND", [X, ints([[3]]), X[:1]]),
        ("ScatterElements", [X, ints([[[3]]]), X[:1, :1, :1]]),
    ],
)
def test_indices_out_of_range_are_errors(op: str, inputs: Any) -> None:
    for symbolic in (False, True):
        model = node_model(op, inputs, opset=13, symbolic=symbolic)
        with pytest.raises(WeftError, match="out of range"):
            run_weft(model, inputs)


def test_a_constant_index_out_of_range_is_an_error() -> None:
    for symbolic in (False, True):
        model = node_model("Gather", [X, ints(3)], opset=13, symbolic=symbolic, constants=[1])
        with pytest.raises(WeftError, match="out of range"):
            run_weft(model, [X, None])
