"""Sample models, built with onnx.helper."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

node = helper.make_node


def value(name: str, shape: Sequence[Any] | None = (2, 3), dtype: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, shape)


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto] = (value("x"),),
    outputs: Sequence[onnx.ValueInfoProto] = (value("y"),),
    initializers: Sequence[onnx.TensorProto] = (),
    *,
    opsets: dict[str, int] | None = None,
    **options: Any,
) -> onnx.ModelProto:
    graph = helper.make_graph(list(nodes), "graph", list(inputs), list(outputs), list(initializers))
    return wrap(graph, opsets=opsets, **options)


def wrap(graph: onnx.GraphProto, *, opsets: dict[str, int] | None = None, **options: Any) -> onnx.ModelProto:
    imports = [helper.make_opsetid(*entry) for entry in (opsets or {"": 20}).items()]
    return helper.make_model(graph, opset_imports=imports, **{"ir_version": 10, **options})


def tensor(name: str, array: Any) -> onnx.TensorProto:
    return numpy_helper.from_array(np.asarray(array), name)


def subgraph(name: str, nodes: Sequence[onnx.NodeProto], outputs: Sequence[str], inputs: Any = ()) -> onnx.GraphProto:
    return helper.make_graph(list(nodes), name, list(inputs), [value(output, None) for output in outputs])


def branching() -> onnx.ModelProto:
    """Nested control flow whose branches read values from outside."""
    inner_then = subgraph("inner_then", [node("Add", ["x", "a"], ["it"])], ["it"])
    inner_else = subgraph("inner_else", [node("Sub", ["x", "w"], ["ie"])], ["ie"])
    then_graph = subgraph(
        "then",
        [
            node("Relu", ["x"], ["a"]),
            node("If", ["c"], ["t"], then_branch=inner_then, else_branch=inner_else),
        ],
        ["t"],
    )
    else_graph = subgraph("else", [node("Neg", ["n"], ["e"])], ["e"])
    return model(
        [
            node("If", ["c"], ["y"], name="choose", then_branch=then_graph, else_branch=else_graph),
            node("Abs", ["x"], ["n"]),
        ],
        [value("x", ["batch", None]), value("c", [], TensorProto.BOOL)],
        [value("y", None)],
        [tensor("w", np.ones((2, 3), np.float32))],
    )


def calling() -> onnx.ModelProto:
    """Functions that call functions, with attributes, defaults and a subgraph."""
    alpha = onnx.AttributeProto(name="alpha", ref_attr_name="slope", type=onnx.AttributeProto.FLOAT)
    leaky = node("LeakyRelu", ["t"], ["u"])
    leaky.attribute.append(alpha)
    inner = helper.make_function(
        "local", "Inner", ["a", "b"], ["u"],
        [node("Add", ["a", "b"], ["t"]), leaky],
        [helper.make_opsetid("", 18)], [], [helper.make_attribute("slope", 0.5)],
    )  # fmt: skip
    forwarded = node("Inner", ["p", "p"], ["t"], domain="local")
    forwarded.attribute.append(onnx.AttributeProto(name="slope", ref_attr_name="steep", type=onnx.AttributeProto.FLOAT))
    branch = subgraph("branch", [node("Mul", ["t", "p"], ["m"])], ["m"])
    other = subgraph("other", [node("Inner", ["t", "p"], ["m"], domain="local")], ["m"])
    outer = helper.make_function(
        "local", "Outer", ["p", "c"], ["r"],
        [forwarded, node("If", ["c"], ["r"], then_branch=branch, else_branch=other)],
        [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)], ["steep"],
    )  # fmt: skip
    return model(
        [
            node("Outer", ["x", "c"], ["t"], domain="local", steep=0.25),
            node("Outer", ["t", "c"], ["y"], domain="local", steep=0.75),
        ],
        [value("x"), value("c", [], TensorProto.BOOL)],
        opsets={"": 20, "local": 1},
        functions=[inner, outer],
    )


def every_dtype(*, raw: bool) -> onnx.ModelProto:
    """One initializer of every element type."""
    tensors = []
    for number in sorted(set(TensorProto.DataType.values()) - {TensorProto.UNDEFINED}):
        name = TensorProto.DataType.Name(number)
        if number == TensorProto.STRING:
            proto = helper.make_tensor(name, number, [3], [b"a", "b\u00e9".encode(), b"\xff"])
        else:
            array = np.array([0, 1, 1, 0, 1]).astype(helper.tensor_dtype_to_np_dtype(number))
            proto = (
                numpy_helper.from_array(array, name) if raw else helper.make_tensor(name, number, [5], array.tolist())
            )
        assert proto.data_type == number
        tensors.append(proto)
    return model([node("Relu", ["x"], ["y"])], initializers=tensors)


def large_weights(count: int = 3000) -> onnx.ModelProto:
    """Large data in raw_data and float_data, in an attribute, in a subgraph and sparse."""
    rng = np.random.default_rng(1)
    weights = rng.standard_normal(count).astype(np.float32)
    listed = helper.make_tensor("listed", TensorProto.FLOAT, [count], weights.tolist())
    doubles = helper.make_tensor("doubles", TensorProto.DOUBLE, [count], weights.astype(np.float64).tolist())
    integers = helper.make_tensor("integers", TensorProto.INT64, [count], list(range(count)))
    branch = helper.make_graph(
        [node("Add", ["x", "inside"], ["b"])], "branch", [], [value("b", None)], [tensor("inside", weights)]
    )
    proto = model(
        [
            node("Constant", [], ["k"], value=tensor("constant", weights * 2)),
            node("If", ["c"], ["z"], then_branch=branch, else_branch=branch),
            node("Sum", ["x", "raw", "listed", "k", "z", "sparse"], ["y"]),
        ],
        [value("x", [count]), value("c", [], TensorProto.BOOL)],
        [value("y", [count])],
        [tensor("raw", weights), listed, doubles, integers],
    )
    places = np.arange(0, count, 2)
    proto.graph.sparse_initializer.append(
        helper.make_sparse_tensor(tensor("sparse", weights[places]), tensor("places", places), [count])
    )
    return proto


def with_external(folder: Path) -> Path:
    """Write a model with external weights to a folder and return its path."""
    weights = np.arange(600, dtype=np.float32)
    (folder / "weights.bin").write_bytes(b"\0" * 16 + weights.tobytes())
    proto = model([node("Add", ["x", "w"], ["y"])], [value("x", [600])], [value("y", [600])])
    proto.graph.initializer.append(external("w", [600], location="weights.bin", offset="16", length="2400"))
    path = folder / "model.onnx"
    path.write_bytes(proto.SerializeToString())
    return path


def external(name: str, dims: Sequence[int], dtype: int = TensorProto.FLOAT, **entries: str) -> onnx.TensorProto:
    proto = TensorProto(name=name, data_type=dtype, dims=dims, data_location=TensorProto.EXTERNAL)
    for key, text in entries.items():
        proto.external_data.add(key=key, value=text)
    return proto
