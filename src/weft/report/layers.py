"""The layers of a model: every value that a node computes and something reads, with how deep it lies and its bytes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from weft.backends.reference.interpret import Interpreter
from weft.errors import WeftError
from weft.ir import dims
from weft.ir.graph import Graph, needed_names, with_outputs
from weft.ir.types import TensorType, Type
from weft.opset.lower import lower
from weft.opset.tensor import OnlyAtRunError
from weft.records import dataclass

UNKNOWN_BYTES = 1 << 20  # taken for a value whose size only a run tells


@dataclass(frozen=True, slots=True)
class ModelLayer:
    """A value that a node computes; what nothing reads, as the mask of a dropout, is none."""

    value: str
    node: str
    op: str
    sources: tuple[str, ...]  # the values of other layers that the node reads
    depth: int  # nodes on the longest way to it from the data of an input; 0 for what only shapes decide, or nothing
    bytes: int

    @property
    def is_fixed(self) -> bool:
        """Whether it is known before a run, for the shapes of the inputs."""
        return self.depth == 0


def layers(graph: Graph, inputs: Mapping[str, Any]) -> tuple[ModelLayer, ...]:
    """The layers of a graph, with sizes for these inputs."""
    read = set().union(*map(needed_names, graph.nodes), (value.shows or value.name for value in graph.outputs))
    made = [(name, node) for node in graph.nodes for name in node.outputs if name in read]
    traced = _traced(graph, [name for name, _ in made], inputs)
    depths = {value.name: 0 for value in (*graph.inputs, *graph.defaults) if value.name in inputs}
    computed = {name for name, _ in made}
    found = []
    for name, node in made:
        size, is_known = traced.get(name, (UNKNOWN_BYTES, False))
        needed = needed_names(node)
        before = [depths[source] for source in needed if source in depths]
        if before and not is_known:
            depths[name] = 1 + max(before)
        sources = tuple(sorted(needed & computed))
        found.append(ModelLayer(name, node.name, node.op, sources, depths.get(name, 0), size))
    return tuple(found)


def batches(all_layers: Sequence[ModelLayer], limit: int) -> Iterator[tuple[ModelLayer, ...]]:
    """The layers in order, as many at a time as take no more than some bytes, and at least one."""
    batch: list[ModelLayer] = []
    taken = 0
    for layer in all_layers:
        if batch and taken + layer.bytes > limit:
            yield tuple(batch)
            batch, taken = [], 0
        batch.append(layer)
        taken += layer.bytes
    if batch:
        yield tuple(batch)


def _traced(graph: Graph, names: Sequence[str], inputs: Mapping[str, Any]) -> dict[str, tuple[int, bool]]:
    """The bytes of values and whether they are known before a run, as far as tracing tells it for these inputs."""
    shapes = {name: content.shape for name, content in inputs.items() if isinstance(content, np.ndarray)}
    overridden = [value.name for value in graph.defaults if value.name in inputs]
    try:
        program = lower(with_outputs(graph, names), Interpreter(), sizes=shapes, overridden=overridden)
    except (WeftError, OnlyAtRunError, ArithmeticError):
        return {}
    known = program.constants
    return {name: (_bytes(value.type), value in known) for name, value in zip(names, program.outputs)}


def _bytes(type: Type) -> int:
    if not isinstance(type, TensorType) or type.shape is None:
        return UNKNOWN_BYTES
    elements = dims.product(type.shape)
    return elements * type.dtype.numpy.itemsize if isinstance(elements, int) else UNKNOWN_BYTES
