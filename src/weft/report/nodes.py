"""Nodes by name, with what they are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from weft.ir.graph import Graph
from weft.report.summary import walk_nodes


def ops_by_node(graph: Graph) -> dict[str, str]:
    """The operator of every node, those of subgraphs too."""
    return {node.name: node.op for node in walk_nodes(graph) if node.name}


def labelled(nodes: Iterable[str], ops: Mapping[str, str]) -> tuple[str, ...]:
    """Names of nodes, each after its operator, unless the name tells that itself."""
    return tuple(
        f"{ops[node]} {node}" if node in ops and ops[node].lower() not in node.lower() else node for node in nodes
    )
