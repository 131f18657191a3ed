"""From a draft to a graph with named outputs: values that nobody named take the names of the outputs they are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from weft.builder.draft import Draft
from weft.builder.handle import Handle
from weft.builder.naming import names_of
from weft.ir.graph import Attribute, Graph, GraphValue, Node
from weft.ir.types import Type


def finished(draft: Draft, outputs: Mapping[str, tuple[Handle, Type]], kept: set[str]) -> Graph:
    """The graph as a model has it, for outputs by their names, with their types; values in `kept` keep their names."""
    made = {name for node in draft.top.nodes for name in node.outputs}
    renamed: dict[str, str] = {}
    copies: list[Node] = []
    values: list[GraphValue] = []
    for name, (handle, declared) in outputs.items():
        values.append(GraphValue(name, declared))
        if handle.name == name:
            continue
        if handle.name in made - kept and handle.name not in renamed and handle.name not in outputs:
            renamed[handle.name] = name
        else:
            identity = draft.definition("", names_of("")["identity"])
            version = draft.version("")
            copies.append(Node(identity.name, "", version, name, (handle.name,), (name,), {}))
    nodes = [*draft.top.nodes, *copies]
    graph = draft.top.graph(values, draft.initializers)
    return replace(graph, nodes=tuple(_renamed(node, renamed) for node in nodes))


def _renamed(node: Node, names: Mapping[str, str]) -> Node:
    return replace(
        node,
        inputs=tuple(names.get(name, name) for name in node.inputs),
        outputs=tuple(names.get(name, name) for name in node.outputs),
        attributes={key: _renamed_inside(value, names) for key, value in node.attributes.items()},
    )


def _renamed_inside(value: Attribute, names: Mapping[str, str]) -> Attribute:
    """Bodies use values from outside by their names."""
    if not isinstance(value, Graph):
        return value
    return replace(value, nodes=tuple(_renamed(node, names) for node in value.nodes))
