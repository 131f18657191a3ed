"""Edit graphs: add nodes and constants under fresh names, then sort the result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from weft.frontend.order import sort_nodes
from weft.ir.arrays import Array
from weft.ir.graph import Attribute, Graph, Node, free_names, needed_names, subgraphs, with_outputs

STANDARD = ""  # the domain ai.onnx
MICROSOFT = "com.microsoft"
SEPARATE_WEIGHTS = 4  # the first IR version in which weights need not be inputs


class GraphEdit:
    """Adds nodes and constants to a graph, in any order; `finish` sorts them and drops unused ones."""

    def __init__(self, graph: Graph, version: int) -> None:
        """`version` is the opset of the nodes that are added."""
        self._graph = graph
        self._version = version
        self._names = all_names(graph)
        self.nodes: list[Node] = []
        self.initializers: dict[str, Array] = dict(graph.initializers)

    def fresh(self, stem: str) -> str:
        """Return an unused name."""
        name, number = stem, 1
        while name in self._names:
            number += 1
            name = f"{stem}_{number}"
        self._names.add(name)
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
        """Add a node with one output; return the output's name, which is fresh."""
        return self.add_named(op, inputs, self.fresh(output), attributes, domain)

    def add_named(
        self,
        op: str,
        inputs: Sequence[str],
        output: str,
        attributes: Mapping[str, Attribute] | None = None,
        domain: str = STANDARD,
    ) -> str:
        """Add a node whose output has this very name."""
        version = 1 if domain == MICROSOFT else self._version
        self.nodes.append(Node(op, domain, version, self.fresh(output), tuple(inputs), (output,), attributes or {}))
        return output

    def duplicate(self, node: Node) -> str:
        """Add a copy of a node with a single output; return the name of the copy's output."""
        output = self.fresh(f"{node.outputs[0]}_shadow")
        self.nodes.append(replace(node, name=self.fresh(f"{node.name}_shadow"), outputs=(output,)))
        return output

    def finish(self, nodes: Sequence[Node] | None = None, graph: Graph | None = None) -> Graph:
        """Return the graph with `nodes` in place of its own, and with the added ones."""
        base = self._graph if graph is None else graph
        all_nodes = [*(base.nodes if nodes is None else nodes), *self.nodes]
        return tidy(replace(base, nodes=tuple(all_nodes), initializers=self.initializers))


def tidy(graph: Graph) -> Graph:
    """Sort a graph topologically and drop nodes and constants that its outputs do not need."""
    ordered = sort_nodes(list(graph.nodes), [frozenset(needed_names(node)) for node in graph.nodes])
    sorted_graph = replace(graph, nodes=tuple(ordered))
    return with_outputs(sorted_graph, [value.name for value in graph.outputs])


def with_shown_outputs(graph: Graph, version: int) -> Graph:
    """Add an Identity for each output that is an alias of another value."""
    edit = GraphEdit(graph, version)
    added = []
    for value in graph.outputs:
        if value.shows:
            name = edit.fresh(f"{value.name}_output")
            added.append(Node("Identity", STANDARD, version, name, (value.shows,), (value.name,), {}))
    outputs = tuple(replace(value, shows="") for value in graph.outputs)
    return replace(graph, nodes=(*graph.nodes, *added), outputs=outputs, aliases={})


def readers(graph: Graph) -> dict[str, list[Node]]:
    """Map each value to the nodes that read it, directly or in a subgraph."""
    nodes: dict[str, list[Node]] = {}
    for node in graph.nodes:
        for name in needed_names(node):
            nodes.setdefault(name, []).append(node)
    return nodes


def has_subgraphs(node: Node) -> bool:
    return any(True for _ in subgraphs(node))


def read_inside(graph: Graph) -> set[str]:
    """Return the values that subgraphs read."""
    return {name for node in graph.nodes for inner in subgraphs(node) for name in free_names(inner)}


def rename_inputs(node: Node, names: Mapping[str, str]) -> Node:
    inputs = tuple(names.get(name, name) for name in node.inputs)
    return node if inputs == node.inputs else replace(node, inputs=inputs)


def all_names(graph: Graph) -> set[str]:
    """Return the names of all nodes and values of a graph and its subgraphs."""
    names = {value.name for value in (*graph.inputs, *graph.defaults, *graph.outputs)} | set(graph.initializers)
    for node in graph.nodes:
        names.add(node.name)
        names.update(node.outputs, node.inputs)
        for inner in subgraphs(node):
            names |= all_names(inner)
    return names
