"""Summaries of a model's graph and program: ops, weights, dynamic dims."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from weft.ir.arrays import Array
from weft.ir.dims import symbols
from weft.ir.dtypes import DType, from_numpy
from weft.ir.graph import Graph, Node, subgraphs
from weft.ir.program import TensorProgram, Value, bodies
from weft.records import dataclass


@dataclass(frozen=True, slots=True)
class WeightSummary:
    """The tensors in the file: initializers, and attributes of nodes."""

    tensors: int
    elements: int
    stored_bytes: int
    dtypes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DynamicDim:
    """A size known only at run time, and the dimensions (`value[position]`) that have it."""

    name: str
    places: tuple[str, ...]
    from_data: bool  # depends on data, not on the shapes of the inputs


def count_ops(graph: Graph) -> Counter[tuple[str, str]]:
    """Count each (domain, op), subgraphs included."""
    return Counter((node.domain, node.op) for node in walk_nodes(graph))


def summarize_weights(graph: Graph) -> WeightSummary:
    """Count the stored tensors of the graph and its subgraphs."""
    arrays = list(_stored_arrays(graph))
    dtypes = Counter(from_numpy(array.dtype).value for array in arrays)
    return WeightSummary(
        len(arrays),
        sum(array.size for array in arrays),
        sum(map(_stored_bytes, arrays)),
        tuple(name for name, _ in dtypes.most_common()),
    )


def find_dynamic_dims(program: TensorProgram, output_names: Sequence[str]) -> tuple[DynamicDim, ...]:
    """Return every dynamic dim with the inputs and outputs that have it: those of inputs, then those of data.

    Of intermediate values, only the first is named.
    """
    places: dict[str, list[str]] = {}
    for value in program.inputs:
        for name, place in _dynamic_places(value, value.name):
            places.setdefault(name, []).append(place)
    input_dims = set(places)
    for origin, value in _computed_values(program):
        for name, place in _dynamic_places(value, value.name or origin):
            if name not in places:
                places[name] = [place]
    for label, value in zip(output_names, program.outputs, strict=True):
        for name, place in _dynamic_places(value, label):
            if place not in places.setdefault(name, []):
                places[name].append(place)
    return tuple(DynamicDim(name, tuple(positions), name not in input_dims) for name, positions in places.items())


def walk_nodes(graph: Graph) -> Iterator[Node]:
    """Yield the nodes of a graph and, after each, those of its subgraphs."""
    for node in graph.nodes:
        yield node
        for subgraph in subgraphs(node):
            yield from walk_nodes(subgraph)


def _stored_arrays(graph: Graph) -> Iterator[Array]:
    yield from graph.initializers.values()
    for node in graph.nodes:
        for attribute in node.attributes.values():
            for item in attribute if isinstance(attribute, tuple) else (attribute,):
                if isinstance(item, np.ndarray):
                    yield item
        for subgraph in subgraphs(node):
            yield from _stored_arrays(subgraph)


def _stored_bytes(array: Array) -> int:
    """Return the bytes in the file, where types of less than eight bits are packed."""
    dtype = from_numpy(array.dtype)
    if dtype is DType.string:
        return sum(
            len(text if isinstance(text, bytes) else str(text).encode(errors="surrogateescape")) for text in array.flat
        )
    return -(-array.size * dtype.bits // 8)


def _dynamic_places(value: Value, label: str) -> Iterator[tuple[str, str]]:
    if value.has_shape:
        for position, dim in enumerate(value.shape):
            for symbol in sorted(symbols(dim), key=str):
                yield symbol.name, f"{label}[{position}]"


def _computed_values(program: TensorProgram) -> Iterable[tuple[str, Value]]:
    for step in program.steps:
        for result in step.results:
            yield step.origin, result
        for body in bodies(step.primitive):
            yield from _computed_values(body)
