"""Resizing against onnxruntime: modes, coordinates, old opsets, and sizes that stay symbolic."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import helper
from opset.oracle import check, random_array
from peers import onnxruntime_run

import weft
from weft.cost.expressions import divides
from weft.fuse.inline import inline_maps
from weft.ir.scalar import Index, walk

X = random_array(1, (1, 2, 5, 7))
COORDINATES = ["half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric"]


def floats(*numbers: float) -> Any:
    return np.array(numbers, np.float32)


def ints(*numbers: int) -> Any:
    return np.array(numbers, np.int64)


@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize("scales", [(1, 1, 2, 2), (1, 1, 1.5, 3), (1, 1, 2.6, 1)])
def test_upsample(mode: str, scales: tuple[float, ...]) -> None:
    check("Upsample", [X], opset=7, mode=mode, scales=[float(scale) for scale in scales])
    check("Upsample", [X, floats(*scales)], opset=9, mode=mode, constants=[1])
    check("Upsample", [X, floats(*scales)], opset=9, mode=mode)


@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize("scales", [(1, 1, 2, 2), (1, 1, 0.6, 0.5), (1, 1, 0.7, 1.3)])
def test_resize_10(mode: str, scales: tuple[float, ...]) -> None:
    check("Resize", [X, floats(*scales)], opset=10, mode=mode, constants=[1])
    check("Resize", [X, floats(*scales)], opset=10, mode=mode)


@pytest.mark.parametrize("coordinates", COORDINATES)
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("sizes", [(1, 2, 10, 14), (1, 2, 3, 4), (1, 2, 8, 5), (1, 2, 1, 1)])
def test_sizes(mode: str, coordinates: str, sizes: tuple[int, ...]) -> None:
    options = {"mode": mode, "coordinate_transformation_mode": coordinates}
    if mode == "nearest":
        options["nearest_mode"] = "floor" if coordinates == "asymmetric" else "round_prefer_ceil"
    for opset in (11, 13, 19):
        inputs = [X, floats(), floats(), ints(*sizes)] if opset < 13 else [X, None, None, ints(*sizes)]
        check("Resize", inputs, opset=opset, constants=[3], rtol=1e-4, atol=1e-4, **options)
    check("Resize", [X, None, None, ints(*sizes)], opset=19, rtol=1e-4, atol=1e-4, **options)


@pytest.mark.parametrize("nearest", ["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"])
@pytest.mark.parametrize("coordinates", ["half_pixel", "asymmetric", "align_corners"])
@pytest.mark.parametrize("scales", [(2.0, 2.0), (0.5, 0.25), (3.0, 0.75)])
def test_nearest(nearest: str, coordinates: str, scales: tuple[float, ...]) -> None:
    options = {"mode": "nearest", "nearest_mode": nearest, "coordinate_transformation_mode": coordinates}
    x = random_array(2, (1, 1, 8, 8))
    sizes = ints(1, 1, *(int(8 * scale) for scale in scales))
    check("Resize", [x, None, None, sizes], opset=13, constants=[3], **options)
    check("Resize", [x, None, floats(1, 1, *scales)], opset=13, constants=[2], **options)


@pytest.mark.parametrize("exclude", [0, 1])
@pytest.mark.parametrize("a", [-0.5, -0.75])
def test_cubic(a: float, exclude: int) -> None:
    scales = floats(1, 1, 2, 1.5)
    options = {"mode": "cubic", "cubic_coeff_a": a, "exclude_outside": exclude}
    check("Resize", [X, None, scales], opset=13, constants=[2], rtol=1e-4, atol=1e-4, **options)
    check("Resize", [X, None, scales], opset=13, rtol=1e-4, atol=1e-4, **options)


@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_crops(mode: str) -> None:
    roi = floats(0, 0, 0.2, -0.31, 1, 1, 0.8, 1.23)
    options = {
        "mode": mode,
        "nearest_mode": "floor",
        "coordinate_transformation_mode": "tf_crop_and_resize",
        "extrapolation_value": 9.0,
    }
    for constants in ([1, 3], [3], []):
        check("Resize", [X, roi, None, ints(1, 2, 4, 6)], opset=13, constants=constants, rtol=1e-4, **options)


@pytest.mark.parametrize("dtype", [np.float16, np.float64, np.uint8, np.int32])
def test_dtypes(dtype: Any) -> None:
    x = random_array(3, (1, 1, 4, 4), dtype, 0, 100)
    check("Resize", [x, None, floats(1, 1, 2, 2)], opset=13, expected=[np.kron(x, np.ones((2, 2), dtype))])


def test_narrow_floats_are_computed_in_float32() -> None:
    x = random_array(4, (1, 1, 4, 4), ml_dtypes.bfloat16)
    wide = random_array(4, (1, 1, 4, 4), ml_dtypes.bfloat16).astype(np.float32)
    middle = (wide[..., 1:3, 1:3].sum(axis=(2, 3)) / 4).astype(ml_dtypes.bfloat16)
    loaded = weft.load(_resize_model(onnx.TensorProto.BFLOAT16, ints(1, 1, 1, 1)))
    np.testing.assert_array_equal(loaded(x).reshape(-1), middle.reshape(-1))


def _resize_model(kind: int, sizes: Any) -> onnx.ModelProto:
    graph = helper.make_graph(
        [helper.make_node("Resize", ["x", "", "", "sizes"], ["y"], mode="linear")],
        "resize",
        [helper.make_tensor_value_info("x", kind, [1, 1, "h", "w"])],
        [helper.make_tensor_value_info("y", kind, None)],
        [onnx.numpy_helper.from_array(sizes, "sizes")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=10)


@pytest.mark.parametrize("mode", ["linear", "cubic"])
@pytest.mark.parametrize("policy", ["not_larger", "not_smaller"])
def test_aspect_ratio(mode: str, policy: str) -> None:
    options = {"axes": [2, 3], "keep_aspect_ratio_policy": policy, "mode": mode}
    check("Resize", [X, None, None, ints(10, 10)], opset=18, constants=[3], rtol=1e-4, atol=1e-4, **options)
    check("Resize", [X, None, None, ints(3, 2)], opset=18, rtol=1e-4, atol=1e-4, **options)


@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_antialias_keeps_what_is_constant(mode: str) -> None:
    x = np.full((1, 1, 12, 9), 2.5, np.float32)
    expected = np.full((1, 1, 5, 2), 2.5, np.float32)
    check("Resize", [x, None, None, ints(1, 1, 5, 2)], opset=18, mode=mode, antialias=1, expected=[expected])


@pytest.mark.parametrize("size", [(4, 3), (9, 50), (40, 2), (61, 90)])
@pytest.mark.parametrize("exclude", [0, 1])
@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_antialias(mode: str, exclude: int, size: tuple[int, int]) -> None:
    """Few taps, which are one map, and many."""
    x = random_array(31, (1, 2, 40, 45))
    options = {"mode": mode, "antialias": 1, "exclude_outside": exclude}
    check("Resize", [x, None, None, ints(1, 2, *size)], opset=18, rtol=1e-4, atol=1e-4, constants=[3], **options)


def test_sizes_stay_symbolic() -> None:
    graph = helper.make_graph(
        [helper.make_node("Resize", ["x", "", "scales"], ["y"], mode="nearest")],
        "resize",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["n", 3, "h", "w"])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)],
        [onnx.numpy_helper.from_array(floats(1, 1, 2, 0.7), "scales")],
    )
    model = weft.load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=10))
    assert [str(size) for size in model.outputs[0].shape] == ["n", "3", "2*h", "(7*w) // 10"]
    assert model.run({"x": np.zeros((2, 3, 4, 10), np.float32)})["y"].shape == (2, 3, 8, 7)


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("size", [(9, 40), (50, 20), (1, 1), (37, 61)])
def test_open_sizes_like_onnxruntime(mode: str, size: tuple[int, int]) -> None:
    x = random_array(5, (2, 3, *size))
    graph = helper.make_graph(
        [helper.make_node("Resize", ["x", "", "", "sizes"], ["y"], mode=mode)],
        "resize",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["n", "c", "h", "w"])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)],
        [onnx.numpy_helper.from_array(ints(2, 3, 23, 37), "sizes")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=10)
    (expected,) = onnxruntime_run(model, {"x": x})
    actual = weft.load(model, device="cpu").run({"x": x})
    np.testing.assert_allclose(actual["y"], expected, rtol=1e-3, atol=2e-4)


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_places_of_open_sizes_are_found_once(mode: str) -> None:
    """Coordinates divide by sizes: that is done for each row and column, not for each element."""
    graph = helper.make_graph(
        [helper.make_node("Resize", ["x", "", "", "sizes"], ["y"], mode=mode)],
        "resize",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1, 3, "h", "w"])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)],
        [onnx.numpy_helper.from_array(ints(1, 3, 23, 37), "sizes")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=10)
    program = inline_maps(weft.load(model, device="reference").program)
    pictures = [step for step in program.steps if len(step.results[0].type.shape) == 4]
    assert pictures
    for step in pictures:
        nodes = walk(step.primitive.expression)
        assert not any(divides(node.value) for node in nodes if isinstance(node, Index))
