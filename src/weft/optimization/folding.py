"""Constants: values that only constants decide become initializers, values that are others are not computed again.

The definitions of ops tell what is known (`ValueFacts`); what is larger than they compute while tracing is computed
here, node by node, where a node that stays reads it. Weights stay behind their DequantizeLinear, for engines that want
the bytes.
"""

from __future__ import annotations

from hashlib import sha256
from math import prod
from typing import Any

import numpy as np

from weft.backends.reference.interpret import Interpreter
from weft.errors import WeftError
from weft.ir.graph import Graph, GraphValue, Node, needed_names, subgraphs
from weft.opset.lower import run_eagerly
from weft.opset.tensor import NotStaticError
from weft.optimization.editing import STANDARD
from weft.optimization.facts import OPAQUE, ValueFacts
from weft.optimization.rewriting import Rewriting, Workshop

Array = np.ndarray[Any, Any]

LARGEST = 1 << 30  # bytes of a value that is computed
FOLDED, SAME, SAME_SIZES = "computed from constants", "did nothing", "sizes that were known before"


def with_constants(graph: Graph, facts: ValueFacts, work: Workshop) -> Graph:
    """The graph with initializers in place of what only constants decide."""
    rewriting = Rewriting(graph, facts, work)
    folder = _Folder(rewriting)
    for name in folder.wanted():
        content = folder.content(name)
        if content is not None:
            rewriting.give_constant(name, content, FOLDED)
    return rewriting.finish()


class _Folder:
    """Which values are constants, and what they are."""

    def __init__(self, rewriting: Rewriting) -> None:
        self._rewriting = rewriting
        self._graph = rewriting.graph
        self._computed: dict[str, Array | None] = {}
        self._decided: set[str] = set()
        for node in self._graph.nodes:
            if self._is_decided(node):
                self._decided.update(filter(None, node.outputs))
        staying = [node for node in self._graph.nodes if not self._decided & set(node.outputs)]
        self._read = {name for node in staying for name in needed_names(node)} | rewriting.shown

    def wanted(self) -> list[str]:
        """The values to become initializers: those that nodes read which stay, and that do not grow the file."""
        found: list[str] = []
        waiting = [name for name in self._decided if name in self._read]
        seen = set(waiting)
        while waiting:
            name = waiting.pop()
            node = self._rewriting.producers[name]
            if self._fits(name) and self.content(name) is not None:
                found.append(name)
                continue
            for other in node.inputs:  # the node stays, and reads these
                if other in self._decided and other not in seen:
                    seen.add(other)
                    waiting.append(other)
        order = {name: number for number, name in enumerate(self._rewriting.producers)}
        return sorted(found, key=order.__getitem__)

    def content(self, name: str) -> Array | None:
        known = self._rewriting.constant(name)
        if known is not None:
            return known
        if name not in self._computed and name in self._decided:
            self._compute(name)
        return self._computed.get(name)

    def _is_decided(self, node: Node) -> bool:
        if not self._rewriting.facts.is_settled(node) or node.op in OPAQUE or any(True for _ in subgraphs(node)):
            return bool(node.outputs) and all(
                self._rewriting.facts.content(name) is not None for name in node.outputs if name
            )
        return all(
            not name or name in self._decided or self._rewriting.constant(name) is not None for name in node.inputs
        ) or all(self._rewriting.facts.content(name) is not None for name in node.outputs if name)

    def _fits(self, name: str) -> bool:
        """Whether a value may become an initializer without making the file much larger."""
        node = self._rewriting.producers[name]
        limit = self._rewriting.work.options.growth
        if limit is None or (node.op == "Constant" and node.domain == STANDARD):
            return True
        size = self._bytes(name)
        return size is not None and size - self._freed(name) <= limit

    def _bytes(self, name: str) -> int | None:
        static = self._static_bytes(name)
        content = self.content(name) if static is None else None
        return content.nbytes if content is not None else static

    def _freed(self, name: str) -> int:
        """The bytes of constants that nothing else reads, among those that a value is computed from."""
        waiting, seen, freed = [name], {name}, 0
        while waiting:
            current = waiting.pop()
            node = self._rewriting.producers.get(current)
            if node is None:
                array = self._graph.initializers.get(current)
                freed += 0 if array is None or current in self._read else array.nbytes
                continue
            if not node.inputs:
                freed += sum(content.nbytes for content in node.attributes.values() if isinstance(content, np.ndarray))
            for other in node.inputs:
                if other and other not in seen:
                    seen.add(other)
                    waiting.append(other)
        return freed

    def _compute(self, name: str) -> None:
        """Compute a value, and before it all that it needs; one after the other, since chains are long."""
        order: list[Node] = []
        waiting, seen = [name], {name}
        while waiting:
            node = self._rewriting.producers[waiting.pop()]
            order.append(node)
            for other in node.inputs:
                if other in self._decided and other not in seen and self._rewriting.constant(other) is None:
                    seen.add(other)
                    waiting.append(other)
        positions = {node.name: number for number, node in enumerate(self._graph.nodes)}
        for node in sorted({each.name: each for each in order}.values(), key=lambda each: positions[each.name]):
            self._evaluate(node)

    def _evaluate(self, node: Node) -> None:
        outputs = [name for name in node.outputs if name]
        if all(name in self._computed for name in outputs):
            return
        self._computed.update(dict.fromkeys(outputs))
        sizes = [self._static_bytes(name) for name in outputs]
        inputs = {name: self._operand(name) for name in node.inputs if name}
        if any(size is not None and size > LARGEST for size in sizes) or any(
            array is None for array in inputs.values()
        ):
            return
        values = tuple(GraphValue(name, None) for name in outputs)
        arrays = {name: array for name, array in inputs.items() if array is not None}
        try:
            contents = run_eagerly(Graph(node.name, (node,), (), values, arrays), Interpreter(), {})
        except (WeftError, NotStaticError, ArithmeticError, MemoryError):
            return
        for name, content in zip(outputs, contents):
            if isinstance(content, np.ndarray):
                self._computed[name] = content

    def _operand(self, name: str) -> Array | None:
        known = self._rewriting.constant(name)
        return self._computed.get(name) if known is None else known

    def _static_bytes(self, name: str) -> int | None:
        type = self._rewriting.facts.type(name)
        if type is None or not all(isinstance(size, int) for size in type.shape or ()):
            return None  # it is known only once it is computed
        sizes = [size for size in type.shape or () if isinstance(size, int)]
        return prod(sizes) * max(8, type.dtype.bits) // 8


def without_repetition(graph: Graph, facts: ValueFacts, work: Workshop) -> Graph:
    """The graph without nodes that do nothing, and without those that compute sizes which were known before."""
    rewriting = Rewriting(graph, facts, work)
    sizes: dict[Any, str] = {}
    for node in graph.nodes:
        nested = any(True for _ in subgraphs(node))
        for name in filter(None, node.outputs):
            source = None if nested else facts.same(name, node.inputs)
            if source is not None:
                rewriting.alias(name, source, SAME)
                continue
            known = facts.symbolic(name)
            if known is not None and sizes.setdefault(known, name) != name:
                rewriting.alias(name, sizes[known], SAME_SIZES)
    return rewriting.finish()


def merged(graph: Graph, facts: ValueFacts, work: Workshop) -> Graph:
    """The graph with one node for those that compute the same, and one initializer for those that hold the same."""
    rewriting = Rewriting(graph, facts, work)
    names = _equal_initializers(graph, rewriting)
    found: dict[Any, Node] = {}
    for node in graph.nodes:
        if not facts.is_settled(node) or any(True for _ in subgraphs(node)):
            continue
        inputs = tuple(names.get(name, name) for name in node.inputs)
        present = tuple(bool(name) for name in node.outputs)
        key = (node.op, node.domain, node.version, inputs, present, _attributes_key(node))
        first = found.setdefault(key, node)
        if first is not node:
            for name, other in zip(node.outputs, first.outputs):
                if name and rewriting.alias(name, other, "computed before"):
                    names[name] = other
    return rewriting.finish()


def _equal_initializers(graph: Graph, rewriting: Rewriting) -> dict[str, str]:
    given = {value.name for value in graph.defaults} | rewriting.shown
    by_kind: dict[Any, list[str]] = {}
    for name, array in graph.initializers.items():
        if name not in given:
            by_kind.setdefault((array.dtype, array.shape), []).append(name)
    names: dict[str, str] = {}
    for kind, alike in by_kind.items():
        contents: dict[Any, str] = {}
        for name in alike if len(alike) > 1 else ():
            first = contents.setdefault(_kept_key(rewriting.work, graph.initializers[name]), name)
            if first != name and rewriting.alias(name, first, "constants that are equal"):
                names[name] = first
        del kind
    return names


def _kept_key(work: Workshop, array: Array) -> Any:
    """The same as `_content_key`, computed once for each array."""
    kept = work.keys.get(id(array))
    if kept is None or kept[0] is not array:
        kept = work.keys[id(array)] = (array, _content_key(array))
    return kept[1]


def _attributes_key(node: Node) -> Any:
    def key(content: Any) -> Any:
        if isinstance(content, np.ndarray):
            return str(content.dtype), content.shape, _content_key(content)
        return type(content).__name__, repr(content)

    return tuple(sorted((name, key(content)) for name, content in node.attributes.items()))


def _content_key(array: Array) -> Any:
    if array.dtype == object:
        return tuple(array.reshape(-1).tolist())
    return sha256(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data).digest()
