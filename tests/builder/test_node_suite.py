"""Rebuild onnx's node suite with `weft.ops`: every case of one node gives that node and the declared types.

Few cases are compiled. Inputs that definitions need as constants (axes, sizes) are the arrays of the case, the others
are inputs of the graph.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import pytest

import weft
from weft.builder.naming import module_name, python_name
from weft.builder.signatures import has_optional_outputs, newest_definition
from weft.compat.conformance.cases import Case, collect_cases, read_data_sets
from weft.frontend import read_model
from weft.ir.graph import Graph, Node, OnnxModel
from weft.ir.types import AnyType, TensorType, Type
from weft.opset import registry

UNKNOWN_BEFORE_A_RUN = {f"test_resize_downsample_scales_{mode}_antialias" for mode in ("linear", "cubic")}

ONNX_INFERS_WRONGLY = {
    "test_mvn": "the default of its axes is a constant without a value in the body of onnx's function",
    "test_stft": "without onesided, onnx infers the size of both sides, although the default is one side",
    "test_stft_with_window": "the same",
}


def cases() -> Iterator[tuple[str, Case, OnnxModel]]:
    """Yield the cases of one node without bodies, for ops that weft defines."""
    for name, case in collect_cases(["node"]).items():
        model = read_model(case.source, is_defined=lambda *op: registry.find(*op) is not None)
        nodes = model.graph.nodes
        if len(nodes) == 1 and not any(isinstance(value, Graph) for value in nodes[0].attributes.values()):
            yield name, case, model


def rebuild(case: Case, model: OnnxModel) -> tuple[weft.Graph, list[weft.Tensor]]:
    """Rebuild the node of a case with the function of its op."""
    (node,) = model.graph.nodes
    data = next(read_data_sets(case)).inputs
    graph = weft.Graph(case.info.name, opset=model.opsets)
    definition = registry.find(node.domain, node.op, node.version)
    assert definition is not None
    kinds = [parameter.kind for parameter in definition.inputs]
    declared = {value.name: value.type for value in (*model.graph.inputs, *model.graph.defaults)}
    inputs: list[Any] = []
    for number, name in enumerate(node.inputs):
        if not name:
            inputs.append(None)
        elif name in model.graph.initializers:
            inputs.append(graph.parameter(name, model.graph.initializers[name]))
        elif number < len(kinds) and kinds[number] != "tensor":
            inputs.append(data[name])
        else:
            kind = declared[name]
            assert kind is not None
            inputs.append(graph.input_of(name, kind))
    with graph:
        results = function(node)(*inputs, **keywords(node))
    tensors = list(results) if isinstance(results, tuple) else [results]
    for tensor, name in zip(tensors, node.outputs):
        if name:
            graph.output(tensor, name if name not in node.inputs else f"{name}_again")
    return graph, tensors


def function(node: Node) -> Any:
    space = getattr(weft.ops, module_name(node.domain)) if node.domain else weft.ops
    return getattr(space, python_name(node.op))


def keywords(node: Node) -> dict[str, Any]:
    arguments: dict[str, Any] = dict(node.attributes)
    definition = registry.find(node.domain, node.op, node.version)
    assert definition is not None
    if python_name(node.op) == "split":
        is_even = len(node.inputs) == 1 and "split" not in arguments
        arguments.setdefault("num_outputs", len(node.outputs) if is_even else None)
    elif has_optional_outputs(definition):
        arguments["outputs"] = len(node.outputs)
    return arguments


def is_compatible(inferred: Type, declared: Type | None) -> bool:
    """Whether an inferred type agrees with the declared one, where both are known."""
    if not isinstance(inferred, TensorType) or not isinstance(declared, TensorType):
        return isinstance(inferred, AnyType) or declared is None or type(inferred) is type(declared)
    if inferred.dtype is not declared.dtype:
        return False
    if inferred.shape is None or declared.shape is None:
        return True
    same = (a == b for a, b in zip(inferred.shape, declared.shape) if isinstance(a, int) and isinstance(b, int))
    return len(inferred.shape) == len(declared.shape) and all(same)


def describe_inputs(node: onnx.NodeProto) -> str:
    """Return `x` for each input that a node has and `-` for each that it omits."""
    return "".join("x" if name else "-" for name in node.input).rstrip("-")


def attributes(node: onnx.NodeProto) -> dict[str, Any]:
    """Return the attributes of a node in a comparable form, without the names and the encoding of tensors."""
    values = {each.name: _normalize(onnx.helper.get_attribute_value(each)) for each in node.attribute}
    return {name: value for name, value in values.items() if (name, value) != ("axis", "0")}  # some state the default


def _normalize(value: Any) -> Any:
    if isinstance(value, onnx.TensorProto):
        array = onnx.numpy_helper.to_array(value)
        return str(array.dtype), array.shape, str(array.tolist())
    return list(value) if isinstance(value, (list, tuple)) else str(value)


@pytest.fixture(scope="module")
def suite() -> list[tuple[str, Case, OnnxModel]]:
    return list(cases())


def test_every_case_gives_its_node_and_types(suite: list[tuple[str, Case, OnnxModel]]) -> None:
    wrong: dict[str, str] = {}
    unknown = []
    for name, case, model in suite:
        (node,) = model.graph.nodes
        declared = {value.shows or value.name: value.type for value in model.graph.outputs}
        try:
            graph, tensors = rebuild(case, model)
            written = graph.to_onnx()
            onnx.checker.check_model(written, full_check=name not in ONNX_INFERS_WRONGLY)
        except Exception as error:  # all failures are reported together
            wrong[name] = f"{type(error).__name__}: {error}"
            continue
        (proto,) = [each for each in written.graph.node if each.op_type == node.op]
        (original,) = [each for each in case.model.graph.node if each.op_type == node.op]  # type: ignore[union-attr]
        if attributes(proto) != attributes(original):
            wrong[name] = f"attributes {attributes(proto)} instead of {attributes(original)}"
        if describe_inputs(proto) != describe_inputs(original):
            wrong[name] = f"inputs {list(proto.input)} instead of {list(original.input)}"
        for tensor, output in zip(tensors, node.outputs):
            if output and not is_compatible(tensor.type, declared.get(output)):
                wrong[name] = f"{output} is {tensor.type} instead of {declared.get(output)}"
            if isinstance(tensor.type, AnyType) or (isinstance(tensor.type, TensorType) and tensor.type.shape is None):
                unknown.append(name)
    assert wrong == {}, "\n".join(f"{name}: {problem}" for name, problem in wrong.items())
    assert len(suite) > 1300
    assert set(unknown) == UNKNOWN_BEFORE_A_RUN


def test_every_fortieth_rebuilt_case_has_the_expected_results(suite: list[tuple[str, Case, OnnxModel]]) -> None:
    for _, case, model in suite[::40]:
        graph, _ = rebuild(case, model)
        sets = next(read_data_sets(case))
        loaded = graph.compile(device="reference")
        results = loaded.run({spec.name: sets.inputs[spec.name] for spec in loaded.inputs})
        for name, expected in sets.outputs.items():
            if isinstance(expected, np.ndarray) and expected.dtype.kind == "f" and name in results:
                np.testing.assert_allclose(results[name], expected, rtol=1e-3, atol=1e-5, err_msg=case.info.name)


def test_a_new_graph_uses_the_newest_definition() -> None:
    assert newest_definition("", "ReduceMean").since == 18
