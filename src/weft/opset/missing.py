"""What of a graph weft has no definition for, all of it at once: operators, versions and attributes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Literal

from weft.errors import UnsupportedModelError
from weft.ir.graph import Graph, Node, subgraphs
from weft.opset import registry
from weft.opset.origins import origin_of, unknown_origin
from weft.records import dataclass

Kind = Literal["operator", "version", "attribute"]
MOST_NAMED = 8


@dataclass(frozen=True, slots=True)
class MissingOp:
    """An operator that a graph uses and weft does not have, or not in this form."""

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


def missing_ops(graph: Graph) -> list[MissingOp]:
    """All that is missing in a graph and the bodies in it, in the order of the first nodes."""
    found: dict[tuple[str, str, int, str], MissingOp] = {}
    for node in _every(graph):
        missing = _missing(node)
        if missing is not None:
            key = (missing.domain, missing.op, missing.version, missing.problem)
            known = found.get(key)
            found[key] = missing if known is None else replace(known, count=known.count + 1)
    return list(found.values())


def with_all_missing(error: UnsupportedModelError, graph: Graph) -> UnsupportedModelError:
    """The error of a node that weft has no definition for, naming all operators that the graph lacks."""
    every = [each for each in missing_ops(graph) if each.kind != "attribute"]
    if not any(each.problem == error.problem for each in every):
        return error
    names = list(dict.fromkeys(each.qualified_name for each in every))
    if len(names) == 1:
        return error
    rest = len(names) - MOST_NAMED
    problem = f"unknown operators {', '.join(names[:MOST_NAMED])}{f' and {rest} more' if rest > 0 else ''}"
    hint = "`weft ops --missing MODEL` tells where each of them comes from and what to do"
    return UnsupportedModelError(problem, node=error.node, hint=hint)


def missing_error(node: Node) -> UnsupportedModelError:
    """What to say of a node that weft has no definition for."""
    missing = _missing(node)
    assert missing is not None
    return UnsupportedModelError(missing.problem, node=node.name, hint=missing.advice)


def _every(graph: Graph) -> Iterator[Node]:
    for node in graph.nodes:
        yield node
        for inner in subgraphs(node):
            yield from _every(inner)


def _missing(node: Node) -> MissingOp | None:
    definition = registry.find(node.domain, node.op, node.version)
    if definition is not None:
        known = {attribute.name for attribute in definition.attributes}
        unknown = sorted(set(node.attributes) - known)
        if not unknown:
            return None
        problem = f"no attribute {', '.join(unknown)} in opset {node.version}"
        advice = "export the model again with the opset that the attribute belongs to, or without it"
        return _row(node, "attribute", problem, "a version of the operator that this opset does not have", advice)
    versions = [each.since for each in registry.definitions() if (each.domain, each.name) == (node.domain, node.op)]
    qualified = f"{node.domain}.{node.op}" if node.domain else node.op
    if versions:
        problem = f"operator {qualified} does not exist in opset {node.version}, only from {min(versions)} on"
        advice = "convert the model to a newer opset"
        return _row(node, "version", problem, "an opset that the operator is not part of", advice)
    similar = [each.qualified_name for each in registry.definitions() if each.name.lower() == node.op.lower()]
    told = origin_of(node.domain, node.op)
    origin = told or unknown_origin(node.domain)
    advice = f"did you mean {similar[0]}?" if similar and told is None else origin.advice
    return _row(node, "operator", f"unknown operator {qualified}", origin.definer, advice)


def _row(node: Node, kind: Kind, problem: str, definer: str, advice: str) -> MissingOp:
    return MissingOp(node.domain, node.op, node.version, kind, problem, 1, node.name, definer, advice)
