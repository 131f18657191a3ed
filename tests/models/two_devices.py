"""Models made to need two devices: large products, between them what a GPU does badly, and large products again."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Array = np.ndarray[Any, Any]
OPSET = 20


def sequential(rows: int = 2048, width: int = 2048, layers: int = 6, state: int = 16) -> onnx.ModelProto:
    """Products, then a scan over the rows in which each of several tiny steps waits for the one before, products."""
    net = _Net()
    x = net.products("x", [rows, width], layers)
    x = net.product(x, width, state)
    body = _body(state)
    start = net.constant(np.zeros((1, state), np.float32))
    _, x = net.node("Scan", [start, x], 2, body=body, num_scan_inputs=1)
    x = net.product(x, state, width)
    net.node("Identity", [net.products(x, [rows, width], layers)], name="y")
    return net.model(("x", [rows, width]), ("y", [rows, width]))


def host_bound(boxes: int = 4096, width: int = 2048, layers: int = 6) -> onnx.ModelProto:
    """Products that give boxes and scores, the choice of some by non-maximum suppression, and products on those."""
    net = _Net()
    x = net.products("x", [boxes, width], layers)
    corners = net.node("Sigmoid", [net.product(x, width, 4)])[0]
    corners = net.node("Reshape", [corners, net.constant(np.array([1, boxes, 4], np.int64))])[0]
    scores = net.node("Sigmoid", [net.product(x, width, 1)])[0]
    scores = net.node("Reshape", [scores, net.constant(np.array([1, 1, boxes], np.int64))])[0]
    most = net.constant(np.array([256], np.int64))
    overlap, least = (net.constant(np.array([value], np.float32)) for value in (0.5, 0.3))
    chosen = net.node("NonMaxSuppression", [corners, scores, most, overlap, least])[0]
    chosen = net.node("Gather", [chosen, net.constant(np.array(2, np.int64))], axis=1)[0]
    x = net.node("Gather", [x, chosen], axis=0)[0]
    net.node("Identity", [net.products(x, [boxes, width], layers)], name="y")
    return net.model(("x", [boxes, width]), ("y", ["chosen", width]))


def _body(state: int) -> onnx.GraphProto:
    """One turn: products of a few numbers, each with a softmax or a tanh after it."""
    net = _Net(seed=7)
    h = net.node("Unsqueeze", ["row", net.constant(np.array([0], np.int64))])[0]
    h = net.node("Add", [h, "carried"])[0]
    for number in range(3):
        h = net.product(h, state, state)
        h = net.node("Softmax" if number % 2 else "Tanh", [h])[0]
    net.node("Identity", [h], name="carried_out")
    net.node("Squeeze", [h, net.constant(np.array([0], np.int64))], name="out")
    value = helper.make_tensor_value_info
    inputs = [value("carried", TensorProto.FLOAT, [1, state]), value("row", TensorProto.FLOAT, [state])]
    outputs = [value("carried_out", TensorProto.FLOAT, [1, state]), value("out", TensorProto.FLOAT, [state])]
    return helper.make_graph(net.nodes, "turn", inputs, outputs, net.constants)


class _Net:
    """Nodes and weights, one after the other."""

    def __init__(self, seed: int = 0) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self._random = np.random.default_rng(seed)
        self._prefix = f"n{seed}_"

    def constant(self, content: Array) -> str:
        name = f"{self._prefix}c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(content, name))
        return name

    def node(self, op: str, inputs: list[str], outputs: int = 1, name: str = "", **attributes: Any) -> list[str]:
        names = [name or f"{self._prefix}v{len(self.nodes)}_{number}" for number in range(outputs)]
        self.nodes.append(helper.make_node(op, inputs, names, name=f"{op}_{len(self.nodes)}", **attributes))
        return names

    def product(self, x: str, rows: int, columns: int) -> str:
        weights = self._random.standard_normal((rows, columns), np.float32) / np.float32(rows**0.5)
        return self.node("MatMul", [x, self.constant(weights)])[0]

    def products(self, x: str, shape: list[int], layers: int) -> str:
        for _ in range(layers):
            x = self.node("Relu", [self.product(x, shape[1], shape[1])])[0]
        return x

    def model(self, taken: tuple[str, list[int]], given: tuple[str, list[Any]]) -> onnx.ModelProto:
        inputs, outputs = ([helper.make_tensor_value_info(n, TensorProto.FLOAT, s)] for n, s in (taken, given))
        graph = helper.make_graph(self.nodes, "two devices", inputs, outputs, self.constants)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=9)
