"""What a model means when nothing is rounded: every float in it a float64, run by onnxruntime, or by weft's reference
where that lacks a kernel; and how far rounding of the inputs and weights moves its results.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import onnx
from attack import rival
from onnx import AttributeProto, TensorProto, helper, numpy_helper

import weft

Array = np.ndarray[Any, Any]
DOUBLE = TensorProto.DOUBLE
NARROW = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16)
UNITS = {TensorProto.FLOAT: 2.0**-24, TensorProto.FLOAT16: 2.0**-11, TensorProto.BFLOAT16: 2.0**-8}
_DTYPES = ("to", "dtype", "stash_type", "output_datatype", "output_dtype")  # attributes that name an element type
_SINGLE: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "Resize": ((2,), ()),
    "Upsample": ((1,), ()),
    "QuantizeLinear": ((0, 1), ()),
    "DequantizeLinear": ((1,), (0,)),
    "DynamicQuantizeLinear": ((0,), (1,)),
    "QLinearConv": ((1, 4, 6), ()),
    "QLinearMatMul": ((1, 4, 6), ()),
}
"""Inputs and outputs that are no double by definition."""


_STAGES_OF_SINGLES = ("Attention", "RotaryEmbedding", "LayerNormalization", "RMSNormalization", "GroupNormalization")
"""Ops that ONNX defines with float32 numbers in between, whatever their inputs are."""


def unit(model: onnx.ModelProto) -> float:
    """The rounding of the narrowest type that a model computes in."""
    units = [UNITS[kind] for kind in _kinds(model) if kind in UNITS]
    units += [UNITS[TensorProto.FLOAT] for node in nodes_of(model) if node.op_type in _STAGES_OF_SINGLES]
    return max(units, default=2.0**-53)


def nodes_of(model: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    """All nodes, those of inner graphs and functions as well."""
    pending = [*model.graph.node, *(node for function in model.functions for node in function.node)]
    while pending:
        node = pending.pop()
        yield node
        for attribute in node.attribute:
            pending.extend(attribute.g.node)


class Exact:
    """A model in float64, ready to run."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self.model = onnx.ModelProto()
        self.model.CopyFrom(model)
        self.fixed = {name for node in nodes_of(model) if node.op_type in _SINGLE for name in node.input[1:]}
        _widen(self.model.graph)
        for function in self.model.functions:
            _widen_nodes(function.node)
        self.by_onnxruntime = True

    def run(self, feeds: Mapping[str, Array], shaken: np.random.Generator | None = None, by: float = 0.0) -> list[Any]:
        """All outputs; with floats of inputs and weights shaken by a relative error."""
        wide = {name: _wide(array) for name, array in feeds.items()}
        model = self.model
        if shaken is not None:
            wide = {name: _shake(array, shaken, by) for name, array in wide.items()}
            model = onnx.ModelProto()
            model.CopyFrom(self.model)
            for tensor in model.graph.initializer:
                if tensor.data_type == DOUBLE and tensor.name not in self.fixed:
                    moved = _shake(numpy_helper.to_array(tensor), shaken, by)
                    tensor.CopyFrom(numpy_helper.from_array(moved, tensor.name))
        if self.by_onnxruntime:
            try:
                return rival.run(model, wide)
            except rival.RivalError:  # a kernel for doubles that it lacks
                self.by_onnxruntime = False
        with np.errstate(all="ignore"):
            return list(weft.load(model, device="reference").run(wide).values())


def _shake(array: Array, random: np.random.Generator, by: float) -> Array:
    if array.dtype != np.float64:
        return array
    return array * (1 + by * random.uniform(-1, 1, array.shape))


def _wide(array: Array) -> Array:
    return array.astype(np.float64) if array.dtype.kind == "f" or "float" in array.dtype.name else array


def _kinds(model: onnx.ModelProto) -> Iterator[int]:
    yield from _graph_kinds(model.graph)
    for function in model.functions:
        for node in function.node:
            yield from _node_kinds(node)


def _graph_kinds(graph: onnx.GraphProto) -> Iterator[int]:
    for tensor in graph.initializer:
        yield tensor.data_type
    for declared in (*graph.input, *graph.output):
        yield declared.type.tensor_type.elem_type
    for node in graph.node:
        yield from _node_kinds(node)


def _node_kinds(node: onnx.NodeProto) -> Iterator[int]:
    for attribute in node.attribute:
        if attribute.name in _DTYPES:
            yield attribute.i
        elif attribute.type == AttributeProto.TENSOR:
            yield attribute.t.data_type
        elif attribute.type == AttributeProto.GRAPH:
            yield from _graph_kinds(attribute.g)


def _widen(graph: onnx.GraphProto) -> None:
    for tensor in graph.initializer:
        _widen_tensor(tensor)
    for declared in (*graph.input, *graph.output, *graph.value_info):
        kind = declared.type.tensor_type
        if kind.elem_type in NARROW:
            kind.elem_type = DOUBLE
    _widen_nodes(graph.node)


def _widen_nodes(nodes: Any) -> None:
    widened = []
    for node in nodes:
        _widen_node(node)
        inputs, outputs = _SINGLE.get(node.op_type, ((), ()))
        for place in inputs:
            if place < len(node.input) and node.input[place]:
                narrow = f"{node.output[0]} narrow {place}"
                widened.append(helper.make_node("Cast", [node.input[place]], [narrow], to=TensorProto.FLOAT))
                node.input[place] = narrow
        widened.append(node)
        for place in outputs:
            if place < len(node.output) and node.output[place]:
                wide = node.output[place]
                node.output[place] = f"{wide} narrow"
                widened.append(helper.make_node("Cast", [f"{wide} narrow"], [wide], to=DOUBLE))
    copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in widened]
    del nodes[:]
    nodes.extend(copies)


def _widen_node(node: onnx.NodeProto) -> None:
    for attribute in list(node.attribute):
        if attribute.name in _DTYPES and attribute.type == AttributeProto.INT:
            attribute.i = DOUBLE if attribute.i in NARROW else attribute.i
        elif attribute.type == AttributeProto.TENSOR:
            _widen_tensor(attribute.t)
        elif attribute.type == AttributeProto.GRAPH:
            _widen(attribute.g)
        elif node.op_type == "Constant" and attribute.name in ("value_float", "value_floats"):
            number = attribute.f if attribute.name == "value_float" else list(attribute.floats)
            node.attribute.remove(attribute)
            array = numpy_helper.from_array(np.array(number, np.float64))
            node.attribute.append(helper.make_attribute("value", array))
    if node.op_type == "ConstantOfShape" and not node.attribute:
        node.attribute.append(helper.make_attribute("value", numpy_helper.from_array(np.zeros(1))))


def _widen_tensor(tensor: TensorProto) -> None:
    if tensor.data_type in NARROW:
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float64), tensor.name))
