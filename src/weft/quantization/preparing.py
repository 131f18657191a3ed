"""What is done to a graph before its numbers are narrowed: weights that are computed become constants, and batch
normalisation goes into the convolution before it, so that a layer is one node with its weights.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np

from weft.backends.reference.interpret import Interpreter
from weft.ir.arrays import Array
from weft.ir.graph import Graph, Node, subgraphs, with_outputs
from weft.opset.lower import run_eagerly
from weft.optimization.batch_norm import fold_batch_norms
from weft.optimization.graph_edit import STANDARD, GraphEdit

_CHANCE = ("RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Multinomial", "Bernoulli")
LARGEST_FOLDED = 1 << 30  # bytes of a weight that is computed


def constants(graph: Graph) -> dict[str, Array]:
    """The values that are constants: initializers that nobody can override, and nodes that are nothing but a tensor."""
    given = {value.name for value in graph.defaults}
    found = {name: array for name, array in graph.initializers.items() if name not in given}
    for node in graph.nodes:
        if node.op == "Constant" and node.domain == STANDARD and len(node.attributes) == 1:
            (content,) = node.attributes.values()
            if isinstance(content, np.ndarray):
                found[node.outputs[0]] = content
    return found


def with_fixed_weights(graph: Graph) -> Graph:
    """The graph of an old file, whose every weight had to be an input: without those inputs."""
    return replace(graph, defaults=())


def with_folded(graph: Graph, wanted: Iterable[str]) -> Graph:
    """The graph with those of the wanted values as initializers that only constants decide."""
    known = constants(graph)
    producer = {name: node for node in graph.nodes for name in node.outputs}
    folded: dict[str, Array] = {}
    for name in wanted:
        if name in known or name in folded or name not in producer or not _is_decided(name, producer, known):
            continue
        part = replace(with_outputs(graph, [name]), inputs=(), defaults=())
        (content,) = run_eagerly(part, Interpreter(), {})
        if isinstance(content, np.ndarray) and content.nbytes <= LARGEST_FOLDED:
            folded[name] = content
    if not folded:
        return graph
    nodes = [node for node in graph.nodes if not folded.keys() & set(node.outputs)]
    kept = tuple(nodes)
    lost = {name for node in graph.nodes if node not in nodes for name in node.outputs} - folded.keys()
    if lost & ({name for node in kept for name in node.inputs} | {value.name for value in graph.outputs}):
        return graph
    return GraphEdit(replace(graph, initializers={**graph.initializers, **folded}), 0).finish(kept)


def _is_decided(name: str, producer: Mapping[str, Node], known: Mapping[str, Array]) -> bool:
    """Whether a value depends on nothing but constants."""
    waiting, seen = [name], set()
    while waiting:
        current = waiting.pop()
        if current in known or not current or current in seen:
            continue
        seen.add(current)
        node = producer.get(current)
        if node is None or node.op in _CHANCE or any(True for _ in subgraphs(node)):
            return False
        waiting.extend(node.inputs)
    return True


def with_folded_normalisation(graph: Graph) -> Graph:
    """Fold batch normalisation into the layers before it."""
    norms = [node for node in graph.nodes if node.op == "BatchNormalization" and node.domain == STANDARD]
    graph = with_folded(graph, [name for node in norms for name in node.inputs[1:5]])
    return fold_batch_norms(graph, constants(graph))
