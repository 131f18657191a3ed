"""What is known of each value of a graph: types, contents, sizes, and which values are one and the same.

It is told by running the definitions of ops on symbolic tensors. What holds for some sizes alone is not taken for
known: sizes that are named may be 0, and where a trace had to assume that two are equal, those of the results are new
ones. A node that weft does not know, or that has no meaning for what is known, gives values of which nothing is.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from weft.backends.reference.interpret import Interpreter
from weft.errors import WeftError
from weft.frontend.schemas import output_dtypes
from weft.ir import dims
from weft.ir.atoms import Compound
from weft.ir.dims import Axis, Dim, Equality, Expr, Symbol
from weft.ir.dtypes import DType
from weft.ir.graph import Graph, GraphValue, Node, subgraphs
from weft.ir.program import Branch, Guard, Late, Loop, Random, Scan, Step
from weft.ir.types import AnyType, Shape, TensorType, Type
from weft.opset import registry
from weft.opset.lower import Scope, trace_node
from weft.opset.tensor import NotStaticError, Tensor
from weft.opset.trace import Trace, is_symbolic

Array = np.ndarray[Any, Any]
Contents = tuple[Any, ...]

OPAQUE = frozenset(("DequantizeLinear",))
"""Ops whose results are never taken for constants: engines look for them before what they quantise."""


LARGEST_TABLES = 4096  # elements of a node's attributes


class ValueFacts:
    """What is known of the values of a graph, and of those around it."""

    def __init__(self, trace: Trace, scope: Scope, unsettled: dict[str, bool], given: frozenset[str]) -> None:
        self._trace = trace
        self._scope = scope
        self._unsettled = unsettled  # nodes that may give something else in another run, and whether they are refused
        self._given = given  # the names of sizes that inputs have

    def type(self, name: str) -> TensorType | None:
        """The type of a tensor, if its rank is known."""
        tensor = self._scope.get(name)
        found = None if tensor is None else tensor.type
        return found if isinstance(found, TensorType) and found.shape is not None else None

    def dtype(self, name: str) -> DType | None:
        """The type of a tensor's elements."""
        tensor = self._scope.get(name)
        return tensor.type.dtype if tensor is not None and isinstance(tensor.type, TensorType) else None

    def shape(self, name: str) -> Shape | None:
        found = self.type(name)
        return None if found is None else found.shape

    def declared(self, name: str) -> Type | None:
        """The type of any value, as far as it is known."""
        tensor = self._scope.get(name)
        return None if tensor is None or isinstance(tensor.type, AnyType) else tensor.type

    def content(self, name: str) -> Array | None:
        """The numbers of a value, where they are known."""
        tensor = self._scope.get(name)
        if tensor is None or not isinstance(tensor.known, np.ndarray) or is_symbolic(tensor):
            return None
        return tensor.known

    def sizes(self, name: str) -> tuple[Dim, ...] | None:
        """The elements of an integer value, where they are known as sizes or numbers."""
        tensor = self._scope.get(name)
        if tensor is None or not isinstance(tensor.known, np.ndarray) or not isinstance(tensor.type, TensorType):
            return None
        if not tensor.dtype.is_integer:
            return None
        elements = tuple(tensor.known.flat)
        if any(isinstance(each, Equality) for each in elements):
            return None
        return tuple(each if isinstance(each, Expr) else int(each) for each in elements)

    def symbolic(self, name: str) -> Contents | None:
        """What tells a value that is known as sizes from others, hashable."""
        tensor = self._scope.get(name)
        if tensor is None or not isinstance(tensor.type, TensorType) or not is_symbolic(tensor):
            return None
        elements = tuple(tensor.known.flat)
        if any(isinstance(each, Equality) for each in elements):
            return None
        return tensor.dtype, tensor.type.shape, *elements

    def same(self, name: str, others: Iterable[str]) -> str | None:
        """The first of the others that is the same value."""
        tensor = self._scope.get(name)
        if tensor is None:
            return None
        found = ((other, self._scope.get(other)) for other in others if other and other != name)
        return next((other for other, each in found if each is not None and each.value is tensor.value), None)

    def are_given(self, sizes: Iterable[Dim]) -> bool:
        """Whether sizes are told by those of inputs alone, and not by what a run computes."""
        return all(dims.symbol_names(size) <= self._given for size in sizes)

    def is_settled(self, node: Node) -> bool:
        """Whether a node gives the same in every run for the same inputs: known here, and nothing random in it."""
        return node.name not in self._unsettled

    def is_refused(self, node: Node) -> bool:
        """Whether a node has no meaning that weft knows, or breaks the rules of its op."""
        return self._unsettled.get(node.name, False)

    def inside(self, graph: Graph) -> ValueFacts:
        """What is known inside a body."""
        inner = ValueFacts(self._trace, ChainMap({}, self._scope), self._unsettled, self._given)
        for value in graph.inputs:
            inner._scope[value.name] = self._trace.input(_loosened(self._trace, value), value.name)
        _learn(inner._trace, inner._scope, graph, self._unsettled)
        return inner

    def end(self) -> None:
        """Let go of all tensors."""
        self._trace.end()


def learn(graph: Graph) -> ValueFacts:
    """What is known of the values of a model's graph."""
    trace = Trace(Interpreter())
    scope: Scope = {}
    for value in (*graph.inputs, *graph.defaults):
        type = value.type if value.type is not None else AnyType()
        scope[value.name] = trace.input(_perhaps_empty(type), value.name)
        if isinstance(type, TensorType):
            trace.symbol_names.update(name for size in type.shape or () for name in dims.symbol_names(size))
    facts = ValueFacts(trace, scope, {}, frozenset(trace.symbol_names))
    _learn(trace, scope, graph, facts._unsettled)
    return facts


def _learn(trace: Trace, scope: Scope, graph: Graph, unsettled: dict[str, bool]) -> None:
    given = {value.name for value in graph.defaults}
    with trace.active():
        for name, array in graph.initializers.items():
            if name not in given:
                scope[name] = trace.constant(array, name=name)
        for node in graph.nodes:
            _learn_node(trace, scope, graph, node, unsettled)


def _learn_node(trace: Trace, scope: Scope, graph: Graph, node: Node, unsettled: dict[str, bool]) -> None:
    if _is_large(node):
        _declare(trace, scope, node, {name: AnyType() for name in node.outputs if name})
        return
    guards, steps = len(trace.guards), len(trace.steps)
    trace.origin = node.name
    nested = any(True for _ in subgraphs(node))
    try:
        trace_node(node, scope, graph)
    except (WeftError, NotStaticError, ArithmeticError, RecursionError):
        unsettled[node.name] = True
        _declare(trace, scope, node, {name: AnyType() for name in node.outputs if name})
        return
    if _has_chance(trace.steps[steps:]) or registry.find(node.domain, node.op, node.version) is None:
        unsettled[node.name] = False
    open_types = {name: AnyType() for name in node.outputs if name and _is_open(scope, node, name)}
    if open_types and not nested:
        _declare(trace, scope, node, open_types)
        return
    assumed = [guard for guard in trace.guards[guards:] if not guard.at_least]
    if not assumed and node.op not in OPAQUE and not nested:
        return
    for at, name in enumerate(node.outputs):
        tensor = scope.get(name) if name else None
        if tensor is not None:
            if nested and isinstance(tensor.type, AnyType):
                scope[name] = trace.input(_body_type(trace, scope, node, at), name)
                continue
            fixed = None if node.op in OPAQUE else tensor.known
            scope[name] = _unassumed(trace, tensor, assumed, name, fixed, nested=nested)


def _is_large(node: Node) -> bool:
    """Whether a node holds tables, as ensembles of trees do, that take long to look through and decide no sizes."""
    return sum(len(content) for content in node.attributes.values() if isinstance(content, tuple)) > LARGEST_TABLES


def _body_type(trace: Trace, scope: Scope, node: Node, at: int) -> Type:
    """What bodies tell of an output of their node: the type of its elements, declared or found out."""
    for body in subgraphs(node):
        number = at + len(body.outputs) - len(node.outputs)
        if not 0 <= number < len(body.outputs):
            continue
        declared = body.outputs[number].type
        if declared is None and not body.inputs:
            inner: Scope = ChainMap({}, scope)
            _learn(trace, inner, body, {})
            found = inner.get(body.outputs[number].name)
            declared = None if found is None else found.type
        if isinstance(declared, TensorType):
            return TensorType(declared.dtype, None)
    return AnyType()


def _is_open(scope: Scope, node: Node, name: str) -> bool:
    """Whether nothing is known of a value, which is none of those that the node reads."""
    tensor = scope.get(name)
    if tensor is None or not isinstance(tensor.type, AnyType) or tensor.elements is not None:
        return False
    given = (scope.get(other) for other in node.inputs if other)
    return not any(other is not None and other.value is tensor.value for other in given)


def _declare(trace: Trace, scope: Scope, node: Node, names: Mapping[str, Type]) -> None:
    """Values of which nothing is known but what the schema of the op tells: the type of their elements."""
    given = (scope.get(name) for name in node.inputs)
    types = [None if tensor is None else tensor.type for tensor in given]
    dtypes = tuple(type.dtype if isinstance(type, TensorType) else None for type in types)
    said = node.attributes.get("to", node.attributes.get("dtype"))
    named = next((each for each in DType if each.number == said), None) if isinstance(said, int) else None
    told = output_dtypes(node.domain, node.op, node.version, dtypes, named)
    for at, name in enumerate(node.outputs):
        if name in names:
            scope[name] = trace.input(TensorType(told[at], None) if at in told else AnyType(), name)


def _unassumed(trace: Trace, tensor: Tensor, assumed: list[Guard], name: str, known: Any, *, nested: bool) -> Tensor:
    """A result without what was assumed for it."""
    type = tensor.type
    if nested and assumed:  # it may be that of one branch of several, which share a type of elements alone
        return trace.input(TensorType(type.dtype, None) if isinstance(type, TensorType) else AnyType(), name)
    if not isinstance(type, TensorType) or type.shape is None:
        return trace.input(type, name)
    larger = {size for guard in assumed if (size := _larger(guard.left, guard.right)) is not None}
    involved = {symbol for guard in assumed for side in (guard.left, guard.right) for symbol in dims.symbol_names(side)}

    def is_certain(size: Any) -> bool:
        told = isinstance(size, (int, np.integer)) or (size in larger and not nested)
        return told or not (nested or involved & dims.symbol_names(size))

    shape = tuple(
        size if is_certain(size) else trace.fresh_symbol(f"{name}.{at}") for at, size in enumerate(type.shape)
    )
    loose = trace.input(TensorType(type.dtype, shape), name)
    if isinstance(known, np.ndarray) and not nested:
        symbolic = [each for each in known.flat if isinstance(each, (Expr, Equality))] if known.dtype == object else []
        if not any(isinstance(each, Equality) or not is_certain(each) for each in symbolic):
            loose.known = known
    return loose


def _larger(left: Dim, right: Dim) -> Dim | None:
    """The one of two sizes that is never less than the other: what a broadcast of both has."""
    for one, other in ((left, right), (right, left)):
        if dims.is_at_least(one, other):
            return one
        parts = [atom for atom in dims.atoms(other) if isinstance(atom, Compound) and atom.operation == "min"]
        if any(other == dims.minimum(part.left, part.right) and one in (part.left, part.right) for part in parts):
            return one
    return None


def _has_chance(steps: Iterable[Step]) -> bool:
    for step in steps:
        match step.primitive:
            case Random() | Late():
                return True
            case Branch() | Loop() | Scan():
                return True
    return False


def _perhaps_empty(type: Type) -> Type:
    """A type whose named sizes may be 0."""
    if not isinstance(type, TensorType) or type.shape is None:
        return type
    return TensorType(type.dtype, tuple(dims.substitute(size, _lowered) for size in type.shape))


def _lowered(atom: Symbol | Axis) -> Dim:
    return dims.symbol(atom.name, 0, atom.high) if isinstance(atom, Symbol) else dims.axis(atom.position, atom.size)


def _loosened(trace: Trace, value: GraphValue) -> Type:
    """The type of an input of a body, whose sizes may differ from turn to turn, whatever is declared."""
    if not isinstance(value.type, TensorType) or value.type.shape is None:
        return value.type or AnyType()
    shape = tuple(trace.fresh_symbol(f"{value.name}.{at}") for at in range(len(value.type.shape)))
    return TensorType(value.type.dtype, shape)


def fixed_sizes(graph: Graph, sizes: Mapping[str, int]) -> Graph:
    """The graph with numbers in place of some named sizes of its inputs and outputs."""

    def fixed(value: GraphValue) -> GraphValue:
        if not isinstance(value.type, TensorType) or value.type.shape is None:
            return value
        shape = tuple(dims.substitute(size, lambda atom: _fixed(atom, sizes)) for size in value.type.shape)
        return GraphValue(value.name, TensorType(value.type.dtype, shape), value.shows)

    return Graph(
        graph.name,
        graph.nodes,
        tuple(map(fixed, graph.inputs)),
        tuple(map(fixed, graph.outputs)),
        graph.initializers,
        tuple(map(fixed, graph.defaults)),
        graph.aliases,
    )


def _fixed(atom: Symbol | Axis, sizes: Mapping[str, int]) -> Dim:
    if isinstance(atom, Axis):
        return dims.axis(atom.position, atom.size)
    return sizes[atom.name] if atom.name in sizes else dims.symbol(atom.name, atom.low, atom.high)
