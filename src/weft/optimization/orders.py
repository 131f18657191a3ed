"""Orders of axes that are changed and changed back: what is computed in between is computed in the first order.

A region is a set of nodes that work element by element on values of one order, which transposes bring them into. It is
computed without these where that leaves fewer transposes: those before it, and those after it that undo them, go; one
comes for each value that others read, and for each value from elsewhere.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import field, replace

import numpy as np

from weft.ir.graph import Attribute, Graph, Node
from weft.optimization.editing import STANDARD
from weft.optimization.facts import ValueFacts
from weft.optimization.rewriting import Rewriting, Workshop
from weft.records import dataclass

ELEMENTWISE = frozenset((
    "Abs", "Add", "And", "Cast", "Ceil", "Celu", "Clip", "Cos", "DequantizeLinear", "Div", "Elu", "Equal", "Erf", "Exp",
    "Floor", "Gelu", "Greater", "GreaterOrEqual", "HardSigmoid", "HardSwish", "IsInf", "IsNaN", "LeakyRelu", "Less",
    "LessOrEqual", "Log", "Max", "Mean", "Min", "Mish", "Mod", "Mul", "Neg", "Not", "Or", "PRelu", "Pow",
    "QuantizeLinear", "Reciprocal", "Relu", "Round", "Selu", "Sigmoid", "Sign", "Sin", "Softplus", "Softsign", "Sqrt",
    "Sub", "Sum", "Tanh", "ThresholdedRelu", "Where", "Xor",
))  # fmt: skip
WITH_AXIS = frozenset(("Concat", "Softmax", "LogSoftmax"))
ONE_SCALE = frozenset(("DequantizeLinear", "QuantizeLinear"))
NEGATIVE_AXES = 11
OWN_AXIS = 13  # the first opset in which Softmax works along its axis alone
BROADCASTS = 7
UNDONE = "orders that were undone later"


@dataclass(slots=True)
class _OrderedNodes:
    order: tuple[int, ...]
    sources: dict[str, Node] = field(default_factory=dict)  # transposes before it, by what they give
    nodes: list[Node] = field(default_factory=list)
    values: set[str] = field(default_factory=set)  # what its nodes give
    foreign: dict[str, None] = field(default_factory=dict)  # what they read besides, in the order of the region


def with_fewer_orders(graph: Graph, facts: ValueFacts, work: Workshop) -> Graph:
    """The graph with regions computed in the order that their inputs have."""
    if work.version < BROADCASTS or sum(1 for node in graph.nodes if node.op == "Transpose") < 2:
        return graph
    rewriting = Rewriting(graph, facts, work)
    readers: dict[str, list[Node]] = {}
    for node in graph.nodes:
        for name in node.inputs:
            readers.setdefault(name, []).append(node)
    for with_foreign in (False, True):
        orders = {_order(node): None for node in rewriting.nodes("Transpose") if "perm" in node.attributes}
        for order in orders:
            for region in _regions(rewriting, readers, order, with_foreign):
                if all(map(rewriting.is_free, region.nodes)) and _gain(rewriting, readers, region) > 0:
                    _rewrite(rewriting, readers, region)
    return rewriting.finish()


def _regions(
    rewriting: Rewriting, readers: dict[str, list[Node]], order: tuple[int, ...], with_foreign: bool
) -> list[_OrderedNodes]:
    """All that can be computed in the order before these transposes, in pieces that share nothing."""
    seeds = [node for node in rewriting.nodes("Transpose") if _order(node) == order]
    whole = _OrderedNodes(order, {node.outputs[0]: node for node in seeds})
    places = {node.name: at for at, node in enumerate(rewriting.graph.nodes)}
    waiting = [(places[node.name], node.name) for name in whole.sources for node in readers.get(name, ())]
    heapq.heapify(waiting)
    seen: set[str] = set()
    while waiting:
        at, name = heapq.heappop(waiting)
        node = rewriting.graph.nodes[at]
        if name in seen:
            continue
        seen.add(name)
        if _joins(rewriting, whole, node, with_foreign):
            whole.nodes.append(node)
            whole.values.update(node.outputs)
            for reader in readers.get(node.outputs[0], ()):
                heapq.heappush(waiting, (places[reader.name], reader.name))
    return _pieces(whole)


def _pieces(whole: _OrderedNodes) -> list[_OrderedNodes]:
    """A region as those parts of it that share no value."""
    parent: dict[str, str] = {}

    def root(name: str) -> str:
        while parent.setdefault(name, name) != name:
            name = parent[name]
        return name

    inner = whole.values | whole.sources.keys() | whole.foreign.keys()
    for node in whole.nodes:
        for name in node.inputs:
            if name in inner:
                parent[root(name)] = root(node.outputs[0])
    pieces: dict[str, _OrderedNodes] = {}
    for node in whole.nodes:
        piece = pieces.setdefault(root(node.outputs[0]), _OrderedNodes(whole.order))
        piece.nodes.append(node)
        piece.values.update(node.outputs)
        piece.sources.update({name: whole.sources[name] for name in node.inputs if name in whole.sources})
        piece.foreign.update(dict.fromkeys(name for name in node.inputs if name in whole.foreign))
    return list(pieces.values())


def _order(node: Node) -> tuple[int, ...]:
    order = node.attributes.get("perm", ())
    assert isinstance(order, tuple)
    return tuple(axis for axis in order if isinstance(axis, int))


def _joins(rewriting: Rewriting, region: _OrderedNodes, node: Node, with_foreign: bool) -> bool:
    """Whether a node can be computed in another order; what it reads becomes part of the region's inputs."""
    rank = len(region.order)
    shape = rewriting.shape(node.outputs[0])
    known = node.domain == STANDARD and node.op in ELEMENTWISE | WITH_AXIS and rewriting.is_free(node)
    if not known or shape is None or len(shape) != rank or any(node.outputs[1:]):
        return False
    if node.op in ("Softmax", "LogSoftmax") and rewriting.version < OWN_AXIS:
        return False
    foreign: list[str] = []
    for name in node.inputs:
        if not name or name in region.values or name in region.sources or name in region.foreign:
            continue
        constant = rewriting.constant(name)
        if constant is not None:
            if constant.ndim > rank or (node.op in ONE_SCALE | WITH_AXIS and constant.size != 1):
                return False
            if node.op in WITH_AXIS:
                return False
            continue
        own = rewriting.shape(name)
        if own == ():
            continue
        if with_foreign and own is not None and len(own) == rank and node.op not in ONE_SCALE:
            foreign.append(name)
        else:
            return False
    region.foreign.update(dict.fromkeys(foreign))
    return True


def _outside(
    rewriting: Rewriting, readers: dict[str, list[Node]], region: _OrderedNodes, name: str
) -> list[Node] | None:
    """The transposes that read a value of the region from outside; None where others do, too."""
    inside = {node.name for node in region.nodes}
    found = [node for node in readers.get(name, ()) if node.name not in inside]
    plain = all(node.op == "Transpose" and not node.domain and rewriting.is_free(node) for node in found)
    captured = rewriting.uses(name) != len(readers.get(name, ()))
    return found if plain and not captured and not any(node.outputs[0] in rewriting.shown for node in found) else None


def _composed(region: _OrderedNodes, node: Node) -> tuple[int, ...]:
    """The order of a transpose behind the region, from the order before it."""
    rank = len(region.order)
    outer = _order(node) if "perm" in node.attributes else tuple(reversed(range(rank)))
    return tuple(region.order[axis] for axis in outer)


def _gain(rewriting: Rewriting, readers: dict[str, list[Node]], region: _OrderedNodes) -> int:
    """How many transposes fewer there would be."""
    inside = {node.name for node in region.nodes}
    gain = -len(region.foreign)
    for name in region.sources:
        others = rewriting.uses(name) - sum(1 for node in readers.get(name, ()) if node.name in inside)
        gain += 1 if others == 0 else 0
    for node in region.nodes:
        outside = _outside(rewriting, readers, region, node.outputs[0])
        if outside is None:
            gain -= 1
        else:
            gain += sum(1 for each in outside if _composed(region, each) == tuple(range(len(region.order))))
    return gain


def _rewrite(rewriting: Rewriting, readers: dict[str, list[Node]], region: _OrderedNodes) -> None:
    """Put the nodes of a region into the order before it."""
    back = tuple(int(axis) for axis in np.argsort(region.order))
    names = {name: source.inputs[0] for name, source in region.sources.items()}
    added: list[Node] = []
    for name in region.foreign:
        names[name] = rewriting.work.fresh(f"{name}_ordered")
        added.append(rewriting.node("Transpose", (name,), (names[name],), {"perm": back}))
    for node in region.nodes:
        names[node.outputs[0]] = rewriting.work.fresh(f"{node.outputs[0]}_ordered")
    for at, node in enumerate(region.nodes):
        result = node.outputs[0]
        inputs = [_moved(rewriting, names, name, region, back) for name in node.inputs]
        moved = replace(
            node, inputs=tuple(inputs), outputs=(names[result],), attributes=_moved_axis(node, region.order)
        )
        nodes = [*(added if at == 0 else ()), moved]
        outside = _outside(rewriting, readers, region, result)
        if outside is None:
            nodes.append(rewriting.node("Transpose", (names[result],), (result,), {"perm": region.order}))
        for each in outside or ():
            order = _composed(region, each)
            if order == tuple(range(len(order))):
                rewriting.alias(each.outputs[0], names[result], UNDONE)
            else:
                changed = replace(each, inputs=(names[result],), attributes={"perm": order})
                rewriting.put(each, changed, done=UNDONE)
        rewriting.put(node, *nodes, merged=region.sources.values(), done=UNDONE)


def _moved(rewriting: Rewriting, names: dict[str, str], name: str, region: _OrderedNodes, back: Iterable[int]) -> str:
    """What a node reads in the other order."""
    if name in names or not name:
        return names.get(name, "")
    constant = rewriting.constant(name)
    if constant is None or constant.size == 1:
        return name
    full = constant.reshape(*[1] * (len(region.order) - constant.ndim), *constant.shape)
    return rewriting.add_constant(f"{name}_ordered", np.ascontiguousarray(full.transpose(tuple(back))))


def _moved_axis(node: Node, order: tuple[int, ...]) -> dict[str, Attribute]:
    if node.op not in WITH_AXIS:
        return dict(node.attributes)
    axis = node.attributes.get("axis", -1)
    assert isinstance(axis, int)
    return {**node.attributes, "axis": order[axis]}
