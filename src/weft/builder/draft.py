"""The nodes of a graph in the making, and what is known of their values.

A draft has a level for the graph and one for each body of control flow that is being written. Every node's
definition runs as the node is added, on the symbolic tensors of the trace of its level: that gives the types of its
results, or the error. Names are unique in the whole draft, whatever level they are of.
"""

from __future__ import annotations

from collections import ChainMap, Counter
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import field
from typing import Any

import numpy as np

from weft.builder.handle import Handle
from weft.errors import GraphError, InvalidModelError, short_repr
from weft.frontend.schemas import output_dtypes, removed_in_opset
from weft.ir import dims
from weft.ir.dims import Symbol
from weft.ir.dtypes import from_number
from weft.ir.graph import Attribute, Graph, GraphValue, Node
from weft.ir.types import AnyType, TensorType, Type
from weft.opset import registry
from weft.opset.lower import Enclosing, Subgraph
from weft.opset.registry import Definition
from weft.opset.tensor import Tensor
from weft.opset.trace import Evaluator, Trace
from weft.opset.type_rules import TypeRuleError
from weft.records import dataclass

Values = MutableMapping[str, "Tensor | None"]
current_draft: ContextVar[Draft | None] = ContextVar("current_draft", default=None)


@dataclass(eq=False, slots=True)
class GraphLevel:
    """The graph, or a body inside it: its nodes so far, and its values with those around it."""

    name: str
    trace: Trace
    values: Values
    parent: GraphLevel | None = None
    nodes: list[Node] = field(default_factory=list)
    inputs: list[GraphValue] = field(default_factory=list)
    sizes: dict[Symbol, tuple[Handle, int]] = field(default_factory=dict)  # where those that only a run knows are

    def sees(self, other: GraphLevel) -> bool:
        """Whether values of another level can be used here."""
        level: GraphLevel | None = self
        while level is not None and level is not other:
            level = level.parent
        return level is other

    def graph(self, outputs: Sequence[GraphValue], initializers: Mapping[str, np.ndarray[Any, Any]]) -> Graph:
        """What was written, as a graph with these outputs."""
        return Graph(self.name, tuple(self.nodes), tuple(self.inputs), tuple(outputs), initializers)


class Draft:
    """All that is known of a graph in the making."""

    def __init__(self, name: str, opsets: Mapping[str, int], evaluator: Evaluator, handle: type[Handle]) -> None:
        """`handle` is the class that values are handed out as."""
        self.opsets = opsets
        self.used_domains: set[str] = set()
        self.user_named: set[str] = set()  # values whose names came with a call
        self.initializers: dict[str, np.ndarray[Any, Any]] = {}
        self.level: GraphLevel = GraphLevel(name, Trace(evaluator), {})
        self.top: GraphLevel = self.level
        self._handle = handle
        self._names: dict[str, None] = {}  # in the order in which they were taken
        self._numbers: Counter[str] = Counter()  # of names made from the same word

    # -- values ------------------------------------------------------------------------------------------------------

    def input(self, name: str, type: Type) -> Handle:
        """A new input of the graph, or of the body that is being written."""
        traced = self.level.trace.input(type, name)
        self.level.inputs.append(GraphValue(name, type))
        return self._hand_out(self.level, name, traced)

    def initializer(self, name: str, content: np.ndarray[Any, Any]) -> Handle:
        """A new constant of the graph, which all bodies see."""
        self.initializers[name] = content
        return self._hand_out(self.top, name, self.top.trace.constant(content, name=name))

    def take_name(self, name: str) -> str:
        """Reserve a name that the user gave."""
        if not isinstance(name, str) or not name:
            raise GraphError(f"a name must be a text that is not empty, not {short_repr(name)}")
        if name in self._names:
            raise GraphError(f"the name {name!r} is taken", hint="every name in a graph must be another one")
        self._names[name] = None
        return name

    def fresh_name(self, base: str) -> str:
        """A name that nothing has yet."""
        while f"{base}_{self._numbers[base]}" in self._names:
            self._numbers[base] += 1
        return self.take_name(f"{base}_{self._numbers[base]}")

    def check(self, handle: Handle) -> Handle:
        """A value that is used here, if it may be."""
        if handle.draft is not self:
            raise GraphError(f"{handle.name!r} is a tensor of another graph", hint="build both parts in one graph")
        if not self.level.sees(handle.level):
            raise GraphError(
                f"{handle.name!r} is a tensor inside of {handle.level.name!r}, which is not to be seen from here",
                hint="let the body return it",
            )
        return handle

    def find_size(self, symbol: Symbol) -> tuple[Handle, int] | None:
        """A tensor that can be seen here and has a size of this name, and its axis."""
        level: GraphLevel | None = self.level
        while level is not None:
            found = level.sizes.get(symbol)
            if found is not None and found[0].name in level.values:  # else it was taken back
                return found
            level = level.parent
        return None

    # -- nodes -------------------------------------------------------------------------------------------------------

    def definition(self, domain: str, op: str) -> Definition:
        """The definition of an op at the opset of this graph."""
        version = self.version(domain)
        found = registry.find(domain, op, version)
        if found is None:
            versions = [each.since for each in registry.definitions() if (each.domain, each.name) == (domain, op)]
            raise GraphError(
                f"{op} does not exist in opset {version} of {domain or 'ai.onnx'}",
                hint=f"it does from {min(versions)} on: {_with_opset(domain, min(versions))}",
            )
        gone = removed_in_opset(domain, op, version)
        if gone is not None:
            raise GraphError(
                f"{op} is no op of {domain or 'ai.onnx'} any more, from opset {gone} on",
                hint=f"use what took its place, or {_with_opset(domain, gone - 1)}",
            )
        return found

    def version(self, domain: str) -> int:
        """The opset of a domain in this graph: the one asked for, or the newest that has definitions."""
        if domain in self.opsets:
            return self.opsets[domain]
        return max((each.since for each in registry.definitions() if each.domain == domain), default=1)

    def add(
        self,
        definition: Definition,
        inputs: Sequence[Handle | None],
        attributes: Mapping[str, Attribute],
        output_count: int | None,
        name: str,
    ) -> list[Handle]:
        """Add a node to the level that is being written, and give its results."""
        level, version = self.level, self.version(definition.domain)
        for handle in inputs:
            if handle is not None:
                self.check(handle)
        given = {key: self._as_given(value) for key, value in attributes.items()}
        traced = [None if handle is None else handle.traced for handle in inputs]
        enclosing = Enclosing(level.graph((), {}), level.values) if definition.sees_graph else None
        level.trace.origin = name
        level.trace.is_void = False  # what an earlier node made of sizes says nothing of this one
        with level.trace.active():
            try:
                found = registry.call(definition, traced, given, output_count, version, enclosing)
            except TypeRuleError as error:
                problem = f"it does not take these types ({error.problem})"
                raise InvalidModelError(problem, hint="tensor.astype(...) makes another type of one") from error
        results = [_there(tensor, number) for number, tensor in enumerate(found)]
        names = [name, *(self.fresh_name(f"{name}_output") for _ in results[1:])]
        node = Node(
            op=definition.name,
            domain=definition.domain,
            version=version,
            name=name,
            inputs=tuple("" if handle is None else handle.name for handle in inputs),
            outputs=tuple(names),
            attributes={key: value.graph if callable(value) else value for key, value in given.items()},
        )
        self.used_domains.add(definition.domain)
        level.nodes.append(node)
        types = self._types(definition, inputs, attributes, results)
        return [self._hand_out(level, *each) for each in zip(names, results, types, strict=True)]

    # -- bodies ------------------------------------------------------------------------------------------------------

    @contextmanager
    def body(self, name: str) -> Iterator[GraphLevel]:
        """A level of its own for what is written meanwhile. `GraphLevel.graph` gives it once its results are known."""
        outer = self.level
        trace = Trace(outer.trace.evaluator, parent=outer.trace, origin=name, numbers=outer.trace.numbers)
        self.level = GraphLevel(name, trace, ChainMap({}, outer.values), outer)
        try:
            yield self.level
        finally:
            self.level = outer

    @contextmanager
    def attempt(self) -> Iterator[Callable[[], None]]:
        """Gives what takes back the names, constants and nodes that were made meanwhile; an error does so, too."""
        level, nodes = self.level, len(self.level.nodes)
        names, initializers = len(self._names), len(self.initializers)

        def take_back() -> None:
            del level.nodes[nodes:]
            while len(self.initializers) > initializers:
                self.initializers.popitem()
            while len(self._names) > names:
                name, _ = self._names.popitem()
                level.values.pop(name, None)
                self.top.values.pop(name, None)

        try:
            yield take_back
        except BaseException:
            take_back()
            raise

    @contextmanager
    def current(self) -> Iterator[None]:
        """Makes it the one that functions without tensors among their inputs write to."""
        token = current_draft.set(self)
        try:
            yield
        finally:
            current_draft.reset(token)

    def _as_given(self, value: Any) -> Any:
        """An attribute as definitions take it: graphs are functions of tensors."""
        if isinstance(value, Graph):
            return Subgraph(value, self.level.values)
        return value

    def _types(
        self,
        definition: Definition,
        inputs: Sequence[Handle | None],
        attributes: Mapping[str, Attribute],
        results: Sequence[Tensor],
    ) -> list[Type]:
        """The types of results. Of an op that is put off to the run, onnx's schema still tells the dtypes."""
        if not any(isinstance(tensor.type, AnyType) for tensor in results):
            return [tensor.type for tensor in results]
        given = [
            handle.type.dtype if handle is not None and isinstance(handle.type, TensorType) else None
            for handle in inputs
        ]
        named = {each.name for each in definition.attributes if each.annotation == "ElementType"}
        numbers = [value for key, value in attributes.items() if key in named and isinstance(value, int) and value]
        said = from_number(numbers[0]) if numbers else None
        version = self.version(definition.domain)
        dtypes = output_dtypes(definition.domain, definition.name, version, tuple(given), said)
        return [
            TensorType(dtypes[number], None) if number in dtypes and isinstance(tensor.type, AnyType) else tensor.type
            for number, tensor in enumerate(results)
        ]

    def _hand_out(self, level: GraphLevel, name: str, traced: Tensor, type: Type | None = None) -> Handle:
        level.values[name] = traced
        handle = self._handle(self, level, name, traced, type)
        for axis, size in enumerate(traced.type.shape or () if isinstance(traced.type, TensorType) else ()):
            symbol = dims.as_symbol(size)
            if symbol is not None and self.find_size(symbol) is None:
                level.sizes[symbol] = (handle, axis)
        return handle


def _with_opset(domain: str, version: int) -> str:
    return f"weft.Graph(opset={version if not domain else {domain: version}})"


def _there(tensor: Tensor | None, number: int) -> Tensor:
    if tensor is None:
        raise GraphError(f"its output {number} is not there without the optional inputs that it comes from")
    return tensor
