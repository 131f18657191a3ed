"""Nodes on their own: a graph in, one whose chosen nodes read given values instead of each other's results out.

What a node gives in it is its answer to the given inputs alone, without what earlier nodes made of theirs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from weft.ir.arrays import Array
from weft.ir.dtypes import from_numpy
from weft.ir.graph import Graph, GraphValue, needed_names, with_outputs
from weft.ir.types import TensorType


def alone(name: str) -> str:
    """What the result of a node on its own is called, beside the given value of that name."""
    return f"{name} (alone)"


def isolated(graph: Graph, names: Sequence[str], given: Mapping[str, Array], fixed: Mapping[str, Array]) -> Graph:
    """A graph whose outputs are `alone(name)` of all names.

    Its inputs are those of the `given` values that it reads; those in `fixed` are known when it is compiled.
    """
    wanted = set(names)
    known = {*given, *fixed}
    nodes = []
    for node in graph.nodes:
        if wanted.intersection(node.outputs):
            nodes.append(replace(node, outputs=tuple(name and alone(name) for name in node.outputs)))
        elif not known.intersection(node.outputs):
            nodes.append(node)
    weights = {name: array for name, array in graph.initializers.items() if name not in given}
    values = [GraphValue(name, TensorType(from_numpy(array.dtype), array.shape)) for name, array in given.items()]
    others = [value for value in graph.inputs if value.name not in known]  # those that are no tensors
    outputs = tuple(GraphValue(alone(name), None) for name in names)
    whole = Graph(graph.name, tuple(nodes), (*values, *others), outputs, {**weights, **fixed})
    part = with_outputs(whole, [alone(name) for name in names])
    read = set().union(*map(needed_names, part.nodes))
    return replace(part, inputs=tuple(value for value in part.inputs if value.name in read))
