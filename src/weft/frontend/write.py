"""Write a model: `OnnxModel` to a ModelProto, the way back of `read_model`.

Names stay as they are. Sizes that the model names become dim_params, others stay open. Types that only a run would
tell are left to onnx's own inference.
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
from weft.frontend.declarations import Symbols, collect_names, read_type
from weft.frontend.save import LARGEST, save_model
from weft.frontend.schemas import least_inputs
from weft.frontend.source import OpenedModel
from weft.frontend.tensors import encoded_strings, raw_bytes
from weft.frontend.wire import cut_weights
from weft.ir import dims
from weft.ir.dims import Dim
from weft.ir.dtypes import DType, from_numpy
from weft.ir.graph import Attribute, Graph, GraphValue, Node, OnnxModel, subgraphs
from weft.ir.types import AnyType, MapType, OptionalType, SequenceType, TensorType, Type

ModelProto = onnx.ModelProto
LARGEST_SHAPE = 1024  # elements of constants that shapes may depend on
MOST_CONTRADICTIONS = 16


def write_model(model: OnnxModel) -> onnx.ModelProto:
    """The model as protobuf."""
    proto = _proto(model)
    _write_graph(proto.graph, model.graph, dim_names(model.graph))
    _infer_open_outputs(proto)
    return proto


def write_file(model: OnnxModel, proto: onnx.ModelProto, path: Path) -> None:
    """What `write_model` made of a model as a file; where that is more than protobuf reads, weights lie beside it."""
    without_data = _proto(model)
    bare = replace(model.graph, initializers={})
    _write_graph(without_data.graph, bare, dim_names(model.graph))
    del without_data.graph.output[:]
    without_data.graph.output.extend(proto.graph.output)
    for name, array in model.graph.initializers.items():
        without_data.graph.initializer.add(name=name, data_type=from_numpy(array.dtype).number, dims=array.shape)
    content = memoryview(without_data.SerializeToString())
    save_model(OpenedModel(content, str(path)), {}, model.graph.initializers, path)


def write_again(original: OpenedModel, model: OnnxModel, types: Mapping[str, Type]) -> onnx.ModelProto:
    """A model that was read and changed, as protobuf: with all that the file says besides its nodes.

    Its weights are left out: `with_initializers` puts them in, or `save_again`. Inputs and outputs are declared as
    they were, unless their types are others. `types` are those of values inside, as far as they are known.
    """
    proto: onnx.ModelProto = onnx.ModelProto.FromString(cut_weights(original.view)[0])
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

    def as_declared(value: GraphValue) -> onnx.ValueInfoProto:
        told: onnx.ValueInfoProto | None = declared.get(value.name)
        if told is None:
            return _write_value(value, names)
        if not _is_complete(told.type) or read_type(symbols, told.type, value.name) != value.type:
            told.type.CopyFrom(_write_value(value, names).type)
        return told

    collect_names(symbols, onnx.GraphProto(input=declared.values()))
    proto.graph.input.extend(map(as_declared, inputs))
    proto.graph.output.extend(map(as_declared, model.graph.outputs))
    proto.graph.node.extend(_write_node(node, names) for node in model.graph.nodes)
    shown = {*declared, *model.graph.initializers}
    inner = (name for node in model.graph.nodes for name in node.outputs if name in types and name not in shown)
    told = [_write_value(GraphValue(name, types[name]), names) for name in inner]
    contradicted = _contradicted(proto, model.graph, told)
    proto.graph.value_info.extend(value for value in told if value.name not in contradicted)
    kept = [note for note in proto.graph.quantization_annotation if note.tensor_name in types]
    proto.graph.ClearField("quantization_annotation")
    proto.graph.quantization_annotation.extend(kept)
    return proto


def _contradicted(proto: onnx.ModelProto, graph: Graph, told: Sequence[onnx.ValueInfoProto]) -> set[str]:
    """The values of which onnx's own inference says something else: its checker would refuse the file."""
    bare = onnx.ModelProto()
    bare.CopyFrom(proto)
    for name, array in graph.initializers.items():
        if array.size <= LARGEST_SHAPE:
            _write_tensor(bare.graph.initializer.add(), array, name)
        else:
            known = GraphValue(name, TensorType(from_numpy(array.dtype), array.shape))
            bare.graph.input.append(_write_value(known, frozenset()))
    if _refused(bare):
        return set()  # with or without the types
    found: set[str] = set()
    for _ in range(MOST_CONTRADICTIONS):
        bare.graph.ClearField("value_info")
        bare.graph.value_info.extend(value for value in told if value.name not in found)
        nodes = _refused(bare)
        if not nodes:
            return found
        outputs = {name for node in graph.nodes if node.name in nodes for name in node.outputs} - found
        if not outputs:
            break
        found |= outputs
    return {value.name for value in told}


def _refused(proto: onnx.ModelProto) -> set[str]:
    """The nodes that onnx's inference finds fault with."""
    try:
        onnx.shape_inference.infer_shapes(proto, check_type=True, strict_mode=True)
    except (onnx.shape_inference.InferenceError, ValueError, RuntimeError) as error:
        return {"", *re.findall(r"node name: (.*?)\)", str(error))}
    return set()


def with_initializers(proto: onnx.ModelProto, model: OnnxModel) -> onnx.ModelProto:
    """What `write_again` gave, with the weights of the model."""
    for name, array in model.graph.initializers.items():
        _write_tensor(proto.graph.initializer.add(), array, name)
    return proto


def save_again(proto: onnx.ModelProto, model: OnnxModel, path: Path) -> None:
    """What `write_again` gave as a file; where that is more than protobuf reads, weights lie beside it."""
    for name, array in model.graph.initializers.items():
        proto.graph.initializer.add(name=name, data_type=from_numpy(array.dtype).number, dims=array.shape)
    content = memoryview(proto.SerializeToString())
    proto.graph.ClearField("initializer")
    save_model(OpenedModel(content, str(path)), {}, model.graph.initializers, path)


def _domains(graph: Graph) -> Iterator[str]:
    for node in graph.nodes:
        yield node.domain
        for inner in subgraphs(node):
            yield from _domains(inner)


def is_one_message(proto: onnx.ModelProto) -> bool:
    """Whether protobuf could read the whole model at once."""
    return bool(proto.ByteSize() <= LARGEST)


def _proto(model: OnnxModel) -> onnx.ModelProto:
    imports = [onnx.helper.make_opsetid(domain, version) for domain, version in sorted(model.opsets.items())]
    proto = onnx.ModelProto(ir_version=model.ir_version or _ir_version(imports), producer_name=model.producer)
    proto.opset_import.extend(imports)
    for key, value in model.metadata.items():
        proto.metadata_props.add(key=key, value=value)
    return proto


def dim_names(graph: Graph) -> frozenset[str]:
    """The names of sizes that the inputs of a graph have; one that is called after its place is left open."""
    shapes = {value.name: value.type.shape or () for value in graph.inputs if isinstance(value.type, TensorType)}
    found = ((name, at, dims.as_symbol(size)) for name, shape in shapes.items() for at, size in enumerate(shape))
    return frozenset(each.name for name, at, each in found if each is not None and each.name != f"{name}.{at}")


def _ir_version(imports: Sequence[onnx.OperatorSetIdProto]) -> int:
    """The oldest that goes with these opsets, so that others' readers need not be the newest."""
    known = [
        entry for entry in imports if (entry.domain or "ai.onnx", entry.version) in onnx.helper.OP_SET_ID_VERSION_MAP
    ]
    return int(onnx.helper.find_min_ir_version_for(known))


def _infer_open_outputs(proto: onnx.ModelProto) -> None:
    """Complete the types of outputs of which weft knows no rank, if onnx can tell: a file should have it."""
    unknown = {value.name for value in proto.graph.output if not _is_complete(value.type)}
    if not unknown:
        return
    inferred = {value.name: value.type for value in onnx.shape_inference.infer_shapes(proto).graph.output}
    for value in proto.graph.output:
        if value.name in unknown:
            value.type.CopyFrom(inferred[value.name])
        if value.type.WhichOneof("value") is None:
            raise InvalidModelError(
                "the type of this output is known only at run time, but a file must declare it",
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
    least = least_inputs(node.domain, node.op, node.version)
    while len(inputs) > least and not inputs[-1]:
        inputs.pop()
    proto = onnx.NodeProto(op_type=node.op, domain=node.domain, name=node.name, input=inputs, output=node.outputs)
    for key, value in node.attributes.items():
        proto.attribute.append(
            _write_attribute(key, value, names) if not isinstance(value, tuple) or value else _empty_list(node, key)
        )
    return proto


def _empty_list(node: Node, name: str) -> onnx.AttributeProto:
    """A list without elements, whose type the schema tells; without one, it is of integers."""
    kind = onnx.AttributeProto.INTS
    if onnx.defs.has(node.op, node.version, node.domain):
        known = onnx.defs.get_schema(node.op, node.version, node.domain).attributes
        kind = (
            onnx.AttributeProto.AttributeType.Value(str(known[name].type).rpartition(".")[2]) if name in known else kind
        )
    return onnx.AttributeProto(name=name, type=kind)


def _write_attribute(name: str, value: Attribute, names: frozenset[str]) -> onnx.AttributeProto:
    match value:
        case Graph():
            holds_graph = onnx.AttributeProto(name=name, type=onnx.AttributeProto.GRAPH)
            _write_graph(holds_graph.g, value, names)
            return holds_graph
        case np.ndarray():
            holds_tensor = onnx.AttributeProto(name=name, type=onnx.AttributeProto.TENSOR)
            _write_tensor(holds_tensor.t, value, name)
            return holds_tensor
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
        proto.string_data.extend(encoded_strings(array))
    else:
        proto.raw_data = raw_bytes(array, dtype).tobytes()


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
