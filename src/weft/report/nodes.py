"""Nodes by name, with what they are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from weft.ir.graph import ops_by_node as ops_by_node


def labelled(nodes: Iterable[str], ops: Mapping[str, str]) -> tuple[str, ...]:
    """Names of nodes, each after its operator, unless the name tells that itself."""
    return tuple(
        f"{ops[node]} {node}" if node in ops and ops[node].lower() not in node.lower() else node for node in nodes
    )
