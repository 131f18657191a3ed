"""Scales, shifts and the next quantization after byte products are merged, with onnxruntime's results."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import weft
from weft.ir.program import Map
from weft.ir.scalar import Apply, walk

onnxruntime = pytest.importorskip("onnxruntime")


def build(seed: int, kind: str, activation: str) -> tuple[bytes, np.ndarray[Any, Any], float]:
    """A quantized convolution or product with a bias and an activation, quantized again."""
    random = np.random.default_rng(seed)
    signed = np.int8 if seed % 2 else np.uint8
    features, channels = 24, 17
    constants: list[Any] = []

    def constant(array: Any, dtype: Any) -> str:
        constants.append(numpy_helper.from_array(np.asarray(array, dtype), f"c{len(constants)}"))
        return f"c{len(constants) - 1}"

    x_parts = [constant(0.03, np.float32), constant(random.integers(20, 90), signed)]
    y_parts = [constant(0.05, np.float32), constant(random.integers(10, 90), signed)]
    shape = (features, channels, 3, 3) if kind == "Conv" else (channels, features)
    axis = 0 if kind == "Conv" else 1
    weights = random.integers(-127, 128, shape).astype(np.int8)
    w_parts = [constant(random.uniform(0.001, 0.01, features), np.float32), constant(np.zeros(features), np.int8)]
    bias = constant(random.normal(0, 1, features), np.float32)
    nodes = [
        helper.make_node("QuantizeLinear", ["x", *x_parts], ["xq"]),
        helper.make_node("DequantizeLinear", ["xq", *x_parts], ["xd"]),
        helper.make_node("DequantizeLinear", [constant(weights, np.int8), *w_parts], ["wd"], axis=axis),
    ]
    if kind == "Conv":
        nodes.append(helper.make_node("Conv", ["xd", "wd", bias], ["s"], pads=[1, 1, 1, 1]))
    else:
        nodes += [helper.make_node("MatMul", ["xd", "wd"], ["p"]), helper.make_node("Add", ["p", bias], ["s"])]
    if activation:
        nodes.append(helper.make_node(activation, ["s"], ["a"]))
    nodes += [
        helper.make_node("QuantizeLinear", ["a" if activation else "s", *y_parts], ["yq"]),
        helper.make_node("DequantizeLinear", ["yq", *y_parts], ["y"]),
    ]
    size = [2, channels, 9, 7] if kind == "Conv" else [3, 5, channels]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, size)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        constants,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    return model.SerializeToString(), random.normal(0, 1.5, size).astype(np.float32), 0.05


@pytest.mark.parametrize("activation", ["", "Relu", "Sigmoid", "Abs"])
@pytest.mark.parametrize("kind", ["Conv", "MatMul"])
@pytest.mark.parametrize("seed", range(2))
def test_following_steps_are_merged(seed: int, kind: str, activation: str) -> None:
    model, x, step = build(seed, kind, activation)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    (expected,) = session.run(None, {"x": x})
    for device in ("reference", "cpu"):
        loaded = weft.load(model, device=device, cache=False)
        (actual,) = loaded.run({"x": x}).values()
        distance = np.abs(actual.astype(np.float64) - expected) / step
        assert distance.max() <= 1.01
        assert (distance > 0.5).mean() <= 0.01
    expressions = [item.primitive.expression for item in loaded.program.steps if isinstance(item.primitive, Map)]
    divided = [node for e in expressions for node in walk(e) if isinstance(node, Apply) and node.function == "divide"]
    assert len(divided) == {"": 1, "Relu": 1, "Sigmoid": 3, "Abs": 1}[activation]  # that of the input is always there


def test_rounding_to_bytes_of_all_numbers() -> None:
    """Ties, infinities, NaN and values far out of range, at odd and even zero points."""
    special = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e30, -1e30, 1e9, 3e38, 127.5, 128.5, -0.5, 0.5, 254.5, 255.5]
    x = np.concatenate([np.asarray(special), np.arange(-300, 300) / 2.0, np.arange(-1000, 1000) / 7.0])
    x = x.astype(np.float32)
    for zero in (np.uint8(0), np.uint8(7), np.uint8(128), np.int8(-128), np.int8(-3), np.int8(44), np.uint16(1000)):
        node = helper.make_node("QuantizeLinear", ["x", "s", "z"], ["y"])
        kind = helper.np_dtype_to_tensor_dtype(zero.dtype)
        graph = helper.make_graph(
            [node],
            "g",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape)],
            [helper.make_tensor_value_info("y", kind, x.shape)],
            [numpy_helper.from_array(np.float32(1.0), "s"), numpy_helper.from_array(np.asarray(zero), "z")],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
        actual = [
            next(iter(weft.load(model, device=device, cache=False).run({"x": x}).values()))
            for device in ("reference", "cpu")
        ]
        np.testing.assert_array_equal(actual[0], actual[1])
        limits = np.iinfo(zero.dtype)
        real = x[~np.isnan(x)].astype(np.float64)
        expected = np.clip(np.rint(real) + float(zero), limits.min, limits.max).astype(zero.dtype)
        np.testing.assert_array_equal(actual[1][~np.isnan(x)], expected)
