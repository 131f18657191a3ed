"""Who computes the values of a model in a comparison: weft on a device, or weft in float64 as the truth.

Each gives the outputs of the model as it is, and any values of it that are asked for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, Union

from weft.backends.reference.wide import WideInterpreter, exact
from weft.compiler import LoadOptions, Pipeline, load, open_pipeline
from weft.ir.graph import Graph, OnnxModel, with_outputs
from weft.opset.lower import run_eagerly
from weft.runtime.progress import Stages

TRUTH = "float64"


@dataclass(frozen=True, slots=True)
class Unavailable:
    """A value that a contender cannot give, and why."""

    reason: str


Content = Union[Any, Unavailable]


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


class _Part(Pipeline):
    names: tuple[str, ...] = ()

    def read(self) -> OnnxModel:
        model = super().read()
        return replace(model, graph=with_outputs(model.graph, self.names))


@dataclass(frozen=True, slots=True)
class OnDevice:
    """A model on one of weft's devices."""

    name: str
    source: Any
    device: str
    inputs: Mapping[str, Any]

    def outputs(self) -> dict[str, Any]:
        return load(self.source, device=self.device).run(self.inputs)

    def values(self, names: Sequence[str]) -> dict[str, Content]:
        options = LoadOptions(device=self.device, cache=False)
        part = _Part(open_pipeline(self.source, options).files, options, self.device, Stages("", show=False))
        part.names = tuple(names)
        return part.load().run(self.inputs)


@dataclass(frozen=True, slots=True)
class InFloat64:
    """What the model means when nothing is rounded to its own floating-point types."""

    graph: Graph
    inputs: Mapping[str, Any]
    name: str = TRUTH

    def outputs(self) -> dict[str, Any]:
        return self.values([value.name for value in self.graph.outputs])

    def values(self, names: Sequence[str]) -> dict[str, Content]:
        results = run_eagerly(with_outputs(self.graph, names), WideInterpreter(), self.inputs)
        return {name: exact(content) for name, content in zip(names, results)}
