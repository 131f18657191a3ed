"""Forms that put the case's nodes into another place: a branch, a loop, a scan, a function, beside a copy."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from attack.forms.sample import (
    Form,
    Sample,
    constant,
    declared,
    declared_type,
    defined,
    rename_nodes,
    replace_nodes,
    replace_values,
    with_model,
)
from onnx import TensorProto, helper

node = helper.make_node


def branch(condition: bool) -> Form:
    """The nodes are in both branches of an If, on a condition that a run gives."""

    def form(sample: Sample) -> Sample | None:
        result = with_model(sample, inputs={**sample.inputs, "attack_condition": np.array(condition)})
        _branch(result)
        result.model.graph.input.append(helper.make_tensor_value_info("attack_condition", TensorProto.BOOL, []))
        return result

    return form


def known_branch(sample: Sample) -> Sample | None:
    """The nodes are in a branch that is known to be taken."""
    result = with_model(sample)
    _branch(result)
    result.model.graph.node.insert(0, constant("attack_condition", np.array(True)))
    return result


def _branch(sample: Sample) -> None:
    graph = sample.model.graph
    branches = {f"{side}_branch": _body(sample, side, [], side) for side in ("then", "else")}
    replace_nodes(graph, [node("If", ["attack_condition"], [value.name for value in graph.output], **branches)])


def _body(
    sample: Sample, name: str, inputs: list[onnx.ValueInfoProto], suffix: str, before: tuple[str, ...] = ()
) -> onnx.GraphProto:
    """The nodes as a subgraph with names of its own; `before` are outputs ahead of the sample's."""
    graph = sample.model.graph
    names = {value: f"{value}_{suffix}" for value in defined(graph.node)}
    names.update((value.name.removesuffix(f"_{suffix}"), value.name) for value in inputs)
    outputs = [declared_type(names.get(value.name, value.name), value) for value in graph.output]
    first = [helper.make_tensor_value_info(value, TensorProto.BOOL, []) for value in before]
    return helper.make_graph(rename_nodes(graph.node, names), name, inputs, [*first, *outputs])


def loop_state(sample: Sample) -> Sample | None:
    """The nodes are a loop's body of one trip; the outputs are its state, other ones before it."""
    if not sample.has_tensor_outputs:
        return None
    result = with_model(sample)
    graph = result.model.graph
    outputs = list(graph.output)
    state = [declared_type(f"{value.name}_before", value) for value in outputs]
    body = _body(result, "body", [], "body", ("attack_condition_out",))
    body.input.extend(
        [_scalar("attack_trip", TensorProto.INT64), _scalar("attack_condition_in", TensorProto.BOOL), *state]
    )
    body.node.append(node("Identity", ["attack_condition_in"], ["attack_condition_out"]))
    first = [f"{value.name}_first" for value in outputs]
    contents = [np.zeros_like(sample.expected[value.name]) for value in outputs]
    contents = [np.full(c.shape, "", object) if c.dtype == object else c for c in contents]
    nodes = [constant("attack_trips", np.int64(1)), constant("attack_condition", np.array(True))]
    nodes += [constant(name, content) for name, content in zip(first, contents)]
    loop = node("Loop", ["attack_trips", "attack_condition", *first], [value.name for value in outputs], body=body)
    replace_nodes(graph, [*nodes, loop])
    return result


def loop_rows(sample: Sample) -> Sample | None:
    """The nodes are a loop's body of as many trips as a run says, two; the outputs are what it stacks."""
    if not sample.has_tensor_outputs or sample.opset < 11:
        return None
    expected = {name: np.stack([content, content]) for name, content in sample.expected.items()}
    result = with_model(sample, inputs={**sample.inputs, "attack_trips": np.int64(2) * np.ones((), np.int64)})
    result = with_model(result, expected=expected)
    graph = result.model.graph
    body = _body(result, "body", [], "body", ("attack_condition_out",))
    body.input.extend([_scalar("attack_trip", TensorProto.INT64), _scalar("attack_condition_in", TensorProto.BOOL)])
    body.node.append(node("Identity", ["attack_condition_in"], ["attack_condition_out"]))
    names = [value.name for value in graph.output]
    replace_nodes(graph, [node("Loop", ["attack_trips", ""], names, body=body)])
    graph.input.append(_scalar("attack_trips", TensorProto.INT64))
    replace_values(graph.output, [declared(name, expected[name]) for name in names])
    return result


def scan(sample: Sample) -> Sample | None:
    """Inputs and outputs are stacked, and the nodes scan them one by one."""
    if not sample.has_tensor_outputs or not sample.tensors or sample.opset < 9:
        return None
    stacked = {name: _stack(value) if name in sample.tensors else value for name, value in sample.inputs.items()}
    expected = {name: _stack(content) for name, content in sample.expected.items()}
    result = with_model(sample, inputs=stacked, expected=expected)
    graph = result.model.graph
    tensors = [value for value in graph.input if value.name in sample.tensors]
    rows = [declared_type(f"{value.name}_row", value) for value in tensors]
    body = _body(result, "body", rows, "row")
    names = [value.name for value in graph.output]
    replace_nodes(graph, [node("Scan", [value.name for value in tensors], names, body=body, num_scan_inputs=len(rows))])
    for value in tensors:
        value.CopyFrom(declared(value.name, stacked[value.name]))
    replace_values(graph.output, [declared(name, expected[name]) for name in names])
    return result


def _stack(array: Any) -> Any:
    return np.stack([array, array])


def function(sample: Sample) -> Sample | None:
    """The nodes are a function of the model."""
    result = with_model(sample)
    _call_function(result.model, "Whole")
    return result


def function_in_function(sample: Sample) -> Sample | None:
    """The nodes are a function that another one calls."""
    result = with_model(sample)
    _call_function(result.model, "Inner")
    _call_function(result.model, "Outer")
    return result


def _call_function(model: onnx.ModelProto, name: str) -> None:
    graph = model.graph
    domain = "attack.local"
    if not any(entry.domain == domain for entry in model.opset_import):
        model.opset_import.append(helper.make_opsetid(domain, 1))
    model.ir_version = max(model.ir_version, 8)
    inputs, outputs = [value.name for value in graph.input], [value.name for value in graph.output]
    model.functions.append(helper.make_function(domain, name, inputs, outputs, graph.node, model.opset_import))
    replace_nodes(graph, [node(name, inputs, outputs, domain=domain)])


def twice(sample: Sample) -> Sample | None:
    """Two copies of the nodes share the inputs."""
    result = with_model(
        sample, expected={**sample.expected, **{f"{name}_again": value for name, value in sample.expected.items()}}
    )
    graph = result.model.graph
    names = {value: f"{value}_again" for value in defined(graph.node)}
    graph.node.extend(rename_nodes(list(graph.node), names))
    graph.output.extend([declared_type(names[value.name], value) for value in list(graph.output)])
    return result


def inputs_too(sample: Sample) -> Sample | None:
    """Every tensor input is an output as well."""
    names = {f"{name}_copy": name for name in sample.tensors}
    if not names:
        return None
    result = with_model(
        sample, expected={**{copy: sample.inputs[name] for copy, name in names.items()}, **sample.expected}
    )
    graph = result.model.graph
    graph.node.extend(node("Identity", [name], [copy]) for copy, name in names.items())
    outputs = [declared(copy, sample.inputs[name]) for copy, name in names.items()]
    replace_values(graph.output, [*outputs, *graph.output])
    return result


def every_value(sample: Sample) -> Sample | None:
    """Whatever any node makes is an output as well."""
    if len(sample.model.graph.node) < 2:
        return None
    result = with_model(sample)
    graph = result.model.graph
    inferred = onnx.shape_inference.infer_shapes(result.model).graph.value_info
    already = {value.name for value in graph.output}
    graph.output.extend(value for value in inferred if value.name not in already)
    return result if len(graph.output) > len(already) else None


def _scalar(name: str, kind: int) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, [])
