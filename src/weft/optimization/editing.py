"""A graph in the making: nodes and constants are added under names of their own, and the result is put in order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from weft.frontend.order import sort_nodes
from weft.ir.graph import Attribute, Graph, Node, free_names, needed_names, subgraphs, with_outputs

Array = np.ndarray[Any, Any]
STANDARD = ""  # the domain ai.onnx
MICROSOFT = "com.microsoft"


class GraphEdit:
    """Adds to a graph. Nodes may be added in any order; what nothing needs is dropped at the end."""

    def __init__(self, graph: Graph, version: int) -> None:
        """`version` is the opset of the nodes that are added."""
        self._graph = graph
        self._version = version
        self._taken = all_names(graph)
        self.nodes: list[Node] = []
        self.initializers: dict[str, Array] = dict(graph.initializers)

    def fresh(self, stem: str) -> str:
        """A name that nothing has yet."""
        name, number = stem, 1
        while name in self._taken:
            number += 1
            name = f"{stem}_{number}"
        self._taken.add(name)
        return name

    def constant(self, stem: str, array: Array) -> str:
        name = self.fresh(stem)
        self.initializers[name] = array
        return name

    def add(
        self,
        op: str,
        inputs: Sequence[str],
        output: str,
        attributes: Mapping[str, Attribute] | None = None,
        domain: str = STANDARD,
    ) -> str:
        """A node with one output, which has this name or one like it; gives the name."""
        return self.give(op, inputs, self.fresh(output), attributes, domain)

    def give(
        self,
        op: str,
        inputs: Sequence[str],
        output: str,
        attributes: Mapping[str, Attribute] | None = None,
        domain: str = STANDARD,
    ) -> str:
        """A node that gives a value of this very name."""
        version = 1 if domain == MICROSOFT else self._version
        self.nodes.append(Node(op, domain, version, self.fresh(output), tuple(inputs), (output,), attributes or {}))
        return output

    def again(self, node: Node) -> str:
        """Another node like one with a single output, beside it; gives the name of what it gives."""
        output = self.fresh(f"{node.outputs[0]}_shadow")
        self.nodes.append(replace(node, name=self.fresh(f"{node.name}_shadow"), outputs=(output,)))
        return output

    def finish(self, nodes: Sequence[Node] | None = None, graph: Graph | None = None) -> Graph:
        """The graph with these nodes instead of its own, those that were added, and no others."""
        base = self._graph if graph is None else graph
        every = [*(base.nodes if nodes is None else nodes), *self.nodes]
        return tidy(replace(base, nodes=tuple(every), initializers=self.initializers))


def tidy(graph: Graph) -> Graph:
    """The graph in topological order, without nodes and constants that its outputs do not need."""
    ordered = sort_nodes(list(graph.nodes), [frozenset(needed_names(node)) for node in graph.nodes])
    whole = replace(graph, nodes=tuple(ordered))
    return with_outputs(whole, [value.name for value in graph.outputs])


def with_shown_outputs(graph: Graph, version: int) -> Graph:
    """The graph with a node for each output that stands for a value of another name, as files have it."""
    edit = GraphEdit(graph, version)
    added = []
    for value in graph.outputs:
        if value.shows:
            name = edit.fresh(f"{value.name}_output")
            added.append(Node("Identity", STANDARD, version, name, (value.shows,), (value.name,), {}))
    outputs = tuple(replace(value, shows="") for value in graph.outputs)
    return replace(graph, nodes=(*graph.nodes, *added), outputs=outputs, aliases={})


def readers(graph: Graph) -> dict[str, list[Node]]:
    """The nodes that read each value, those that do so in a subgraph included."""
    found: dict[str, list[Node]] = {}
    for node in graph.nodes:
        for name in needed_names(node):
            found.setdefault(name, []).append(node)
    return found


def read_inside(graph: Graph) -> set[str]:
    """The values that some subgraph reads."""
    return {name for node in graph.nodes for inner in subgraphs(node) for name in free_names(inner)}


def renamed_inputs(node: Node, names: Mapping[str, str]) -> Node:
    """The node with other values as inputs."""
    inputs = tuple(names.get(name, name) for name in node.inputs)
    return node if inputs == node.inputs else replace(node, inputs=inputs)


def all_names(graph: Graph) -> set[str]:
    """The names of all nodes and values of a graph, and of those inside it."""
    names = {value.name for value in (*graph.inputs, *graph.defaults, *graph.outputs)} | set(graph.initializers)
    for node in graph.nodes:
        names.add(node.name)
        names.update(node.outputs, node.inputs)
        for inner in subgraphs(node):
            names |= all_names(inner)
    return names
