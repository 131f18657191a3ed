"""Functions from bytes to bytes become lookup tables or vanish, with onnxruntime's results."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import weft
from weft.ir.program import Map, Pool
from weft.ir.scalar import Apply, walk

Array = np.ndarray[Any, Any]
onnxruntime = pytest.importorskip("onnxruntime")


class Network:
    """Builds nodes with a quantization after each."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        self.kind = np.uint8 if seed % 2 else np.int8
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def constant(self, array: Array) -> str:
        name = f"constant{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(array, name))
        return name

    def node(self, op: str, *inputs: str, **attributes: Any) -> str:
        name = f"value{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [name], **attributes))
        return name

    def parameters(self, scale: float) -> list[str]:
        limits = np.iinfo(self.kind)
        zero = self.random.integers(limits.min + 30, limits.max - 30)
        return [self.constant(np.asarray(scale, np.float32)), self.constant(np.asarray(zero, self.kind))]

    def quantized(self, value: str, parameters: list[str]) -> str:
        return self.node("DequantizeLinear", self.node("QuantizeLinear", value, *parameters), *parameters)

    def model(self, shape: list[int], output: str) -> onnx.ModelProto:
        inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)]
        outputs = [helper.make_tensor_value_info(output, TensorProto.FLOAT, None)]
        graph = helper.make_graph(self.nodes, "g", inputs, outputs, self.constants)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def check(model: onnx.ModelProto, x: Array, step: float) -> weft.Model:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    (expected,) = session.run(None, {"x": x})
    for device in ("reference", "cpu"):
        loaded = weft.load(model, device=device, cache=False)
        (actual,) = loaded.run({"x": x}).values()
        distance = np.abs(actual.astype(np.float64) - expected) / step
        assert distance.max() <= 1.01
        assert (distance > 0.5).mean() <= 0.01
    return loaded


def functions(model: weft.Model) -> set[str]:
    expressions = [step.primitive.expression for step in model.program.steps if isinstance(step.primitive, Map)]
    return {node.function for expression in expressions for node in walk(expression) if isinstance(node, Apply)}


@pytest.mark.parametrize("seed", range(6))
def test_activations_are_tables(seed: int) -> None:
    network = Network(seed)
    x = network.quantized("x", network.parameters(0.05))
    gate = network.quantized(network.node(("Sigmoid", "Tanh", "Erf")[seed % 3], x), network.parameters(0.01))
    y = network.quantized(network.node("Mul", x, gate), network.parameters(0.04))
    model = check(network.model([3, 5, 7], y), network.random.normal(0, 3, (3, 5, 7)).astype(np.float32), 0.04)
    assert not functions(model) & {"exp", "tanh", "erf"}


@pytest.mark.parametrize("seed", range(4))
def test_data_movement_stays_in_bytes(seed: int) -> None:
    """Reshape, max pool, transpose and slices with one scale: one quantization remains."""
    network = Network(seed)
    same = network.parameters(0.05)
    value = network.quantized("x", same)
    value = network.quantized(network.node("MaxPool", value, kernel_shape=[3, 3], pads=[1, 1, 1, 1]), same)
    value = network.quantized(network.node("Transpose", value, perm=[0, 2, 3, 1]), same)
    value = network.quantized(network.node("Reshape", value, network.constant(np.asarray([2, -1, 4]))), same)
    bounds = [network.constant(np.asarray([number])) for number in (3, 40, 1)]
    value = network.quantized(network.node("Slice", value, bounds[0], bounds[1], bounds[2]), same)
    x = network.random.normal(0, 3, (2, 4, 8, 6)).astype(np.float32)
    model = check(network.model([2, 4, 8, 6], value), x, 0.05)
    (pool,) = [step for step in model.program.steps if isinstance(step.primitive, Pool)]
    assert pool.results[0].dtype.bits == 8
    expressions = [step.primitive.expression for step in model.program.steps if isinstance(step.primitive, Map)]
    rounded = [node for e in expressions for node in walk(e) if isinstance(node, Apply) and "round" in node.function]
    assert len(rounded) == 1


def test_decreasing_function_after_a_maximum() -> None:
    network = Network(1)
    value = network.node("Neg", network.quantized("x", network.parameters(0.05)))
    value = network.quantized(network.node("MaxPool", value, kernel_shape=[3]), network.parameters(0.05))
    check(network.model([2, 4, 20], value), network.random.normal(0, 3, (2, 4, 20)).astype(np.float32), 0.05)


@pytest.mark.parametrize("seed", range(4))
def test_concatenations(seed: int) -> None:
    network = Network(seed)
    parts = [network.quantized("x", network.parameters(scale)) for scale in (0.05, 0.03)]
    parts.append(network.node("Relu", "x"))
    y = network.quantized(network.node("Concat", *parts, axis=seed % 3), network.parameters(0.04))
    check(network.model([3, 5, 7], y), network.random.normal(0, 2, (3, 5, 7)).astype(np.float32), 0.04)
