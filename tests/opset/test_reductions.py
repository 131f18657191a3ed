"""Reductions, softmax, running sums and the largest elements, against onnxruntime or numpy."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from opset.oracle import check, node_model, random_array, run_weft

import weft
from weft.errors import InvalidModelError

Array = np.ndarray[Any, Any]
REDUCTIONS = ["Sum", "Mean", "Prod", "Max", "Min", "L1", "L2", "LogSum", "LogSumExp", "SumSquare"]
AXES: list[list[int] | None] = [None, [0], [-1], [0, 2], [2, -2], [0, 1, 2]]


def as_axes(axes: list[int] | None) -> Array | None:
    return None if axes is None else np.array(axes, np.int64)


@pytest.mark.parametrize("kind", REDUCTIONS)
@pytest.mark.parametrize("axes", AXES)
@pytest.mark.parametrize("keepdims", [0, 1])
@pytest.mark.parametrize("opset", [7, 11, 13, 18, 20])
def test_reductions(kind: str, axes: list[int] | None, keepdims: int, opset: int) -> None:
    x = random_array(1, (2, 3, 4), low=0.5, high=2)
    if opset < 11 and axes is not None:
        axes = [axis % 3 for axis in axes]
    if opset >= (13 if kind == "Sum" else 18):
        inputs = [x] if axes is None else [x, as_axes(axes)]
        check(f"Reduce{kind}", inputs, opset=opset, constants=range(1, len(inputs)), keepdims=keepdims)
    else:
        arguments = {} if axes is None else {"axes": axes}
        check(f"Reduce{kind}", [x], opset=opset, keepdims=keepdims, **arguments)


@pytest.mark.parametrize("kind", ["Sum", "Mean", "Prod", "Max", "Min", "L1", "SumSquare"])
@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.float64])
def test_reductions_of_other_types(kind: str, dtype: Any) -> None:
    check(f"Reduce{kind}", [random_array(2, (3, 5), dtype)], opset=13 if kind != "Sum" else 12, axes=[1])


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.bool_])
@pytest.mark.parametrize("kind", ["Max", "Min"])
def test_extremes_of_narrow_types(kind: str, dtype: Any) -> None:
    x = random_array(3, (3, 4), dtype, 0, 9)
    function = np.max if kind == "Max" else np.min
    expected = [np.asarray(function(x, axis=1, keepdims=True))]
    check(f"Reduce{kind}", [x, as_axes([1])], opset=20, constants=[1], expected=expected)


@pytest.mark.parametrize("kind", REDUCTIONS)
def test_a_reduction_over_no_axes_still_does_the_rest(kind: str) -> None:
    x = random_array(4, (2, 3), low=0.5, high=2)
    functions = {"L2": np.abs, "L1": np.abs, "LogSum": np.log, "SumSquare": np.square}
    expected = [functions.get(kind, np.asarray)(x)]
    check(f"Reduce{kind}", [x], opset=18, noop_with_empty_axes=1, expected=expected)


@pytest.mark.parametrize("kind", REDUCTIONS)
def test_reductions_of_scalars(kind: str) -> None:
    check(f"Reduce{kind}", [np.array(1.5, np.float32)], opset=18)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("Sum", 0.0),
        ("Prod", 1.0),
        ("Max", -np.inf),
        ("Min", np.inf),
        ("L1", 0.0),
        ("L2", 0.0),
        ("LogSum", -np.inf),
        ("LogSumExp", -np.inf),
        ("SumSquare", 0.0),
    ],
)
def test_reductions_of_nothing(kind: str, expected: float) -> None:
    x = np.empty((2, 0, 3), np.float32)
    reference = np.full((2, 1, 3), expected, np.float32)
    model = node_model(f"Reduce{kind}", [x, as_axes([1])], opset=20, constants=[1])
    np.testing.assert_array_equal(run_weft(model, [x])[0], reference)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_narrow_floats_are_added_up_in_float32(dtype: Any) -> None:
    x = np.full((4096,), 100, dtype)
    check("ReduceMean", [x], opset=13, keepdims=0, expected=[np.array(100, dtype)])


def test_log_sum_exp_of_large_and_infinite_numbers() -> None:
    x = np.array([[1000, 1000], [-np.inf, -np.inf], [np.inf, 0], [-1000, -1001]], np.float32)
    wide = x[[0, 3]].astype(np.float64)
    highest = wide.max(axis=1, keepdims=True)
    finite = (np.log(np.exp(wide - highest).sum(axis=1, keepdims=True)) + highest)[:, 0]
    expected = np.array([finite[0], -np.inf, np.inf, finite[1]], np.float32)
    check("ReduceLogSumExp", [x], opset=13, axes=[1], keepdims=0, expected=[expected])


def test_axes_known_only_in_the_run() -> None:
    x = random_array(5, (2, 3))
    check("ReduceSum", [x, as_axes([-1])], opset=13)


@pytest.mark.parametrize("op", ["ArgMax", "ArgMin"])
@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("keepdims", [0, 1])
@pytest.mark.parametrize("last", [0, 1])
@pytest.mark.parametrize("dtype", [np.float32, np.int32])
def test_positions(op: str, axis: int, keepdims: int, last: int, dtype: Any) -> None:
    x = random_array(6, (3, 4, 2), dtype, -2, 2).round()
    check(op, [x], opset=13, axis=axis, keepdims=keepdims, select_last_index=last)
    check(op, [x], opset=11, axis=axis, keepdims=keepdims)


@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax", "Hardmax"])
@pytest.mark.parametrize("axis", [None, 0, 1, 2, -1])
@pytest.mark.parametrize("opset", [7, 11, 13])
def test_softmax(op: str, axis: int | None, opset: int) -> None:
    if opset == 7 and axis == -1:
        axis = 2
    arguments = {} if axis is None else {"axis": axis}
    check(op, [random_array(7, (2, 3, 4))], opset=opset, **arguments)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float64])
def test_softmax_of_other_floats(dtype: Any) -> None:
    x = random_array(8, (3, 5), dtype)
    wide = np.exp(x.astype(np.float64))
    expected = (wide / wide.sum(axis=-1, keepdims=True)).astype(dtype)
    check("Softmax", [x], opset=13, expected=[expected], rtol=1e-2 if dtype is ml_dtypes.bfloat16 else 1e-3)


@pytest.mark.parametrize("exclusive", [0, 1])
@pytest.mark.parametrize("reverse", [0, 1])
@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("dtype", [np.float32, np.int64])
def test_running_sums(exclusive: int, reverse: int, axis: int, dtype: Any) -> None:
    inputs = [random_array(9, (3, 4), dtype), np.array(axis, np.int64)]
    check("CumSum", inputs, opset=14, constants=[1], exclusive=exclusive, reverse=reverse)


@pytest.mark.parametrize("largest", [0, 1])
@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("dtype", [np.float32, np.int64, np.float64])
@pytest.mark.parametrize("constants", [[1], []])
def test_top_k(largest: int, axis: int, dtype: Any, constants: list[int]) -> None:
    x = random_array(10, (4, 6), dtype, -2, 2).round()
    check("TopK", [x, np.array([3], np.int64)], opset=11, outputs=2, constants=constants, largest=largest, axis=axis)


def test_top_k_before_opset_11() -> None:
    x = random_array(11, (4, 6))
    check("TopK", [x], opset=9, outputs=2, k=2, axis=0)
    check("TopK", [x, np.array([2], np.int64)], opset=10, outputs=2, constants=[1])


def test_too_many_are_refused() -> None:
    model = node_model("TopK", [random_array(12, (2,)), np.array([3], np.int64)], opset=11, outputs=2, constants=[1])
    with pytest.raises(InvalidModelError, match="k is 3"):
        weft.load(model)


def test_an_axis_out_of_range_is_refused() -> None:
    model = node_model("ReduceSum", [random_array(13, (2,))], opset=11, axes=[3])
    with pytest.raises(InvalidModelError, match="axis 3"):
        weft.load(model)
