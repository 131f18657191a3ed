"""Convert a GraphProto to a Graph: resolve names, sort nodes, read attributes and tensors.

Functions have been inlined before. A name in a subgraph that shadows one of an enclosing graph is replaced, so that in
the result a name has one meaning wherever it is visible.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import field, replace
from functools import partial
from itertools import chain, count
from typing import Any

import numpy as np
import onnx

from weft.errors import InvalidModelError, WeftError
from weft.frontend.attributes import read_attribute
from weft.frontend.declarations import Symbols, read_type, reserve_dim_names
from weft.frontend.instantiate import FreshNames, is_alias, node_label
from weft.frontend.opsets import canonical_domain, node_version
from weft.frontend.order import sort_nodes
from weft.frontend.storage import WeightStorage
from weft.frontend.tensors import read_sparse_tensor, read_tensor
from weft.ir.graph import Attribute, Graph, GraphValue, Node
from weft.logs import LOADING
from weft.records import dataclass

KnownAttributes = Callable[[str, str, int], "frozenset[str] | None"]
"""(domain, op, version) -> the attributes of an operator that ignores unknown ones; None if it rejects them."""


@dataclass(frozen=True, slots=True)
class Context:
    """What all graphs of one model share while they are read."""

    storage: WeightStorage
    imports: Mapping[str, int]
    known_attributes: KnownAttributes
    symbols: Symbols = field(default_factory=Symbols)
    node_names: FreshNames = field(default_factory=lambda: FreshNames(separator="_"))
    free_names: dict[Graph, frozenset[str]] = field(default_factory=dict)  # values that a subgraph captures


@dataclass(frozen=True, slots=True)
class Scope:
    """The names that a graph of the file defines, each with its name in the result."""

    names: dict[str, str]
    result_names: set[str]
    parent: Scope | None

    def find(self, name: str) -> str | None:
        """Return the name in the result of a value that is visible here, or None."""
        scope: Scope | None = self
        while scope is not None:
            if name in scope.names:
                return scope.names[name]
            scope = scope.parent
        return None

    def is_visible(self, name: str) -> bool:
        """Whether the result has a value called `name` in this graph or an enclosing one."""
        scope: Scope | None = self
        while scope is not None:
            if name in scope.result_names:
                return True
            scope = scope.parent
        return False


def read_main_graph(context: Context, proto: onnx.GraphProto) -> Graph:
    """Read the model's graph; its inputs must have types, and its outputs keep their names."""
    graph = read_graph(context, None, proto)
    for value in graph.inputs:
        if value.type is None:
            raise InvalidModelError("the input has no declared type", value=value.name)
    outputs = (
        value if declared.name == value.name else replace(value, name=declared.name, shows=value.name)
        for declared, value in zip(proto.output, graph.outputs, strict=True)
    )
    return replace(graph, outputs=tuple(outputs))


def read_graph(context: Context, parent: Scope | None, proto: onnx.GraphProto) -> Graph:
    """Read a graph and its subgraphs; `parent` is the scope that encloses it."""
    reserve_dim_names(context.symbols, proto)
    scope = _define_names(proto, parent)
    initializers = _read_initializers(context, scope, proto)
    inputs = [_read_value(context, scope, value) for value in proto.input]
    nodes: list[Node] = []
    uses: list[frozenset[str]] = []
    for node_proto in proto.node:
        if is_alias(node_proto):
            continue
        node = _read_node(context, scope, node_proto)
        nodes.append(node)
        captured = (context.free_names[inner] for value in node.attributes.values() for inner in _graphs_in(value))
        uses.append(frozenset(chain(filter(None, node.inputs), *captured)))
    outputs = tuple(_read_output(context, scope, value) for value in proto.output)
    graph = Graph(
        name=proto.name,
        nodes=tuple(sort_nodes(nodes, uses)),
        inputs=tuple(value for value in inputs if value.name not in initializers),
        outputs=outputs,
        initializers=initializers,
        defaults=tuple(value for value in inputs if value.name in initializers),
        aliases={node.output[0]: scope.names[node.output[0]] for node in proto.node if is_alias(node)},
    )
    used = frozenset(chain((value.name for value in outputs), *uses))
    context.free_names[graph] = used.difference(scope.names.values())
    return graph


def _define_names(proto: onnx.GraphProto, parent: Scope | None) -> Scope:
    """Create the scope of a graph: the names that its inputs, initializers and nodes define, each only once."""
    names: dict[str, str] = {}

    def define(name: str, by: str) -> None:
        if not name:
            raise InvalidModelError(f"{by} of graph {proto.name!r} has no name")
        if name in names:
            raise InvalidModelError(f"{name!r} is defined more than once, the last time by {by}", value=name)
        names[name] = name

    for value in proto.input:
        define(value.name, "a graph input")
    inputs = set(names)
    for name in _initializer_names(proto):
        if name in inputs:
            inputs.remove(name)  # the initializer is this input's default
        else:
            define(name, "an initializer")
    for node in proto.node:
        for name in filter(None, node.output):
            define(name, f"node {node_label(node)}")
    if parent is not None:
        _rename_shadows(names, parent)
    scope = Scope(names, set(names.values()), parent)
    _resolve_aliases(scope, proto)
    return scope


def _rename_shadows(names: dict[str, str], parent: Scope) -> None:
    fresh_names = set(names)
    for name in names:
        if parent.is_visible(name):
            candidates = (f"{name}.{number}" for number in count(1))
            fresh = next(each for each in candidates if each not in fresh_names and not parent.is_visible(each))
            fresh_names.add(fresh)
            names[name] = fresh


def _resolve_aliases(scope: Scope, proto: onnx.GraphProto) -> None:
    """Map names that are aliases of another value to that value."""
    aliases = {node.output[0]: node.input[0] for node in proto.node if is_alias(node)}
    for alias in aliases:
        source, steps = aliases[alias], 0
        while source in aliases and steps <= len(aliases):
            source, steps = aliases[source], steps + 1
        if source in aliases:
            raise InvalidModelError(f"{alias!r} is defined by itself", value=alias)
        scope.result_names.discard(scope.names[alias])
        scope.names[alias] = _resolve(scope, source)


def _initializer_names(proto: onnx.GraphProto) -> Iterator[str]:
    yield from (tensor.name for tensor in proto.initializer)
    yield from (sparse.values.name for sparse in proto.sparse_initializer)


def _read_initializers(context: Context, scope: Scope, proto: onnx.GraphProto) -> dict[str, np.ndarray[Any, Any]]:
    arrays = {scope.names[tensor.name]: read_tensor(context.storage, tensor) for tensor in proto.initializer}
    for sparse in proto.sparse_initializer:
        arrays[scope.names[sparse.values.name]] = read_sparse_tensor(context.storage, sparse)
    return arrays


def _read_value(context: Context, scope: Scope, value: onnx.ValueInfoProto) -> GraphValue:
    try:
        return GraphValue(scope.names[value.name], read_type(context.symbols, value.type, value.name))
    except WeftError as error:
        raise error.at(value=value.name) from error.__cause__


def _read_output(context: Context, scope: Scope, value: onnx.ValueInfoProto) -> GraphValue:
    name = scope.find(value.name)
    if name is None:
        raise InvalidModelError(f"the graph output {value.name!r} is not defined anywhere", value=value.name)
    try:
        return GraphValue(name, read_type(context.symbols, value.type, value.name))
    except WeftError as error:
        raise error.at(value=value.name) from error.__cause__


def _read_node(context: Context, scope: Scope, proto: onnx.NodeProto) -> Node:
    name = context.node_names.make(node_label(proto))
    try:
        if not proto.op_type:
            raise InvalidModelError("the node names no operator")
        domain = canonical_domain(proto.domain)
        version = node_version(proto, context.imports)
        attribute_names = context.known_attributes(domain, proto.op_type, version)
        return Node(
            op=proto.op_type,
            domain=domain,
            version=version,
            name=name,
            inputs=tuple(_resolve(scope, value) for value in proto.input),
            outputs=tuple(scope.names[value] if value else "" for value in proto.output),
            attributes=_read_attributes(context, scope, proto, attribute_names),
        )
    except WeftError as error:
        raise error.at(node=name) from error.__cause__


def _resolve(scope: Scope, name: str) -> str:
    if not name:
        return ""
    result_name = scope.find(name)
    if result_name is None:
        raise InvalidModelError(
            f"its input {name!r} is neither a graph input, nor an initializer, nor the output of any node", value=name
        )
    return result_name


def _read_attributes(
    context: Context, scope: Scope, proto: onnx.NodeProto, known_names: frozenset[str] | None
) -> dict[str, Attribute]:
    attributes: dict[str, Attribute] = {}
    for attribute in proto.attribute:
        if known_names is not None and attribute.name not in known_names:
            names = ", ".join(sorted(known_names))
            file = context.storage.source.file
            LOADING.warning("%s: %s ignores its attribute %s; it has %s", file, proto.op_type, attribute.name, names)
            continue
        if not attribute.name or attribute.name in attributes:
            raise InvalidModelError(f"the attribute name {attribute.name!r} is empty or used twice")
        attributes[attribute.name] = read_attribute(
            attribute, context.storage, context.symbols, partial(read_graph, context, scope)
        )
    return attributes


def _graphs_in(value: Attribute) -> tuple[Graph, ...]:
    if isinstance(value, Graph):
        return (value,)
    return tuple(inner for inner in value if isinstance(inner, Graph)) if isinstance(value, tuple) else ()
