"""One call of a function as a list of nodes: parameters replaced, everything else under names of its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field

import onnx

from weft.errors import InvalidModelError
from weft.frontend.opsets import IMPLIED, canonical_domain, read_imports, set_node_version
from weft.records import dataclass

ALIAS_DOMAIN = "weft.alias"
"""A node of this domain says that its output is another name for its input."""

Names = Mapping[str, str]
Bindings = Mapping[str, onnx.AttributeProto]


@dataclass(frozen=True, slots=True)
class FreshNames:
    """Value names in use, each with the number to try next where it is wanted again."""

    used: dict[str, int] = field(default_factory=dict)

    def make(self, base: str) -> str:
        name = base
        while name in self.used:
            name = f"{base}.{self.used[base]}"
            self.used[base] += 1
        self.used[name] = 1
        return name


def node_label(node: onnx.NodeProto) -> str:
    """A node's name, or one made up from its op and first output."""
    return node.name or f"{node.op_type}_{next(filter(None, node.output), '')}"


def is_alias(node: onnx.NodeProto) -> bool:
    return bool(node.domain == ALIAS_DOMAIN and len(node.input) == 1 and len(node.output) == 1)


def graphs_in(attribute: onnx.AttributeProto) -> Iterator[onnx.GraphProto]:
    """The subgraphs that an attribute holds."""
    if attribute.HasField("g"):
        yield attribute.g
    yield from attribute.graphs


def defined_names(graph: onnx.GraphProto) -> Iterator[str]:
    """The names that a graph itself defines."""
    yield from (value.name for value in graph.input)
    yield from (tensor.name for tensor in graph.initializer)
    yield from (sparse.values.name for sparse in graph.sparse_initializer)
    yield from (name for node in graph.node for name in node.output if name)


def instantiate(
    function: onnx.FunctionProto, call: onnx.NodeProto, fresh: FreshNames, imports: Mapping[str, int]
) -> list[onnx.NodeProto]:
    """The nodes that stand for `call`; `imports` are the model's, for domains that the function does not import."""
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
    body = _Body(label, prefix, fresh, {**imports, **read_imports(function.opset_import)}, _bind(function, call))
    nodes = [body.copy(node, names) for node in function.node]
    return nodes + list(_aliases(function, call, names))


def _name_results(
    function: onnx.FunctionProto, call: onnx.NodeProto, fresh: FreshNames, prefix: str
) -> Iterator[tuple[str, str]]:
    """The name of each value that the body's nodes define: the call's for results, otherwise a fresh one."""
    results: dict[str, str] = {}
    for formal, actual in zip(function.output, call.output, strict=False):
        if actual:
            results.setdefault(formal, actual)
    seen = set(function.input)
    for node in function.node:
        for name in filter(None, node.output):
            if name in seen:
                raise InvalidModelError(
                    f"function {function.name} defines {name!r} more than once", node=node_label(call)
                )
            seen.add(name)
            yield name, results.get(name) or fresh.make(f"{prefix}/{name}")
    for name in results:
        if name not in seen:
            raise InvalidModelError(
                f"function {function.name} never defines its output {name!r}", node=node_label(call)
            )


def _aliases(function: onnx.FunctionProto, call: onnx.NodeProto, names: Names) -> Iterator[onnx.NodeProto]:
    """Results that no node defines under the call's name: inputs handed on, and outputs listed twice."""
    for formal, actual in zip(function.output, call.output, strict=False):
        if actual and names[formal] != actual:
            yield onnx.NodeProto(domain=ALIAS_DOMAIN, input=[names[formal]], output=[actual])


def _bind(function: onnx.FunctionProto, call: onnx.NodeProto) -> Bindings:
    return {attribute.name: attribute for attribute in (*function.attribute_proto, *call.attribute)}


@dataclass(frozen=True, slots=True)
class _Body:
    """What every node of one instance shares."""

    label: str
    prefix: str
    fresh: FreshNames
    imports: Mapping[str, int]
    bindings: Bindings

    def copy(self, node: onnx.NodeProto, names: Names) -> onnx.NodeProto:
        copied = onnx.NodeProto()
        copied.CopyFrom(node)
        copied.name = f"{self.prefix}/{node_label(node)}"
        copied.input[:] = [self._find(name, names, node) for name in node.input]
        copied.output[:] = [names[name] if name else "" for name in node.output]
        domain = canonical_domain(node.domain)
        set_node_version(copied, self.imports.get(domain, IMPLIED.get(domain)))
        del copied.attribute[:]
        copied.attribute.extend(self._attributes(node, names))
        return copied

    def _find(self, name: str, names: Names, node: onnx.NodeProto) -> str:
        if name and name not in names:
            raise InvalidModelError(
                f"in {self.label}, {node.op_type} uses {name!r}, which nothing defines",
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
                continue  # an optional attribute that the call does not give
            yield copied

    def _rename_graph(self, graph: onnx.GraphProto, outer: Names) -> None:
        """Give a subgraph's own values fresh names, in place."""
        own = {name: self.fresh.make(f"{self.prefix}/{name}") for name in dict.fromkeys(defined_names(graph)) if name}
        names = {**outer, **own}
        for value in graph.input:
            value.name = own.get(value.name, "")
        for tensor in (*graph.initializer, *(sparse.values for sparse in graph.sparse_initializer)):
            tensor.name = own.get(tensor.name, "")
        for value in graph.output:
            if value.name not in names:
                raise InvalidModelError(f"in {self.label}, subgraph output {value.name!r} is defined by nothing")
            value.name = names[value.name]
        del graph.value_info[:]
        nodes = [self.copy(node, names) for node in graph.node]
        del graph.node[:]
        graph.node.extend(nodes)
