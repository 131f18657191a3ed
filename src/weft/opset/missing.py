"""Find everything in a graph that weft has no definition for: operators, versions and attributes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Literal

from weft.errors import UnsupportedModelError
from weft.ir.graph import Graph, Node, subgraphs
from weft.opset import registry
from weft.opset.origins import describe_unknown_origin, find_origin
from weft.records import dataclass

Kind = Literal["operator", "version", "attribute"]
MOST_NAMED = 8  # operators in one message


@dataclass(frozen=True, slots=True)
class MissingOp:
    """An operator that a graph uses and weft does not have, or not in this version or with this attribute."""

    domain: str
    op: str
    version: int
    kind: Kind
    problem: str
    count: int  # nodes
    node: str  # the first of them
    definer: str
    advice: str

    @property
    def qualified_name(self) -> str:
        return f"{self.domain}.{self.op}" if self.domain else self.op


def find_missing_ops(graph: Graph) -> list[MissingOp]:
    """List everything that is missing in a graph and its bodies, in the order of the first nodes."""
    rows: dict[tuple[str, str, int, str], MissingOp] = {}
    for node in _walk_nodes(graph):
        missing = _find_missing(node)
        if missing is not None:
            key = (missing.domain, missing.op, missing.version, missing.problem)
            rows[key] = replace(rows[key], count=rows[key].count + 1) if key in rows else missing
    return list(rows.values())


def name_all_missing(error: UnsupportedModelError, graph: Graph) -> UnsupportedModelError:
    """Extend the error of a node without a definition to all operators that the graph lacks."""
    missing = [row for row in find_missing_ops(graph) if row.kind != "attribute"]
    if not any(row.problem == error.problem for row in missing):
        return error
    names = list(dict.fromkeys(row.qualified_name for row in missing))
    if len(names) == 1:
        return error
    rest = len(names) - MOST_NAMED
    problem = f"unknown operators {', '.join(names[:MOST_NAMED])}{f' and {rest} more' if rest > 0 else ''}"
    hint = "`weft ops --missing MODEL` says where each of them comes from and what to do"
    return UnsupportedModelError(problem, node=error.node, hint=hint)


def build_missing_error(node: Node) -> UnsupportedModelError:
    """Build the error for a node that weft has no definition for."""
    missing = _find_missing(node)
    assert missing is not None
    return UnsupportedModelError(missing.problem, node=node.name, hint=missing.advice)


def _walk_nodes(graph: Graph) -> Iterator[Node]:
    for node in graph.nodes:
        yield node
        for inner in subgraphs(node):
            yield from _walk_nodes(inner)


def _find_missing(node: Node) -> MissingOp | None:
    definition = registry.find(node.domain, node.op, node.version)
    if definition is not None:
        unknown = sorted(set(node.attributes) - {attribute.name for attribute in definition.attributes})
        if not unknown:
            return None
        problem = f"no attribute {', '.join(unknown)} in opset {node.version}"
        advice = "export the model again with the opset that the attribute belongs to, or without it"
        return _build_row(node, "attribute", problem, "a version of the operator that this opset does not have", advice)
    versions = [entry.since for entry in registry.definitions() if (entry.domain, entry.name) == (node.domain, node.op)]
    qualified = f"{node.domain}.{node.op}" if node.domain else node.op
    if versions:
        problem = f"operator {qualified} does not exist in opset {node.version}, only from {min(versions)} on"
        advice = "convert the model to a newer opset"
        return _build_row(node, "version", problem, "an opset that the operator is not part of", advice)
    similar = [entry.qualified_name for entry in registry.definitions() if entry.name.lower() == node.op.lower()]
    listed = find_origin(node.domain, node.op)
    origin = listed or describe_unknown_origin(node.domain)
    advice = f"did you mean {similar[0]}?" if similar and listed is None else origin.advice
    return _build_row(node, "operator", f"unknown operator {qualified}", origin.definer, advice)


def _build_row(node: Node, kind: Kind, problem: str, definer: str, advice: str) -> MissingOp:
    return MissingOp(node.domain, node.op, node.version, kind, problem, 1, node.name, definer, advice)
