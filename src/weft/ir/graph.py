"""The model as its file says it: nodes are ONNX ops, values have names and declared types.

What the frontend promises: nodes are in topological order, every name is defined exactly once before its use (in
this graph or an enclosing one), initializers match their declared dtype and dims, and weights are views of a private
copy of the file wherever their encoding allows it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Union

import numpy as np

from weft.ir.types import Type

Attribute = Union[
    int,
    float,
    str,
    "np.ndarray[Any, Any]",
    "Graph",
    Type,
    tuple[int, ...],
    tuple[float, ...],
    tuple[str, ...],
    "tuple[np.ndarray[Any, Any], ...]",
    "tuple[Graph, ...]",
]


@dataclass(frozen=True, slots=True)
class Node:
    """One ONNX op applied to named values. An empty name stands for an absent optional input or output."""

    op: str
    domain: str  # "" is ai.onnx
    version: int  # the opset version that the model imports for `domain`
    name: str  # unique within the model; made up from the op and first output where the file gives none
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
    shows: str = ""  # for an output: the value it stands for, where that has another name


@dataclass(frozen=True, slots=True, eq=False)
class Graph:
    name: str
    nodes: tuple[Node, ...]
    inputs: tuple[GraphValue, ...]  # without those that an initializer gives a default
    outputs: tuple[GraphValue, ...]
    initializers: Mapping[str, np.ndarray[Any, Any]]
    defaults: tuple[GraphValue, ...] = field(default=())  # inputs that have an initializer and may be overridden


@dataclass(frozen=True, slots=True, eq=False)
class OnnxModel:
    """A whole file: the main graph and what `weft info` tells about it."""

    graph: Graph
    opsets: Mapping[str, int]
    ir_version: int
    producer: str
    file: str  # for messages: the path, or "<bytes>"
    metadata: Mapping[str, str]
    external: Mapping[str, memoryview] = field(default_factory=dict)  # files beside it that hold weights, by location
    weights: tuple[str, ...] = ()  # initializers and constants of the file's main graph, by name


def weight_arrays(graph: Graph) -> dict[str, np.ndarray[Any, Any]]:
    """What a graph's initializers hold, and its nodes that are constants, by the names of their outputs."""
    constants = ((node.outputs[0], content) for node in graph.nodes if (content := _constant(node)) is not None)
    return {**graph.initializers, **dict(constants)}


def with_weights(graph: Graph, changed: Mapping[str, np.ndarray[Any, Any]]) -> Graph:
    """The graph with other arrays in place of some of its initializers and constants."""
    initializers = {name: changed.get(name, array) for name, array in graph.initializers.items()}
    return replace(graph, initializers=initializers, nodes=tuple(_changed(node, changed) for node in graph.nodes))


def _changed(node: Node, changed: Mapping[str, np.ndarray[Any, Any]]) -> Node:
    if _constant(node) is None or node.outputs[0] not in changed:
        return node
    return replace(node, attributes=dict.fromkeys(node.attributes, changed[node.outputs[0]]))


def _constant(node: Node) -> np.ndarray[Any, Any] | None:
    """What a node gives that is nothing but a tensor."""
    if node.domain or node.inputs or len(node.outputs) != 1 or len(node.attributes) != 1:
        return None
    (content,) = node.attributes.values()
    return content if isinstance(content, np.ndarray) else None
