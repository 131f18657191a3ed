"""Small models whose weights end up in every form: packed, transformed, folded, embedded, in bodies."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from frontend.samples import model, node, subgraph, tensor, value
from onnx import TensorProto

Array = np.ndarray[Any, Any]
CHANNELS = 32


def image_network(seed: int = 3) -> onnx.ModelProto:
    """3 x 3 convolutions, one with batch norm, a depthwise one, and a product."""
    random = np.random.default_rng(seed)

    def normal(*shape: int, scale: float = 0.1) -> Array:
        return (random.standard_normal(shape) * scale).astype(np.float32)

    arrays = {
        "first": normal(CHANNELS, 3, 3, 3),
        "plain": normal(CHANNELS, CHANNELS, 3, 3),
        "plain_bias": normal(CHANNELS),
        "normed": normal(CHANNELS, CHANNELS, 3, 3),
        "gamma": 1 + normal(CHANNELS),
        "beta": normal(CHANNELS),
        "mean": normal(CHANNELS),
        "variance": 1 + np.abs(normal(CHANNELS)),
        "depthwise": normal(CHANNELS, 1, 3, 3),
        "dense": normal(CHANNELS, 40),
        "dense_bias": normal(40),
        "factor": np.float32(0.75),
    }
    nodes = [
        node("Conv", ["x", "first"], ["a"], pads=[1, 1, 1, 1]),
        node("Relu", ["a"], ["b"]),
        node("Conv", ["b", "plain", "plain_bias"], ["c"], pads=[1, 1, 1, 1]),
        node("Conv", ["c", "normed"], ["d"], pads=[1, 1, 1, 1]),
        node("BatchNormalization", ["d", "gamma", "beta", "mean", "variance"], ["e"]),
        node("Relu", ["e"], ["f"]),
        node("Conv", ["f", "depthwise"], ["g"], pads=[1, 1, 1, 1], group=CHANNELS),
        node("GlobalAveragePool", ["g"], ["h"]),
        node("Flatten", ["h"], ["i"]),
        node("MatMul", ["i", "dense"], ["j"]),
        node("Add", ["j", "dense_bias"], ["k"]),
        node("Mul", ["k", "factor"], ["y"]),
    ]
    initializers = [tensor(name, array) for name, array in arrays.items()]
    return model(nodes, [value("x", ["n", 3, 12, 12])], [value("y", ["n", 40])], initializers)


def text_network(seed: int = 4) -> onnx.ModelProto:
    """An embedding, a recurrent layer, constants among the nodes, and a branch that reads weights from outside."""
    random = np.random.default_rng(seed)

    def normal(*shape: int) -> Array:
        return (random.standard_normal(shape) * 0.2).astype(np.float32)

    size, width = 16, 24
    then_graph = subgraph("then", [node("MatMul", ["last", "yes"], ["t"])], ["t"])
    else_graph = subgraph(
        "else",
        [
            node("Constant", [], ["inside"], value=tensor("", normal(width, size))),
            node("MatMul", ["last", "inside"], ["e"]),
        ],
        ["e"],
    )
    nodes = [
        node("Gather", ["table", "ids"], ["rows"]),
        node("LSTM", ["rows", "w", "r", "bias"], ["", "h"], hidden_size=width),
        node("Squeeze", ["h", "axis"], ["last"]),
        node("Constant", [], ["scale"], value=tensor("", 1 + normal(width))),
        node("Constant", [], ["project"], value=tensor("", normal(width, size))),
        node("Mul", ["last", "scale"], ["scaled"]),
        node("MatMul", ["scaled", "project"], ["p"]),
        node("ReduceSum", ["p"], ["total"], keepdims=0),
        node("Greater", ["total", "least"], ["positive"]),
        node("If", ["positive"], ["q"], then_branch=then_graph, else_branch=else_graph),
        node("Greater", ["total", "most"], ["large"]),
        node("If", ["large"], ["o"], then_branch=then_graph, else_branch=else_graph),
        node("Sum", ["p", "q", "o"], ["y"]),
    ]
    arrays = {
        "table": normal(30, size),
        "w": normal(1, 4 * width, size),
        "r": normal(1, 4 * width, width),
        "bias": normal(1, 8 * width),
        "yes": normal(width, size),
        "axis": np.array([0]),
        "least": np.float32(-1e9),
        "most": np.float32(1e9),
    }
    ids = value("ids", ["length", "n"], TensorProto.INT64)
    initializers = [tensor(name, array) for name, array in arrays.items()]
    return model(nodes, [ids], [value("y", None)], initializers)


def attention() -> onnx.ModelProto:
    """Attention whose scale is embedded in the code."""
    nodes = [
        node("MatMul", ["q", "k"], ["s"]),
        node("Mul", ["s", "scale"], ["t"]),
        node("Softmax", ["t"], ["u"], axis=-1),
        node("MatMul", ["u", "v"], ["y"]),
    ]
    inputs = [value("q", [2, 2, 5, 8]), value("k", [2, 2, 8, 5]), value("v", [2, 2, 5, 8])]
    return model(nodes, inputs, [value("y", [2, 2, 5, 8])], [tensor("scale", np.float32(0.3))])


def pair(size: int = 24) -> onnx.ModelProto:
    """Two products whose results are equal if their weights are."""
    weights = np.ones((size, size), np.float32)
    nodes = [node("MatMul", ["x", "left"], ["a"]), node("MatMul", ["x", "right"], ["b"])]
    values = [value(name, ["n", size]) for name in "xab"]
    return model(nodes, values[:1], values[1:], [tensor("left", weights), tensor("right", weights)])


def feeds_for(proto: onnx.ModelProto, seed: int = 5) -> dict[str, Array]:
    """Return inputs for one of these models; dynamic sizes are 2."""
    random = np.random.default_rng(seed)
    feeds: dict[str, Array] = {}
    for declared in proto.graph.input:
        shape = [dim.dim_value or 2 for dim in declared.type.tensor_type.shape.dim]
        if declared.name == "ids":
            feeds[declared.name] = random.integers(0, 30, shape)
        else:
            feeds[declared.name] = random.standard_normal(shape).astype(np.float32)
    return feeds
