"""A tiny model with the long names that exporters write."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

LAYERS = 3
SCOPE = "/bert_like_encoder/encoder/layers.{}/self_attention/output/dense/{}"


def write_model(path: Path) -> Path:
    """Write three layers x = relu(x @ w + b) over [batch, 16], with typical metadata."""
    random = np.random.default_rng(0)
    nodes, weights, last = [], [], "input_features_of_the_first_layer"
    for layer in range(LAYERS):
        inner = [SCOPE.format(layer, f"{op}_output_0") for op in ("MatMul", "Add", "Relu")]
        names = [f"layers.{layer}.weight", f"layers.{layer}.bias"]
        weights += [
            numpy_helper.from_array(random.standard_normal((16, 16), np.float32), names[0]),
            numpy_helper.from_array(random.standard_normal(16, np.float32), names[1]),
        ]
        nodes += [
            helper.make_node("MatMul", [last, names[0]], [inner[0]], SCOPE.format(layer, "MatMul")),
            helper.make_node("Add", [inner[0], names[1]], [inner[1]], SCOPE.format(layer, "Add")),
            helper.make_node("Relu", [inner[1]], [inner[2]], SCOPE.format(layer, "activation/Relu")),
        ]
        last = inner[2]
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "sample",
        [value("input_features_of_the_first_layer", TensorProto.FLOAT, ["batch", 16])],
        [value(last, TensorProto.FLOAT, ["batch", 16])],
        weights,
    )
    model = helper.make_model(graph, producer_name="pytorch", opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    helper.set_model_props(model, {"names": "{0: 'person', 1: 'bicycle', 2: 'car'} " * 12})
    onnx.save(model, path)
    return path
