"""Forms that the operators' schemas allow: other opsets of one meaning, inputs and outputs that are left out."""

from __future__ import annotations

import onnx
from attack.forms.sample import Sample, declared_type, replace_values, with_model
from onnx import defs

OPTIONAL = defs.OpSchema.FormalParameterOption.Optional


def newest_opset(sample: Sample) -> Sample | None:
    """The newest opset, where it changed nothing that the model uses."""
    return _at_opset(sample, defs.onnx_opset_version())


def oldest_opset(sample: Sample) -> Sample | None:
    """The oldest opset that has all the model's operators as they are."""
    since = [_since(node, sample.opset) for node in sample.model.graph.node]
    if not since or None in since:
        return None
    return _at_opset(sample, max(version for version in since if version is not None))


def _at_opset(sample: Sample, version: int) -> Sample | None:
    nodes = sample.model.graph.node
    if version == sample.opset or any(node.domain or _has_graphs(node) for node in nodes):
        return None
    if any(_since(node, version) != _since(node, sample.opset) for node in nodes):
        return None
    result = with_model(sample)
    for entry in result.model.opset_import:
        if not entry.domain:
            entry.version = version
    return result


def _since(node: onnx.NodeProto, version: int) -> int | None:
    try:
        return int(defs.get_schema(node.op_type, version, node.domain).since_version)
    except defs.SchemaError:
        return None


def _has_graphs(node: onnx.NodeProto) -> bool:
    return any(attribute.HasField("g") or attribute.graphs for attribute in node.attribute)


def empty_names(sample: Sample) -> Sample | None:
    """Optional inputs and outputs that are not there are named by empty strings."""
    result = with_model(sample)
    changed = False
    for node in result.model.graph.node:
        schema = _schema(node, sample.opset)
        if schema is None:
            continue
        inputs = [parameter.option for parameter in schema.inputs[len(node.input) :]]
        outputs = [parameter.option for parameter in schema.outputs[len(node.output) :]]
        for names, options in ((node.input, inputs), (node.output, outputs)):
            if options and all(option == OPTIONAL for option in options):
                names.extend([""] * len(options))
                changed = True
    return result if changed else None


def last_output(sample: Sample) -> Sample | None:
    """Of a node's outputs only those are there that must be, and the last one."""
    return _some_outputs(sample, last=True)


def required_outputs(sample: Sample) -> Sample | None:
    """Of a node's outputs only those are there that must be."""
    return _some_outputs(sample, last=False)


def _some_outputs(sample: Sample, *, last: bool) -> Sample | None:
    if len(sample.model.graph.node) != 1:
        return None
    result = with_model(sample)
    (node,) = result.model.graph.node
    schema = _schema(node, sample.opset)
    if schema is None:
        return None
    present = [number for number, name in enumerate(node.output) if name and number < len(schema.outputs)]
    left_out = [number for number in present if schema.outputs[number].option == OPTIONAL]
    left_out = [number for number in left_out if not (last and number == present[-1])]
    dropped = {node.output[number] for number in left_out}
    graph = result.model.graph
    remaining = [declared_type(value.name, value) for value in graph.output if value.name not in dropped]
    if not dropped or not remaining:
        return None
    for number in left_out:
        node.output[number] = ""
    while not node.output[-1]:
        del node.output[-1]
    replace_values(graph.output, remaining)
    expected = {name: value for name, value in sample.expected.items() if name not in dropped}
    return with_model(result, expected=expected)


def _schema(node: onnx.NodeProto, version: int) -> defs.OpSchema | None:
    try:
        return defs.get_schema(node.op_type, version, node.domain) if not node.domain else None
    except defs.SchemaError:
        return None
