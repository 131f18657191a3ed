"""Small models for tests of the server."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
from onnx import TensorProto, helper

import weft

TENSOR_TYPES = {  # datatypes of the protocol, and the types of tensors
    "BOOL": np.bool_,
    "UINT8": np.uint8,
    "UINT16": np.uint16,
    "UINT32": np.uint32,
    "UINT64": np.uint64,
    "INT8": np.int8,
    "INT16": np.int16,
    "INT32": np.int32,
    "INT64": np.int64,
    "FP16": np.float16,
    "FP32": np.float32,
    "FP64": np.float64,
    "BF16": ml_dtypes.bfloat16,
    "BYTES": np.object_,
}


def write_simple(path: Path) -> Path:
    """Write the model of Triton's examples: a sum and a difference."""
    graph = weft.Graph("simple")
    left, right = (graph.input(name, ("batch", 16), "int32") for name in ("INPUT0", "INPUT1"))
    graph.output(left + right, "OUTPUT0")
    graph.output(left - right, "OUTPUT1")
    graph.to_onnx(path)
    return path


def write_dense(path: Path, seed: int = 0, width: int = 32) -> Path:
    """Write a classifier of two layers, whose rows are independent."""
    random = np.random.default_rng(seed)
    graph = weft.Graph("dense")
    x = graph.input("x", ("batch", 8), "float32")
    first = graph.parameter("first", random.normal(size=(8, width)).astype(np.float32))
    second = graph.parameter("second", random.normal(size=(width, 4)).astype(np.float32))
    graph.output(weft.ops.softmax(weft.ops.relu(x @ first) @ second, axis=-1), "y")
    graph.to_onnx(path)
    return path


def write_sequence_model(path: Path) -> Path:
    """Write a model whose rows have two dynamic dims: the batch and a length."""
    random = np.random.default_rng(1)
    graph = weft.Graph("lengths")
    x = graph.input("x", ("batch", "length", 4), "float32")
    weights = graph.parameter("w", random.normal(size=(4, 6)).astype(np.float32))
    graph.output(weft.ops.softmax(x @ weights, axis=1), "y")
    graph.output(weft.ops.reduce_mean(x, np.array([1]), keepdims=0), "mean")
    graph.to_onnx(path)
    return path


def write_mixing(path: Path) -> Path:
    """Write a model that subtracts the mean of the batch, so that its rows depend on each other."""
    graph = weft.Graph("mixing")
    x = graph.input("x", ("batch", 4), "float32")
    graph.output(x - weft.ops.reduce_mean(x, np.array([0]), keepdims=1), "y")
    graph.to_onnx(path)
    return path


def write_identity(path: Path, dtype: str) -> Path:
    """Write a model that returns its input, of any shape of two axes."""
    graph = weft.Graph("identity")
    x = graph.input("x", ("batch", "width"), dtype)
    graph.output(weft.ops.identity(x), "y")
    graph.to_onnx(path)
    return path


def write_counter(path: Path) -> Path:
    """Write a model with a state of fixed size: the sum of all inputs so far."""
    graph = weft.Graph("counter")
    x = graph.input("x", ("batch", 3), "float32")
    total = graph.input("state", ("batch", 3), "float32")
    graph.output(x + total, "y")
    graph.output(x + total, "state_out")
    graph.to_onnx(path)
    return path


def write_slow(path: Path, size: int = 1400) -> Path:
    """Write a model whose run takes about a tenth of a second: a chain of products."""
    random = np.random.default_rng(2)
    graph = weft.Graph("slow")
    x = graph.input("x", ("batch", size), "float32")
    weights = graph.parameter("w", (random.normal(size=(size, size)) / size**0.5).astype(np.float32))
    y = weft.ops.einsum([x, weights], equation="bi,ij->bj")
    for _ in range(60):
        y = weft.ops.tanh(y @ weights)
    graph.output(y, "y")
    graph.to_onnx(path)
    return path


def write_encoder(path: Path, vocabulary: int = 50, width: int = 16) -> Path:
    """Write an encoder of texts with a mask: attention over a row, and the mean of its tokens."""
    random = np.random.default_rng(5)
    graph = weft.Graph("encoder")
    ids = graph.input("input_ids", ("batch", "sequence"), "int64")
    mask = graph.input("attention_mask", ("batch", "sequence"), "int64")
    words = graph.parameter("words", random.normal(size=(vocabulary, width)).astype(np.float32))
    weights = [
        graph.parameter(name, (random.normal(size=(width, width)) / 4).astype(np.float32)) for name in ("q", "k", "v")
    ]
    x = weft.ops.gather(words, ids)
    query, key, value = (x @ weight for weight in weights)
    visible = weft.ops.cast(mask, to=1)
    bias = (weft.ops.unsqueeze(visible, np.array([1])) - 1.0) * 3.4e38
    scores = query @ weft.ops.transpose(key, perm=[0, 2, 1]) + bias
    hidden = x + weft.ops.softmax(scores, axis=-1) @ value
    graph.output(hidden, "last_hidden_state")
    graph.to_onnx(path)
    return path


def write_classifier(path: Path) -> Path:
    """Write a linear classifier as scikit-learn's converter does: its probabilities are a sequence of maps."""
    random = np.random.default_rng(6)
    nodes = [
        helper.make_node(
            "LinearClassifier",
            ["x"],
            ["label", "scores"],
            domain="ai.onnx.ml",
            classlabels_ints=[0, 1, 2],
            coefficients=random.normal(size=12).astype(np.float32).tolist(),
            intercepts=[0.1, 0.2, 0.3],
            multi_class=1,
            post_transform="SOFTMAX",
        ),
        helper.make_node("ZipMap", ["scores"], ["probabilities"], domain="ai.onnx.ml", classlabels_int64s=[0, 1, 2]),
    ]
    number = helper.make_tensor_type_proto(TensorProto.FLOAT, [])
    graph = helper.make_graph(
        nodes,
        "classifier",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 4])],
        [
            helper.make_tensor_value_info("label", TensorProto.INT64, ["batch"]),
            helper.make_value_info(
                "probabilities", helper.make_sequence_type_proto(helper.make_map_type_proto(TensorProto.INT64, number))
            ),
        ],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    path.write_bytes(helper.make_model(graph, opset_imports=opsets, ir_version=9).SerializeToString())
    return path
