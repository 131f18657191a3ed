"""Graphs that are made on the way, run by weft: compiled for a device, and nothing of it kept."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from weft.compiler import Pipeline
from weft.frontend.source import OpenedModel
from weft.ir.graph import Graph, OnnxModel, with_outputs
from weft.report.layers import find_layers, split_layers
from weft.runtime.model_files import ModelFiles
from weft.runtime.open_session import open_session
from weft.runtime.options import LoadOptions
from weft.runtime.policy import route
from weft.runtime.progress import Stages
from weft.runtime.session import Session

Sample = Mapping[str, Any]

BATCH_BYTES = 256 << 20  # of values that one run gives


class Runs(Protocol):
    """Gives outputs by name."""

    def run(self, inputs: Sample, /) -> Mapping[str, Any]: ...


class GraphRunner:
    """One graph on a device, ready to run."""

    def __init__(self, model: OnnxModel, graph: Graph, device: str, threads: int | None = None) -> None:
        options = LoadOptions(device=device, cache=False, threads=threads)
        made = replace(model, graph=graph, external={})
        files = ModelFiles(OpenedModel(memoryview(b""), model.file), lambda *_: made, None, None)
        pipeline = Pipeline(files, options, route(device).devices[0], Stages("", show=False))
        self._session: Session = open_session(pipeline)

    def run(self, sample: Sample) -> dict[str, Any]:
        return dict(self._session.answer(self._session.request(sample)))


class GraphValues:
    """Values of one graph, given by runs in batches of names: as many at a time as one run may give.

    Where one batch has them all, it is compiled once and kept.
    """

    def __init__(self, model: OnnxModel, graph: Graph, names: Sequence[str], sample: Sample, device: str) -> None:
        self._model = model
        self._graph = graph
        self._device = device
        self.batches = list(_batches(graph, names, sample))
        self._kept: tuple[frozenset[str], GraphRunner] | None = None

    def runner(self, names: Sequence[str]) -> GraphRunner:
        """What gives these values, and maybe more."""
        if self._kept is not None and self._kept[0].issuperset(names):
            return self._kept[1]
        wanted = self.batches[0] if len(self.batches) == 1 and set(names) <= set(self.batches[0]) else list(names)
        runner = GraphRunner(self._model, with_outputs(self._graph, wanted), self._device)
        if len(self.batches) == 1:
            self._kept = frozenset(wanted), runner
        return runner


def _batches(graph: Graph, names: Sequence[str], sample: Sample) -> Iterator[list[str]]:
    wanted = set(names)
    found = [layer for layer in find_layers(graph, sample) if layer.value in wanted]
    for batch in split_layers(found, BATCH_BYTES):
        yield [layer.value for layer in batch]
