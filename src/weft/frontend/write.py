"""Write an `OnnxModel` as a ModelProto: the inverse of `read_model`.

Names do not change. Named dims become dim_params, other dynamic dims stay unnamed. Types that weft knows only at run
time are left to onnx's inference.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.defs
import onnx.helper
import onnx.shape_inference

from weft.errors import InvalidModelError, UnsupportedModelError
from weft.frontend.declarations import Symbols, read_type, reserve_dim_names
from weft.frontend.save import MAX_MESSAGE_BYTES, save_model
from weft.frontend.schemas import min_inputs
from weft.frontend.source import OpenedModel
from weft.frontend.tensors import encode_strings, to_raw_bytes
from weft.frontend.wire import strip_weights
from weft.ir import dims
from weft.ir.dims import Dim
from weft.ir.dtypes import DType, from_numpy
from weft.ir.graph import Attribute, Graph, GraphValue, Node, OnnxModel, subgraphs
from weft.ir.types import AnyType, MapType, OptionalType, SequenceType, TensorType, Type

ModelProto = onnx.ModelProto
MAX_SHAPE_CONSTANT = 1024  # elements of constants that shapes may depend on
MAX_ATTEMPTS = 16


def write_model(model: OnnxModel) -> onnx.ModelProto:
    """Convert a model to a ModelProto."""
    proto = _make_proto(model)
    _write_graph(proto.graph, model.graph, dim_names(model.graph))
    _infer_open_outputs(proto)
    return proto


def write_file(model: OnnxModel, proto: onnx.ModelProto, path: Path) -> None:
    """Save a model that `write_model` converted to `proto`; beyond protobuf's limit, weights go to a second file."""
    without_data = _make_proto(model)
    bare = replace(model.graph, initializers={})
    _write_graph(without_data.graph, bare, dim_names(model.graph))
    del without_data.graph.output[:]
    without_data.graph.output.extend(proto.graph.output)
    for name, array in model.graph.initializers.items():
        without_data.graph.initializer.add(name=name, data_type=from_numpy(array.dtype).number, dims=array.shape)
    content = memoryview(without_data.SerializeToString())
    save_model(OpenedModel(content, str(path)), {}, model.graph.initializers, path)


def rewrite_model(original: OpenedModel, model: OnnxModel, types: Mapping[str, Type]) -> onnx.ModelProto:
    """Convert a model that was read and changed to a ModelProto, with the metadata of the original file.

    The result has no weights (`add_initializers` adds them). Declarations of inputs and outputs do not change unless
    their types have. `types`: the known types of inner values.
    """
    proto: onnx.ModelProto = onnx.ModelProto.FromString(strip_weights(original.view)[0])
    declared = {value.name: value for value in (*proto.graph.input, *proto.graph.output)}
    order = {value.name: number for number, value in enumerate(proto.graph.input)}
    for field in ("functions", "training_info", "opset_import"):
        proto.ClearField(field)
    for field in ("node", "initializer", "sparse_initializer", "value_info", "input", "output"):
        proto.graph.ClearField(field)
    used = {"", *_domains(model.graph)}
    imports = [onnx.helper.make_opsetid(*each) for each in sorted(model.opsets.items()) if each[0] in used]
    proto.opset_import.extend(imports)
    proto.ir_version = max(model.ir_version, _ir_version([each for each in imports if not each.domain]))
    names, symbols = dim_names(model.graph), Symbols()
    inputs = sorted((*model.graph.inputs, *model.graph.defaults), key=lambda value: order[value.name])

    def declare(value: GraphValue) -> onnx.ValueInfoProto:
        declaration: onnx.ValueInfoProto | None = declared.get(value.name)
        if declaration is None:
            return _write_value(value, names)
        if not _is_complete(declaration.type) or read_type(symbols, declaration.type, value.name) != value.type:
            declaration.type.CopyFrom(_write_value(value, names).type)
        return declaration

    reserve_dim_names(symbols, onnx.GraphProto(input=declared.values()))
    proto.graph.input.extend(map(declare, inputs))
    proto.graph.output.extend(map(declare, model.graph.outputs))
    proto.graph.node.extend(_write_node(node, names) for node in model.graph.nodes)
    outer = {*declared, *model.graph.initializers}
    inner = (name for node in model.graph.nodes for name in node.outputs if name in types and name not in outer)
    declarations = [_write_value(GraphValue(name, types[name]), names) for name in inner]
    contradictions = _find_contradictions(proto, model.graph, declarations)
    proto.graph.value_info.extend(value for value in declarations if value.name not in contradictions)
    annotations = [each for each in proto.graph.quantization_annotation if each.tensor_name in types]
    proto.graph.ClearField("quantization_annotation")
    proto.graph.quantization_annotation.extend(annotations)
    return proto


def _find_contradictions(proto: onnx.ModelProto, graph: Graph, declarations: Sequence[onnx.ValueInfoProto]) -> set[str]:
    """Return the values whose declared types onnx's inference contradicts: its checker would reject the file."""
    bare = onnx.ModelProto()
    bare.CopyFrom(proto)
    for name, array in graph.initializers.items():
        if array.size <= MAX_SHAPE_CONSTANT:
            _write_tensor(bare.graph.initializer.add(), array, name)
        else:
            weight = GraphValue(name, TensorType(from_numpy(array.dtype), array.shape))
            bare.graph.input.append(_write_value(weight, frozenset()))
    if _find_rejected_nodes(bare):
        return set()  # the file is rejected even without declarations
    contradictions: set[str] = set()
    for _ in range(MAX_ATTEMPTS):
        bare.graph.ClearField("value_info")
        bare.graph.value_info.extend(value for value in declarations if value.name not in contradictions)
        nodes = _find_rejected_nodes(bare)
        if not nodes:
            return contradictions
        outputs = {name for node in graph.nodes if node.name in nodes for name in node.outputs} - contradictions
        if not outputs:
            break
        contradictions |= outputs
    return {value.name for value in declarations}


def _find_rejected_nodes(proto: onnx.ModelProto) -> set[str]:
    """Return the names of the nodes that onnx's inference rejects."""
    try:
        onnx.shape_inference.infer_shapes(proto, check_type=True, strict_mode=True)
    except (onnx.shape_inference.InferenceError, ValueError, RuntimeError) as error:
        return {"", *re.findall(r"node name: (.*?)\)", str(error))}
    return set()


def add_initializers(proto: onnx.ModelProto, model: OnnxModel) -> onnx.ModelProto:
    """Add the model's weights to the result of `rewrite_model`."""
    for name, array in model.graph.initializers.items():
        _write_tensor(proto.graph.initializer.add(), array, name)
    return proto


def _domains(graph: Graph) -> Iterator[str]:
    for node in graph.nodes:
        yield node.domain
        for inner in subgraphs(node):
            yield from _domains(inner)


def fits_one_message(proto: onnx.ModelProto) -> bool:
    """Whether protobuf can read the whole model as one message."""
    return bool(proto.ByteSize() <= MAX_MESSAGE_BYTES)


def _make_proto(model: OnnxModel) -> onnx.ModelProto:
    imports = [onnx.helper.make_opsetid(domain, version) for domain, version in sorted(model.opsets.items())]
    proto = onnx.ModelProto(ir_version=model.ir_version or _ir_version(imports), producer_name=model.producer)
    proto.opset_import.extend(imports)
    for key, value in model.metadata.items():
        proto.metadata_props.add(key=key, value=value)
    return proto


def dim_names(graph: Graph) -> frozenset[str]:
    """Return the names of the dims of a graph's inputs, without those that are named after their position."""
    shapes = {value.name: value.type.shape or () for value in graph.inputs if isinstance(value.type, TensorType)}
    symbols = ((name, at, dims.as_symbol(size)) for name, shape in shapes.items() for at, size in enumerate(shape))
    return frozenset(each.name for name, at, each in symbols if each is not None and each.name != f"{name}.{at}")


def _ir_version(imports: Sequence[onnx.OperatorSetIdProto]) -> int:
    """Return the oldest IR version for these opsets, so that older readers accept the file."""
    released = [
        entry for entry in imports if (entry.domain or "ai.onnx", entry.version) in onnx.helper.OP_SET_ID_VERSION_MAP
    ]
    return int(onnx.helper.find_min_ir_version_for(released))


def _infer_open_outputs(proto: onnx.ModelProto) -> None:
    """Complete the types of outputs whose rank weft does not know, if onnx can infer them: files should declare it."""
    unknown = {value.name for value in proto.graph.output if not _is_complete(value.type)}
    if not unknown:
        return
    inferred = {value.name: value.type for value in onnx.shape_inference.infer_shapes(proto).graph.output}
    for value in proto.graph.output:
        if value.name in unknown:
            value.type.CopyFrom(inferred[value.name])
        if value.type.WhichOneof("value") is None:
            raise InvalidModelError(
                "the type of this output is known only at run time, but a model file must declare it",
                hint="declare it: graph.output(tensor, name, dtype=..., shape=...)",
                value=value.name,
            )


def _is_complete(proto: onnx.TypeProto) -> bool:
    kind = proto.WhichOneof("value")
    return kind is not None and (kind != "tensor_type" or bool(proto.tensor_type.HasField("shape")))


def _write_graph(proto: onnx.GraphProto, graph: Graph, names: frozenset[str]) -> None:
    proto.name = graph.name
    for name, array in graph.initializers.items():
        _write_tensor(proto.initializer.add(), array, name)
    proto.input.extend(_write_value(value, names) for value in (*graph.inputs, *graph.defaults))
    proto.output.extend(_write_value(value, names) for value in graph.outputs)
    proto.node.extend(_write_node(node, names) for node in graph.nodes)


def _write_node(node: Node, names: frozenset[str]) -> onnx.NodeProto:
    inputs = list(node.inputs)
    least = min_inputs(node.domain, node.op, node.version)
    while len(inputs) > least and not inputs[-1]:
        inputs.pop()
    proto = onnx.NodeProto(op_type=node.op, domain=node.domain, name=node.name, input=inputs, output=node.outputs)
    for key, value in node.attributes.items():
        proto.attribute.append(
            _write_attribute(key, value, names) if not isinstance(value, tuple) or value else _empty_list(node, key)
        )
    return proto


def _empty_list(node: Node, name: str) -> onnx.AttributeProto:
    """Write an empty list with the type in the op's schema, or a list of integers if there is no schema."""
    kind = onnx.AttributeProto.INTS
    if onnx.defs.has(node.op, node.version, node.domain):
        attributes = onnx.defs.get_schema(node.op, node.version, node.domain).attributes
        if name in attributes:
            kind = onnx.AttributeProto.AttributeType.Value(str(attributes[name].type).rpartition(".")[2])
    return onnx.AttributeProto(name=name, type=kind)


def _write_attribute(name: str, value: Attribute, names: frozenset[str]) -> onnx.AttributeProto:
    match value:
        case Graph():
            graph_attribute = onnx.AttributeProto(name=name, type=onnx.AttributeProto.GRAPH)
            _write_graph(graph_attribute.g, value, names)
            return graph_attribute
        case np.ndarray():
            tensor_attribute = onnx.AttributeProto(name=name, type=onnx.AttributeProto.TENSOR)
            _write_tensor(tensor_attribute.t, value, name)
            return tensor_attribute
        case TensorType() | SequenceType() | OptionalType() | MapType() | AnyType():
            return onnx.helper.make_attribute(name, _write_type(value, names))
        case str():
            return onnx.helper.make_attribute(name, value.encode("utf-8", "surrogateescape"))
        case tuple() if value and all(isinstance(each, str) for each in value):
            return onnx.helper.make_attribute(name, [str(each).encode("utf-8", "surrogateescape") for each in value])
        case tuple() if value and any(isinstance(each, (Graph, np.ndarray)) for each in value):
            raise UnsupportedModelError(
                f"attribute {name} holds a list of graphs or tensors, which weft does not write"
            )
    return onnx.helper.make_attribute(name, value)


def _write_tensor(proto: onnx.TensorProto, array: np.ndarray[Any, Any], name: str) -> None:
    dtype = from_numpy(array.dtype)
    proto.name, proto.data_type = name, dtype.number
    proto.dims.extend(array.shape)
    if dtype is DType.string:
        proto.string_data.extend(encode_strings(array))
    else:
        proto.raw_data = to_raw_bytes(array, dtype).tobytes()


def _write_value(value: GraphValue, names: frozenset[str]) -> onnx.ValueInfoProto:
    proto = onnx.ValueInfoProto(name=value.name)
    if value.type is not None and not isinstance(value.type, AnyType):
        proto.type.CopyFrom(_write_type(value.type, names))
    return proto


def _write_type(type: Type, names: frozenset[str]) -> onnx.TypeProto:
    proto = onnx.TypeProto()
    match type:
        case TensorType(dtype, shape):
            proto.tensor_type.elem_type = dtype.number
            if shape is not None:
                proto.tensor_type.shape.SetInParent()
                for size in shape:
                    _write_dim(proto.tensor_type.shape.dim.add(), size, names)
        case SequenceType(element):
            proto.sequence_type.elem_type.CopyFrom(_write_type(element, names))
        case OptionalType(element):
            proto.optional_type.elem_type.CopyFrom(_write_type(element, names))
        case MapType(key, value):
            proto.map_type.key_type = key.number
            proto.map_type.value_type.CopyFrom(_write_type(value, names))
    return proto


def _write_dim(proto: onnx.TensorShapeProto.Dimension, size: Dim, names: frozenset[str]) -> None:
    symbol = dims.as_symbol(size)
    if isinstance(size, int):
        proto.dim_value = size
    elif symbol is not None and symbol.name in names:
        proto.dim_param = symbol.name
