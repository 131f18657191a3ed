"""Data movement against onnxruntime and numpy: every form and version that the conformance suite leaves out."""

from __future__ import annotations

from itertools import product
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from opset.oracle import check, random_array

import weft

X = random_array(1, (3, 4, 5))
LARGE = 2**63 - 1


def ints(*numbers: int) -> Any:
    return np.array(numbers, np.int64)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float64, np.int8, np.uint64, np.bool_])
def test_dtypes(dtype: Any) -> None:
    x = random_array(2, (2, 3), dtype, 0, 3)
    check("Transpose", [x], opset=21, expected=[x.T])
    check("Concat", [x, x], opset=21, axis=1, expected=[np.concatenate([x, x], 1)])
    check(
        "Slice", [x, ints(1), ints(-3), ints(1), ints(-1)], opset=21, expected=[x[:, 1:-3:-1]], constants=[1, 2, 3, 4]
    )
    check("Tile", [x, ints(2, 1)], opset=21, expected=[np.tile(x, (2, 1))])
    check("Expand", [x, ints(2, 1, 3)], opset=21, expected=[np.broadcast_to(x, (2, 2, 3))])
    check("Pad", [x, ints(1, 0, 0, 2)], opset=21, expected=[np.pad(x, ((1, 0), (0, 2)))])


def test_strings() -> None:
    x = np.array([["a", "b"], ["c", "d"]], object)
    check("Transpose", [x], opset=13, expected=[x.T])
    check("Concat", [x, x], opset=13, axis=0, expected=[np.concatenate([x, x])])
    check("Expand", [x, ints(2, 1, 1)], opset=13, expected=[np.broadcast_to(x, (2, 2, 2))])
    check("Tile", [x, ints(1, 2)], opset=13, expected=[np.tile(x, (1, 2))])
    check("Slice", [x, ints(1), ints(2)], opset=13, expected=[x[1:2]])


@pytest.mark.parametrize("permutation", [None, (0, 2, 1), (2, 0, 1), (1, 2, 0)])
def test_transpose(permutation: tuple[int, ...] | None) -> None:
    check("Transpose", [X], opset=7, **({} if permutation is None else {"perm": permutation}))


@pytest.mark.parametrize("axis", [0, 1, 2, -1, -3])
def test_concat(axis: int) -> None:
    other = random_array(3, [7 if place == axis % 3 else size for place, size in enumerate(X.shape)])
    empty = np.zeros([0 if place == axis % 3 else size for place, size in enumerate(X.shape)], np.float32)
    check("Concat", [X, other, empty, X], opset=11, axis=axis)


@pytest.mark.parametrize("opset", [7, 11, 13, 18])
def test_split(opset: int) -> None:
    attributes = {"num_outputs": 2} if opset >= 18 else {}
    check("Split", [X], opset=opset, axis=1, outputs=2, **attributes)
    if opset < 13:
        check("Split", [X], opset=opset, axis=2, split=[1, 0, 4], outputs=3)
    else:
        check("Split", [X, ints(1, 0, 4)], opset=opset, axis=-1, outputs=3, constants=[1])
        check("Split", [X, ints(1, 0, 4)], opset=opset, axis=-1, outputs=3)


def test_split_that_is_not_even() -> None:
    check("Split", [X], opset=18, axis=2, num_outputs=2, outputs=2)
    check("Split", [X], opset=18, axis=1, num_outputs=3, outputs=3, expected=[X[:, :2], X[:, 2:4], X[:, 4:]])


@pytest.mark.parametrize(
    ("starts", "ends", "axes"),
    [
        ((1,), (3,), None),
        ((0, 1), (LARGE, -1), (0, 2)),
        ((-2, -100), (100, 2), (1, 2)),
        ((3,), (1,), (1,)),
        ((-(2**62),), (LARGE,), (0,)),
    ],
)
def test_slice_by_attributes(starts: Any, ends: Any, axes: Any) -> None:
    check("Slice", [X], opset=7, starts=starts, ends=ends, **({} if axes is None else {"axes": axes}))


@pytest.mark.parametrize("seed", range(60))
def test_slice(seed: int) -> None:
    """Starts before the front with a negative step begin at the front, unlike Python's."""
    generator = np.random.default_rng(seed)
    choices = [*range(-7, 8), LARGE, -LARGE, 2**31 - 1, -(2**31)]
    start, end = (int(generator.choice(choices)) for _ in range(2))
    step = int(generator.choice([1, 2, 3, -1, -2, -3, LARGE, -LARGE]))
    inputs = [X, ints(start), ints(end), ints(-1), ints(step)]
    check("Slice", inputs, opset=13, constants=[1, 2, 3, 4] if seed % 2 else [3, 4])


def test_slice_at_sizes_known_only_at_run_time() -> None:
    """Starts and ends computed from the input's own shape keep the program free of ops put off to run time."""
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Gather", ["shape", "one"], ["width"]),
        helper.make_node("Sub", ["width", "two"], ["start"]),
        helper.make_node("Slice", ["x", "start", "width", "one"], ["tail"]),
        helper.make_node("Slice", ["x", "minus", "far", "one", "minus"], ["reversed"]),
    ]
    constants = {"one": ints(1), "two": ints(2), "minus": ints(-1), "far": ints(-LARGE)}
    graph = helper.make_graph(
        nodes,
        "slices",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["n", "width"])],
        [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in ("tail", "reversed")],
        [onnx.numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    model = weft.load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=10))
    assert "late" not in str(model.program)
    for width in (1, 2, 5):
        x = random_array(width, (2, width))
        results = model.run({"x": x})
        np.testing.assert_array_equal(results["tail"], x[:, width - 2 :])
        np.testing.assert_array_equal(results["reversed"], x[:, ::-1])


def test_a_buffer_sliced_to_an_inputs_size_has_that_size() -> None:
    nodes = [
        helper.make_node("Shape", ["x"], ["width"]),
        helper.make_node("Slice", ["buffer", "zero", "width"], ["part"]),
        helper.make_node("Add", ["x", "part"], ["y"]),
    ]
    buffer = np.arange(8, dtype=np.float32)
    graph = helper.make_graph(
        nodes,
        "positions",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["width"])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)],
        [onnx.numpy_helper.from_array(buffer, "buffer"), onnx.numpy_helper.from_array(ints(0), "zero")],
    )
    model = weft.load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=10))
    assert str(model.outputs[0].shape[0]) == "width"
    np.testing.assert_array_equal(model(np.ones(5, np.float32)), 1 + buffer[:5])
    with pytest.raises(weft.errors.WeftError):
        model(np.ones(9, np.float32))


def test_a_shape_of_known_and_unknown_parts_keeps_what_is_known() -> None:
    nodes = [
        helper.make_node("Cast", ["scale"], ["rows"], to=onnx.TensorProto.INT64),
        helper.make_node("Concat", ["rows", "rest"], ["shape"], axis=0),
        helper.make_node("Reshape", ["x", "shape"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "shape",
        [
            helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["n"]),
            helper.make_tensor_value_info("scale", onnx.TensorProto.FLOAT, [1]),
        ],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)],
        [onnx.numpy_helper.from_array(ints(-1, 2), "rest")],
    )
    model = weft.load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=10))
    assert model.outputs[0].shape[2] == 2
    result = model.run({"x": np.arange(12, dtype=np.float32), "scale": np.array([3.0], np.float32)})["y"]
    assert result.shape == (3, 2, 2)


@pytest.mark.parametrize("mode", ["constant", "reflect", "edge", "wrap"])
@pytest.mark.parametrize(
    "pads", [(0, 0, 0, 0, 0, 0), (1, 2, 3, 2, 1, 0), (0, 3, 4, 2, 2, 4), (0, -1, 2, 0, 1, -2), (-1, -1, -1, -1, -1, -1)]
)
def test_pad(mode: str, pads: tuple[int, ...]) -> None:
    inputs = [X, ints(*pads)]
    expected = None
    if mode == "wrap" and min(pads) < 0:  # onnxruntime wraps around to elements that were cropped away
        ends = list(zip(pads[:3], pads[3:]))
        remaining = X[tuple(slice(max(-a, 0), size - max(-b, 0)) for size, (a, b) in zip(X.shape, ends))]
        expected = [np.pad(remaining, [(max(a, 0), max(b, 0)) for a, b in ends], mode="wrap")]
    check("Pad", inputs, opset=19, mode=mode, constants=[1], expected=expected)
    check("Pad", inputs, opset=19, mode=mode, expected=expected)
    if mode != "wrap":
        check("Pad", [X], opset=7, mode=mode, pads=pads)


def test_pad_value_and_axes() -> None:
    value = np.array(7, np.float32)
    check("Pad", [X, ints(1, 2, 0, 1), value, ints(-1, 0)], opset=18, constants=[3])
    check("Pad", [X, ints(1, 2, 0, 1), value, ints(-1, 0)], opset=18)
    check("Pad", [X], opset=7, pads=(0, 0, 1, 0, 0, 1), value=2.5)
    check("Pad", [X.astype(np.int32), ints(0, 0, 1, 0, 0, 1), np.array(-3, np.int32)], opset=13)


def test_pad_further_than_the_tensor_reaches() -> None:
    x = random_array(4, (2, 3))
    expected = np.pad(x, ((0, 0), (7, 8)), mode="reflect")
    check("Pad", [x, ints(0, 7, 0, 8)], opset=18, mode="reflect", expected=[expected])
    check("Pad", [x, ints(0, 7, 0, 8)], opset=19, mode="wrap", expected=[np.pad(x, ((0, 0), (7, 8)), mode="wrap")])


def test_empty_tensors() -> None:
    empty = np.zeros((0, 3), np.float32)
    check("Transpose", [empty], opset=13)
    check("Tile", [empty, ints(2, 2)], opset=13)
    check("Expand", [np.zeros((1, 3), np.float32), ints(0, 3)], opset=13)
    check("Pad", [empty, ints(1, 0, 1, 0)], opset=13, expected=[np.zeros((2, 3), np.float32)])
    check("Slice", [empty, ints(0), ints(2), ints(1)], opset=13)
    check("Slice", [empty, ints(-1), ints(-9), ints(0), ints(-1)], opset=13)


def test_scalars() -> None:
    x = np.array(2.5, np.float32)
    check("Transpose", [x], opset=13)
    check("Expand", [x, ints(2, 3)], opset=13)
    check("Expand", [x, np.zeros(0, np.int64)], opset=13)


@pytest.mark.parametrize("shape", [(4, 5), (3, 1, 1), (2, 3, 4, 5), (1,), (5,), (3, 4, 1)])
def test_expand(shape: tuple[int, ...]) -> None:
    check("Expand", [X, ints(*shape)], opset=8)
    check("Expand", [X, ints(*shape)], opset=13, constants=[1])
    check("Expand", [random_array(6, (3, 1, 5)), ints(*shape[-2:])] if shape[-1] in (1, 5) else [X, ints(1)], opset=13)


@pytest.mark.parametrize("repeats", [(1, 1, 1), (2, 1, 3), (0, 1, 1)])
def test_tile(repeats: tuple[int, ...]) -> None:
    check("Tile", [X, ints(*repeats)], opset=7)
    check("Tile", [X, ints(*repeats)], opset=13, constants=[1])


@pytest.mark.parametrize("mode", ["DCR", "CRD"])
def test_depth_and_space(mode: str) -> None:
    x = random_array(7, (2, 8, 3, 4))
    check("DepthToSpace", [x], opset=13, blocksize=2, mode=mode)
    check("DepthToSpace", [x], opset=7, blocksize=2)
    check("SpaceToDepth", [random_array(8, (2, 3, 4, 6))], opset=7, blocksize=2)


@pytest.mark.parametrize(("time", "batch"), [(0, 1), (1, 0)])
def test_reverse_sequence(time: int, batch: int) -> None:
    x = random_array(9, (4, 4, 2))
    check("ReverseSequence", [x, ints(1, 4, 2, 0)], opset=10, time_axis=time, batch_axis=batch)


@pytest.mark.parametrize("upper", [0, 1])
@pytest.mark.parametrize("k", [None, -3, -1, 0, 2, 9])
def test_trilu(upper: int, k: int | None) -> None:
    x = random_array(10, (2, 4, 5), np.int64)
    check("Trilu", [x] if k is None else [x, np.array(k, np.int64)], opset=14, upper=upper)


@pytest.mark.parametrize("k", [-2, 0, 1, 7])
def test_eye_like(k: int) -> None:
    x = random_array(11, (3, 5))
    check("EyeLike", [x], opset=9, k=k)
    check("EyeLike", [x], opset=9, k=k, dtype=onnx.TensorProto.INT64)
    check("EyeLike", [x], opset=22, k=k, dtype=onnx.TensorProto.BOOL, expected=[np.eye(3, 5, k, bool)])


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int16, np.int32, np.int64])
@pytest.mark.parametrize("bounds", [(0, 10, 1), (10, 0, -3), (1, 2, 5), (5, 5, 1), (3, 1, 1), (-4, 4, 2)])
def test_range(dtype: Any, bounds: tuple[int, ...]) -> None:
    inputs = [np.array(bound, dtype) for bound in bounds]
    check("Range", inputs, opset=11)
    check("Range", inputs, opset=11, constants=[0, 1, 2])
    check("Range", inputs, opset=11, constants=[0, 2])


def test_range_of_fractions() -> None:
    check("Range", [np.array(x, np.float32) for x in (0.25, 2.0, 0.3)], opset=11)


@pytest.mark.parametrize("axis", [-1, 0, 1, -2])
@pytest.mark.parametrize("dtype", [np.int64, np.float32, np.int32])
def test_one_hot(axis: int, dtype: Any) -> None:
    indices = np.array([[0, 4, -1], [-5, 5, 9]], dtype)
    values = np.array([-1.5, 2.5], np.float32)
    check("OneHot", [indices, np.array(5, dtype), values], opset=11, axis=axis)
    check("OneHot", [indices, np.array([5], dtype), values], opset=11, axis=axis, constants=[1, 2])


@pytest.mark.parametrize("shape", [(3, 4, 5), (5, 2, 5), (1, 7, 8), (2, 3, 4)])
def test_center_crop_pad(shape: tuple[int, ...]) -> None:
    check("CenterCropPad", [X, ints(*shape)], opset=18)
    check("CenterCropPad", [X, ints(*shape[1:])], opset=18, axes=(-1, 0), constants=[1])


@pytest.mark.parametrize("device", ["cpu", "reference"])
def test_bounds_of_slices_are_clamped_as_by_onnxruntime(device: str) -> None:
    """Of no elements and of three, in both directions; the largest integers mean that there is no bound."""
    values = {"x": (np.float32, ["n"]), "starts": (np.int64, [1]), "ends": (np.int64, [1]), "steps": (np.int64, [1])}
    graph = helper.make_graph(
        [helper.make_node("Slice", ["x", "starts", "ends", "axes", "steps"], ["y"])],
        "slices",
        [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), shape)
            for name, (dtype, shape) in values.items()
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["m"])],
        [numpy_helper.from_array(np.array([0]), "axes")],
    )
    content = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9).SerializeToString()
    peer, model = onnxruntime.InferenceSession(content), weft.load(content, device=device)
    bounds = (-5, -3, -1, 0, 2, 4, 2**31 - 1, -(2**31), 2**63 - 1, -(2**63))
    for size, start, end, step in product((0, 3), bounds, bounds, (-2, -1, 1, 2)):
        numbers = {"starts": np.array([start]), "ends": np.array([end]), "steps": np.array([step])}
        inputs = {"x": np.arange(size, dtype=np.float32), **numbers}
        reference = peer.run(None, inputs)[0]
        np.testing.assert_array_equal(model.run(inputs)["y"], reference, err_msg=f"{size} {start}:{end}:{step}")
