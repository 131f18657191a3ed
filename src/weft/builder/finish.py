"""Turn a draft into a graph with named outputs; a value that the user did not name takes the name of its output."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from weft.builder.draft import Draft
from weft.builder.handle import Handle
from weft.builder.naming import function_names
from weft.ir.graph import Attribute, Graph, GraphValue, Node
from weft.ir.types import Type


def finish_graph(draft: Draft, outputs: Mapping[str, tuple[Handle, Type]], user_names: set[str]) -> Graph:
    """Return the graph with these outputs; an output that cannot be renamed gets an Identity node."""
    computed = {name for node in draft.top.nodes for name in node.outputs}
    renamed: dict[str, str] = {}
    copies: list[Node] = []
    values: list[GraphValue] = []
    for name, (handle, declared) in outputs.items():
        values.append(GraphValue(name, declared))
        if handle.name == name:
            continue
        if handle.name in computed - user_names and handle.name not in renamed and handle.name not in outputs:
            renamed[handle.name] = name
        else:
            identity = draft.definition("", function_names("")["identity"])
            version = draft.version("")
            copies.append(Node(identity.name, "", version, name, (handle.name,), (name,), {}))
    nodes = [*draft.top.nodes, *copies]
    graph = draft.top.graph(values, draft.initializers)
    return replace(graph, nodes=tuple(_rename_values(node, renamed) for node in nodes))


def _rename_values(node: Node, names: Mapping[str, str]) -> Node:
    return replace(
        node,
        inputs=tuple(names.get(name, name) for name in node.inputs),
        outputs=tuple(names.get(name, name) for name in node.outputs),
        attributes={key: _rename_in_body(value, names) for key, value in node.attributes.items()},
    )


def _rename_in_body(value: Attribute, names: Mapping[str, str]) -> Attribute:
    if not isinstance(value, Graph):
        return value
    return replace(value, nodes=tuple(_rename_values(node, names) for node in value.nodes))
