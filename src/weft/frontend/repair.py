"""Repair models that break ONNX's rules in ways whose meaning is clear, as onnxruntime does.

The parsed model is changed in place, and each change is described in a sentence for the log. Ambiguous models and
subgraphs are not changed.
"""

from __future__ import annotations

from collections.abc import Iterator

import onnx

from weft.frontend.instantiate import walk_graphs
from weft.frontend.opsets import canonical_domain
from weft.frontend.save import is_constant
from weft.frontend.schemas import newest_installed_opsets


def repair_model(model: onnx.ModelProto) -> list[str]:
    """Repair a model in place and return a sentence for each change."""
    return [*_choose_opsets(model), *_remove_unnamed_initializers(model.graph), *_merge_constants(model.graph)]


def _choose_opsets(model: onnx.ModelProto) -> Iterator[str]:
    """Keep the last import of each domain, and import the newest version of ONNX's own domains where they lack one."""
    imports: dict[str, int] = {}
    for entry in model.opset_import:
        domain = canonical_domain(entry.domain)
        if imports.get(domain, entry.version) != entry.version:
            yield f"opsets {imports[domain]} and {entry.version} of {domain or 'ai.onnx'} are imported; the last counts"
        imports[domain] = entry.version
    if not imports:  # the age of the model is unknown
        return
    used = {canonical_domain(node.domain) for graph in walk_graphs(model.graph) for node in graph.node}
    for domain, version in newest_installed_opsets().items():
        if domain in used and domain not in imports:
            yield f"no opset of {domain or 'ai.onnx'} is imported; the newest, {version}, is used"
            imports[domain] = version
    del model.opset_import[:]
    for domain, version in imports.items():
        model.opset_import.add(domain=domain, version=version)


def _remove_unnamed_initializers(graph: onnx.GraphProto) -> Iterator[str]:
    """Remove initializers without a name, which no node can use."""
    for number in reversed(range(len(graph.initializer))):
        if not graph.initializer[number].name:
            del graph.initializer[number]
            yield f"an initializer of graph {graph.name!r} has no name and is ignored"


def _merge_constants(graph: onnx.GraphProto) -> Iterator[str]:
    """Keep the last of several constants of the same name, type and shape: initializers first, then Constant nodes.

    A Constant node with the name of an input becomes the default of that input.
    """
    constants: dict[str, list[onnx.TensorProto]] = {}
    for tensor in graph.initializer:
        constants.setdefault(tensor.name, []).append(tensor)
    inputs = {value.name for value in graph.input}
    clashing = {name for name, tensors in constants.items() if len(tensors) > 1}
    for node in graph.node:
        if is_constant(node):
            name = node.output[0]
            clashing.update({name} if name in constants or name in inputs else ())
            constants.setdefault(name, []).append(node.attribute[0].t)
    last_definitions = {
        name: _copy_tensor(constants[name][-1], name) for name in clashing if _are_alike(constants[name])
    }
    if not last_definitions:
        return
    for number in reversed(range(len(graph.initializer))):
        if graph.initializer[number].name in last_definitions:
            del graph.initializer[number]
    for number in reversed(range(len(graph.node))):
        if is_constant(graph.node[number]) and graph.node[number].output[0] in last_definitions:
            del graph.node[number]
    graph.initializer.extend(last_definitions.values())
    yield from (
        f"the constant {name!r} is defined more than once; the last definition counts"
        for name in sorted(last_definitions)
    )


def _are_alike(tensors: list[onnx.TensorProto]) -> bool:
    """Whether tensors have one element type and shape."""
    return len({(tensor.data_type, tuple(tensor.dims)) for tensor in tensors}) == 1


def _copy_tensor(tensor: onnx.TensorProto, name: str) -> onnx.TensorProto:
    """Copy a tensor under a name."""
    copy = onnx.TensorProto()
    copy.CopyFrom(tensor)
    copy.name = name
    return copy
