"""Convert TypeProtos to Types.

A named dim becomes the symbol of that name; an unnamed dynamic dim becomes a fresh symbol named after the value and the
position. Negative sizes, which old exporters write, count as dynamic; 0 is taken literally, as in onnxruntime.
"""

from __future__ import annotations

import re
from dataclasses import field

import onnx

from weft.errors import InvalidModelError, UnsupportedModelError
from weft.frontend.tensors import element_type
from weft.ir.dims import Dim, symbol
from weft.ir.dtypes import DType
from weft.ir.types import MapType, OptionalType, SequenceType, TensorType, Type
from weft.records import dataclass

ANONYMOUS_DIM = re.compile(r"[\W\d]*|None|unknown", re.IGNORECASE)
"""Dim names such as "?" and "-1", which exporters give to unrelated dims."""


@dataclass(frozen=True, slots=True)
class Symbols:
    """The dim names in use."""

    names: set[str] = field(default_factory=set)


def reserve_dim_names(symbols: Symbols, graph: onnx.GraphProto) -> None:
    """Reserve the dim names that a graph's inputs and outputs declare."""
    for value in (*graph.input, *graph.output):
        symbols.names.update(dim.dim_param for dim in value.type.tensor_type.shape.dim if dim.dim_param)


def read_type(symbols: Symbols, proto: onnx.TypeProto, name: str) -> Type | None:
    """Return the declared type of the value `name`, or None if the declaration does not specify it."""
    match proto.WhichOneof("value"):
        case None:
            return None
        case "tensor_type":
            return _read_tensor_type(symbols, proto.tensor_type, name)
        case "sequence_type":
            element = read_type(symbols, proto.sequence_type.elem_type, name)
            return None if element is None else SequenceType(element)
        case "optional_type":
            element = read_type(symbols, proto.optional_type.elem_type, name)
            return None if element is None else OptionalType(element)
        case "map_type":
            return _read_map_type(symbols, proto.map_type, name)
        case kind:
            raise UnsupportedModelError(f"values of {kind} are not supported", value=name)


def _read_tensor_type(symbols: Symbols, proto: onnx.TypeProto.Tensor, name: str) -> Type | None:
    if proto.elem_type == onnx.TensorProto.UNDEFINED:
        return None
    dtype = element_type(proto.elem_type)
    if not proto.HasField("shape"):
        return TensorType(dtype, None)
    return TensorType(dtype, tuple(_read_dim(symbols, dim, name, at) for at, dim in enumerate(proto.shape.dim)))


def _read_map_type(symbols: Symbols, proto: onnx.TypeProto.Map, name: str) -> Type | None:
    key = element_type(proto.key_type)
    if not (key.is_integer or key is DType.string):
        raise InvalidModelError(f"a map cannot have keys of type {key}", value=name)
    value = read_type(symbols, proto.value_type, name)
    if isinstance(value, TensorType) and value.shape and all(dim == 1 for dim in value.shape):
        value = TensorType(value.dtype, None)  # converters declare plain numbers and strings like this
    return None if value is None else MapType(key, value)


def _read_dim(symbols: Symbols, dim: onnx.TensorShapeProto.Dimension, name: str, position: int) -> Dim:
    if dim.HasField("dim_value") and dim.dim_value >= 0:
        return int(dim.dim_value)
    if dim.dim_param and not ANONYMOUS_DIM.fullmatch(dim.dim_param):
        return symbol(dim.dim_param)
    base = f"{re.sub(r'[^0-9A-Za-z_.]', '_', name)}.{position}"
    fresh, count = base, 1
    while fresh in symbols.names:
        fresh, count = f"{base}.{count}", count + 1
    symbols.names.add(fresh)
    return symbol(fresh)
