"""The sides of a comparison: weft on a device, or the reference interpreter in float64 as the truth.

Each computes the outputs of the unchanged model, any inner values, and the results of isolated nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol, Union, cast

from weft.backends.reference.float64 import Float64Interpreter, unrounded
from weft.compiler import Pipeline
from weft.errors import WeftError
from weft.ir.arrays import Array
from weft.ir.graph import Graph, OnnxModel, value_names, with_outputs
from weft.ir.narrowed_products import NarrowedProduct
from weft.loading import open_pipeline
from weft.opset.lower import run_eagerly
from weft.records import dataclass
from weft.report.isolation import isolate_nodes, isolated_name
from weft.runtime.model_files import ModelFiles
from weft.runtime.open_session import open_session
from weft.runtime.options import LoadOptions, Precision
from weft.runtime.progress import Stages

TRUTH = "float64"


@dataclass(frozen=True, slots=True)
class Unavailable:
    """A value that a contender cannot compute, with the reason."""

    reason: str


Content = Union[Any, Unavailable]


@dataclass(frozen=True, slots=True)
class NodeInputs:
    """What isolated nodes read: values of a run, and constants that are known before it."""

    values: Mapping[str, Array]
    fixed: Mapping[str, Array]


class Contender(Protocol):
    """One side of a comparison, with its inputs."""

    @property
    def name(self) -> str:
        """The name in reports."""
        ...

    def outputs(self) -> dict[str, Any]:
        """Compute the outputs of the unchanged model."""
        ...

    def values(self, names: Sequence[str]) -> dict[str, Content]:
        """Compute inner values by name, in a run that has all of them as outputs."""
        ...

    def run_isolated(self, names: Sequence[str], inputs: NodeInputs) -> dict[str, Content]:
        """Compute values with isolated nodes, from these inputs."""
        ...


def collect_available(names: Sequence[str], compute: Callable[[Sequence[str]], dict[str, Any]]) -> dict[str, Content]:
    """Compute all names, by bisection if that fails, so that only those that fail are unavailable."""
    if not names:
        return {}
    try:
        return compute(names)
    except WeftError as error:
        if len(names) == 1:
            return {names[0]: Unavailable(error.problem)}
    half = len(names) // 2
    return {**collect_available(names[:half], compute), **collect_available(names[half:], compute)}


class _ChangedPipeline(Pipeline):
    """A pipeline for another graph than that of the file."""

    changed: OnnxModel

    def read(self) -> OnnxModel:
        return self.changed


class OnDevice:
    """A model on one of weft's devices."""

    def __init__(
        self,
        name: str,
        source: Any,
        device: str,
        inputs: Mapping[str, Any],
        precision: str = "float32",
        **loading: Any,  # other options of weft.load
    ) -> None:
        self.name = name
        self.narrowed: tuple[NarrowedProduct, ...] = ()  # products of the unchanged model, after its run
        # parts of a model are not worth caching
        self._options = LoadOptions(device=device, precision=cast("Precision", precision), cache=False, **loading)
        self._inputs = inputs
        pipeline = open_pipeline(source, self._options)
        self._files: ModelFiles = pipeline.files
        self._device = pipeline.driver.name
        self._model = pipeline.read()
        self._names = value_names(self._model.graph)

    def outputs(self) -> dict[str, Any]:
        options = replace(self._options, device=self._device, cache=True)
        session = open_session(Pipeline(self._files, options, self._device, Stages("", show=False)))
        self.narrowed = session.narrowed()
        return session.answer(session.request(self._inputs))

    def values(self, names: Sequence[str]) -> dict[str, Content]:
        def compute(part: Sequence[str]) -> dict[str, Any]:
            return self._run(with_outputs(self._model.graph, part), self._inputs)

        return {**self._missing(names), **collect_available([name for name in names if name in self._names], compute)}

    def run_isolated(self, names: Sequence[str], inputs: NodeInputs) -> dict[str, Content]:
        def compute(part: Sequence[str]) -> dict[str, Any]:
            graph = isolate_nodes(self._model.graph, part, inputs.values, inputs.fixed)
            arrays = {**self._inputs, **inputs.values}
            results = self._run(
                graph, {value.name: arrays[value.name] for value in graph.inputs if value.name in arrays}
            )
            return {name: results[isolated_name(name)] for name in part}

        return {**self._missing(names), **collect_available([name for name in names if name in self._names], compute)}

    def _missing(self, names: Sequence[str]) -> dict[str, Content]:
        return {name: Unavailable("the model has no such value") for name in names if name not in self._names}

    def _run(self, graph: Graph, inputs: Mapping[str, Any]) -> dict[str, Any]:
        pipeline = _ChangedPipeline(self._files, self._options, self._device, Stages("", show=False))
        pipeline.changed = replace(self._model, graph=graph)
        session = open_session(pipeline)
        return session.answer(session.request(inputs))


@dataclass(frozen=True, slots=True)
class InFloat64:
    """The model computed in float64, without rounding to its own floating-point types."""

    graph: Graph
    inputs: Mapping[str, Any]
    name: str = TRUTH

    def outputs(self) -> dict[str, Any]:
        return self.values([value.name for value in self.graph.outputs])

    def values(self, names: Sequence[str]) -> dict[str, Content]:
        results = run_eagerly(with_outputs(self.graph, names), Float64Interpreter(), self.inputs)
        return {name: unrounded(content) for name, content in zip(names, results)}

    def run_isolated(self, names: Sequence[str], inputs: NodeInputs) -> dict[str, Content]:
        def compute(part: Sequence[str]) -> dict[str, Any]:
            graph = isolate_nodes(self.graph, part, inputs.values, inputs.fixed)
            arrays = {**self.inputs, **inputs.values}
            feeds = {value.name: arrays[value.name] for value in graph.inputs if value.name in arrays}
            results = run_eagerly(graph, Float64Interpreter(), feeds)
            return {name: unrounded(content) for name, content in zip(part, results)}

        return collect_available(names, compute)
