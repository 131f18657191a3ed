"""Inline function calls, in place, until only ops that weft defines are left.

Functions come from the model, and from onnx, which defines some of its ops by functions. An op that weft defines is
never replaced. Some of onnx's functions depend on the types of their inputs; only then onnx's type inference runs, on
the model without its weights.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import Any

import onnx
import onnx.defs
import onnx.shape_inference

from weft.errors import InvalidModelError, UnsupportedModelError, WeftError
from weft.frontend.instantiate import (
    FreshNames,
    defined_names,
    graphs_in,
    instantiate,
    is_alias,
    node_label,
    walk_graphs,
)
from weft.frontend.opsets import canonical_domain, node_version
from weft.records import dataclass

IsDefined = Callable[[str, str, int], bool]
Key = tuple[str, str, str]  # domain, name, overload
Types = ChainMap[str, onnx.TypeProto]
Schema = Any  # onnx.defs.OpSchema, whose stubs lack the attributes about functions

MAX_NODES = 100_000
"""Limit of the nodes that all calls expand to: functions that call each other twice double with every level."""

MAX_CALL_DEPTH = 256
MAX_GRAPH_DEPTH = 32
MAX_ROUNDS = 32


@dataclass(slots=True)
class _Inliner:
    functions: Mapping[Key, onnx.FunctionProto]
    imports: Mapping[str, int]
    is_defined: IsDefined
    fresh: FreshNames
    node_count: int = 0  # that calls have expanded to
    schemas: dict[tuple[str, str, int], Schema | None] = field(default_factory=dict)


def inline_functions(model: onnx.ModelProto, imports: Mapping[str, int], is_defined: IsDefined) -> None:
    """Inline every call of a function that weft has no definition for."""
    fresh = FreshNames(dict.fromkeys(_all_names(model.graph), 1))
    inliner = _Inliner(_collect_functions(model), imports, is_defined, fresh)
    _expand_graph(inliner, model.graph, (), 1, None)
    for _ in range(MAX_ROUNDS):
        if not _has_typed_functions(inliner, model.graph) or not _infer_types(inliner, model):
            break
        before = inliner.node_count
        _expand_graph(inliner, model.graph, (), 1, ChainMap())
        if inliner.node_count == before:
            break


def _collect_functions(model: onnx.ModelProto) -> dict[Key, onnx.FunctionProto]:
    functions: dict[Key, onnx.FunctionProto] = {}
    for function in model.functions:
        key = (canonical_domain(function.domain), function.name, function.overload)
        if key in functions:
            raise InvalidModelError(f"function {function.domain}.{function.name} is defined more than once")
        functions[key] = function
    return functions


def _all_names(graph: onnx.GraphProto) -> Iterator[str]:
    for inner in walk_graphs(graph):
        yield from defined_names(inner)


def _expand_graph(
    inliner: _Inliner, graph: onnx.GraphProto, active: tuple[Key, ...], depth: int, types: Types | None
) -> None:
    """Expand all calls in a graph; `active` are the functions being expanded around it."""
    if depth > MAX_GRAPH_DEPTH:
        raise InvalidModelError(f"graphs nest more than {MAX_GRAPH_DEPTH} deep")
    if types is not None:
        types = types.new_child(_declared_types(graph))
    before = inliner.node_count
    result: list[onnx.NodeProto] = []
    work = [(node, active) for node in reversed(graph.node)]
    while work:
        node, calls = work.pop()
        function = None if is_alias(node) else _find_body(inliner, node, types)
        if function is None or function[0] in inliner.functions:  # a graph that is an argument belongs to the caller
            for attribute in node.attribute:
                for inner in graphs_in(attribute):
                    _expand_graph(inliner, inner, calls, depth + 1, types)
        if function is None:
            result.append(node)
            continue
        key, body = function
        _check_calls(key, calls)
        nodes = instantiate(body, node, inliner.fresh, inliner.imports)
        inliner.node_count += max(1, sum(map(_count_nodes, nodes)))
        if inliner.node_count > MAX_NODES:
            raise UnsupportedModelError(
                f"the model's functions expand to more than {MAX_NODES} nodes", node=node_label(node)
            )
        work.extend((inner_node, (*calls, key)) for inner_node in reversed(nodes))
    if inliner.node_count > before:
        del graph.node[:]
        graph.node.extend(result)


def _count_nodes(node: onnx.NodeProto) -> int:
    """Count a node and the nodes in its subgraphs."""
    graphs = (graph for attribute in node.attribute for graph in graphs_in(attribute))
    return 1 + sum(_count_nodes(inner) for graph in graphs for inner in graph.node)


def _check_calls(key: Key, calls: tuple[Key, ...]) -> None:
    if key in calls:
        chain = " → ".join(name for _, name, _ in (*calls[calls.index(key) :], key))
        raise InvalidModelError(f"functions call themselves: {chain}")
    if len(calls) >= MAX_CALL_DEPTH:
        raise InvalidModelError(f"functions call each other more than {MAX_CALL_DEPTH} deep")


def _find_body(inliner: _Inliner, node: onnx.NodeProto, types: Types | None) -> tuple[Key, onnx.FunctionProto] | None:
    """Return the function that replaces a node; None if there is none, or weft defines the op."""
    domain, op = canonical_domain(node.domain), node.op_type
    key = (domain, op, node.overload)
    local = inliner.functions.get(key)
    try:
        version = 1 if local and domain not in inliner.imports else node_version(node, inliner.imports)
        if local is not None:
            return None if inliner.is_defined(domain, op, version) else (key, local)
        body = _schema_body(inliner, node, domain, version, types)
    except WeftError as error:
        raise error.at(node=node_label(node)) from error.__cause__
    return None if body is None else ((domain, op, f"onnx {version}"), body)


def _schema_body(
    inliner: _Inliner, node: onnx.NodeProto, domain: str, version: int, types: Types | None
) -> onnx.FunctionProto | None:
    schema = _undefined_schema(inliner, domain, node.op_type, version)
    if schema is None:
        return None
    body = onnx.FunctionProto()
    if schema.has_function:
        body.ParseFromString(schema.get_function_with_opset_version(_closest(schema.function_opset_versions, version)))
        return _with_defaults(body, schema)
    if types is None or any(name and name not in types for name in node.input):
        return None
    inputs = [types[name].SerializeToString() if name else b"" for name in node.input]
    since = _closest(schema.context_dependent_function_opset_versions, version)
    body.ParseFromString(
        schema.get_context_dependent_function_with_opset_version(since, node.SerializeToString(), inputs)
    )
    return _with_defaults(body, schema) if body.node else None


def _with_defaults(body: onnx.FunctionProto, schema: Schema) -> onnx.FunctionProto:
    """Add the default attributes, which onnx keeps in the schema, to a function body."""
    for attribute in schema.attributes.values():
        if attribute.default_value.type != onnx.AttributeProto.UNDEFINED:
            default = body.attribute_proto.add()
            default.CopyFrom(attribute.default_value)
            default.name = attribute.name
    return body


def _closest(versions: Sequence[int], version: int) -> int:
    """Return the newest version not newer than the op's, or the oldest: nodes of the body carry their own versions."""
    return max((since for since in versions if since <= version), default=min(versions))


def _undefined_schema(inliner: _Inliner, domain: str, op: str, version: int) -> Schema | None:
    """Return the schema of an op that onnx defines by a function and weft does not define."""
    key = (domain, op, version)
    if key not in inliner.schemas:
        schema: Schema = None
        if not inliner.is_defined(domain, op, version) and onnx.defs.has(op, version, domain):
            schema = onnx.defs.get_schema(op, version, domain)
        is_function = schema is not None and (schema.has_function or schema.has_context_dependent_function)
        inliner.schemas[key] = schema if is_function else None
    return inliner.schemas[key]


def _has_typed_functions(inliner: _Inliner, graph: onnx.GraphProto) -> bool:
    """Whether calls are left of functions that depend on types."""
    nodes = (node for inner in walk_graphs(graph) for node in inner.node if not is_alias(node))
    keys = ((canonical_domain(node.domain), node.op_type, node_version(node, inliner.imports)) for node in nodes)
    return any(_undefined_schema(inliner, *key) is not None for key in keys)


def _infer_types(inliner: _Inliner, model: onnx.ModelProto) -> bool:
    """Annotate the model's graphs with the types that onnx infers; return False if its inference fails."""
    bare = onnx.ModelProto(ir_version=model.ir_version, graph=model.graph)
    for domain, version in inliner.imports.items():
        bare.opset_import.add(domain=domain, version=version)
    try:
        inferred = onnx.shape_inference.infer_shapes(bare)
    except (onnx.shape_inference.InferenceError, ValueError, RuntimeError):
        return False  # tracing reports the remaining calls as unknown ops
    model.graph.CopyFrom(inferred.graph)
    return True


def _declared_types(graph: onnx.GraphProto) -> dict[str, onnx.TypeProto]:
    types = {value.name: value.type for value in (*graph.value_info, *graph.output, *graph.input)}
    for tensor in graph.initializer:
        shape = onnx.TensorShapeProto(dim=[onnx.TensorShapeProto.Dimension(dim_value=dim) for dim in tensor.dims])
        types[tensor.name] = onnx.TypeProto(tensor_type=onnx.TypeProto.Tensor(elem_type=tensor.data_type, shape=shape))
    return types
