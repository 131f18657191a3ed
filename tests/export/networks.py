"""Small ONNX models of many kinds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from weft.ir.arrays import Array

FLOAT, HALF, INT64, BOOL = TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.INT64, TensorProto.BOOL
Port = tuple[str, int, Sequence[int | str]]


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[Port],
    outputs: Sequence[Port],
    weights: Mapping[str, Array] | None = None,
) -> bytes:
    graph = helper.make_graph(
        list(nodes),
        "network",
        [helper.make_tensor_value_info(*port) for port in inputs],
        [helper.make_tensor_value_info(*port) for port in outputs],
        [numpy_helper.from_array(array, name) for name, array in (weights or {}).items()],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.checker.check_model(proto)
    return proto.SerializeToString()


def node(op: str, inputs: str, outputs: str, **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(op, inputs.split(" "), outputs.split(" "), **attributes)


def _numbers(seed: int, *shape: int, scale: float = 0.3) -> Array:
    return (np.random.default_rng(seed).normal(0, scale, shape)).astype(np.float32)


def convnet() -> bytes:
    """Convolutions, a residual connection, pooling and a product, for any batch."""
    return model(
        [
            node("Conv", "x w1 b1", "a", pads=[1, 1, 1, 1]),
            node("Relu", "a", "b"),
            node("Conv", "b w2", "c", pads=[1, 1, 1, 1], strides=[2, 2]),
            node("Conv", "c w3", "d", pads=[1, 1, 1, 1]),
            node("Add", "c d", "e"),
            node("MaxPool", "e", "f", kernel_shape=[2, 2], strides=[2, 2]),
            node("GlobalAveragePool", "f", "g"),
            node("Flatten", "g", "h"),
            node("Gemm", "h w4 b4", "y"),
        ],
        [("x", FLOAT, ["batch", 3, 24, 20])],
        [("y", FLOAT, ["batch", 7])],
        {
            "w1": _numbers(1, 8, 3, 3, 3),
            "b1": _numbers(2, 8),
            "w2": _numbers(3, 16, 8, 3, 3),
            "w3": _numbers(4, 16, 16, 3, 3),
            "w4": _numbers(5, 16, 7),
            "b4": _numbers(6, 7),
        },
    )


def transformer(dtype: int = FLOAT) -> bytes:
    """An embedding, masked attention and a feed-forward layer, for any batch and length."""
    wide, heads, each = 32, 4, 8
    nodes = [node("Gather", "table ids", "x0"), node("Cast", "x0", "x", to=dtype)]
    for name in "qkv":
        nodes += [
            node("MatMul", f"x w{name}", f"{name}0"),
            node("Reshape", f"{name}0 split", f"{name}1"),
            node("Transpose", f"{name}1", name, perm=[0, 2, 3, 1] if name == "k" else [0, 2, 1, 3]),
        ]
    nodes += [
        node("MatMul", "q k", "scores"),
        node("Mul", "scores scale", "scaled"),
        node("Cast", "mask", "mask1", to=dtype),
        node("Unsqueeze", "mask1 axes", "mask2"),
        node("Sub", "one mask2", "hidden"),
        node("Mul", "hidden low", "bias"),
        node("Add", "scaled bias", "masked"),
        node("Softmax", "masked", "p", axis=-1),
        node("MatMul", "p v", "o"),
        node("Transpose", "o", "o1", perm=[0, 2, 1, 3]),
        node("Reshape", "o1 joined", "o2"),
        node("MatMul", "o2 wo", "o3"),
        node("Add", "x o3", "r"),
        node("LayerNormalization", "r gain shift", "n"),
        node("MatMul", "n wu", "u"),
        node("Tanh", "u", "t"),
        node("MatMul", "t wd", "d"),
        node("Add", "n d", "y"),
        node("ReduceMean", "y first", "pooled", keepdims=0),
    ]
    kind = np.float16 if dtype == HALF else np.float32
    weights = {f"w{name}": _numbers(n, wide, wide).astype(kind) for n, name in enumerate("qkvo", start=10)}
    weights |= {
        "table": _numbers(20, 50, wide),
        "wu": _numbers(21, wide, 4 * wide).astype(kind),
        "wd": _numbers(22, 4 * wide, wide).astype(kind),
        "gain": np.ones(wide, kind),
        "shift": np.zeros(wide, kind),
        "scale": np.array(each**-0.5, kind),
        "one": np.array(1, kind),
        "low": np.array(-1e4, kind),
        "split": np.array([0, 0, heads, each]),
        "joined": np.array([0, 0, wide]),
        "axes": np.array([1, 2]),
        "first": np.array([1]),
    }
    inputs = [("ids", INT64, ["batch", "length"]), ("mask", INT64, ["batch", "length"])]
    outputs = [("y", dtype, ["batch", "length", wide]), ("pooled", dtype, ["batch", wide])]
    return model(nodes, inputs, outputs, weights)


def recurrent(op: str = "LSTM", direction: str = "bidirectional") -> bytes:
    """A recurrent layer with sequence lengths, and a product, for any batch and length."""
    gates, wide, hidden = {"LSTM": 4, "GRU": 3, "RNN": 1}[op], 5, 12
    both = 2 if direction == "bidirectional" else 1
    carried = "h c" if op == "LSTM" else "h"
    nodes = [
        node(op, "x w r b lengths", f"s {carried}", hidden_size=hidden, direction=direction),
        node("Transpose", "s", "s1", perm=[0, 2, 1, 3]),
        node("Reshape", "s1 joined", "s2"),
        node("MatMul", "s2 p", "y"),
    ]
    weights = {
        "w": _numbers(1, both, gates * hidden, wide),
        "r": _numbers(2, both, gates * hidden, hidden),
        "b": _numbers(3, both, 2 * gates * hidden),
        "joined": np.array([0, 0, -1]),
        "p": _numbers(4, both * hidden, 4),
    }
    inputs = [("x", FLOAT, ["time", "batch", wide]), ("lengths", TensorProto.INT32, ["batch"])]
    outputs = [("y", FLOAT, ["time", "batch", 4]), ("h", FLOAT, [both, "batch", hidden])]
    if op == "LSTM":
        outputs.append(("c", FLOAT, [both, "batch", hidden]))
    return model(nodes, inputs, outputs, weights)


def quantized_convnet() -> bytes:
    """An int8 convolution in QDQ form."""
    return model(
        [
            node("QuantizeLinear", "x sx zx", "xq"),
            node("DequantizeLinear", "xq sx zx", "xd"),
            node("DequantizeLinear", "w sw zw", "wd", axis=0),
            node("Conv", "xd wd", "c", pads=[1, 1, 1, 1]),
            node("Relu", "c", "r"),
            node("QuantizeLinear", "r sr zr", "rq"),
            node("DequantizeLinear", "rq sr zr", "rd"),
            node("GlobalAveragePool", "rd", "g"),
            node("Flatten", "g", "y"),
        ],
        [("x", FLOAT, ["n", 4, 9, 9])],
        [("y", FLOAT, ["n", 8]), ("rq", TensorProto.UINT8, ["n", 8, 9, 9])],
        {
            "sx": np.float32(0.05),
            "zx": np.uint8(128),
            "w": np.random.default_rng(0).integers(-127, 127, (8, 4, 3, 3), np.int8),
            "sw": np.linspace(0.01, 0.02, 8, dtype=np.float32),
            "zw": np.zeros(8, np.int8),
            "sr": np.float32(0.04),
            "zr": np.uint8(0),
        },
    )


def passthrough() -> bytes:
    """Outputs that are an input, a constant, equal to another output, or a view of it."""
    return model(
        [
            node("Identity", "x", "same"),
            node("Identity", "k", "constant"),
            node("Add", "x z", "sum"),
            node("Identity", "sum", "again"),
            node("Reshape", "sum flat", "line"),
            node("Concat", "x sum x", "wide", axis=1),
            node("Shape", "x", "shape"),
        ],
        [("x", FLOAT, ["n", 3]), ("z", FLOAT, ["n", 3])],
        [
            ("same", FLOAT, ["n", 3]),
            ("constant", FLOAT, [2]),
            ("sum", FLOAT, ["n", 3]),
            ("again", FLOAT, ["n", 3]),
            ("line", FLOAT, ["m"]),
            ("wide", FLOAT, ["n", 9]),
            ("shape", INT64, [2]),
        ],
        {"k": np.array([1.5, -2.5], np.float32), "flat": np.array([-1])},
    )


def branches() -> bytes:
    """A branch on data with another branch inside."""

    def side(name: str, nodes: list[onnx.NodeProto], weights: Mapping[str, Array] | None = None) -> onnx.GraphProto:
        initializers = [numpy_helper.from_array(array, key) for key, array in (weights or {}).items()]
        output = helper.make_tensor_value_info(f"{name}_y", FLOAT, ["n", 4])
        return helper.make_graph(nodes, name, [], [output], initializers)

    inner_then = side("a", [node("MatMul", "x w", "a_y")])
    inner_else = side("b", [node("Identity", "x", "b_y")])
    then = side(
        "c",
        [
            node("ReduceMax", "x", "top", keepdims=0),
            node("Greater", "top limit", "high"),
            node("If", "high", "c_y", then_branch=inner_then, else_branch=inner_else),
        ],
        {"limit": np.float32(2.0)},
    )
    otherwise = side("d", [node("Softmax", "x", "d0"), node("Mul", "d0 x", "d_y")])
    return model(
        [
            node("ReduceSum", "x", "total", keepdims=0),
            node("Greater", "total zero", "positive"),
            node("If", "positive", "y0", then_branch=then, else_branch=otherwise),
            node("Add", "y0 x", "y"),
        ],
        [("x", FLOAT, ["n", 4])],
        [("y", FLOAT, ["n", 4]), ("y0", FLOAT, ["n", 4])],
        {"zero": np.float32(0), "w": _numbers(1, 4, 4)},
    )


def loops() -> bytes:
    """A loop of products until an element exceeds a limit, with a limited number of iterations."""
    body = helper.make_graph(
        [
            node("MatMul", "state w", "next0"),
            node("Add", "next0 x", "next"),
            node("Cast", "i", "fi", to=FLOAT),
            node("Add", "counted fi", "counted_next"),
            node("ReduceMax", "next", "top", keepdims=0),
            node("Less", "top limit", "going_next"),
        ],
        "body",
        [
            helper.make_tensor_value_info("i", INT64, []),
            helper.make_tensor_value_info("going", BOOL, []),
            helper.make_tensor_value_info("state", FLOAT, ["n", 4]),
            helper.make_tensor_value_info("counted", FLOAT, []),
        ],
        [
            helper.make_tensor_value_info("going_next", BOOL, []),
            helper.make_tensor_value_info("next", FLOAT, ["n", 4]),
            helper.make_tensor_value_info("counted_next", FLOAT, []),
        ],
    )
    return model(
        [node("Loop", "most going0 x start", "y count", body=body)],
        [("x", FLOAT, ["n", 4]), ("most", INT64, []), ("limit", FLOAT, [])],
        [("y", FLOAT, ["n", 4]), ("count", FLOAT, [])],
        {"going0": np.array(True), "start": np.float32(0), "w": _numbers(3, 4, 4, scale=0.9)},
    )


def scatter() -> bytes:
    """Indices that may be out of range."""
    return model(
        [node("ScatterElements", "x i u", "y", axis=1)],
        [("x", FLOAT, ["n", 6]), ("i", INT64, ["n", "k"]), ("u", FLOAT, ["n", "k"])],
        [("y", FLOAT, ["n", 6])],
    )


def guards() -> bytes:
    """Two inputs that must have the same length, declared with different names."""
    return model(
        [node("Add", "a b", "s"), node("Reshape", "s rows", "y")],
        [("a", FLOAT, ["n", 4]), ("b", FLOAT, ["m", 4])],
        [("y", FLOAT, ["p", 8])],
        {"rows": np.array([-1, 8])},
    )


def nested_loops() -> bytes:
    """A loop around a branch and another loop, with constants inside and carries that stay, swap or pass on."""

    def info(name: str, kind: int, *shape: int | str) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, kind, shape)

    inner = helper.make_graph(
        [
            node("Mul", "v half", "w0"),
            node("Add", "w0 one", "v_next"),
            node("Identity", "inner_going", "inner_next"),
        ],
        "inner",
        [info("j", INT64), info("inner_going", BOOL), info("v", FLOAT, "n", 3)],
        [info("inner_next", BOOL), info("v_next", FLOAT, "n", 3)],
        [numpy_helper.from_array(np.float32(0.5), "half"), numpy_helper.from_array(np.float32(1.0), "one")],
    )
    then = helper.make_graph(
        [node("Loop", "times on left", "looped", body=inner), node("Relu", "looped", "t")],
        "then",
        [],
        [info("t", FLOAT, "n", 3)],
        [numpy_helper.from_array(np.array(3), "times"), numpy_helper.from_array(np.array(True), "on")],
    )
    otherwise = helper.make_graph([node("Identity", "right", "o")], "otherwise", [], [info("o", FLOAT, "n", 3)])
    body = helper.make_graph(
        [
            node("ReduceSum", "left", "total", keepdims=0),
            node("Less", "total limit", "low"),
            node("If", "low", "made", then_branch=then, else_branch=otherwise),
            node("Add", "made x", "fresh"),
            node("Identity", "left", "swapped"),
            node("Identity", "kept", "kept_next"),
            node("Identity", "going", "going_next"),
        ],
        "body",
        [
            info("i", INT64),
            info("going", BOOL),
            info("left", FLOAT, "n", 3),
            info("right", FLOAT, "n", 3),
            info("kept", FLOAT, "n"),
        ],
        [
            info("going_next", BOOL),
            info("fresh", FLOAT, "n", 3),
            info("swapped", FLOAT, "n", 3),
            info("kept_next", FLOAT, "n"),
        ],
    )
    return model(
        [
            node("Neg", "x", "minus"),
            node("Loop", "most going0 x minus k", "a b c", body=body),
            node("Add", "a b", "sum"),
        ],
        [("x", FLOAT, ["n", 3]), ("k", FLOAT, ["n"]), ("most", INT64, []), ("limit", FLOAT, []), ("going0", BOOL, [])],
        [("sum", FLOAT, ["n", 3]), ("c", FLOAT, ["n"]), ("a", FLOAT, ["n", 3])],
    )


def float_sizes() -> bytes:
    """Sizes computed in floating point: a grid of half the height, and one of its square root."""
    return model(
        [
            node("Shape", "x", "shape"),
            node("Gather", "shape one", "height"),
            node("Cast", "height", "h", to=FLOAT),
            node("Mul", "h half", "h2"),
            node("Range", "start h2 step", "grid"),
            node("Sqrt", "h", "root"),
            node("Ceil", "root", "root1"),
            node("Range", "start root1 step", "small"),
            node("Unsqueeze", "grid axis", "grid1"),
            node("Mul", "grid1 small", "table"),
            node("ReduceMean", "x", "mean", keepdims=0),
            node("Add", "table mean", "y"),
        ],
        [("x", FLOAT, ["n", "height"])],
        [("y", FLOAT, ["p", "q"]), ("small", FLOAT, ["q"])],
        {
            "one": np.array(1),
            "half": np.float32(0.5),
            "start": np.float32(0.25),
            "step": np.float32(1.0),
            "axis": np.array([1]),
        },
    )


def size_inputs() -> bytes:
    """Sizes from small inputs: the shape of a Reshape, and the repeats of a Tile."""
    return model(
        [
            node("Reshape", "x shape", "y"),
            node("Tile", "x times", "z"),
            node("ReduceSum", "shape", "total", keepdims=0),
        ],
        [("x", FLOAT, ["n", 6]), ("shape", INT64, [2]), ("times", INT64, [2])],
        [("y", FLOAT, ["p", "q"]), ("z", FLOAT, ["r", "s"]), ("total", INT64, [])],
    )
