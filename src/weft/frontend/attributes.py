"""Convert AttributeProtos to plain values."""

from __future__ import annotations

from collections.abc import Callable

import onnx

from weft.errors import InvalidModelError, UnsupportedModelError
from weft.frontend.declarations import Symbols, read_type
from weft.frontend.storage import WeightStorage
from weft.frontend.tensors import decode_text, read_sparse_tensor, read_tensor
from weft.ir.graph import Attribute, Graph

FIELDS = {
    onnx.AttributeProto.FLOAT: "f",
    onnx.AttributeProto.INT: "i",
    onnx.AttributeProto.STRING: "s",
    onnx.AttributeProto.TENSOR: "t",
    onnx.AttributeProto.GRAPH: "g",
    onnx.AttributeProto.SPARSE_TENSOR: "sparse_tensor",
    onnx.AttributeProto.TYPE_PROTO: "tp",
    onnx.AttributeProto.FLOATS: "floats",
    onnx.AttributeProto.INTS: "ints",
    onnx.AttributeProto.STRINGS: "strings",
    onnx.AttributeProto.TENSORS: "tensors",
    onnx.AttributeProto.GRAPHS: "graphs",
    onnx.AttributeProto.SPARSE_TENSORS: "sparse_tensors",
    onnx.AttributeProto.TYPE_PROTOS: "type_protos",
}
"""The field that holds an attribute of each type."""

MESSAGES = frozenset(("t", "g", "sparse_tensor", "tp"))


def read_attribute(
    proto: onnx.AttributeProto, storage: WeightStorage, symbols: Symbols, read_graph: Callable[[onnx.GraphProto], Graph]
) -> Attribute:
    """Return the value of an attribute; `read_graph` reads the graphs inside it."""
    if proto.ref_attr_name:
        raise InvalidModelError(
            f"attribute {proto.name} refers to {proto.ref_attr_name}, an attribute of a function, outside of one"
        )
    match value_field(proto):
        case "f":
            return float(proto.f)
        case "i":
            return int(proto.i)
        case "s":
            return decode_text(proto.s)
        case "t":
            return read_tensor(storage, proto.t, proto.t.name or f"attribute {proto.name}")
        case "g":
            return read_graph(proto.g)
        case "sparse_tensor":
            return read_sparse_tensor(storage, proto.sparse_tensor)
        case "tp":
            type_value = read_type(symbols, proto.tp, proto.name)
            if type_value is None:
                raise InvalidModelError(f"attribute {proto.name} holds an empty type")
            return type_value
        case "floats":
            return tuple(proto.floats)
        case "ints":
            return tuple(proto.ints)
        case "strings":
            return tuple(map(decode_text, proto.strings))
        case "tensors":
            return tuple(read_tensor(storage, tensor, f"attribute {proto.name}") for tensor in proto.tensors)
        case "graphs":
            return tuple(map(read_graph, proto.graphs))
        case "sparse_tensors":
            return tuple(read_sparse_tensor(storage, sparse) for sparse in proto.sparse_tensors)
        case field:
            raise UnsupportedModelError(f"attribute {proto.name} holds {field}, which weft does not support")


def value_field(proto: onnx.AttributeProto) -> str:
    """Return the name of the field with the attribute's value: the only one that is set, and of the declared type.

    proto3 writers omit scalars that are zero. Before IR version 2, attributes had no declared type.
    """
    present: set[str] = {descriptor.name for descriptor, _ in proto.ListFields()} & set(FIELDS.values())
    if proto.type == onnx.AttributeProto.UNDEFINED:
        if len(present) != 1:
            raise InvalidModelError(f"attribute {proto.name} has no type and {len(present)} values")
        return present.pop()
    field = FIELDS.get(proto.type)
    if field is None:
        raise UnsupportedModelError(f"attribute {proto.name} has the unknown type number {proto.type}")
    if present - {field} or (field in MESSAGES and not present):
        kind = onnx.AttributeProto.AttributeType.Name(proto.type)
        content = ", ".join(sorted(present)) or "nothing"
        raise InvalidModelError(f"attribute {proto.name} is declared as {kind} but holds {content}")
    return field
