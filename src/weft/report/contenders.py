"""Who computes the values of a model in a comparison: weft on a device, or weft in float64 as the truth.

Each gives the outputs of the model as it is, any values of it that are asked for, and those that nodes make on their
own of given values.
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
from weft.report.isolation import alone, isolated
from weft.runtime.model_files import ModelFiles
from weft.runtime.open_session import open_session
from weft.runtime.options import LoadOptions, Precision
from weft.runtime.progress import Stages

TRUTH = "float64"


@dataclass(frozen=True, slots=True)
class Unavailable:
    """A value that a contender cannot give, and why."""

    reason: str


Content = Union[Any, Unavailable]


@dataclass(frozen=True, slots=True)
class Known:
    """What nodes on their own read: values of a run, and those that are known before it."""

    given: Mapping[str, Array]
    fixed: Mapping[str, Array]


class Contender(Protocol):
    """One side of a comparison, for inputs that it knows."""

    @property
    def name(self) -> str:
        """What the report calls it."""
        ...

    def outputs(self) -> dict[str, Any]:
        """The outputs of the model as it is."""
        ...

    def values(self, names: Sequence[str]) -> dict[str, Content]:
        """Any values of it, by name, from a run that has all of them as outputs."""
        ...

    def alone(self, names: Sequence[str], known: Known) -> dict[str, Content]:
        """What the nodes of these values make of known ones, each on its own."""
        ...


def all_possible(names: Sequence[str], give: Callable[[Sequence[str]], dict[str, Any]]) -> dict[str, Content]:
    """What `give` gives for all names; where it fails for some, for those of which it does not."""
    if not names:
        return {}
    try:
        return give(names)
    except WeftError as error:
        if len(names) == 1:
            return {names[0]: Unavailable(error.problem)}
    half = len(names) // 2
    return {**all_possible(names[:half], give), **all_possible(names[half:], give)}


class _ChangedPipeline(Pipeline):
    """The way of another graph than the file has."""

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
        self.narrowed: tuple[NarrowedProduct, ...] = ()  # products of the model as it is, once that ran
        # cache: parts of a model are not worth keeping
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
        def give(part: Sequence[str]) -> dict[str, Any]:
            return self._run(with_outputs(self._model.graph, part), self._inputs)

        return {**self._missing(names), **all_possible([name for name in names if name in self._names], give)}

    def alone(self, names: Sequence[str], known: Known) -> dict[str, Content]:
        def give(part: Sequence[str]) -> dict[str, Any]:
            graph = isolated(self._model.graph, part, known.given, known.fixed)
            wanted = {value.name for value in graph.inputs}
            given = {**self._inputs, **known.given}
            results = self._run(graph, {name: content for name, content in given.items() if name in wanted})
            return {name: results[alone(name)] for name in part}

        return {**self._missing(names), **all_possible([name for name in names if name in self._names], give)}

    def _missing(self, names: Sequence[str]) -> dict[str, Content]:
        return {name: Unavailable("this model has no such value") for name in names if name not in self._names}

    def _run(self, graph: Graph, inputs: Mapping[str, Any]) -> dict[str, Any]:
        pipeline = _ChangedPipeline(self._files, self._options, self._device, Stages("", show=False))
        pipeline.changed = replace(self._model, graph=graph)
        session = open_session(pipeline)
        return session.answer(session.request(inputs))


@dataclass(frozen=True, slots=True)
class InFloat64:
    """What the model means when nothing is rounded to its own floating-point types."""

    graph: Graph
    inputs: Mapping[str, Any]
    name: str = TRUTH

    def outputs(self) -> dict[str, Any]:
        return self.values([value.name for value in self.graph.outputs])

    def values(self, names: Sequence[str]) -> dict[str, Content]:
        results = run_eagerly(with_outputs(self.graph, names), Float64Interpreter(), self.inputs)
        return {name: unrounded(content) for name, content in zip(names, results)}

    def alone(self, names: Sequence[str], known: Known) -> dict[str, Content]:
        def give(part: Sequence[str]) -> dict[str, Any]:
            graph = isolated(self.graph, part, known.given, known.fixed)
            wanted = {value.name for value in graph.inputs}
            given = {**self.inputs, **known.given}
            inputs = {name: content for name, content in given.items() if name in wanted}
            results = run_eagerly(graph, Float64Interpreter(), inputs)
            return {name: unrounded(content) for name, content in zip(part, results)}

        return all_possible(names, give)
