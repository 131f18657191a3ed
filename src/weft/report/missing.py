"""Find the operators of a model that weft does not support, without tracing it."""

from __future__ import annotations

from typing import Any

from weft.errors import WeftError
from weft.frontend.source import source_name
from weft.loading import open_graph
from weft.opset.missing import MissingOp, find_missing_ops
from weft.records import dataclass
from weft.report.summary import walk_nodes
from weft.runtime.model_files import read_opened


@dataclass(frozen=True, slots=True)
class ModelOps:
    """A model, the number of its nodes, and the operators that weft lacks; or the error."""

    model: str
    nodes: int
    missing: tuple[MissingOp, ...]
    error: str | None


def find_model_ops(source: Any) -> ModelOps:
    """Read a model, with functions inlined, and look up its operators."""
    try:
        graph = read_opened(open_graph(source), ()).graph
    except WeftError as error:
        return ModelOps(source_name(source), 0, (), str(error))
    return ModelOps(source_name(source), sum(1 for _ in walk_nodes(graph)), tuple(find_missing_ops(graph)), None)
