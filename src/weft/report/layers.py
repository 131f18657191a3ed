"""The layers of a model: every value that a node computes and something reads, with its depth and bytes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from weft.backends.reference.interpret import Interpreter
from weft.errors import WeftError
from weft.ir import dims
from weft.ir.graph import Graph, needed_names, with_outputs
from weft.ir.types import Type
from weft.opset.lower import lower
from weft.opset.tensor import OnlyAtRunError
from weft.records import dataclass

UNKNOWN_BYTES = 1 << 20  # assumed for a value whose size depends on data


@dataclass(frozen=True, slots=True)
class ModelLayer:
    """A value that a node computes. Unread values, such as the mask of a dropout, are no layers."""

    value: str
    node: str
    op: str
    sources: tuple[str, ...]  # the values of other layers that the node reads
    depth: int  # nodes on the longest path from the data of an input; 0 if it depends on shapes at most
    bytes: int

    @property
    def is_fixed(self) -> bool:
        """Whether it is known before a run, from the shapes of the inputs."""
        return self.depth == 0


def find_layers(graph: Graph, inputs: Mapping[str, Any]) -> tuple[ModelLayer, ...]:
    """Return the layers of a graph, with sizes for these inputs."""
    read = set().union(*map(needed_names, graph.nodes), (value.shows or value.name for value in graph.outputs))
    computed = [(name, node) for node in graph.nodes for name in node.outputs if name in read]
    traced = _trace_values(graph, [name for name, _ in computed], inputs)
    depths = {value.name: 0 for value in (*graph.inputs, *graph.defaults) if value.name in inputs}
    computed_names = {name for name, _ in computed}
    layers = []
    for name, node in computed:
        size, is_known = traced.get(name, (UNKNOWN_BYTES, False))
        needed = needed_names(node)
        before = [depths[source] for source in needed if source in depths]
        if before and not is_known:
            depths[name] = 1 + max(before)
        sources = tuple(sorted(needed & computed_names))
        layers.append(ModelLayer(name, node.name, node.op, sources, depths.get(name, 0), size))
    return tuple(layers)


def split_layers(layers: Sequence[ModelLayer], limit: int) -> Iterator[tuple[ModelLayer, ...]]:
    """Yield the layers in order, in batches of at most `limit` bytes, and at least one layer."""
    batch: list[ModelLayer] = []
    size = 0
    for layer in layers:
        if batch and size + layer.bytes > limit:
            yield tuple(batch)
            batch, size = [], 0
        batch.append(layer)
        size += layer.bytes
    if batch:
        yield tuple(batch)


def _trace_values(graph: Graph, names: Sequence[str], inputs: Mapping[str, Any]) -> dict[str, tuple[int, bool]]:
    """Return the bytes of values and whether they are constants, for these input shapes; {} if tracing fails."""
    shapes = {name: content.shape for name, content in inputs.items() if isinstance(content, np.ndarray)}
    overridden = [value.name for value in graph.defaults if value.name in inputs]
    try:
        program = lower(with_outputs(graph, names), Interpreter(), sizes=shapes, overridden=overridden)
    except (WeftError, OnlyAtRunError, ArithmeticError):
        return {}
    constants = program.constants
    return {name: (_type_bytes(value.type), value in constants) for name, value in zip(names, program.outputs)}


def _type_bytes(type: Type) -> int:
    if type.shape is None:
        return UNKNOWN_BYTES
    elements = dims.product(type.shape)
    return elements * type.dtype.numpy.itemsize if isinstance(elements, int) else UNKNOWN_BYTES
