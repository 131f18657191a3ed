"""A `OnnxModel` back to a ModelProto, so that other runtimes can say what it means."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from weft.frontend.tensors import ELEMENT_TYPES
from weft.ir.graph import Graph, Node, OnnxModel
from weft.ir.types import OptionalType, SequenceType, TensorType, Type

NUMBERS = {dtype: number for number, dtype in ELEMENT_TYPES.items()}


def write_model(model: OnnxModel) -> onnx.ModelProto:
    imports = [helper.make_opsetid(*entry) for entry in model.opsets.items()]
    return helper.make_model(write_graph(model.graph), opset_imports=imports, ir_version=10)


def write_graph(graph: Graph) -> onnx.GraphProto:
    return helper.make_graph(
        [write_node(node) for node in graph.nodes],
        graph.name or "graph",
        [helper.make_value_info(value.name, write_type(value.type)) for value in graph.inputs],
        [helper.make_value_info(value.name, write_type(value.type)) for value in graph.outputs],
        [write_tensor(array, name) for name, array in graph.initializers.items()],
    )


def write_tensor(array: np.ndarray, name: str = "") -> TensorProto:
    return numpy_helper.from_array(np.array(array), name)


def write_type(declared: Type | None) -> onnx.TypeProto:
    match declared:
        case TensorType(dtype, shape):
            dims = None if shape is None else [dim if isinstance(dim, int) else str(dim) for dim in shape]
            return helper.make_tensor_type_proto(NUMBERS[dtype], dims)
        case SequenceType(element):
            return helper.make_sequence_type_proto(write_type(element))
        case OptionalType(element):
            return helper.make_optional_type_proto(write_type(element))
        case _:
            return onnx.TypeProto()


def write_node(node: Node) -> onnx.NodeProto:
    made = helper.make_node(node.op, node.inputs, node.outputs, node.name, domain=node.domain)
    made.attribute.extend(helper.make_attribute(name, _plain(value)) for name, value in node.attributes.items())
    return made


def _plain(value: Any) -> Any:
    match value:
        case np.ndarray():
            return write_tensor(value)
        case Graph():
            return write_graph(value)
        case tuple():
            return [_plain(item) for item in value]
        case int() | float() | str():
            return value
    return write_type(value)
