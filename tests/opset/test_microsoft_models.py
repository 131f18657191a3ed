"""Small networks as onnxruntime's optimiser and quantizer rewrite them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper
from onnxruntime import quantization

import weft

Array = Any
FEEDS = 4


def weights(name: str, *shape: int) -> onnx.TensorProto:
    rng = np.random.default_rng(len(name) + sum(shape))
    fan_in = int(np.prod(shape[1:])) if len(shape) > 1 else 4
    return numpy_helper.from_array((rng.normal(size=shape) / np.sqrt(fan_in)).astype(np.float32), name)


def constants(**values: Any) -> list[onnx.TensorProto]:
    return [numpy_helper.from_array(np.array(value), name) for name, value in values.items()]


def convolutional_network() -> onnx.ModelProto:
    node = helper.make_node
    nodes = [
        node("Conv", ["x", "w1", "b1"], ["a"], pads=[1, 1, 1, 1]),
        node("Relu", ["a"], ["b"]),
        node("MaxPool", ["b"], ["c"], kernel_shape=[2, 2], strides=[2, 2]),
        node("Conv", ["c", "w2", "b2"], ["d"], pads=[1, 1, 1, 1], group=4),
        node("LeakyRelu", ["d"], ["e"], alpha=0.2),
        node("Conv", ["e", "w3", "b3"], ["f"]),
        node("Add", ["f", "c"], ["g"]),
        node("Relu", ["g"], ["h"]),
        node("Sigmoid", ["h"], ["i"]),
        node("Mul", ["h", "i"], ["j"]),
        node("Concat", ["j", "c"], ["k"], axis=1),
        node("AveragePool", ["k"], ["l"], kernel_shape=[2, 2], strides=[2, 2]),
        node("GlobalAveragePool", ["l"], ["m"]),
        node("Flatten", ["m"], ["n"]),
        node("Gemm", ["n", "w4", "b4"], ["o"], transB=1),
        node("Softmax", ["o"], ["y"], axis=1),
    ]
    stored = [weights("w1", 8, 3, 3, 3), weights("b1", 8), weights("w2", 8, 2, 3, 3), weights("b2", 8)]
    stored += [weights("w3", 8, 8, 1, 1), weights("b3", 8), weights("w4", 5, 16), weights("b4", 5)]
    return model(nodes, stored, ["batch", 3, 12, 12])


def transformer_block() -> onnx.ModelProto:
    """One layer: attention with four heads, and a network between two normalisations."""
    node = helper.make_node
    heads = ["batch", "length", 32]
    nodes = [node("Shape", ["x"], ["shape"], end=2), node("Concat", ["shape", "split"], ["parted"], axis=0)]
    nodes.append(node("Concat", ["shape", "hidden"], ["joined"], axis=0))
    for part in "qkv":
        nodes.append(node("MatMul", ["x", f"w{part}"], [f"{part}1"]))
        nodes.append(node("Add", [f"{part}1", f"b{part}"], [f"{part}2"]))
        nodes.append(node("Reshape", [f"{part}2", "parted"], [f"{part}3"]))
        nodes.append(node("Transpose", [f"{part}3"], [f"{part}4"], perm=[0, 2, 3, 1] if part == "k" else [0, 2, 1, 3]))
    nodes += [
        node("MatMul", ["q4", "k4"], ["s1"]),
        node("Div", ["s1", "root"], ["s2"]),
        node("Softmax", ["s2"], ["s3"], axis=-1),
        node("MatMul", ["s3", "v4"], ["c1"]),
        node("Transpose", ["c1"], ["c2"], perm=[0, 2, 1, 3]),
        node("Reshape", ["c2", "joined"], ["c3"]),
        node("MatMul", ["c3", "wo"], ["c4"]),
        node("Add", ["c4", "bo"], ["c5"]),
        node("Add", ["c5", "x"], ["r1"]),
        node("LayerNormalization", ["r1", "g1", "h1"], ["n1"], axis=-1),
        node("MatMul", ["n1", "w1"], ["f1"]),
        node("Add", ["f1", "b1"], ["f2"]),
        node("Gelu", ["f2"], ["f3"]),
        node("MatMul", ["f3", "w2"], ["f4"]),
        node("Add", ["f4", "b2"], ["f5"]),
        node("Add", ["f5", "n1"], ["r2"]),
        node("LayerNormalization", ["r2", "g2", "h2"], ["y"], axis=-1),
    ]
    stored = [weights(f"w{part}", 32, 32) for part in "qkvo"] + [weights(f"b{part}", 32) for part in "qkvo"]
    stored += [weights("w1", 32, 64), weights("b1", 64), weights("w2", 64, 32), weights("b2", 32)]
    stored += [weights(name, 32) for name in ("g1", "h1", "g2", "h2")]
    stored += constants(split=[4, 8], hidden=[32], root=np.float32(np.sqrt(8)))
    return model(nodes, stored, heads)


def model(nodes: list[onnx.NodeProto], stored: list[onnx.TensorProto], shape: list[Any]) -> onnx.ModelProto:
    x = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, shape)
    y = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "network", [x], [y], stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


NETWORKS = {
    "convolutions": (convolutional_network, [(1, 3, 12, 12), (3, 3, 12, 12)]),
    "transformer": (transformer_block, [(1, 6, 32), (2, 9, 32)]),
}


class Samples(quantization.CalibrationDataReader):  # type: ignore[misc]
    def __init__(self, shape: tuple[int, ...]) -> None:
        rng = np.random.default_rng(0)
        self.left: Iterator[Any] = iter([{"x": rng.normal(size=shape).astype(np.float32)} for _ in range(FEEDS)])

    def get_next(self) -> Any:
        return next(self.left, None)


def optimized(source: Path, target: Path, level: str) -> Path:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
    options.optimized_model_filepath = str(target)
    options.log_severity_level = 4
    onnxruntime.InferenceSession(str(source), options, ["CPUExecutionProvider"])
    return target


def compare_with_onnxruntime(path: Path, shapes: list[tuple[int, ...]], tolerance: float) -> set[str]:
    """Run a file on both; return the ops of onnxruntime's domain in it."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(str(path), options, ["CPUExecutionProvider"])
    loaded = weft.load(path)
    for number, shape in enumerate(shapes):
        x = np.random.default_rng(number).normal(size=shape).astype(np.float32)
        (expected,) = session.run(None, {"x": x})
        actual = loaded.run({"x": x})["y"]
        assert actual.shape == expected.shape
        assert np.abs(actual - expected).max() <= tolerance * np.abs(expected).max(), f"shape {shape}"
    return {node.op_type for node in onnx.load(path).graph.node if node.domain == "com.microsoft"}


@pytest.mark.parametrize("network", list(NETWORKS))
@pytest.mark.parametrize("level", ["ORT_ENABLE_BASIC", "ORT_ENABLE_EXTENDED"])
def test_optimized(network: str, level: str, tmp_path: Path) -> None:
    make, shapes = NETWORKS[network]
    onnx.save(make(), tmp_path / "plain.onnx")
    ops = compare_with_onnxruntime(optimized(tmp_path / "plain.onnx", tmp_path / "fast.onnx", level), shapes, 1e-5)
    if level == "ORT_ENABLE_EXTENDED":
        assert ops & {"FusedConv", "SkipLayerNormalization", "FusedMatMul"}


def test_laid_out_for_one_cpu(tmp_path: Path) -> None:
    node = helper.make_node("Conv", ["x", "w"], ["y"], domain="com.microsoft.nchwc")
    created = model([node], [weights("w", 16, 16, 1, 1)], [1, 16, 4, 4])
    created.opset_import.append(helper.make_opsetid("com.microsoft.nchwc", 1))
    with pytest.raises(weft.errors.UnsupportedModelError, match="ORT_ENABLE_EXTENDED"):
        weft.load(created)


@pytest.mark.parametrize("network", list(NETWORKS))
@pytest.mark.parametrize("weight_type", ["QInt8", "QUInt8"])
@pytest.mark.parametrize("level", [None, "ORT_ENABLE_EXTENDED"])
@pytest.mark.parametrize("per_channel", [False, True])
def test_dynamically_quantized(
    network: str, weight_type: str, level: str | None, per_channel: bool, tmp_path: Path
) -> None:
    make, shapes = NETWORKS[network]
    onnx.save(make(), tmp_path / "plain.onnx")
    path = tmp_path / "small.onnx"
    chosen = getattr(quantization.QuantType, weight_type)
    quantization.quantize_dynamic(tmp_path / "plain.onnx", path, weight_type=chosen, per_channel=per_channel)
    path = path if level is None else optimized(path, tmp_path / "fast.onnx", level)
    compare_with_onnxruntime(path, shapes, 1e-3)


@pytest.mark.parametrize("network", list(NETWORKS))
@pytest.mark.parametrize("form", ["QOperator", "QDQ"])
@pytest.mark.parametrize("types", [("QUInt8", "QUInt8"), ("QUInt8", "QInt8"), ("QInt8", "QInt8")])
@pytest.mark.parametrize("level", [None, "ORT_ENABLE_EXTENDED", "ORT_ENABLE_ALL"])
@pytest.mark.parametrize("per_channel", [False, True])
def test_statically_quantized(
    network: str, form: str, types: tuple[str, str], level: str | None, per_channel: bool, tmp_path: Path
) -> None:
    make, shapes = NETWORKS[network]
    onnx.save(make(), tmp_path / "plain.onnx")
    path = tmp_path / "small.onnx"
    quantization.quantize_static(
        tmp_path / "plain.onnx",
        path,
        Samples(shapes[0]),
        quant_format=getattr(quantization.QuantFormat, form),
        activation_type=getattr(quantization.QuantType, types[0]),
        weight_type=getattr(quantization.QuantType, types[1]),
        per_channel=per_channel,
    )
    if level is not None:
        path = optimized(path, tmp_path / "fast.onnx", level)
    compare_with_onnxruntime(path, shapes, 0.03)  # a step of 8 bits that is rounded the other way
