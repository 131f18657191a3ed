"""Prepare a graph for quantization: fold computed weights to constants, and batch normalisation into layers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np

from weft.backends.reference.interpret import Interpreter
from weft.ir.arrays import Array
from weft.ir.graph import Graph, Node, with_outputs
from weft.opset.lower import run_eagerly
from weft.optimization.graph_edit import STANDARD, GraphEdit, has_subgraphs
from weft.quantization.batch_norm import fold_batch_norms

_RANDOM_OPS = ("RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Multinomial", "Bernoulli")
LARGEST_FOLDED = 1 << 30  # bytes of a computed weight


def find_constants(graph: Graph) -> dict[str, Array]:
    """Return the initializers that cannot be overridden, and the tensors of Constant nodes."""
    overridable = {value.name for value in graph.defaults}
    constants = {name: array for name, array in graph.initializers.items() if name not in overridable}
    for node in graph.nodes:
        if node.op == "Constant" and node.domain == STANDARD and len(node.attributes) == 1:
            (content,) = node.attributes.values()
            if isinstance(content, np.ndarray):
                constants[node.outputs[0]] = content
    return constants


def fold_values(graph: Graph, names: Iterable[str]) -> Graph:
    """Replace those of the named values that depend only on constants by initializers."""
    constants = find_constants(graph)
    producer = {name: node for node in graph.nodes for name in node.outputs}
    folded: dict[str, Array] = {}
    for name in names:
        if name in constants or name in folded or name not in producer or not _is_constant(name, producer, constants):
            continue
        part = replace(with_outputs(graph, [name]), inputs=(), defaults=())
        (content,) = run_eagerly(part, Interpreter(), {})
        if isinstance(content, np.ndarray) and content.nbytes <= LARGEST_FOLDED:
            folded[name] = content
    if not folded:
        return graph
    nodes = [node for node in graph.nodes if not folded.keys() & set(node.outputs)]
    removed = {name for node in graph.nodes if node not in nodes for name in node.outputs} - folded.keys()
    if removed & ({name for node in nodes for name in node.inputs} | {value.name for value in graph.outputs}):
        return graph
    return GraphEdit(replace(graph, initializers={**graph.initializers, **folded}), 0).finish(nodes)


def _is_constant(name: str, producer: Mapping[str, Node], constants: Mapping[str, Array]) -> bool:
    """Whether a value depends only on constants."""
    pending, visited = [name], set()
    while pending:
        current = pending.pop()
        if current in constants or not current or current in visited:
            continue
        visited.add(current)
        node = producer.get(current)
        if node is None or node.op in _RANDOM_OPS or has_subgraphs(node):
            return False
        pending.extend(node.inputs)
    return True


def fold_normalization(graph: Graph) -> Graph:
    """Fold batch normalisation into the layers before it."""
    norms = [node for node in graph.nodes if node.op == "BatchNormalization" and node.domain == STANDARD]
    graph = fold_values(graph, [name for node in norms for name in node.inputs[1:5]])
    return fold_batch_norms(graph, find_constants(graph))
