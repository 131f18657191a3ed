"""Read a model with fixed input sizes: nodes on values of static shapes, and folded constants."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper, shape_inference
from onnx.reference import ReferenceEvaluator

Array = np.ndarray[Any, Any]
Shape = tuple[int, ...]

LARGE = 4096  # elements; no shape depends on larger constants
SUBGRAPHS = (AttributeProto.GRAPH, AttributeProto.GRAPHS)


class NoForm(Exception):  # noqa: N818 (says what it is)
    """The reason why a model cannot be rewritten for wonnx."""


@dataclass(frozen=True, slots=True)
class Network:
    """A model after folding; every value has a static shape and is float32, except constants."""

    nodes: tuple[NodeProto, ...]
    constants: Mapping[str, Array]
    shapes: Mapping[str, Shape]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    opset: int


def read_network(model: onnx.ModelProto, sizes: Mapping[str, Shape]) -> Network:
    """Read a model for inputs of these shapes."""
    graph = model.graph
    constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    inputs = [_with_shape(info, sizes[info.name]) for info in graph.input if info.name not in constants]
    outputs = [info.name for info in graph.output]
    opset = next(entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx"))
    nodes = list(graph.node)
    while True:
        values = _infer_values(nodes, constants, inputs, outputs, opset)
        remaining = [node for node in nodes if not _fold(node, constants, values, opset)]
        if len(remaining) == len(nodes):
            break
        nodes = remaining
    nodes = _live_nodes(nodes, outputs)
    shapes = {name: shape for name, (kind, shape) in values.items() if shape is not None}
    used = {name for node in nodes for name in node.input if name} | set(outputs)
    for name in sorted(used - constants.keys()):
        kind, shape = values.get(name, (None, None))
        if kind is None or shape is None:
            raise NoForm(f"the shape of {name!r} depends on data")
        if kind != TensorProto.FLOAT:
            raise NoForm(f"{name!r} is {TensorProto.DataType.Name(kind).lower()}, but wonnx only supports float32")
    shapes |= {name: array.shape for name, array in constants.items()}
    trimmed = tuple(_remove_unused_outputs(node, used) for node in nodes)
    return Network(trimmed, constants, shapes, tuple(info.name for info in inputs), tuple(outputs), opset)


def attributes_of(node: NodeProto) -> dict[str, Any]:
    return {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}


def _with_shape(info: ValueInfoProto, shape: Shape) -> ValueInfoProto:
    return helper.make_tensor_value_info(info.name, info.type.tensor_type.elem_type, shape)


Values = Mapping[str, tuple[int | None, Shape | None]]
"""The element type and the shape of every value, None if unknown."""


def _infer_values(
    nodes: list[NodeProto],
    constants: Mapping[str, Array],
    inputs: list[ValueInfoProto],
    outputs: list[str],
    opset: int,
) -> Values:
    """Infer types and shapes. Large constants become inputs, so that they are not copied."""
    small = [numpy_helper.from_array(array, name) for name, array in constants.items() if array.size <= LARGE]
    large = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in constants.items()
        if array.size > LARGE
    ]
    empty = [helper.make_empty_tensor_value_info(name) for name in outputs]
    graph = helper.make_graph(nodes, "graph", [*inputs, *large], empty, small)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    inferred = shape_inference.infer_shapes(model, data_prop=True).graph
    infos = [*inferred.input, *inferred.value_info, *inferred.output]
    return {info.name: (info.type.tensor_type.elem_type or None, _shape_of(info)) for info in infos}


def _shape_of(info: ValueInfoProto) -> Shape | None:
    kind = info.type.tensor_type
    if not kind.HasField("shape") or not all(dim.HasField("dim_value") for dim in kind.shape.dim):
        return None
    return tuple(dim.dim_value for dim in kind.shape.dim)


def _fold(node: NodeProto, constants: dict[str, Array], values: Values, opset: int) -> bool:
    """Add the results of a node to the constants if they are constant; return whether they are."""
    if node.op_type == "Shape" and (shape := values.get(node.input[0], (None, None))[1]) is not None:
        attributes = attributes_of(node)
        constants[node.output[0]] = np.array(shape[attributes.get("start", 0) : attributes.get("end")], np.int64)
        return True
    if any(name and name not in constants for name in node.input) or node.op_type.startswith("Random"):
        return False
    if any(attribute.type in SUBGRAPHS for attribute in node.attribute):
        return False
    operands = {name: constants[name] for name in node.input if name}
    inputs = [helper.make_tensor_value_info(name, TensorProto.UNDEFINED, None) for name in operands]
    outputs = [helper.make_tensor_value_info(name, TensorProto.UNDEFINED, None) for name in node.output if name]
    model = helper.make_model(
        helper.make_graph([node], "node", inputs, outputs), opset_imports=[helper.make_opsetid("", opset)]
    )
    try:
        results = ReferenceEvaluator(model).run(None, operands)
    except RuntimeError:  # the evaluator does not support every version of every op
        return False
    constants |= {info.name: np.asarray(array) for info, array in zip(outputs, results, strict=True)}
    return True


def _remove_unused_outputs(node: NodeProto, used: set[str]) -> NodeProto:
    """Remove unused trailing results, such as masks."""
    count = max(number for number, name in enumerate(node.output, 1) if name in used)
    if node.op_type == "Split" or count == len(node.output):
        return node
    shorter = NodeProto()
    shorter.CopyFrom(node)
    del shorter.output[count:]
    return shorter


def _live_nodes(nodes: list[NodeProto], outputs: list[str]) -> list[NodeProto]:
    """Return the nodes that the outputs depend on."""
    needed = set(outputs)

    def backward() -> Iterator[NodeProto]:
        for node in reversed(nodes):
            if needed.intersection(node.output):
                needed.update(node.input)
                yield node

    return list(backward())[::-1]
