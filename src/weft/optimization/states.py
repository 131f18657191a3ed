"""Initial states that are zeros: recurrent nodes begin with zeros without being told to."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from weft.ir.graph import Graph, Node
from weft.optimization.facts import ValueFacts
from weft.optimization.rewriting import Rewriting, Workshop

FIRST_STATE = 5
STATES = {"LSTM": 2, "GRU": 1, "RNN": 1}
MOVES = (
    "Slice",
    "Reshape",
    "Squeeze",
    "Unsqueeze",
    "Transpose",
    "Identity",
    "Cast",
    "Expand",
    "Tile",
    "Gather",
    "Split",
)
"""Ops that give nothing but elements of their first input."""

ZEROS = "initial states that are zeros"


def without_zero_states(graph: Graph, facts: ValueFacts, work: Workshop) -> Graph:
    """The graph with recurrent nodes that are not told to begin with zeros."""
    rewriting = Rewriting(graph, facts, work)
    for node in rewriting.nodes(*STATES):
        inputs = list(node.inputs)
        for place in range(FIRST_STATE, FIRST_STATE + STATES[node.op]):
            if place < len(inputs) and inputs[place] and _is_zero(rewriting, inputs[place]):
                inputs[place] = ""
        while not inputs[-1]:
            inputs.pop()
        if tuple(inputs) != node.inputs and len(inputs) <= len(node.inputs) and _names(inputs) < _names(node.inputs):
            rewriting.put(node, replace(node, inputs=tuple(inputs)), done=ZEROS)
    return rewriting.finish()


def _names(inputs: object) -> int:
    assert isinstance(inputs, (list, tuple))
    return sum(1 for name in inputs if name)


def _is_zero(rewriting: Rewriting, name: str) -> bool:
    """Whether all elements of a value are zeros, however many there are."""
    while True:
        number = rewriting.scalar(name)
        if number is not None:
            return not bool(number)
        node = rewriting.before(name, "ConstantOfShape", *MOVES)
        if node is None:
            return False
        if node.op == "ConstantOfShape":
            return _is_filled_with_zeros(node)
        name = node.inputs[0]


def _is_filled_with_zeros(node: Node) -> bool:
    content = node.attributes.get("value")
    return content is None or (isinstance(content, np.ndarray) and not content.any())
