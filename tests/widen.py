"""A float32 model as a float64 one: what the same weights mean when nothing is rounded to single precision."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, TensorProto, numpy_helper

FLOAT, DOUBLE = TensorProto.FLOAT, TensorProto.DOUBLE
_DTYPES = ("to", "dtype", "stash_type", "output_datatype")  # attributes that name an element type


def widened(path: Any) -> onnx.ModelProto:
    """The model at `path` with every float32 in it a float64: weights, constants, casts, declared types."""
    model = onnx.load(path)
    _widen_graph(model.graph)
    for function in model.functions:
        for node in function.node:
            _widen_node(node)
    return model


def widened_inputs(inputs: dict[str, Any]) -> dict[str, Any]:
    return {name: array.astype(np.float64) if array.dtype == np.float32 else array for name, array in inputs.items()}


def _widen_graph(graph: onnx.GraphProto) -> None:
    for tensor in graph.initializer:
        _widen_tensor(tensor)
    for declared in (*graph.input, *graph.output, *graph.value_info):
        _widen_type(declared.type)
    for node in graph.node:
        _widen_node(node)


def _widen_node(node: onnx.NodeProto) -> None:
    for attribute in node.attribute:
        if attribute.name in _DTYPES and attribute.type == AttributeProto.INT and attribute.i == FLOAT:
            attribute.i = DOUBLE
        elif attribute.type == AttributeProto.TENSOR:
            _widen_tensor(attribute.t)
        elif attribute.type == AttributeProto.GRAPH:
            _widen_graph(attribute.g)
    if node.op_type == "Constant":
        _widen_constant(node)
    elif node.op_type == "ConstantOfShape" and not node.attribute:
        zero = numpy_helper.from_array(np.zeros(1, np.float64))
        node.attribute.append(onnx.helper.make_attribute("value", zero))


def _widen_constant(node: onnx.NodeProto) -> None:
    """Numbers given as attributes are float32 by definition, so they become a tensor."""
    for attribute in list(node.attribute):
        if attribute.name in ("value_float", "value_floats"):
            number = attribute.f if attribute.name == "value_float" else list(attribute.floats)
            node.attribute.remove(attribute)
            array = numpy_helper.from_array(np.array(number, np.float64))
            node.attribute.append(onnx.helper.make_attribute("value", array))


def _widen_tensor(tensor: TensorProto) -> None:
    if tensor.data_type == FLOAT:
        name = tensor.name
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float64), name))


def _widen_type(type: onnx.TypeProto) -> None:
    match type.WhichOneof("value"):
        case "tensor_type" if type.tensor_type.elem_type == FLOAT:
            type.tensor_type.elem_type = DOUBLE
        case "sequence_type":
            _widen_type(type.sequence_type.elem_type)
        case "optional_type":
            _widen_type(type.optional_type.elem_type)
