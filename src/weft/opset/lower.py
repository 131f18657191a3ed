"""Graph -> TensorProgram: run every node's definition on traced tensors.

Nodes are traced in the graph's order. Definitions receive subgraph attributes as `Subgraph` functions, which trace
their nodes when called, with the values of the enclosing graphs in scope.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import field, replace
from typing import Any

import numpy as np

from weft.errors import InvalidModelError, MalformedNodeError, UnsupportedModelError, WeftError
from weft.ir import dims
from weft.ir.dims import Axis, Dim, Symbol
from weft.ir.graph import Graph, GraphValue, Node, free_names
from weft.ir.program import Guard, Host, Reshape, Step, TensorProgram, Value
from weft.ir.types import AnyType, TensorType, Type
from weft.opset import registry
from weft.opset.equal_sizes import replace_sizes
from weft.opset.missing import build_missing_error, name_all_missing
from weft.opset.tensor import Tensor, current_trace
from weft.opset.trace import Evaluator, Trace
from weft.opset.type_rules import TypeRuleError
from weft.records import dataclass

Scope = MutableMapping[str, "Tensor | None"]
Progress = Callable[[float], None]

TRACES_PER_NODE = 32  # on average: bodies of control flow may be traced several times
MOST_TRACED = 10_000  # on top of these


@dataclass(frozen=True, slots=True)
class Subgraph:
    """A graph attribute, callable with tensors for its inputs."""

    graph: Graph
    scope: Scope = field(repr=False)

    @property
    def inputs(self) -> tuple[GraphValue, ...]:
        return self.graph.inputs

    @property
    def outputs(self) -> tuple[GraphValue, ...]:
        return self.graph.outputs

    def __call__(self, *arguments: Tensor) -> list[Tensor]:
        if len(arguments) != len(self.graph.inputs):
            raise MalformedNodeError(
                f"subgraph {self.graph.name!r} takes {len(self.graph.inputs)} inputs, not {len(arguments)}"
            )
        inner: Scope = {value.name: tensor for value, tensor in zip(self.graph.inputs, arguments)}
        return trace_graph(self.graph, ChainMap(inner, self.scope))

    def captured(self) -> dict[str, Tensor]:
        """Return the values of the enclosing graphs that the nodes use, by name."""
        values = ((name, self.scope.get(name)) for name in sorted(free_names(self.graph)))
        return {name: tensor for name, tensor in values if tensor is not None}


@dataclass(frozen=True, slots=True)
class Enclosing:
    """The graph around a node."""

    graph: Graph
    scope: Scope = field(repr=False)

    def between(self, inputs: Sequence[str], output: str) -> Subgraph:
        """Extract the part of the graph that computes `output` from `inputs`."""
        needed = {output} - set(inputs)
        nodes: list[Node] = []
        for node in reversed(self.graph.nodes):
            if needed & set(node.outputs):
                nodes.insert(0, node)
                needed |= set(node.inputs) - set(inputs)
        values = tuple(GraphValue(name, None) for name in inputs)
        return Subgraph(Graph(self.graph.name, tuple(nodes), values, (GraphValue(output, None),), {}), self.scope)


def lower(
    graph: Graph,
    evaluator: Evaluator,
    *,
    sizes: Mapping[str, Sequence[int | str | None] | None] | None = None,
    overridden: Sequence[str] = (),
    equal_sizes: Mapping[str, Dim] | None = None,
    state_axes: Mapping[str, int] | None = None,
    progress: Progress | None = None,
) -> TensorProgram:
    """Trace a whole graph.

    `sizes` fixes the shapes of inputs by name. A size of None stays as declared, and a name is a dynamic dim of that
    name; an input whose shape is None is left out. `overridden` names defaults that become inputs.
    `equal_sizes` are expressions for sizes of inputs, by name, which become guards.
    `state_axes` are the inputs whose memory a state holds, and the axis along which each grows, from a size of 0 on.
    """
    graph = _start_empty(graph, state_axes) if state_axes else graph
    budget = MOST_TRACED + TRACES_PER_NODE * _count_nodes(graph)
    trace = Trace(evaluator, budget=budget, state_inputs=frozenset(state_axes or ()))
    scope: Scope = {}
    inputs = [*graph.inputs, *(value for value in graph.defaults if value.name in overridden)]
    for value in inputs:
        if sizes is not None and sizes.get(value.name, ()) is None:
            scope[value.name] = None
            continue
        try:
            tensor = trace.input(_input_type(value, (sizes or {}).get(value.name)), value.name)
        except WeftError as error:
            raise error.at(value=value.name) from error.__cause__
        trace.symbol_names.update(_collect_symbols(tensor))
        scope[value.name] = _equate_sizes(trace, tensor, equal_sizes) if equal_sizes else tensor
    try:
        with trace.active():
            outputs = trace_graph(graph, scope, progress)
    except UnsupportedModelError as error:
        raise name_all_missing(error, graph) from error.__cause__
    program = trace.program(outputs)
    trace.end()
    return program


def build_untraced_program(graph: Graph) -> TensorProgram:
    """Build a program whose guard never holds, for a graph that can be traced only with the inputs of a run."""
    inputs = tuple(Value(number, _input_type(value, None), value.name) for number, value in enumerate(graph.inputs))
    outputs = tuple(Value(len(inputs) + number, AnyType()) for number in range(len(graph.outputs)))
    never = Guard(0, 1, graph.name)
    return TensorProgram(inputs, outputs, (Step(Host("untraced"), inputs, outputs, graph.name),), guards=(never,))


def run_eagerly(graph: Graph, evaluator: Evaluator, inputs: Mapping[str, Any]) -> list[Any]:
    """Compute the reference results of a graph node by node."""
    trace = Trace(evaluator, eager=True)
    declared = {value.name: value.type for value in (*graph.inputs, *graph.defaults)}
    scope: Scope = dict.fromkeys(value.name for value in graph.inputs)  # None: left out
    for name, content in inputs.items():
        type = None if isinstance(content, np.ndarray) else declared[name]
        scope[name] = trace.constant(content, type, name)
    with trace.active():
        outputs = trace_graph(graph, scope)
    results = [trace.constants[output.value] for output in outputs]
    trace.end()
    return results


def trace_graph(graph: Graph, scope: Scope, progress: Progress | None = None) -> list[Tensor]:
    """Trace a graph's nodes in the current trace and return its outputs."""
    trace = current_trace.get()
    for name, array in graph.initializers.items():
        if name not in scope or isinstance(scope, ChainMap):
            scope[name] = trace.constant(array, name=name)
    enclosing = trace.origin
    last_use = _last_uses(graph) if trace.eager else {}
    for number, node in enumerate(graph.nodes):
        trace.origin = node.name
        trace.count_node()
        trace_node(node, scope, graph)
        if progress is not None:
            progress((number + 1) / len(graph.nodes))
        for name in last_use.get(number, ()):
            _free(trace, scope, name)
    trace.origin = enclosing
    return [_find_tensor(scope, value.shows or value.name, graph.name) for value in graph.outputs]


def _count_nodes(graph: Graph) -> int:
    inner = (value for node in graph.nodes for value in node.attributes.values() if isinstance(value, Graph))
    return len(graph.nodes) + sum(map(_count_nodes, inner))


def trace_node(node: Node, scope: Scope, graph: Graph) -> None:
    """Run a node's definition in the current trace and put its outputs into the scope."""
    definition = registry.find(node.domain, node.op, node.version)
    if definition is None:
        raise build_missing_error(node)
    attributes = {
        name: Subgraph(value, scope) if isinstance(value, Graph) else value for name, value in node.attributes.items()
    }
    inputs = [_find_operand(scope, name, node.name) if name else None for name in node.inputs]
    absent = next((name for name, tensor in zip(node.inputs, inputs) if name and tensor is None), None)
    while inputs and inputs[-1] is None:
        inputs.pop()
    count = max((number + 1 for number, name in enumerate(node.outputs) if name), default=0)
    try:
        outputs = registry.call(definition, inputs, attributes, count, node.version, Enclosing(graph, scope))
    except TypeRuleError as error:
        types = {name: tensor.type for name, tensor in zip(node.inputs, inputs) if tensor is not None}
        listed = ", ".join(f"{name!r} is {type}" for name, type in types.items())
        where = {"node": f"{node.name} ({node.op})", "value": next(iter(types), None)}
        raise MalformedNodeError(f"{node.op} does not take these types ({error.problem}): {listed}", **where) from error
    except WeftError as error:
        raise error.at(node=f"{node.name} ({node.op})", value=absent) from error.__cause__
    except RecursionError as error:
        raise MalformedNodeError("subgraphs are nested too deeply", node=node.name) from error
    for name, output in zip(node.outputs, outputs):
        if name and output is not None:
            scope[name] = output


def _find_operand(scope: Scope, name: str, user: str) -> Tensor | None:
    """Find a node's input; None for an input of the model that a run leaves out."""
    return None if scope.get(name) is None and name in scope else _find_tensor(scope, name, user)


def _find_tensor(scope: Scope, name: str, user: str) -> Tensor:
    tensor = scope.get(name)
    if tensor is None:
        raise MalformedNodeError(f"value {name!r} is used but never defined", node=user, value=name)
    return tensor


def _input_type(value: GraphValue, sizes: Sequence[int | str | None] | None) -> Type:
    if value.type is None:
        raise InvalidModelError("an input of the model has no type", value=value.name)
    if sizes is not None and isinstance(value.type, TensorType):
        declared: Sequence[Dim] = value.type.shape or [
            dims.symbol(f"{value.name}.{axis}") for axis in range(len(sizes))
        ]
        return TensorType(value.type.dtype, tuple(map(_choose_dim, declared, sizes)))
    return value.type


def _choose_dim(declared: Dim, size: int | str | None) -> Dim:
    if size is None:
        return declared
    return dims.symbol(size) if isinstance(size, str) else int(size)


def _equate_sizes(trace: Trace, tensor: Tensor, equal_sizes: Mapping[str, Dim]) -> Tensor:
    """Return an input with its sizes replaced by equal ones, which is recorded as guards."""
    if not isinstance(tensor.type, TensorType) or tensor.type.shape is None:
        return tensor
    shape = tuple(replace_sizes(dim, equal_sizes) for dim in tensor.shape)
    if shape == tensor.shape:
        return tensor
    for dim, equal in zip(tensor.shape, shape):
        trace.assume_equal(dim, equal, f"sizes of input {tensor.value.name!r}")
    return trace.emit(Reshape(), [tensor], [TensorType(tensor.type.dtype, shape)])[0]


def _start_empty(graph: Graph, state_axes: Mapping[str, int]) -> Graph:
    """Let the sizes along which inputs grow be 0."""
    shapes = {value.name: value.type.shape for value in graph.inputs if value.type is not None and value.type.shape}
    growing = {dims.as_symbol(shapes[name][axis]) for name, axis in state_axes.items()}

    def relax(atom: Symbol | Axis) -> Dim:
        return dims.symbol(atom.name, 0, atom.high) if atom in growing else dims.from_atom(atom)

    def relax_input(value: GraphValue) -> GraphValue:
        if not isinstance(value.type, TensorType) or value.type.shape is None:
            return value
        shape = tuple(dims.substitute(dim, relax) for dim in value.type.shape)
        return replace(value, type=TensorType(value.type.dtype, shape))

    return replace(graph, inputs=tuple(map(relax_input, graph.inputs)))


def _collect_symbols(tensor: Tensor) -> set[str]:
    if not tensor.value.has_shape:
        return set()
    return {atom.name for dim in tensor.shape for atom in dims.atoms(dim) if isinstance(atom, Symbol)}


def _last_uses(graph: Graph) -> dict[int, list[str]]:
    """Return, by node number, the values that no later node uses, so that an eager run can free them."""
    if any(isinstance(value, Graph) for node in graph.nodes for value in node.attributes.values()):
        return {}
    last = {name: number for number, node in enumerate(graph.nodes) for name in (*node.inputs, *node.outputs)}
    outputs = {"", *(value.shows or value.name for value in graph.outputs)}
    freeable = {name for node in graph.nodes for name in node.outputs} - outputs  # inputs and initializers stay
    result: dict[int, list[str]] = {}
    for name, number in last.items():
        if name in freeable:
            result.setdefault(number, []).append(name)
    return result


def _free(trace: Trace, scope: Scope, name: str) -> None:
    tensor = scope.pop(name, None)
    if tensor is not None and tensor.trace is trace and all(alias is not tensor for alias in scope.values()):
        trace.constants.pop(tensor.value, None)
        trace.tensors.pop(tensor.value.number, None)
