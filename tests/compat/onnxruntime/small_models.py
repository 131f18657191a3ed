"""Small models for the calls, with the same bytes in each process."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

FLOAT, DOUBLE, INT64, STRING = TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.INT64, TensorProto.STRING
Value = onnx.ValueInfoProto
node = helper.make_node
tensor = helper.make_tensor_value_info


def model(
    nodes: list[Any], inputs: list[Value], outputs: list[Value], initializers: tuple[Any, ...] = (), **fields: Any
) -> bytes:
    graph = helper.make_graph(nodes, "graph", inputs, outputs, initializer=list(initializers))
    graph.doc_string = fields.pop("graph_doc_string", "")
    custom = fields.pop("custom", {})
    imports = fields.pop("opsets", [helper.make_opsetid("", 18), helper.make_opsetid("ai.onnx.ml", 3)])
    proto = helper.make_model(graph, opset_imports=imports, ir_version=fields.pop("ir_version", 8), **fields)
    helper.set_model_props(proto, custom)
    return proto.SerializeToString(deterministic=True)


def sequence_of(element: int) -> Any:
    return helper.make_sequence_type_proto(helper.make_tensor_type_proto(element, None))


def maps_of(key: int) -> Any:
    type = onnx.TypeProto()
    entry = type.sequence_type.elem_type.map_type
    entry.key_type = key
    entry.value_type.tensor_type.elem_type = FLOAT
    return type


def map_of(key: int) -> Any:
    type = onnx.TypeProto()
    type.map_type.key_type = key
    type.map_type.value_type.tensor_type.elem_type = FLOAT
    return type


X = tensor("x", FLOAT, ["N", 3])
Z = tensor("z", FLOAT, ["N", 3])
MODELS: dict[str, Callable[[], bytes]] = {
    "add": lambda: model([node("Add", ["x", "y"], ["z"])], [X, tensor("y", FLOAT, [None, 3])], [Z]),
    "two": lambda: model(
        [node("Relu", ["x"], ["r"]), node("Neg", ["x"], ["n"])],
        [X],
        [tensor("r", FLOAT, ["N", 3]), tensor("n", FLOAT, ["N", 3])],
    ),
    "unshaped": lambda: model([node("Relu", ["x"], ["z"])], [X], [tensor("z", FLOAT, None)]),
    "product": lambda: model(
        [node("MatMul", ["x", "w"], ["z"])], [X, tensor("w", FLOAT, ["M", "K"])], [tensor("z", FLOAT, None)]
    ),
    "overridable": lambda: model(
        [node("Add", ["x", "w"], ["z"])],
        [X, tensor("w", FLOAT, [3])],
        [Z],
        (helper.make_tensor("w", FLOAT, [3], [1, 2, 3]),),
    ),
    "old": lambda: model(
        [node("Add", ["x", "w"], ["z"])],
        [X, tensor("w", FLOAT, [3])],
        [Z],
        (helper.make_tensor("w", FLOAT, [3], [1, 2, 3]),),
        ir_version=3,
    ),
    "zipmap_ints": lambda: model(
        [node("ZipMap", ["x"], ["z"], domain="ai.onnx.ml", classlabels_int64s=[3, 4, 5])],
        [X],
        [helper.make_value_info("z", maps_of(INT64))],
    ),
    "zipmap_strings": lambda: model(
        [node("ZipMap", ["x"], ["z"], domain="ai.onnx.ml", classlabels_strings=["a", "b", "c"])],
        [X],
        [helper.make_value_info("z", maps_of(STRING))],
    ),
    "dict_strings": lambda: model(
        [node("DictVectorizer", ["x"], ["z"], domain="ai.onnx.ml", string_vocabulary=["a", "b", "c"])],
        [helper.make_value_info("x", map_of(STRING))],
        [tensor("z", FLOAT, [1, 3])],
    ),
    "dict_ints": lambda: model(
        [node("DictVectorizer", ["x"], ["z"], domain="ai.onnx.ml", int64_vocabulary=[1, 2, 3])],
        [helper.make_value_info("x", map_of(INT64))],
        [tensor("z", FLOAT, [1, 3])],
    ),
    "sequence_construct": lambda: model(
        [node("SequenceConstruct", ["x", "x"], ["z"])], [X], [helper.make_value_info("z", sequence_of(FLOAT))]
    ),
    "sequence_at": lambda: model(
        [node("SequenceAt", ["s", "i"], ["z"])],
        [helper.make_value_info("s", sequence_of(FLOAT)), tensor("i", INT64, [])],
        [tensor("z", FLOAT, None)],
    ),
    "text": lambda: model([node("Identity", ["s"], ["z"])], [tensor("s", STRING, ["N"])], [tensor("z", STRING, ["N"])]),
    "optional": lambda: model(
        [node("Identity", ["s"], ["z"])],
        [helper.make_value_info("s", helper.make_optional_type_proto(helper.make_tensor_type_proto(FLOAT, [2])))],
        [helper.make_value_info("z", helper.make_optional_type_proto(helper.make_tensor_type_proto(FLOAT, [2])))],
    ),
    "sum": lambda: model([node("ReduceSum", ["x"], ["z"], keepdims=0)], [X], [tensor("z", FLOAT, [])]),
    "gather": lambda: model(
        [node("Gather", ["x", "i"], ["z"])], [X, tensor("i", INT64, ["M"])], [tensor("z", FLOAT, None)]
    ),
    "reshape": lambda: model(
        [node("Reshape", ["x", "i"], ["z"])], [X, tensor("i", INT64, ["M"])], [tensor("z", FLOAT, None)]
    ),
    "concat": lambda: model(
        [node("Concat", ["x", "y"], ["z"], axis=1)], [X, tensor("y", FLOAT, ["M", "K"])], [tensor("z", FLOAT, None)]
    ),
    "constant": lambda: model(
        [node("Constant", [], ["z"], value=helper.make_tensor("v", FLOAT, [2], [1, 2]))], [], [tensor("z", FLOAT, [2])]
    ),
    "nonzero": lambda: model([node("NonZero", ["x"], ["z"])], [X], [tensor("z", INT64, [2, "count"])]),
    "metadata": lambda: model(
        [node("Relu", ["x"], ["z"])],
        [X],
        [Z],
        producer_name="producer",
        producer_version="1.2",
        domain="org.example",
        model_version=7,
        doc_string="description",
        graph_doc_string="description of the graph",
        custom={"labels": "a,b", "größe": "ü"},
    ),
    "unknown op": lambda: model([node("Foo", ["x"], ["z"])], [X], [Z]),
    "unknown domain": lambda: model([node("Foo", ["x"], ["z"], domain="org.example")], [X], [Z]),
    "unknown attribute": lambda: model([node("Relu", ["x"], ["z"], slope=1)], [X], [Z]),
    "unknown value": lambda: model([node("Relu", ["q"], ["z"])], [X], [Z]),
    "wrong type": lambda: model([node("And", ["x", "x"], ["z"])], [X], [Z]),
    "cycle": lambda: model([node("Add", ["x", "b"], ["z"]), node("Relu", ["z"], ["b"])], [X], [Z]),
    "late opset": lambda: model([node("Relu", ["x"], ["z"])], [X], [Z], opsets=[helper.make_opsetid("", 99)]),
}
ELEMENTS = "BOOL INT8 UINT8 INT16 UINT16 INT32 INT64 UINT32 UINT64 FLOAT16 FLOAT DOUBLE BFLOAT16 STRING".split()


@cache
def model_bytes(name: str) -> bytes:
    return MODELS[name]()


def identity(element: str) -> bytes:
    number = getattr(TensorProto, element)
    return model([node("Identity", ["s"], ["z"])], [tensor("s", number, ["N"])], [tensor("z", number, ["N"])])


def ones(*shape: int) -> Any:
    return np.ones(shape or (2, 3), np.float32)


def ramp() -> Any:
    return np.arange(6, dtype=np.float32).reshape(2, 3) - 2
