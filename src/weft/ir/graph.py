"""The ONNX graph of a model file: nodes are ONNX ops, values have names and declared types.

The frontend guarantees: nodes are in topological order, every name is defined exactly once before its use (in
this graph or an enclosing one), initializers match their declared dtype and dims, and weights are views of a private
copy of the file wherever their encoding allows it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace
from typing import Union

import numpy as np

from weft.errors import InputError, short_repr
from weft.ir.arrays import Array
from weft.ir.metadata import Metadata
from weft.ir.types import Type
from weft.quantities import format_plural, shorten
from weft.records import dataclass

Attribute = Union[
    int,
    float,
    str,
    Array,
    "Graph",
    Type,
    tuple[int, ...],
    tuple[float, ...],
    tuple[str, ...],
    tuple[Array, ...],
    "tuple[Graph, ...]",
]


@dataclass(frozen=True, slots=True)
class Node:
    """One ONNX op applied to named values. An empty name stands for an absent optional input or output."""

    op: str
    domain: str  # "" is ai.onnx
    version: int  # the opset version that the model imports for `domain`
    name: str  # unique within the model; derived from the op and first output if the file has none
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Attribute]

    def __str__(self) -> str:
        qualified = f"{self.domain}.{self.op}" if self.domain else self.op
        return f"{', '.join(self.outputs)} = {qualified}({', '.join(self.inputs)})"


@dataclass(frozen=True, slots=True)
class GraphValue:
    """A graph input or output as declared; `type` is None where a subgraph leaves it open."""

    name: str
    type: Type | None
    shows: str = ""  # for an output: the name of its value, if that differs


@dataclass(frozen=True, slots=True, eq=False)
class Graph:
    name: str
    nodes: tuple[Node, ...]
    inputs: tuple[GraphValue, ...]  # without those that have an initializer as default
    outputs: tuple[GraphValue, ...]
    initializers: Mapping[str, Array]
    defaults: tuple[GraphValue, ...] = field(default=())  # inputs that have an initializer and may be overridden
    aliases: Mapping[str, str] = field(default_factory=dict)  # names in the file of values that are renamed here

    def __repr__(self) -> str:
        inside = f"{format_plural(len(self.nodes), 'node')}, {format_plural(len(self.initializers), 'initializer')}"
        return f"<graph {shorten(self.name)!r}: {inside}>"


@dataclass(frozen=True, slots=True, eq=False)
class OnnxModel:
    """A model file: the main graph and what `weft info` shows."""

    graph: Graph
    opsets: Mapping[str, int]
    ir_version: int
    producer: str
    file: str  # for messages: the path, or "<bytes>"
    metadata: Mapping[str, str]
    external: Mapping[str, memoryview] = field(default_factory=dict)  # files beside it that hold weights, by location
    weights: tuple[str, ...] = ()  # names in `weight_arrays` that come from the file, not from a function
    about: Metadata = field(default_factory=Metadata)

    def __repr__(self) -> str:
        return f"<ONNX model {shorten(self.file)}: {self.graph!r}>"


def with_constant_inputs(graph: Graph, constants: Mapping[str, Array]) -> Graph:
    """Replace inputs by constants, in the dtype of each input."""
    arrays: dict[str, Array] = {}
    for value in graph.inputs:
        if value.name in constants:
            dtype = None if value.type is None else value.type.dtype
            arrays[value.name] = constants[value.name].astype(dtype.numpy if dtype is not None else None)
    inputs = tuple(value for value in graph.inputs if value.name not in arrays)
    return replace(graph, inputs=inputs, initializers={**graph.initializers, **arrays})


def weight_arrays(graph: Graph, prefix: str = "") -> dict[str, Array]:
    """Return the arrays of initializers and constant nodes by name.

    Names in a subgraph start with its `inside_prefix`; on a clash, the name of an outer graph wins.
    """
    constants = ((node.outputs[0], content) for node in graph.nodes if (content := _constant_of(node)) is not None)
    arrays = {prefix + name: array for name, array in (*graph.initializers.items(), *constants)}
    for node in graph.nodes:
        for attribute, inner in node.attributes.items():
            if isinstance(inner, Graph):
                for name, array in weight_arrays(inner, prefix + inside_prefix(node.outputs, attribute)).items():
                    arrays.setdefault(name, array)
    return arrays


def inside_prefix(outputs: Sequence[str], attribute: str) -> str:
    """Return the prefix of weight names in a subgraph: the node's first output and the attribute."""
    return f"{next(filter(None, outputs), '')}/{attribute}/"


def with_weights(graph: Graph, changed: Mapping[str, Array], prefix: str = "") -> Graph:
    """Replace some weights, by their names in `weight_arrays`."""
    if not any(name.startswith(prefix) for name in changed):
        return graph
    initializers = {name: changed.get(prefix + name, array) for name, array in graph.initializers.items()}
    local_names = {
        prefix + name for name in (*graph.initializers, *(name for node in graph.nodes for name in node.outputs))
    }
    inside = {name: array for name, array in changed.items() if name not in local_names}

    def replace_in_node(node: Node) -> Node:
        if _constant_of(node) is not None:
            array = changed.get(prefix + node.outputs[0])
            return node if array is None else replace(node, attributes=dict.fromkeys(node.attributes, array))
        attributes = {
            name: with_weights(inner, inside, prefix + inside_prefix(node.outputs, name))
            if isinstance(inner, Graph)
            else inner
            for name, inner in node.attributes.items()
        }
        same = all(inner is node.attributes[name] for name, inner in attributes.items())
        return node if same else replace(node, attributes=attributes)

    return replace(graph, initializers=initializers, nodes=tuple(map(replace_in_node, graph.nodes)))


def _constant_of(node: Node) -> Array | None:
    """Return the tensor of a constant node."""
    if node.domain or node.inputs or len(node.outputs) != 1 or len(node.attributes) != 1:
        return None
    (content,) = node.attributes.values()
    return content if isinstance(content, np.ndarray) else None


def subgraphs(node: Node) -> Iterator[Graph]:
    """Yield the graphs among a node's attributes."""
    for attribute in node.attributes.values():
        if isinstance(attribute, Graph):
            yield attribute
        elif (
            isinstance(attribute, tuple) and attribute and isinstance(attribute[0], Graph)
        ):  # a tuple has one element type
            yield from (inner for inner in attribute if isinstance(inner, Graph))


def ops_by_node(graph: Graph) -> dict[str, str]:
    """Return the op of every named node, including those of subgraphs."""
    ops = {node.name: node.op for node in graph.nodes if node.name}
    for node in graph.nodes:
        for inner in subgraphs(node):
            ops.update(ops_by_node(inner))
    return ops


def free_names(graph: Graph) -> set[str]:
    """Return the names that a graph uses but does not define."""
    used = {value.shows or value.name for value in graph.outputs}
    local_names = {value.name for value in graph.inputs} | set(graph.initializers)
    for node in graph.nodes:
        used.update(node.inputs)
        local_names.update(node.outputs)
        for inner in subgraphs(node):
            used |= free_names(inner)
    return used - local_names


def needed_names(node: Node) -> set[str]:
    """Return the names that a node may read: its inputs, the captures of its subgraphs, and its string attributes."""
    texts = [content for content in node.attributes.values() if isinstance(content, str)]
    lists = (content for content in node.attributes.values() if isinstance(content, tuple))
    lists = (content for content in lists if content and isinstance(content[0], str))  # a tuple has one element type
    named = {*texts, *(part for content in lists for part in content if isinstance(part, str))}
    return {*node.inputs, *named, *(name for inner in subgraphs(node) for name in free_names(inner))} - {""}


def with_outputs(graph: Graph, names: Sequence[str]) -> Graph:
    """Cut a graph down to the nodes and weights that the named values need, with these as outputs.

    A name may be that of an output, input, initializer or node output, as in the file, but not of a value inside a
    control flow body. The inputs stay.
    """
    outputs = find_outputs(graph, names)
    needed = {value.shows or value.name for value in outputs}
    nodes: list[Node] = []
    for node in reversed(graph.nodes):
        if needed.intersection(node.outputs):
            nodes.append(node)
            needed |= needed_names(node)
    defaults = {value.name for value in graph.defaults}
    initializers = {name: array for name, array in graph.initializers.items() if name in needed or name in defaults}
    return replace(graph, nodes=tuple(reversed(nodes)), outputs=outputs, initializers=initializers)


def find_outputs(graph: Graph, names: Sequence[str]) -> tuple[GraphValue, ...]:
    """Find values of a graph by name, as outputs; raise InputError for an unknown name."""
    values = _values(graph)
    unknown = [name for name in names if not isinstance(name, str) or name not in values]
    if unknown:
        raise _no_such_value(graph, unknown[0], values)
    return tuple(values[name] for name in names)


def value_names(graph: Graph) -> set[str]:
    """Return the names of all values of a graph, without those in control flow bodies."""
    return set(_values(graph))


def _values(graph: Graph) -> dict[str, GraphValue]:
    """Return all values of a graph by name, as outputs."""
    computed = (name for node in graph.nodes for name in node.outputs if name)
    return {
        **{name: GraphValue(name, None) for name in (*computed, *graph.initializers)},
        **{name: GraphValue(name, None, shows) for name, shows in graph.aliases.items()},
        **{value.name: value for value in (*graph.inputs, *graph.defaults, *graph.outputs)},
    }


def _no_such_value(graph: Graph, name: object, values: Mapping[str, GraphValue]) -> InputError:
    for node in graph.nodes:
        if any(name in _names_inside(inner) for inner in subgraphs(node)):
            problem = f"{short_repr(name)} is a value inside a body of {node.op}, and exists only while that runs"
            outer = ", ".join(filter(None, node.outputs))
            return InputError(problem, node=node.name, hint=f"use an output of the node instead: {outer}")
    from difflib import get_close_matches

    close = get_close_matches(name, values, 3) if isinstance(name, str) else []
    outputs = ", ".join(value.name for value in graph.outputs)
    hint = f"did you mean {' or '.join(close)}?" if close else f"its outputs are {outputs}"
    return InputError(f"the model has no output {short_repr(name)}, and no inner value of that name", hint=hint)


def _names_inside(graph: Graph) -> set[str]:
    """Return the names that a subgraph and its own subgraphs define."""
    names = {value.name for value in graph.inputs} | set(graph.initializers)
    for node in graph.nodes:
        names.update(node.outputs)
        for inner in subgraphs(node):
            names |= _names_inside(inner)
    return names
