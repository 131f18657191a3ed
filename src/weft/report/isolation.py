"""Isolate nodes: build a graph whose chosen nodes read given values instead of each other's results.

The result of an isolated node has no errors of the nodes before it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from weft.ir.arrays import Array
from weft.ir.dtypes import from_numpy
from weft.ir.graph import Graph, GraphValue, needed_names, with_outputs
from weft.ir.types import TensorType


def isolated_name(name: str) -> str:
    """Return the name of an isolated node's result, next to the given value of the same name."""
    return f"{name} (alone)"


def isolate_nodes(graph: Graph, names: Sequence[str], values: Mapping[str, Array], fixed: Mapping[str, Array]) -> Graph:
    """Build a graph whose outputs are `isolated_name(name)` for all names.

    Its inputs are the `values` that it reads; those in `fixed` are constants of the graph.
    """
    outputs_to_isolate = set(names)
    available = {*values, *fixed}
    nodes = []
    for node in graph.nodes:
        if outputs_to_isolate.intersection(node.outputs):
            nodes.append(replace(node, outputs=tuple(name and isolated_name(name) for name in node.outputs)))
        elif not available.intersection(node.outputs):
            nodes.append(node)
    weights = {name: array for name, array in graph.initializers.items() if name not in values}
    inputs = [GraphValue(name, TensorType(from_numpy(array.dtype), array.shape)) for name, array in values.items()]
    others = [value for value in graph.inputs if value.name not in available]  # inputs that are no tensors
    outputs = tuple(GraphValue(isolated_name(name), None) for name in names)
    whole = Graph(graph.name, tuple(nodes), (*inputs, *others), outputs, {**weights, **fixed})
    part = with_outputs(whole, [isolated_name(name) for name in names])
    read = set().union(*map(needed_names, part.nodes))
    return replace(part, inputs=tuple(value for value in part.inputs if value.name in read))
