"""Replace calls of functions by their bodies, in place, until only ops that weft defines itself are left.

Functions are those that the model brings along and those by which onnx defines some of its own ops. An op that weft
defines is never replaced. Some of onnx's functions depend on the types of their inputs; only where such a one is met
does onnx's own type inference run, on the model without its weights.
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
from weft.frontend.instantiate import FreshNames, defined_names, graphs_in, instantiate, is_alias, node_label
from weft.frontend.opsets import canonical_domain, node_version
from weft.records import dataclass

IsDefined = Callable[[str, str, int], bool]
Key = tuple[str, str, str]  # domain, name, overload
Types = ChainMap[str, onnx.TypeProto]
Schema = Any  # onnx.defs.OpSchema, whose stubs lack what is said about functions

MOST_NODES = 100_000
"""How many nodes all calls together may become: functions that call each other twice double with every level."""

DEEPEST_CALLS = 256
DEEPEST_GRAPHS = 32
MOST_ROUNDS = 32


@dataclass(slots=True)
class _Inliner:
    functions: Mapping[Key, onnx.FunctionProto]
    imports: Mapping[str, int]
    is_defined: IsDefined
    fresh: FreshNames
    made: int = 0
    schemas: dict[tuple[str, str, int], Schema | None] = field(default_factory=dict)


def inline_functions(model: onnx.ModelProto, imports: Mapping[str, int], is_defined: IsDefined) -> None:
    """Inline every call of a function that weft has no definition for."""
    fresh = FreshNames(dict.fromkeys(_all_names(model.graph), 1))
    inliner = _Inliner(_collect_functions(model), imports, is_defined, fresh)
    _expand_graph(inliner, model.graph, (), 1, None)
    for _ in range(MOST_ROUNDS):
        if not _any_contextual(inliner, model.graph) or not _infer_types(inliner, model):
            break
        before = inliner.made
        _expand_graph(inliner, model.graph, (), 1, ChainMap())
        if inliner.made == before:
            break


def _collect_functions(model: onnx.ModelProto) -> dict[Key, onnx.FunctionProto]:
    functions: dict[Key, onnx.FunctionProto] = {}
    for function in model.functions:
        key = (canonical_domain(function.domain), function.name, function.overload)
        if key in functions:
            raise InvalidModelError(f"function {function.domain}.{function.name} is defined more than once")
        functions[key] = function
    return functions


def _walk(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """The graph and all graphs within."""
    waiting = [graph]
    while waiting:
        current = waiting.pop()
        yield current
        for node in current.node:
            for attribute in node.attribute:
                waiting.extend(graphs_in(attribute))


def _all_names(graph: onnx.GraphProto) -> Iterator[str]:
    for inner in _walk(graph):
        yield from defined_names(inner)


def _expand_graph(
    inliner: _Inliner, graph: onnx.GraphProto, active: tuple[Key, ...], depth: int, types: Types | None
) -> None:
    """Expand all calls in a graph; `active` are the functions being expanded around it."""
    if depth > DEEPEST_GRAPHS:
        raise InvalidModelError(f"graphs nest more than {DEEPEST_GRAPHS} deep")
    if types is not None:
        types = types.new_child(_declared_types(graph))
    before = inliner.made
    result: list[onnx.NodeProto] = []
    work = [(node, active) for node in reversed(graph.node)]
    while work:
        node, calls = work.pop()
        found = None if is_alias(node) else _find_body(inliner, node, types)
        if found is None or found[0] in inliner.functions:  # a graph that is passed on belongs to the caller
            for attribute in node.attribute:
                for inner in graphs_in(attribute):
                    _expand_graph(inliner, inner, calls, depth + 1, types)
        if found is None:
            result.append(node)
            continue
        key, body = found
        _check_calls(key, calls)
        nodes = instantiate(body, node, inliner.fresh, inliner.imports)
        inliner.made += max(1, sum(map(_count, nodes)))
        if inliner.made > MOST_NODES:
            raise UnsupportedModelError(
                f"the model's functions expand to more than {MOST_NODES} nodes", node=node_label(node)
            )
        work.extend((inner_node, (*calls, key)) for inner_node in reversed(nodes))
    if inliner.made > before:
        del graph.node[:]
        graph.node.extend(result)


def _count(node: onnx.NodeProto) -> int:
    """The node and those in its subgraphs."""
    return 1 + sum(_count(inner) for held in node.attribute for graph in graphs_in(held) for inner in graph.node)


def _check_calls(key: Key, calls: tuple[Key, ...]) -> None:
    if key in calls:
        chain = " → ".join(name for _, name, _ in (*calls[calls.index(key) :], key))
        raise InvalidModelError(f"functions call themselves: {chain}")
    if len(calls) >= DEEPEST_CALLS:
        raise InvalidModelError(f"functions call each other more than {DEEPEST_CALLS} deep")


def _find_body(inliner: _Inliner, node: onnx.NodeProto, types: Types | None) -> tuple[Key, onnx.FunctionProto] | None:
    """The function to put in the node's place, if there is one and weft has no definition of its own."""
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
    """The body with the defaults of its attributes, which onnx keeps in the schema."""
    for attribute in schema.attributes.values():
        if attribute.default_value.type != onnx.AttributeProto.UNDEFINED:
            default = body.attribute_proto.add()
            default.CopyFrom(attribute.default_value)
            default.name = attribute.name
    return body


def _closest(versions: Sequence[int], version: int) -> int:
    """The newest body not newer than the op; or the oldest, whose nodes carry their own versions anyway."""
    return max((since for since in versions if since <= version), default=min(versions))


def _undefined_schema(inliner: _Inliner, domain: str, op: str, version: int) -> Schema | None:
    """The schema of an op that onnx knows as a function and weft does not define."""
    key = (domain, op, version)
    if key not in inliner.schemas:
        schema: Schema = None
        if not inliner.is_defined(domain, op, version) and onnx.defs.has(op, version, domain):
            schema = onnx.defs.get_schema(op, version, domain)
        is_function = schema is not None and (schema.has_function or schema.has_context_dependent_function)
        inliner.schemas[key] = schema if is_function else None
    return inliner.schemas[key]


def _any_contextual(inliner: _Inliner, graph: onnx.GraphProto) -> bool:
    nodes = (node for inner in _walk(graph) for node in inner.node if not is_alias(node))
    keys = ((canonical_domain(node.domain), node.op_type, node_version(node, inliner.imports)) for node in nodes)
    return any(_undefined_schema(inliner, *key) is not None for key in keys)


def _infer_types(inliner: _Inliner, model: onnx.ModelProto) -> bool:
    """Let onnx annotate the model's graphs with the types it can infer."""
    bare = onnx.ModelProto(ir_version=model.ir_version, graph=model.graph)
    for domain, version in inliner.imports.items():
        bare.opset_import.add(domain=domain, version=version)
    try:
        inferred = onnx.shape_inference.infer_shapes(bare)
    except (onnx.shape_inference.InferenceError, ValueError, RuntimeError):
        return False  # the ops stay as they are, and whoever reads them says that they are unknown
    model.graph.CopyFrom(inferred.graph)
    return True


def _declared_types(graph: onnx.GraphProto) -> dict[str, onnx.TypeProto]:
    types = {value.name: value.type for value in (*graph.value_info, *graph.output, *graph.input)}
    for tensor in graph.initializer:
        shape = onnx.TensorShapeProto(dim=[onnx.TensorShapeProto.Dimension(dim_value=dim) for dim in tensor.dims])
        types[tensor.name] = onnx.TypeProto(tensor_type=onnx.TypeProto.Tensor(elem_type=tensor.data_type, shape=shape))
    return types
