"""Which operators of a model weft lacks: its file is read as for a run, functions inlined, and no node is traced."""

from __future__ import annotations

from typing import Any

from weft.errors import WeftError
from weft.frontend.source import source_name
from weft.ir.graph import Graph, subgraphs
from weft.loading import open_graph
from weft.opset.missing import MissingOp, find_missing_ops
from weft.records import dataclass
from weft.runtime.model_files import read_opened


@dataclass(frozen=True, slots=True)
class ModelOps:
    """A model, how many nodes it has, and what of them weft lacks; or why it cannot be read."""

    model: str
    nodes: int
    missing: tuple[MissingOp, ...]
    error: str | None


def model_ops(source: Any) -> ModelOps:
    """Look through a model."""
    try:
        graph = read_opened(open_graph(source), ()).graph
    except WeftError as error:
        return ModelOps(source_name(source), 0, (), str(error))
    return ModelOps(source_name(source), _count(graph), tuple(find_missing_ops(graph)), None)


def _count(graph: Graph) -> int:
    return len(graph.nodes) + sum(_count(inner) for node in graph.nodes for inner in subgraphs(node))
