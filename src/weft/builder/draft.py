"""Draft: a graph under construction.

A draft has a level for the graph and one for each body of control flow that is being traced. The definition of a node
runs when the node is added, on the symbolic tensors of its level's trace; this gives the types of its outputs, or the
error. Names are unique in the whole draft, across levels.
"""

from __future__ import annotations

from collections import ChainMap, Counter
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import field
from typing import Any

from weft.builder.handle import Handle
from weft.errors import GraphError, InvalidModelError, short_repr
from weft.frontend.schemas import output_dtypes, removed_in_opset
from weft.ir import dims
from weft.ir.arrays import Array
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
    """The graph or a body in it: its nodes so far, and its values, with those of the enclosing levels."""

    name: str
    trace: Trace
    values: Values
    parent: GraphLevel | None = None
    nodes: list[Node] = field(default_factory=list)
    inputs: list[GraphValue] = field(default_factory=list)
    sizes: dict[Symbol, tuple[Handle, int]] = field(default_factory=dict)  # tensor and axis of each symbolic size

    def can_use(self, other: GraphLevel) -> bool:
        """Whether values of another level may be used at this level."""
        level: GraphLevel | None = self
        while level is not None and level is not other:
            level = level.parent
        return level is other

    def graph(self, outputs: Sequence[GraphValue], initializers: Mapping[str, Array]) -> Graph:
        """Return the level as a graph with these outputs."""
        return Graph(self.name, tuple(self.nodes), tuple(self.inputs), tuple(outputs), initializers)


class Draft:
    """A graph under construction: its levels, names and constants."""

    def __init__(self, name: str, opsets: Mapping[str, int], evaluator: Evaluator, handle: type[Handle]) -> None:
        """`handle` is the class of the values that the draft returns."""
        self.opsets = opsets
        self.used_domains: set[str] = set()
        self.user_names: set[str] = set()  # values with `name=` in their call
        self.initializers: dict[str, Array] = {}
        self.level: GraphLevel = GraphLevel(name, Trace(evaluator), {})
        self.top: GraphLevel = self.level
        self._handle = handle
        self._names: dict[str, None] = {}  # in the order of their creation
        self._numbers: Counter[str] = Counter()  # the next number for each base name

    # -- values ------------------------------------------------------------------------------------------------------

    def input(self, name: str, type: Type) -> Handle:
        """Add an input to the current level."""
        traced = self.level.trace.input(type, name)
        self.level.inputs.append(GraphValue(name, type))
        return self._make_handle(self.level, name, traced)

    def initializer(self, name: str, content: Array) -> Handle:
        """Add a constant to the graph, which all bodies may use."""
        self.initializers[name] = content
        return self._make_handle(self.top, name, self.top.trace.constant(content, name=name))

    def take_name(self, name: str) -> str:
        """Reserve a name of the user's."""
        if not isinstance(name, str) or not name:
            raise GraphError(f"a name must be a string that is not empty, not {short_repr(name)}")
        if name in self._names:
            raise GraphError(f"the name {name!r} is already used", hint="names in a graph must be unique")
        self._names[name] = None
        return name

    def fresh_name(self, base: str) -> str:
        """Reserve an unused name."""
        while f"{base}_{self._numbers[base]}" in self._names:
            self._numbers[base] += 1
        return self.take_name(f"{base}_{self._numbers[base]}")

    def check(self, handle: Handle) -> Handle:
        """Return a value, or raise GraphError if the current level may not use it."""
        if handle.draft is not self:
            raise GraphError(f"{handle.name!r} is a tensor of another graph", hint="build both parts in one graph")
        if not self.level.can_use(handle.level):
            problem = f"{handle.name!r} is a tensor of the body {handle.level.name!r} and cannot be used outside"
            raise GraphError(problem, hint="return it from the body")
        return handle

    def find_size(self, symbol: Symbol) -> tuple[Handle, int] | None:
        """Return a tensor that the current level may use and the axis on which it has this size."""
        level: GraphLevel | None = self.level
        while level is not None:
            source = level.sizes.get(symbol)
            if source is not None and source[0].name in level.values:  # else it was rolled back
                return source
            level = level.parent
        return None

    # -- nodes -------------------------------------------------------------------------------------------------------

    def definition(self, domain: str, op: str) -> Definition:
        """Return the definition of an op in the opset of this graph."""
        version = self.version(domain)
        definition = registry.find(domain, op, version)
        if definition is None:
            versions = [each.since for each in registry.definitions() if (each.domain, each.name) == (domain, op)]
            raise GraphError(
                f"{op} does not exist in opset {version} of {domain or 'ai.onnx'}",
                hint=f"it exists since opset {min(versions)}: {_with_opset(domain, min(versions))}",
            )
        removed = removed_in_opset(domain, op, version)
        if removed is not None:
            raise GraphError(
                f"{op} was removed from {domain or 'ai.onnx'} in opset {removed}",
                hint=f"use its replacement, or {_with_opset(domain, removed - 1)}",
            )
        return definition

    def version(self, domain: str) -> int:
        """Return the opset of a domain in this graph: the one requested, or the newest that has definitions."""
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
        """Add a node to the current level, and return its outputs."""
        level, version = self.level, self.version(definition.domain)
        for handle in inputs:
            if handle is not None:
                self.check(handle)
        bound = {key: self._bind_attribute(value) for key, value in attributes.items()}
        traced = [None if handle is None else handle.traced for handle in inputs]
        enclosing = Enclosing(level.graph((), {}), level.values) if definition.sees_graph else None
        level.trace.origin = name
        level.trace.is_void = False  # reset what an earlier node set
        with level.trace.active():
            try:
                outputs = registry.call(definition, traced, bound, output_count, version, enclosing)
            except TypeRuleError as error:
                problem = f"it does not accept these types ({error.problem})"
                raise InvalidModelError(problem, hint="cast with tensor.astype(...)") from error
        results = [_check_output(tensor, number) for number, tensor in enumerate(outputs)]
        names = [name, *(self.fresh_name(f"{name}_output") for _ in results[1:])]
        node = Node(
            op=definition.name,
            domain=definition.domain,
            version=version,
            name=name,
            inputs=tuple("" if handle is None else handle.name for handle in inputs),
            outputs=tuple(names),
            attributes={key: value.graph if callable(value) else value for key, value in bound.items()},
        )
        self.used_domains.add(definition.domain)
        level.nodes.append(node)
        types = self._output_types(definition, inputs, attributes, results)
        return [self._make_handle(level, *each) for each in zip(names, results, types, strict=True)]

    # -- bodies ------------------------------------------------------------------------------------------------------

    @contextmanager
    def body(self, name: str) -> Iterator[GraphLevel]:
        """Open a new level for the nodes of a body; `GraphLevel.graph` returns its graph."""
        outer = self.level
        trace = Trace(outer.trace.evaluator, parent=outer.trace, origin=name, numbers=outer.trace.numbers)
        self.level = GraphLevel(name, trace, ChainMap({}, outer.values), outer)
        try:
            yield self.level
        finally:
            self.level = outer

    @contextmanager
    def transaction(self) -> Iterator[Callable[[], None]]:
        """Yield a function that removes the names, constants and nodes added since; an error removes them, too."""
        level, nodes = self.level, len(self.level.nodes)
        names, initializers = len(self._names), len(self.initializers)

        def rollback() -> None:
            del level.nodes[nodes:]
            while len(self.initializers) > initializers:
                self.initializers.popitem()
            while len(self._names) > names:
                name, _ = self._names.popitem()
                level.values.pop(name, None)
                self.top.values.pop(name, None)

        try:
            yield rollback
        except BaseException:
            rollback()
            raise

    @contextmanager
    def current(self) -> Iterator[None]:
        """Make this the draft of functions without tensors among their inputs."""
        token = current_draft.set(self)
        try:
            yield
        finally:
            current_draft.reset(token)

    def _bind_attribute(self, value: Any) -> Any:
        """Convert an attribute to the form that definitions take: graphs become functions of tensors."""
        return Subgraph(value, self.level.values) if isinstance(value, Graph) else value

    def _output_types(
        self,
        definition: Definition,
        inputs: Sequence[Handle | None],
        attributes: Mapping[str, Attribute],
        results: Sequence[Tensor],
    ) -> list[Type]:
        """Return the types of outputs; for an op that is traced at run time, dtypes come from onnx's schema."""
        if not any(isinstance(tensor.type, AnyType) for tensor in results):
            return [tensor.type for tensor in results]
        input_dtypes = [handle.type.dtype if handle is not None else None for handle in inputs]
        dtype_names = {each.name for each in definition.attributes if each.annotation == "ElementType"}
        numbers = [
            value for key, value in attributes.items() if key in dtype_names and isinstance(value, int) and value
        ]
        attribute_dtype = from_number(numbers[0]) if numbers else None
        version = self.version(definition.domain)
        dtypes = output_dtypes(definition.domain, definition.name, version, tuple(input_dtypes), attribute_dtype)
        return [
            TensorType(dtypes[number], None) if number in dtypes and isinstance(tensor.type, AnyType) else tensor.type
            for number, tensor in enumerate(results)
        ]

    def _make_handle(self, level: GraphLevel, name: str, traced: Tensor, type: Type | None = None) -> Handle:
        level.values[name] = traced
        handle = self._handle(self, level, name, traced, type)
        for axis, size in enumerate(traced.type.shape or ()):
            symbol = dims.as_symbol(size)
            if symbol is not None and self.find_size(symbol) is None:
                level.sizes[symbol] = (handle, axis)
        return handle


def _with_opset(domain: str, version: int) -> str:
    return f"weft.Graph(opset={version if not domain else {domain: version}})"


def _check_output(tensor: Tensor | None, number: int) -> Tensor:
    if tensor is None:
        raise GraphError(f"output {number} needs optional inputs that this call does not have")
    return tensor
