"""A graph that is being rewritten: who gives a value and who reads it, nodes replaced, values that stand for others.

A rewriting is one sweep: a node is replaced at most once, and what was replaced is seen by the next sweep. Values keep
their names and meanings, so that what is known of them (`ValueFacts`) holds throughout. Outputs of a graph are
always given by one of its own nodes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, replace
from typing import Any

import numpy as np

from weft.ir.dtypes import DType, from_numpy
from weft.ir.graph import Attribute, Graph, GraphValue, Node, free_names, subgraphs
from weft.ir.types import Shape
from weft.optimization.editing import STANDARD, tidy
from weft.optimization.facts import ValueFacts
from weft.optimization.options import OptimizeOptions
from weft.records import dataclass

Array = np.ndarray[Any, Any]


@dataclass(slots=True)
class Workshop:
    """What all graphs of one model share while they are rewritten."""

    options: OptimizeOptions
    version: int  # the opset of ai.onnx
    taken: set[str]
    done: Counter[str] = field(default_factory=Counter)  # what was done, in words, and how often

    keys: dict[int, tuple[Array, Any]] = field(default_factory=dict)  # of the contents of arrays, by their identity

    def fresh(self, stem: str) -> str:
        """A name that nothing in the model has."""
        name, number = stem, 1
        while name in self.taken:
            number += 1
            name = f"{stem}_{number}"
        self.taken.add(name)
        return name


class Rewriting:
    """One sweep over a graph."""

    def __init__(self, graph: Graph, facts: ValueFacts, work: Workshop) -> None:
        self.graph = graph
        self.facts = facts
        self.work = work
        self.version = work.version
        self.producers = {name: node for node in graph.nodes for name in node.outputs if name}
        self.shown = {value.name for value in graph.outputs}
        self._given = {value.name for value in graph.defaults}
        self._uses = Counter(self.shown)
        for node in graph.nodes:
            self._uses.update(filter(None, node.inputs))
            for inner in subgraphs(node):
                self._uses.update(dict.fromkeys(free_names(inner), 2))  # it is not to be changed for a body
        self._replaced: dict[str, Sequence[Node]] = {}  # by the name of the node
        self._settled: set[str] = set()  # nodes that another one was merged with
        self._aliases: dict[str, str] = {}
        self._initializers = dict(graph.initializers)
        self._added: list[Node] = []

    # -- what there is ----------------------------------------------------------------------------------------------

    def constant(self, name: str) -> Array | None:
        """The content of a constant."""
        if name in self._given:
            return None
        found = self._initializers.get(name)
        return self.facts.content(name) if found is None else found

    def shape(self, name: str) -> Shape | None:
        found = self._initializers.get(name)
        return self.facts.shape(name) if found is None else found.shape

    def dtype(self, name: str) -> DType | None:
        found = self._initializers.get(name)
        return self.facts.dtype(name) if found is None else from_numpy(found.dtype)

    def scalar(self, name: str) -> Any:
        """The one number that a constant holds, in all of its elements."""
        array = self.constant(name)
        if array is None or array.size == 0 or array.dtype == object:
            return None
        first = array.reshape(-1)[0]
        return first if array.size == 1 or bool((array == first).all()) else None

    def before(self, name: str, *ops: str) -> Node | None:
        """The node of one of these ops that gives a value, unless this sweep has changed it."""
        node = self.producers.get(name)
        usable = node is not None and node.domain == STANDARD and node.op in ops and self.is_free(node)
        return node if usable else None

    def only(self, name: str, *ops: str) -> Node | None:
        """The same, where one node alone reads the value."""
        node = self.before(name, *ops)
        return node if node is not None and self._uses[name] == 1 and not any(node.outputs[1:]) else None

    def is_free(self, node: Node) -> bool:
        """Whether this sweep has left a node alone so far, and it keeps the rules of its op."""
        changed = node.name in self._replaced or node.name in self._settled
        return not changed and not self.facts.is_refused(node)

    def uses(self, name: str) -> int:
        """How often a value is read, also as an output and by bodies."""
        return self._uses[name]

    def is_shared(self, name: str) -> bool:
        """Whether more than one node reads a value."""
        return self._uses[name] > 1

    def nodes(self, *ops: str) -> Iterable[Node]:
        """The nodes of these ops that were not changed yet, as they are when one gets to them."""
        for node in self.graph.nodes:
            if node.domain == STANDARD and node.op in ops and self.is_free(node):
                yield node

    # -- changes ----------------------------------------------------------------------------------------------------

    def put(self, node: Node, *others: Node, merged: Iterable[Node] = (), done: str) -> None:
        """Other nodes in place of one, computed from what `merged` were computed from; these go where nothing else
        reads them.
        """
        self._replaced[node.name] = others
        self._settled.update(each.name for each in merged)
        self.work.done[done] += 1

    def alias(self, name: str, other: str, done: str) -> bool:
        """A value is another one; a value that must keep its node does so, and only its readers change."""
        kept = name in self.shown and not self._can_take(other)
        if name in self._aliases or name == self._resolved(other) or self._uses[name] <= (1 if kept else 0):
            return False
        self._aliases[name] = other
        self.work.done[done] += 1
        return True

    def _can_take(self, other: str) -> bool:
        """Whether the node of a value could give it under the name of an output."""
        source = self._resolved(other)
        return source in self.producers and source not in self.shown

    def add_constant(self, stem: str, array: Array) -> str:
        name = self.work.fresh(stem)
        self._initializers[name] = np.asarray(array)  # arithmetic on arrays of rank 0 gives numbers
        return name

    def keep_constant(self, name: str, array: Array) -> None:
        """A constant under this very name, which must be new."""
        self._initializers[name] = array

    def stand_in(self, name: str, node: Node) -> None:
        """A node that gives a value which the node that gave it no longer does."""
        assert node.outputs == (name,)
        self._added.append(node)

    def give_constant(self, name: str, array: Array, done: str) -> None:
        """A value that a node gave is a constant of the same name."""
        node = self.producers[name]
        if name in self.shown:
            if node.op == "Constant":
                return
            constant = Node("Constant", STANDARD, self.version, self.work.fresh(name), (), (name,), {"value": array})
            self._added.append(constant)
        else:
            self._initializers[name] = np.asarray(array)
        current = next(iter(self._replaced.get(node.name, (node,))))
        outputs = tuple(self.work.fresh(f"{each}_unread") if each == name else each for each in current.outputs)
        live = [each for each in outputs if each in self.producers]
        self._replaced[node.name] = [replace(current, outputs=outputs)] if live else []
        self.work.done[done] += 1

    def node(
        self, op: str, inputs: Sequence[str], outputs: Sequence[str], attributes: Mapping[str, Attribute] | None = None
    ) -> Node:
        """A new node, of ai.onnx."""
        name = self.work.fresh(f"{op}_{outputs[0]}")
        return Node(op, STANDARD, self.version, name, tuple(inputs), tuple(outputs), attributes or {})

    def finish(self) -> Graph:
        """The graph with all changes, or the very same where there were none."""
        added = len(self._initializers) != len(self.graph.initializers)
        if not self._replaced and not self._aliases and not self._added and not added:
            return self.graph
        nodes = [each for node in self.graph.nodes for each in self._replaced.get(node.name, (node,))]
        changed = replace(self.graph, nodes=(*nodes, *self._added), initializers=self._initializers)
        return tidy(_with_aliases(changed, self._aliases, self.work))

    def _resolved(self, name: str) -> str:
        return _resolve(self._aliases, name)


def _resolve(aliases: Mapping[str, str], name: str) -> str:
    while name in aliases:
        name = aliases[name]
    return name


def _with_aliases(graph: Graph, aliases: Mapping[str, str], work: Workshop) -> Graph:
    """The graph with values instead of those that are the same; outputs keep their names."""
    if not aliases:
        return graph
    names = {name: _resolve(aliases, name) for name in aliases}
    shown = {value.name for value in graph.outputs}
    made = {name for node in graph.nodes for name in node.outputs if name}
    taken: dict[str, str] = {}  # a value to the name of the output that it becomes
    for value in graph.outputs:
        source = names.get(value.name)
        if source is not None and source in made and source not in shown:
            taken.setdefault(source, value.name)
    replaced = set(taken.values())  # outputs that another node gives now
    unread = {name for name in names if name not in shown} | replaced
    reads = {**{name: taken.get(source, source) for name, source in names.items()}, **taken}
    reads = {name: other for name, other in reads.items() if name != other}
    nodes = []
    for node in graph.nodes:
        if not node.outputs or all(name in unread or not name for name in node.outputs):
            continue
        outputs = tuple(
            work.fresh(f"{name}_unread") if name in replaced else taken.get(name, name) for name in node.outputs
        )
        nodes.append(replace(renamed(node, reads), outputs=outputs))
    return replace(graph, nodes=tuple(nodes))


def renamed(node: Node, names: Mapping[str, str]) -> Node:
    """The node with other names for what it reads, in its bodies, too."""
    inputs = tuple(names.get(name, name) for name in node.inputs)
    attributes = {
        key: _renamed_graph(content, names) if isinstance(content, Graph) else content
        for key, content in node.attributes.items()
    }
    changed = any(attributes[key] is not content for key, content in node.attributes.items())
    return replace(node, inputs=inputs, attributes=attributes) if changed or inputs != node.inputs else node


def _renamed_graph(graph: Graph, names: Mapping[str, str]) -> Graph:
    if not free_names(graph) & names.keys():
        return graph
    outputs = tuple(GraphValue(names.get(value.name, value.name), value.type) for value in graph.outputs)
    return replace(graph, nodes=tuple(renamed(node, names) for node in graph.nodes), outputs=outputs)
