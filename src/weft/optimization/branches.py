"""Control flow that is decided: the branch that is always taken stands in the graph itself, and what bodies hold as
constants is given once, by the graph around them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from weft.ir.graph import Graph, GraphValue, Node, free_names
from weft.optimization.facts import ValueFacts
from weft.optimization.rewriting import Rewriting, Workshop, renamed

Array = np.ndarray[Any, Any]

LARGE = 256  # bytes of a constant that a body shares with others
TAKEN, IDLE = "branches that are always taken", "states of loops that never change"


def with_taken_branches(graph: Graph, facts: ValueFacts, work: Workshop) -> Graph:
    """The graph with the nodes of a branch in place of an If whose condition is a constant."""
    rewriting = Rewriting(graph, facts, work)
    for node in rewriting.nodes("If"):
        condition = rewriting.constant(node.inputs[0])
        if condition is None or condition.size != 1:
            continue
        body = node.attributes.get("then_branch" if bool(condition.reshape(-1)[0]) else "else_branch")
        if isinstance(body, Graph) and not body.defaults:
            _take(rewriting, node, body)
    return rewriting.finish()


def without_idle_states(graph: Graph, facts: ValueFacts, work: Workshop) -> Graph:
    """The graph with loops that do not carry what they never change: their bodies read it from outside."""
    rewriting = Rewriting(graph, facts, work)
    for node in rewriting.nodes("Loop"):
        body = node.attributes.get("body")
        if isinstance(body, Graph) and len(node.inputs) == len(body.inputs) and not body.defaults:
            _drop_idle(rewriting, node, body)
    return rewriting.finish()


def _drop_idle(rewriting: Rewriting, node: Node, body: Graph) -> None:
    sources = {each.outputs[0]: each.inputs[0] for each in body.nodes if each.op == "Identity" and not each.domain}

    def source(name: str) -> str:
        while name in sources:
            name = sources[name]
        return name

    states = range(len(node.inputs) - 2)
    idle = [
        at for at in states if node.inputs[at + 2] and source(body.outputs[at + 1].name) == body.inputs[at + 2].name
    ]
    if not idle or len(idle) == len(node.outputs):
        return  # a loop must have outputs
    names = {body.inputs[at + 2].name: node.inputs[at + 2] for at in idle}
    smaller = replace(
        body,
        nodes=tuple(renamed(each, names) for each in body.nodes),
        inputs=tuple(each for at, each in enumerate(body.inputs) if at - 2 not in idle),
        outputs=tuple(each for at, each in enumerate(body.outputs) if at - 1 not in idle),
    )
    if free_names(smaller) & names.keys():  # an output of the body that is a state itself
        return
    for at in idle:
        if at < len(node.outputs) and node.outputs[at]:
            output = node.outputs[at]
            rewriting.stand_in(output, rewriting.node("Identity", (node.inputs[at + 2],), (output,)))
    inputs = tuple(name for at, name in enumerate(node.inputs) if at - 2 not in idle)
    outputs = tuple(name for at, name in enumerate(node.outputs) if at not in idle)
    changed = replace(node, inputs=inputs, outputs=outputs, attributes={**node.attributes, "body": smaller})
    rewriting.put(node, changed, done=IDLE)


def _take(rewriting: Rewriting, node: Node, body: Graph) -> None:
    names = {name: rewriting.work.fresh(f"{name}_taken") for name in _defined(body)}
    for name, array in body.initializers.items():
        rewriting.keep_constant(names[name], array)
    nodes = [_with_names(each, names, rewriting.work) for each in body.nodes]
    for name, value in zip(node.outputs, body.outputs):
        if name:
            nodes.append(rewriting.node("Identity", (names.get(value.name, value.name),), (name,)))
    rewriting.put(node, *nodes, done=TAKEN)


def _defined(graph: Graph) -> list[str]:
    return [*graph.initializers, *(name for node in graph.nodes for name in node.outputs if name)]


def _with_names(node: Node, names: Mapping[str, str], work: Workshop) -> Node:
    """A node of a body under names of the graph around it."""
    outputs = tuple(names.get(name, name) for name in node.outputs)
    return replace(renamed(node, names), name=work.fresh(node.name), outputs=outputs)


def with_shared_constants(graph: Graph, work: Workshop) -> Graph:
    """The graph with the large constants of its bodies as its own."""
    found: dict[str, Array] = {}
    nodes = tuple(_lifted(node, found, work) for node in graph.nodes)
    return replace(graph, nodes=nodes, initializers={**graph.initializers, **found}) if found else graph


def _lifted(node: Node, found: dict[str, Array], work: Workshop) -> Node:
    attributes = {
        key: _lifted_body(content, found, work) if isinstance(content, Graph) else content
        for key, content in node.attributes.items()
    }
    same = all(attributes[key] is content for key, content in node.attributes.items())
    return node if same else replace(node, attributes=attributes)


def _lifted_body(graph: Graph, found: dict[str, Array], work: Workshop) -> Graph:
    given = {value.name for value in (*graph.defaults, *graph.outputs)}
    names: dict[str, str] = {}
    for name, array in graph.initializers.items():
        if name not in given and array.dtype != object and array.nbytes >= LARGE:
            names[name] = work.fresh(f"{name}_shared")
            found[names[name]] = array
    nodes = tuple(_lifted(renamed(node, names), found, work) for node in graph.nodes)
    if not names and all(new is old for new, old in zip(nodes, graph.nodes)):
        return graph
    kept = {name: array for name, array in graph.initializers.items() if name not in names}
    outputs = tuple(GraphValue(value.name, value.type) for value in graph.outputs)
    return replace(graph, nodes=nodes, initializers=kept, outputs=outputs)
