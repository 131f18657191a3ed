"""Infer element types, ranks and constant contents of the values of a graph.

The definitions of ops run on symbolic tensors. An op that weft does not know, or that rejects its inputs, gets output
types from its schema alone.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping

import numpy as np

from weft.backends.reference.interpret import Interpreter
from weft.errors import WeftError
from weft.frontend.schemas import output_dtypes
from weft.ir import dims
from weft.ir.arrays import Array
from weft.ir.dtypes import DType
from weft.ir.graph import Graph, GraphValue, Node, subgraphs
from weft.ir.types import AnyType, TensorType, Type
from weft.opset.lower import Scope, trace_node
from weft.opset.tensor import NotStaticError
from weft.opset.trace import Trace, is_symbolic
from weft.optimization.graph_edit import has_subgraphs

MAX_TABLE = 4096  # elements of attributes; larger ones, as in tree ensembles, take long to trace


class ValueFacts:
    """Facts about the values of a graph and of the graphs around it."""

    def __init__(self, trace: Trace, scope: Scope) -> None:
        self._trace = trace
        self._scope = scope

    def dtype(self, name: str) -> DType | None:
        tensor = self._scope.get(name)
        return tensor.type.dtype if tensor is not None else None

    def rank(self, name: str) -> int | None:
        tensor = self._scope.get(name)
        shape = tensor.type.shape if tensor is not None else None
        return None if shape is None else len(shape)

    def content(self, name: str) -> Array | None:
        """Return the content of a value that depends on constants alone."""
        tensor = self._scope.get(name)
        if tensor is None or not isinstance(tensor.static_value, np.ndarray) or is_symbolic(tensor):
            return None
        return tensor.static_value

    def inside(self, body: Graph) -> ValueFacts:
        """Infer facts about the values of a body, whose inputs may change shape between iterations."""
        scope: Scope = ChainMap({}, self._scope)
        for value in body.inputs:
            scope[value.name] = self._trace.input(_drop_sizes(self._trace, value), value.name)
        _trace_nodes(self._trace, scope, body)
        return ValueFacts(self._trace, scope)

    def close(self) -> None:
        """Release all tensors."""
        self._trace.end()


def infer_facts(graph: Graph) -> ValueFacts:
    trace = Trace(Interpreter())
    scope: Scope = {}
    for value in (*graph.inputs, *graph.defaults):
        type = AnyType() if value.type is None else value.type
        scope[value.name] = trace.input(type, value.name)
        if isinstance(type, TensorType):
            trace.symbol_names.update(name for size in type.shape or () for name in dims.symbol_names(size))
    _trace_nodes(trace, scope, graph)
    return ValueFacts(trace, scope)


def _trace_nodes(trace: Trace, scope: Scope, graph: Graph) -> None:
    overridable = {value.name for value in graph.defaults}
    with trace.active():
        for name, array in graph.initializers.items():
            if name not in overridable:
                scope[name] = trace.constant(array, name=name)
        for node in graph.nodes:
            _trace_node(trace, scope, graph, node)


def _trace_node(trace: Trace, scope: Scope, graph: Graph, node: Node) -> None:
    names = {name: at for at, name in enumerate(node.outputs) if name}
    if sum(len(content) for content in node.attributes.values() if isinstance(content, tuple)) > MAX_TABLE:
        _declare_by_schema(trace, scope, node, names)
        return
    trace.origin = node.name
    try:
        trace_node(node, scope, graph)
    except (WeftError, NotStaticError, ArithmeticError, RecursionError):
        _declare_by_schema(trace, scope, node, names)
        return
    if has_subgraphs(node):  # branches may differ in shape, iterations too
        for name, at in names.items():
            tensor = scope.get(name)
            if tensor is not None and isinstance(tensor.type, TensorType):
                scope[name] = trace.input(TensorType(tensor.type.dtype, None), name)
            else:
                scope[name] = trace.input(_find_body_type(trace, scope, node, at), name)
        return
    tensors = {name: tensor for name in names if (tensor := scope.get(name)) is not None}
    unknown = [name for name, tensor in tensors.items() if isinstance(tensor.type, AnyType) and tensor.elements is None]
    _declare_by_schema(trace, scope, node, {name: names[name] for name in unknown})


def _find_body_type(trace: Trace, scope: Scope, node: Node, at: int) -> Type:
    """Return the element type that a body declares or computes for an output of its node."""
    for body in subgraphs(node):
        number = at + len(body.outputs) - len(node.outputs)
        if not 0 <= number < len(body.outputs):
            continue
        type = body.outputs[number].type
        if type is None and not body.inputs:
            inner: Scope = ChainMap({}, scope)
            _trace_nodes(trace, inner, body)
            tensor = inner.get(body.outputs[number].name)
            type = None if tensor is None else tensor.type
        if isinstance(type, TensorType):
            return TensorType(type.dtype, None)
    return AnyType()


def _declare_by_schema(trace: Trace, scope: Scope, node: Node, names: Mapping[str, int]) -> None:
    """Give outputs the element types that the schema of the op implies."""
    operands = [scope.get(name) for name in node.inputs]
    input_dtypes = tuple(tensor.type.dtype if tensor is not None else None for tensor in operands)
    number = node.attributes.get("to", node.attributes.get("dtype"))
    attribute = next((dtype for dtype in DType if dtype.number == number), None) if isinstance(number, int) else None
    dtypes = output_dtypes(node.domain, node.op, node.version, input_dtypes, attribute)
    for name, at in names.items():
        scope[name] = trace.input(TensorType(dtypes[at], None) if at in dtypes else AnyType(), name)


def _drop_sizes(trace: Trace, value: GraphValue) -> Type:
    if not isinstance(value.type, TensorType) or value.type.shape is None:
        return value.type or AnyType()
    shape = tuple(trace.fresh_symbol(f"{value.name}.{at}") for at in range(len(value.type.shape)))
    return TensorType(value.type.dtype, shape)
