"""Rebuild real models node by node with `weft.ops`: valid files with the same results in onnxruntime."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from builder.running import with_onnxruntime
from models.catalog import load_catalog, random_inputs

import weft
from weft import Tensor, ops
from weft.builder.naming import python_name
from weft.builder.signatures import has_optional_outputs
from weft.frontend import read_model
from weft.ir.graph import Graph, Node
from weft.ir.types import TensorType
from weft.opset import registry

REBUILT = {
    "silero-vad__silero_vad": "branches within branches",
    "credsweeper__ml_model": "loops",
    "reachy-mini__fknetwork_int8": "quantized products",
    "magika__standard_v3_3_model": "convolutions and normalization by hand",
    "g2p-id__bert_pron": "a transformer with dynamic sizes",
    "onnx-asr__nemo80": "spectra",
}

Values = dict[str, Tensor]


def rebuild(graph: weft.Graph, source: Graph, values: Values) -> list[Tensor]:
    """Call the function of each node; `values` are the tensors by their names in the source."""
    for name, array in source.initializers.items():
        values[name] = graph.constant(array)
    for node in source.nodes:
        with graph:
            results = call(graph, node, values)
        for name, tensor in zip(node.outputs, results if isinstance(results, tuple) else (results,)):
            values[name] = tensor
    return [values[value.shows or value.name] for value in source.outputs]


def call(graph: weft.Graph, node: Node, values: Values) -> Any:
    definition = registry.find(node.domain, node.op, node.version)
    assert definition is not None
    inputs = [values[name] if name else None for name in node.inputs]
    attributes: dict[str, Any] = dict(node.attributes)
    match python_name(node.op):
        case "if_":
            branches = (body(graph, attributes[name], values) for name in ("then_branch", "else_branch"))
            return ops.if_(inputs[0], *branches)  # type: ignore[call-overload]
        case "loop":
            step = body(graph, attributes["body"], values)
            return ops.loop(inputs[0], inputs[1], inputs[2:], lambda i, *states: step(i, graph.constant(True), *states))
        case "split":
            attributes.setdefault("num_outputs", len(node.outputs) if len(inputs) == 1 else None)
            return ops.split(*inputs, **attributes)  # type: ignore[arg-type]
    if has_optional_outputs(definition):
        attributes["outputs"] = len(node.outputs)
    space = ops.domain(node.domain) if node.domain else ops
    return getattr(space, python_name(node.op))(*inputs, **attributes)


def body(graph: weft.Graph, source: Graph, values: Values) -> Callable[..., tuple[Tensor, ...]]:
    names = [value.name for value in source.inputs]
    return lambda *tensors: tuple(rebuild(graph, source, {**values, **dict(zip(names, tensors))}))


@pytest.mark.models
@pytest.mark.parametrize("name", REBUILT)
def test_a_rebuilt_model_is_the_same(name: str) -> None:
    (entry,) = [each for each in load_catalog() if each.name == name]
    if entry.missing:
        pytest.skip(entry.missing)
    source = read_model(entry.file, is_defined=lambda *op: registry.find(*op) is not None)
    graph = weft.Graph(name, opset=source.opsets)
    values = {value.name: graph.input_of(value.name, value.type) for value in source.graph.inputs if value.type}
    for value, tensor in zip(source.graph.outputs, rebuild(graph, source.graph, values)):
        graph.output(tensor, value.name)
    assert all(isinstance(tensor.type, TensorType) and tensor.type.shape is not None for tensor in values.values())
    written = graph.to_onnx()
    onnx.checker.check_model(written, full_check=True)
    inputs = random_inputs(entry)
    expected = with_onnxruntime(onnx.load(entry.file), inputs)
    results = with_onnxruntime(written, inputs)
    assert list(results) == list(expected)
    for key, array in expected.items():
        np.testing.assert_allclose(results[key], array, rtol=1e-4, atol=1e-6, err_msg=key)
