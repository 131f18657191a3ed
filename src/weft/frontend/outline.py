"""Read a model for display, leniently: parts of a file that cannot be read are skipped.

Functions are inlined as for a run, and nodes are named as in the `Graph` of the same file, so that facts about the
compiled model can be shown at the nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial

import onnx

from weft.errors import InvalidModelError, WeftError
from weft.frontend.declarations import Symbols, read_type
from weft.frontend.inline import IsDefined, inline_functions
from weft.frontend.instantiate import FreshNames, is_alias
from weft.frontend.opsets import VERSION_KEY, canonical_domain
from weft.frontend.source import OpenedModel, name_file_in_errors
from weft.frontend.storage import WeightStorage
from weft.frontend.tensors import ELEMENT_TYPES, read_sparse_tensor, read_tensor
from weft.frontend.wire import strip_weights
from weft.ir.arrays import Array
from weft.ir.types import Type
from weft.records import dataclass

MAX_ITEMS = 64  # of a list attribute
MAX_TEXT = 2000  # characters of a text
MAX_DEPTH = 32  # of nested graphs


@dataclass(frozen=True, slots=True, eq=False)
class StoredTensor:
    """A tensor of the file; `read` returns its elements, or raises a WeftError."""

    dtype: str
    shape: tuple[int, ...]
    read: Callable[[], Array]


@dataclass(frozen=True, slots=True, eq=False)
class OutlineNode:
    op: str
    domain: str
    version: int | None
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: tuple[tuple[str, str], ...]
    bodies: tuple[tuple[str, OutlineGraph], ...]
    tensors: tuple[tuple[str, StoredTensor], ...]
    notes: Mapping[str, str]  # metadata from the exporter
    description: str

    @property
    def is_constant(self) -> bool:
        """Whether the node's output is the value of its only attribute."""
        return not self.inputs and not self.bodies and len(self.outputs) == 1 and len(self.attributes) == 1


@dataclass(frozen=True, slots=True, eq=False)
class OutlineGraph:
    name: str
    nodes: tuple[OutlineNode, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    weights: Mapping[str, StoredTensor]
    types: Mapping[str, Type]  # of declared values
    aliases: Mapping[str, str]  # second name of a value -> its first name


@dataclass(frozen=True, slots=True, eq=False)
class Outline:
    graph: OutlineGraph
    opsets: Mapping[str, int]
    ir_version: int
    producer: str
    description: str
    properties: Mapping[str, str]
    problem: str | None  # why functions could not be inlined


def read_outline(source: OpenedModel, is_defined: IsDefined) -> Outline:
    """Read all that can be read of a model, whose content must be a private copy."""
    with name_file_in_errors(source.file):
        content, extents = strip_weights(source.view)
        proto = onnx.ModelProto.FromString(content)
        if not proto.HasField("graph"):
            raise InvalidModelError(
                "not an ONNX model: it has no graph", hint="the file is damaged or has another format"
            )
        problem = None
        opsets = {canonical_domain(to_text(entry.domain)): int(entry.version) for entry in proto.opset_import}
        try:
            inline_functions(proto, opsets, is_defined)
        except Exception as error:  # a WeftError, or errors of onnx and protobuf about names that are not UTF-8
            problem = str(error) if isinstance(error, WeftError) else f"{type(error).__name__}: {error}"
            proto = onnx.ModelProto.FromString(content)
        reader = _Reader(WeightStorage(source, extents), opsets)
        return Outline(
            graph=reader.read_graph(proto.graph, 0),
            opsets={domain or "ai.onnx": version for domain, version in opsets.items()},
            ir_version=int(proto.ir_version),
            producer=f"{to_text(proto.producer_name)} {to_text(proto.producer_version)}".strip(),
            description=to_text(proto.doc_string)[:MAX_TEXT],
            properties={to_text(entry.key): to_text(entry.value)[:MAX_TEXT] for entry in proto.metadata_props},
            problem=problem,
        )


def to_text(content: str | bytes) -> str:
    """Decode a name, which protobuf returns as bytes if it is not UTF-8."""
    return content if isinstance(content, str) else content.decode("utf-8", "replace")


class _Reader:
    def __init__(self, storage: WeightStorage, opsets: Mapping[str, int]) -> None:
        self._storage = storage
        self._opsets = opsets
        self._symbols = Symbols()
        self._node_names = FreshNames(separator="_")

    def read_graph(self, proto: onnx.GraphProto, depth: int) -> OutlineGraph:
        declared = [*proto.input, *proto.output, *proto.value_info]
        weights = {to_text(tensor.name): self._read_tensor(tensor) for tensor in proto.initializer}
        for sparse in proto.sparse_initializer:
            shape = tuple(map(int, sparse.dims))
            read = partial(read_sparse_tensor, self._storage, sparse)
            weights[to_text(sparse.values.name)] = StoredTensor(_dtype_name(sparse.values.data_type), shape, read)
        return OutlineGraph(
            name=to_text(proto.name),
            nodes=tuple(self._read_node(node, depth) for node in proto.node if not is_alias(node)),
            inputs=tuple(name for value in proto.input if (name := to_text(value.name)) not in weights),
            outputs=tuple(to_text(value.name) for value in proto.output),
            weights=weights,
            types={name: type for value in declared for name, type in self._read_type(value)},
            aliases={to_text(node.output[0]): to_text(node.input[0]) for node in proto.node if is_alias(node)},
        )

    def _read_type(self, value: onnx.ValueInfoProto) -> Iterator[tuple[str, Type]]:
        with suppress(Exception):  # a load reports invalid declarations
            declared_type = read_type(self._symbols, value.type, to_text(value.name))
            if declared_type is not None:
                yield to_text(value.name), declared_type

    def _read_tensor(self, tensor: onnx.TensorProto) -> StoredTensor:
        shape = tuple(map(int, tensor.dims))
        return StoredTensor(_dtype_name(tensor.data_type), shape, partial(read_tensor, self._storage, tensor))

    def _read_node(self, proto: onnx.NodeProto, depth: int) -> OutlineNode:
        label = to_text(proto.name) or f"{to_text(proto.op_type)}_{next(filter(None, map(to_text, proto.output)), '')}"
        name = self._node_names.make(label)  # before those of its subgraphs
        domain = canonical_domain(to_text(proto.domain))
        notes = {to_text(entry.key): to_text(entry.value)[:MAX_TEXT] for entry in proto.metadata_props}
        version = notes.pop(VERSION_KEY, None)
        bodies = [
            (to_text(attribute.name), self.read_graph(graph, depth + 1))
            for attribute in proto.attribute
            for graph in ([attribute.g] if attribute.HasField("g") else attribute.graphs)
            if depth < MAX_DEPTH
        ]
        tensors = [
            (to_text(attribute.name), self._read_tensor(tensor))
            for attribute in proto.attribute
            for tensor in ([attribute.t] if attribute.HasField("t") else attribute.tensors)
        ]
        return OutlineNode(
            op=to_text(proto.op_type),
            domain=domain,
            version=int(version) if version else self._opsets.get(domain),
            name=name,
            inputs=tuple(map(to_text, proto.input)),
            outputs=tuple(map(to_text, proto.output)),
            attributes=tuple((to_text(attribute.name), _format_attribute(attribute)) for attribute in proto.attribute),
            bodies=tuple(bodies),
            tensors=tuple(tensors),
            notes=notes,
            description=to_text(proto.doc_string)[:MAX_TEXT],
        )


def _dtype_name(number: int) -> str:
    return ELEMENT_TYPES[number].value if number in ELEMENT_TYPES else f"type {number}"


def _format_attribute(attribute: onnx.AttributeProto) -> str:
    """Format the value of an attribute for display."""
    if attribute.ref_attr_name:
        return f"the attribute {to_text(attribute.ref_attr_name)} of the call"
    types = onnx.AttributeProto
    match attribute.type:
        case types.INT:
            return str(attribute.i)
        case types.FLOAT:
            return f"{attribute.f:g}"
        case types.STRING:
            return _truncate(attribute.s.decode("utf-8", "replace"))
        case types.TENSOR:
            return _format_tensor(attribute.t)
        case types.GRAPH:
            return f"a graph of {len(attribute.g.node)} nodes"
        case types.INTS:
            return _format_list([str(item) for item in attribute.ints[:MAX_ITEMS]], len(attribute.ints))
        case types.FLOATS:
            return _format_list([f"{item:g}" for item in attribute.floats[:MAX_ITEMS]], len(attribute.floats))
        case types.STRINGS:
            first = [item.decode("utf-8", "replace") for item in attribute.strings[:MAX_ITEMS]]
            return _format_list(list(map(_truncate, first)), len(attribute.strings))
        case types.TENSORS:
            return _format_list(list(map(_format_tensor, attribute.tensors[:MAX_ITEMS])), len(attribute.tensors))
        case types.GRAPHS:
            return f"{len(attribute.graphs)} graphs"
        case types.TYPE_PROTO:
            with suppress(Exception):
                return str(read_type(Symbols(), attribute.tp, ""))
    return f"a value of kind {attribute.type}"


def _format_tensor(tensor: onnx.TensorProto) -> str:
    return f"{_dtype_name(tensor.data_type)}[{', '.join(map(str, tensor.dims))}]"


def _format_list(items: Sequence[str], count: int) -> str:
    more = f", … {count - len(items)} more" if count > len(items) else ""
    return f"[{', '.join(items)}{more}]"


def _truncate(content: str) -> str:
    return content if len(content) <= MAX_TEXT else f"{content[:MAX_TEXT]}…"
