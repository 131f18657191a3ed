"""A model as far as its file can be read, for people to look at: nothing is refused that can be shown.

Functions are inlined as for a run, and nodes have the names that they have in the `Graph` of the same file, so that
what is known of a compiled model can be told of the nodes here. Where a part cannot be read, the rest is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial

import onnx

from weft.errors import InvalidModelError, WeftError
from weft.frontend.declarations import Symbols, read_type
from weft.frontend.inline import IsDefined, inline_functions
from weft.frontend.instantiate import is_alias
from weft.frontend.opsets import VERSION_KEY, canonical_domain
from weft.frontend.source import OpenedModel, blaming
from weft.frontend.storage import WeightStorage
from weft.frontend.tensors import ELEMENT_TYPES, read_sparse_tensor, read_tensor
from weft.frontend.wire import cut_weights
from weft.ir.arrays import Array
from weft.ir.types import Type
from weft.records import dataclass

MOST_ITEMS = 64  # of a list that an attribute holds
MOST_TEXT = 2000  # characters of a text that is shown
DEEPEST = 32  # graphs in graphs


@dataclass(frozen=True, slots=True, eq=False)
class StoredTensor:
    """A tensor of the file; `read` gives its elements, or raises a WeftError."""

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
    notes: Mapping[str, str]  # what exporters wrote down about it
    description: str

    @property
    def is_constant(self) -> bool:
        """Whether it gives what its only attribute holds."""
        return not self.inputs and not self.bodies and len(self.outputs) == 1 and len(self.attributes) == 1


@dataclass(frozen=True, slots=True, eq=False)
class OutlineGraph:
    name: str
    nodes: tuple[OutlineNode, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    weights: Mapping[str, StoredTensor]
    types: Mapping[str, Type]  # of the values that the file declares
    aliases: Mapping[str, str]  # values that are another one under a second name


@dataclass(frozen=True, slots=True, eq=False)
class Outline:
    graph: OutlineGraph
    opsets: Mapping[str, int]
    ir_version: int
    producer: str
    description: str
    properties: Mapping[str, str]
    problem: str | None  # what kept functions from being inlined


def outline(source: OpenedModel, is_defined: IsDefined) -> Outline:
    """What can be read of a model whose content is private already."""
    with blaming(source.file):
        content, extents = cut_weights(source.view)
        proto = onnx.ModelProto.FromString(content)
        if not proto.HasField("graph"):
            raise InvalidModelError("not an ONNX model: it has no graph", hint="the file is damaged or of another kind")
        problem = None
        opsets = {canonical_domain(text(entry.domain)): int(entry.version) for entry in proto.opset_import}
        try:
            inline_functions(proto, opsets, is_defined)
        except Exception as error:  # an error of weft's, or what onnx and protobuf raise on names that are no text
            problem = str(error) if isinstance(error, WeftError) else f"{type(error).__name__}: {error}"
            proto = onnx.ModelProto.FromString(content)
        reader = _Reader(WeightStorage(source, extents), opsets)
        return Outline(
            graph=reader.graph(proto.graph, 0),
            opsets={domain or "ai.onnx": version for domain, version in opsets.items()},
            ir_version=int(proto.ir_version),
            producer=f"{text(proto.producer_name)} {text(proto.producer_version)}".strip(),
            description=text(proto.doc_string)[:MOST_TEXT],
            properties={text(entry.key): text(entry.value)[:MOST_TEXT] for entry in proto.metadata_props},
            problem=problem,
        )


def text(content: str | bytes) -> str:
    """A name of a file; protobuf gives bytes where it is no UTF-8."""
    return content if isinstance(content, str) else content.decode("utf-8", "replace")


class _Reader:
    def __init__(self, storage: WeightStorage, opsets: Mapping[str, int]) -> None:
        self._storage = storage
        self._opsets = opsets
        self._symbols = Symbols()
        self._names: dict[str, int] = {}  # as Graph's nodes are named: each with the number to try next

    def graph(self, proto: onnx.GraphProto, depth: int) -> OutlineGraph:
        declared = [*proto.input, *proto.output, *proto.value_info]
        weights = {text(tensor.name): self._tensor(tensor) for tensor in proto.initializer}
        for sparse in proto.sparse_initializer:
            shape = tuple(map(int, sparse.dims))
            read = partial(read_sparse_tensor, self._storage, sparse)
            weights[text(sparse.values.name)] = StoredTensor(_dtype(sparse.values.data_type), shape, read)
        return OutlineGraph(
            name=text(proto.name),
            nodes=tuple(self._node(node, depth) for node in proto.node if not is_alias(node)),
            inputs=tuple(name for value in proto.input if (name := text(value.name)) not in weights),
            outputs=tuple(text(value.name) for value in proto.output),
            weights=weights,
            types={name: type for value in declared for name, type in self._type(value)},
            aliases={text(node.output[0]): text(node.input[0]) for node in proto.node if is_alias(node)},
        )

    def _type(self, value: onnx.ValueInfoProto) -> Iterator[tuple[str, Type]]:
        with suppress(Exception):  # what is wrong with a declaration is said where the model is read for a run
            found = read_type(self._symbols, value.type, text(value.name))
            if found is not None:
                yield text(value.name), found

    def _tensor(self, tensor: onnx.TensorProto) -> StoredTensor:
        shape = tuple(map(int, tensor.dims))
        return StoredTensor(_dtype(tensor.data_type), shape, partial(read_tensor, self._storage, tensor))

    def _node(self, proto: onnx.NodeProto, depth: int) -> OutlineNode:
        name = self._unique(proto)
        domain = canonical_domain(text(proto.domain))
        notes = {text(entry.key): text(entry.value)[:MOST_TEXT] for entry in proto.metadata_props}
        own = notes.pop(VERSION_KEY, None)
        bodies = [
            (text(attribute.name), self.graph(graph, depth + 1))
            for attribute in proto.attribute
            for graph in ([attribute.g] if attribute.HasField("g") else attribute.graphs)
            if depth < DEEPEST
        ]
        tensors = [
            (text(attribute.name), self._tensor(tensor))
            for attribute in proto.attribute
            for tensor in ([attribute.t] if attribute.HasField("t") else attribute.tensors)
        ]
        return OutlineNode(
            op=text(proto.op_type),
            domain=domain,
            version=int(own) if own else self._opsets.get(domain),
            name=name,
            inputs=tuple(map(text, proto.input)),
            outputs=tuple(map(text, proto.output)),
            attributes=tuple((text(attribute.name), _attribute_text(attribute)) for attribute in proto.attribute),
            bodies=tuple(bodies),
            tensors=tuple(tensors),
            notes=notes,
            description=text(proto.doc_string)[:MOST_TEXT],
        )

    def _unique(self, proto: onnx.NodeProto) -> str:
        base = text(proto.name) or f"{text(proto.op_type)}_{next(filter(None, map(text, proto.output)), '')}"
        name = base
        while name in self._names:
            name = f"{base}_{self._names[base]}"
            self._names[base] += 1
        self._names[name] = 1
        return name


def _dtype(number: int) -> str:
    return ELEMENT_TYPES[number].value if number in ELEMENT_TYPES else f"type {number}"


def _attribute_text(attribute: onnx.AttributeProto) -> str:
    """What an attribute holds, for people."""
    if attribute.ref_attr_name:
        return f"the attribute {text(attribute.ref_attr_name)} of the call"
    types = onnx.AttributeProto
    match attribute.type:
        case types.INT:
            return str(attribute.i)
        case types.FLOAT:
            return f"{attribute.f:g}"
        case types.STRING:
            return _shortened(attribute.s.decode("utf-8", "replace"))
        case types.TENSOR:
            return _tensor_text(attribute.t)
        case types.GRAPH:
            return f"a graph of {len(attribute.g.node)} nodes"
        case types.INTS:
            return _listed([str(item) for item in attribute.ints[:MOST_ITEMS]], len(attribute.ints))
        case types.FLOATS:
            return _listed([f"{item:g}" for item in attribute.floats[:MOST_ITEMS]], len(attribute.floats))
        case types.STRINGS:
            first = [item.decode("utf-8", "replace") for item in attribute.strings[:MOST_ITEMS]]
            return _listed(list(map(_shortened, first)), len(attribute.strings))
        case types.TENSORS:
            return _listed(list(map(_tensor_text, attribute.tensors[:MOST_ITEMS])), len(attribute.tensors))
        case types.GRAPHS:
            return f"{len(attribute.graphs)} graphs"
        case types.TYPE_PROTO:
            with suppress(Exception):
                return str(read_type(Symbols(), attribute.tp, ""))
    return f"a value of kind {attribute.type}"


def _tensor_text(tensor: onnx.TensorProto) -> str:
    return f"{_dtype(tensor.data_type)}[{', '.join(map(str, tensor.dims))}]"


def _listed(items: Sequence[str], count: int) -> str:
    more = f", … {count - len(items)} more" if count > len(items) else ""
    return f"[{', '.join(items)}{more}]"


def _shortened(content: str) -> str:
    return content if len(content) <= MOST_TEXT else f"{content[:MOST_TEXT]}…"
