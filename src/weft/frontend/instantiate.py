"""Expand one function call to nodes: bind its parameters, and give all other values fresh names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field

import onnx

from weft.errors import InvalidModelError
from weft.frontend.opsets import IMPLIED, canonical_domain, read_imports, set_node_version
from weft.records import dataclass

ALIAS_DOMAIN = "weft.alias"
"""The output of a node of this domain is an alias of its input."""

Names = Mapping[str, str]
Bindings = Mapping[str, onnx.AttributeProto]


@dataclass(frozen=True, slots=True)
class FreshNames:
    """Names in use, each with the next suffix to try."""

    used: dict[str, int] = field(default_factory=dict)
    separator: str = "."

    def make(self, base: str) -> str:
        """Return `base` if it is unused, otherwise with a suffix."""
        name = base
        while name in self.used:
            name = f"{base}{self.separator}{self.used[base]}"
            self.used[base] += 1
        self.used[name] = 1
        return name


def node_label(node: onnx.NodeProto) -> str:
    """Return a node's name, or one made of its op and first output."""
    return node.name or f"{node.op_type}_{next(filter(None, node.output), '')}"


def is_alias(node: onnx.NodeProto) -> bool:
    return bool(node.domain == ALIAS_DOMAIN and len(node.input) == 1 and len(node.output) == 1)


def graphs_in(attribute: onnx.AttributeProto) -> Iterator[onnx.GraphProto]:
    """Yield the subgraphs that an attribute holds."""
    if attribute.HasField("g"):
        yield attribute.g
    yield from attribute.graphs


def walk_graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """Yield a graph and all its subgraphs."""
    waiting = [graph]
    while waiting:
        current = waiting.pop()
        yield current
        for node in current.node:
            for attribute in node.attribute:
                waiting.extend(graphs_in(attribute))


def defined_names(graph: onnx.GraphProto) -> Iterator[str]:
    """Yield the names that a graph defines, without those of its subgraphs."""
    yield from (value.name for value in graph.input)
    yield from (tensor.name for tensor in graph.initializer)
    yield from (sparse.values.name for sparse in graph.sparse_initializer)
    yield from (name for node in graph.node for name in node.output if name)


def instantiate(
    function: onnx.FunctionProto, call: onnx.NodeProto, fresh: FreshNames, imports: Mapping[str, int]
) -> list[onnx.NodeProto]:
    """Return the nodes that replace `call`; domains that the function does not import have the model's `imports`."""
    label = f"function {function.name}"
    if len(call.input) > len(function.input) or len(call.output) > len(function.output):
        raise InvalidModelError(
            f"{label} has {len(function.input)} inputs and {len(function.output)} outputs, but is called with "
            f"{len(call.input)} and {len(call.output)}",
            node=node_label(call),
        )
    prefix = node_label(call)
    names = dict.fromkeys(function.input, "")
    if len(names) < len(function.input):
        raise InvalidModelError(f"{label} has two inputs of the same name", node=node_label(call))
    names.update(zip(function.input, call.input, strict=False))
    names.update(_name_results(function, call, fresh, prefix))
    body = _Body(
        label, prefix, fresh, {**imports, **read_imports(function.opset_import)}, _bind_attributes(function, call)
    )
    nodes = [body.copy(node, names) for node in function.node]
    return nodes + list(_aliases(function, call, names))


def _name_results(
    function: onnx.FunctionProto, call: onnx.NodeProto, fresh: FreshNames, prefix: str
) -> Iterator[tuple[str, str]]:
    """Yield (name in the body, new name) of each value that its nodes define: results get the call's names."""
    results: dict[str, str] = {}
    for formal, actual in zip(function.output, call.output, strict=False):
        if actual:
            results.setdefault(formal, actual)
    defined = set(function.input)
    for node in function.node:
        for name in filter(None, node.output):
            if name in defined:
                raise InvalidModelError(
                    f"function {function.name} defines {name!r} more than once", node=node_label(call)
                )
            defined.add(name)
            yield name, results.get(name) or fresh.make(f"{prefix}/{name}")
    for name in results:
        if name not in defined:
            raise InvalidModelError(
                f"function {function.name} never defines its output {name!r}", node=node_label(call)
            )


def _aliases(function: onnx.FunctionProto, call: onnx.NodeProto, names: Names) -> Iterator[onnx.NodeProto]:
    """Yield aliases for results that no node defines: inputs that are passed through, and outputs listed twice."""
    for formal, actual in zip(function.output, call.output, strict=False):
        if actual and names[formal] != actual:
            yield onnx.NodeProto(domain=ALIAS_DOMAIN, input=[names[formal]], output=[actual])


def _bind_attributes(function: onnx.FunctionProto, call: onnx.NodeProto) -> Bindings:
    return {attribute.name: attribute for attribute in (*function.attribute_proto, *call.attribute)}


@dataclass(frozen=True, slots=True)
class _Body:
    """What all nodes of one instance share."""

    label: str
    prefix: str
    fresh: FreshNames
    imports: Mapping[str, int]
    bindings: Bindings

    def copy(self, node: onnx.NodeProto, names: Names) -> onnx.NodeProto:
        copied = onnx.NodeProto()
        copied.CopyFrom(node)
        copied.name = f"{self.prefix}/{node_label(node)}"
        copied.input[:] = [self._rename(name, names, node) for name in node.input]
        copied.output[:] = [names[name] if name else "" for name in node.output]
        domain = canonical_domain(node.domain)
        set_node_version(copied, self.imports.get(domain, IMPLIED.get(domain)))
        del copied.attribute[:]
        copied.attribute.extend(self._attributes(node, names))
        return copied

    def _rename(self, name: str, names: Names, node: onnx.NodeProto) -> str:
        if name and name not in names:
            raise InvalidModelError(
                f"in {self.label}, {node.op_type} uses {name!r}, which is not defined",
                node=node_label(node),
                value=name,
            )
        return names[name] if name else ""

    def _attributes(self, node: onnx.NodeProto, names: Names) -> Iterator[onnx.AttributeProto]:
        for attribute in node.attribute:
            copied = onnx.AttributeProto()
            if not attribute.ref_attr_name:
                copied.CopyFrom(attribute)
                for graph in graphs_in(copied):
                    self._rename_graph(graph, names)
            elif (bound := self.bindings.get(attribute.ref_attr_name)) is not None:
                if attribute.type not in (bound.type, onnx.AttributeProto.UNDEFINED):
                    raise InvalidModelError(
                        f"in {self.label}, attribute {attribute.name} and the {bound.name} it refers to differ in type",
                        node=node_label(node),
                    )
                copied.CopyFrom(bound)
                copied.name = attribute.name
            else:
                continue  # an optional attribute that the call omits
            yield copied

    def _rename_graph(self, graph: onnx.GraphProto, outer: Names) -> None:
        """Give a subgraph's own values fresh names, in place."""
        fresh = {name: self.fresh.make(f"{self.prefix}/{name}") for name in dict.fromkeys(defined_names(graph)) if name}
        names = {**outer, **fresh}
        for value in graph.input:
            value.name = fresh.get(value.name, "")
        for tensor in (*graph.initializer, *(sparse.values for sparse in graph.sparse_initializer)):
            tensor.name = fresh.get(tensor.name, "")
        for value in graph.output:
            if value.name not in names:
                raise InvalidModelError(f"in {self.label}, subgraph output {value.name!r} is not defined")
            value.name = names[value.name]
        del graph.value_info[:]
        nodes = [self.copy(node, names) for node in graph.node]
        del graph.node[:]
        graph.node.extend(nodes)
