"""Run intermediate graphs with weft, without the cache."""

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

BATCH_BYTES = 256 << 20  # of the values that one run returns


class Runs(Protocol):
    """Anything that runs on inputs and returns outputs by name, such as a model."""

    def run(self, inputs: Sample, /) -> Mapping[str, Any]: ...


class GraphRunner:
    """A graph compiled for a device."""

    def __init__(self, model: OnnxModel, graph: Graph, device: str, threads: int | None = None) -> None:
        options = LoadOptions(device=device, cache=False, threads=threads)
        parsed = replace(model, graph=graph, external={})
        files = ModelFiles(OpenedModel(memoryview(b""), model.file), lambda *_: parsed, None, None)
        pipeline = Pipeline(files, options, route(device).devices[0], Stages("", show=False))
        self._session: Session = open_session(pipeline)

    def run(self, sample: Sample) -> dict[str, Any]:
        return dict(self._session.answer(self._session.request(sample)))


class GraphValues:
    """Computes values of one graph in batches of limited size.

    If one batch has all values, its runner is compiled once and reused.
    """

    def __init__(self, model: OnnxModel, graph: Graph, names: Sequence[str], sample: Sample, device: str) -> None:
        self._model = model
        self._graph = graph
        self._device = device
        self.batches = list(_batches(graph, names, sample))
        self._whole: tuple[frozenset[str], GraphRunner] | None = None

    def runner(self, names: Sequence[str]) -> GraphRunner:
        """Return a runner that computes at least these values."""
        if self._whole is not None and self._whole[0].issuperset(names):
            return self._whole[1]
        outputs = self.batches[0] if len(self.batches) == 1 and set(names) <= set(self.batches[0]) else list(names)
        runner = GraphRunner(self._model, with_outputs(self._graph, outputs), self._device)
        if len(self.batches) == 1:
            self._whole = frozenset(outputs), runner
        return runner


def _batches(graph: Graph, names: Sequence[str], sample: Sample) -> Iterator[list[str]]:
    chosen = set(names)
    selected = [layer for layer in find_layers(graph, sample) if layer.value in chosen]
    for batch in split_layers(selected, BATCH_BYTES):
        yield [layer.value for layer in batch]
