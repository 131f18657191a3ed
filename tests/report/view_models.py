"""Models for `weft view`: scopes, bodies, functions, unknown operators, hostile names, many nodes."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

HOSTILE = '</script><img src=x onerror="window.broken=1"><!-- \u2028 & \' " 漢字'
Nodes = list[onnx.NodeProto]


def tensor(name: str, shape: list[int | str] | None = None, kind: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def weight(name: str, *shape: int) -> onnx.TensorProto:
    return numpy_helper.from_array(np.random.default_rng(0).standard_normal(shape).astype(np.float32), name)


def model(
    nodes: Nodes,
    outputs: list[str],
    weights: tuple[onnx.TensorProto, ...] = (),
    *,
    inputs: tuple[onnx.ValueInfoProto, ...] = (tensor("x", ["batch", 16]),),
    functions: tuple[onnx.FunctionProto, ...] = (),
    domains: tuple[str, ...] = (),
) -> bytes:
    graph = helper.make_graph(nodes, "graph", inputs, [tensor(name) for name in outputs], weights)
    imports = [helper.make_opsetid("", 17), *(helper.make_opsetid(domain, 1) for domain in domains)]
    proto = helper.make_model(graph, opset_imports=imports, ir_version=9, functions=functions)
    return proto.SerializeToString()


def blocks(count: int, named: bool = True) -> bytes:
    """Return `count` blocks of eight nodes, each with two residual connections."""
    nodes: Nodes = []
    weights = []
    last = "x"
    for number in range(count):
        steps = (
            ("attn/MatMul", [last, f"w{number}"]),
            ("attn/Relu", ["MatMul"]),
            ("Add", ["Relu", last]),
            ("mlp/MatMul_1", ["Add", f"w{number}"]),
            ("mlp/Sigmoid", ["MatMul_1"]),
            ("mlp/Mul", ["MatMul_1", "Sigmoid"]),
            ("Add_1", ["Mul", "Add"]),
            ("Tanh", ["Add_1"]),
        )
        for path, inputs in steps:
            output = path.rpartition("/")[2]
            sources = [source if source in (last, f"w{number}") else f"{source}.{number}" for source in inputs]
            name = f"/encoder/layer.{number}/{path}" if named else f"n{len(nodes)}"
            nodes.append(helper.make_node(output.partition("_")[0], sources, [f"{output}.{number}"], name=name))
        weights.append(weight(f"w{number}", 16, 16))
        last = f"Tanh.{number}"
    return model(nodes, [last], tuple(weights))


def looping() -> bytes:
    body = helper.make_graph(
        [
            helper.make_node("Add", ["state", "x"], ["next"], name="inside"),
            helper.make_node("Identity", ["go"], ["goes"], name="on"),
        ],
        "body",
        [tensor("i", [], TensorProto.INT64), tensor("go", [], TensorProto.BOOL), tensor("state", [1, 16])],
        [tensor("goes", [], TensorProto.BOOL), tensor("next", [1, 16])],
    )
    nodes = [
        helper.make_node("Loop", ["times", "", "x"], ["last"], name="loop", body=body),
        helper.make_node("Relu", ["last"], ["y"], name="after"),
    ]
    times = numpy_helper.from_array(np.array(3, np.int64), "times")
    return model(nodes, ["y"], (times,), inputs=(tensor("x", [1, 16]),))


def calling() -> bytes:
    parts = [
        helper.make_node("Add", ["a", "a"], ["t"], name="add"),
        helper.make_node("Relu", ["t"], ["b"], name="relu"),
    ]
    function = helper.make_function("my", "Twice", ["a"], ["b"], parts, [helper.make_opsetid("", 17)])
    nodes = [
        helper.make_node("Twice", ["x"], ["p"], name="first", domain="my"),
        helper.make_node("Twice", ["p"], ["q"], name="second", domain="my"),
    ]
    return model(nodes, ["q"], functions=(function,), domains=("my",))


def unknown() -> bytes:
    nodes = [
        helper.make_node("Relu", ["x"], ["a"], name="known"),
        helper.make_node("Magic", ["a"], ["b"], name="strange", domain="com.acme", power=3),
        helper.make_node("Tanh", ["b"], ["y"], name="later"),
    ]
    return model(nodes, ["y"], domains=("com.acme",))


def invalid() -> bytes:
    """Return a model with an undefined value, one that is defined twice, a cycle, and an undefined output."""
    nodes = [
        helper.make_node("Relu", ["absent"], ["a"], name="lonely"),
        helper.make_node("Add", ["a", "x"], ["a"], name="again"),
        helper.make_node("Tanh", ["q"], ["p"], name="round"),
        helper.make_node("Tanh", ["p"], ["q"], name="about"),
    ]
    return model(nodes, ["a", "missing"])


def hostile() -> bytes:
    nodes = [
        helper.make_node("Relu", [f"x{HOSTILE}"], ["a"], name=f"{HOSTILE}/one"),
        helper.make_node("Mul", ["a", f"w{HOSTILE}"], ["b"], name=f"{HOSTILE}/two"),
        helper.make_node(f"Odd{HOSTILE}", ["b"], ["y"], name=f"n{HOSTILE}", text=HOSTILE),
    ]
    bad = numpy_helper.from_array(np.array([np.nan, np.inf, 1, 0], np.float32), f"w{HOSTILE}")
    return model(nodes, ["y"], (bad,), inputs=(tensor(f"x{HOSTILE}", [f"d{HOSTILE}", 4]),))
