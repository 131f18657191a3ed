"""Names of nodes with their operators."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from weft.ir.graph import ops_by_node as ops_by_node


def label_nodes(nodes: Iterable[str], ops: Mapping[str, str]) -> tuple[str, ...]:
    """Put the operator before each name that does not contain it."""
    return tuple(
        f"{ops[node]} {node}" if node in ops and ops[node].lower() not in node.lower() else node for node in nodes
    )
