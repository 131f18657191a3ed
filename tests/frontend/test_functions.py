"""Inlining of the model's functions and of those by which onnx defines its ops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnx.defs
import onnxruntime
import pytest
from frontend import samples
from frontend.samples import model, node, subgraph, value
from onnx import AttributeProto, TensorProto, helper
from onnx.reference import ReferenceEvaluator

from weft.compat.conformance.node_tests import load_node_tests
from weft.errors import InvalidModelError, UnsupportedModelError
from weft.frontend import inline, read_model
from weft.frontend.write import write_model
from weft.ir.graph import Graph, Node


def all_nodes(graph: Graph) -> list[Node]:
    nodes: list[Node] = []
    for entry in graph.nodes:
        nodes.append(entry)
        for attribute in entry.attributes.values():
            for inner in attribute if isinstance(attribute, tuple) else (attribute,):
                nodes += all_nodes(inner) if isinstance(inner, Graph) else []
    return nodes


def function(name: str, inputs: list[str], outputs: list[str], nodes: list[onnx.NodeProto]) -> onnx.FunctionProto:
    imports = [helper.make_opsetid("", 20), helper.make_opsetid("local", 1)]
    return helper.make_function("local", name, inputs, outputs, nodes, imports)


def call(op: str, inputs: list[str], outputs: list[str], **attributes: Any) -> onnx.NodeProto:
    return node(op, inputs, outputs, domain="local", **attributes)


def local_model(nodes: list[onnx.NodeProto], functions: list[onnx.FunctionProto], **options: Any) -> onnx.ModelProto:
    return model(nodes, opsets={"": 20, "local": 1}, functions=functions, **options)


def test_inlining_nested_functions_preserves_results() -> None:
    proto = samples.calling()
    read = read_model(proto)
    assert {entry.domain for entry in all_nodes(read.graph)} == {""}
    assert {entry.version for entry in all_nodes(read.graph)} == {17, 18}
    assert len({entry.name for entry in all_nodes(read.graph)}) == len(all_nodes(read.graph))
    x = np.array([[-1, 2, -3], [4, -5, 6]], np.float32)
    for flag in (True, False):
        feeds = {"x": x, "c": np.array(flag)}
        session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
        expected = session.run(None, feeds)[0]
        assert np.allclose(ReferenceEvaluator(write_model(read)).run(None, feeds)[0], expected)


def test_defined_ops_are_not_inlined() -> None:
    proto = local_model(
        [call("Twice", ["x"], ["y"])], [function("Twice", ["a"], ["b"], [node("Add", ["a", "a"], ["b"])])]
    )
    queries = []

    def is_defined(domain: str, op: str, version: int) -> bool:
        queries.append((domain, op, version))
        return True

    assert read_model(proto, is_defined=is_defined).graph.nodes[0].op == "Twice"
    assert set(queries) == {("local", "Twice", 1)}
    assert read_model(proto).graph.nodes[0].op == "Add"


def test_missing_inputs_outputs_and_attributes() -> None:
    body = node("Clip", ["a", "low", "high"], ["b"])
    leaky = node("LeakyRelu", ["a"], ["c"])
    leaky.attribute.append(AttributeProto(name="alpha", ref_attr_name="slope", type=AttributeProto.FLOAT))
    clip = function("Clipped", ["a", "low", "high"], ["b", "c"], [body, leaky])
    read = read_model(local_model([call("Clipped", ["x", ""], ["y"])], [clip]))
    assert read.graph.nodes[0].inputs == ("x", "", "")
    assert read.graph.nodes[0].outputs == ("y",)
    assert read.graph.nodes[1].outputs != ("",)
    assert read.graph.nodes[1].attributes == {}


def test_names_do_not_clash() -> None:
    """Equal names inside and outside of a function, also in subgraphs, stay different values."""
    branch = subgraph("branch", [node("Neg", ["a"], ["x"])], ["x"])
    choose = function("Choose", ["a", "c"], ["y"], [node("If", ["c"], ["y"], then_branch=branch, else_branch=branch)])
    nodes = [call("Choose", ["x", "c"], ["a"], name="n"), call("Choose", ["a", "c"], ["y"], name="n")]
    proto = local_model(nodes, [choose], inputs=[value("x"), value("c", [], TensorProto.BOOL)])
    read = read_model(proto)
    inner = [entry for entry in all_nodes(read.graph) if entry.op == "Neg"]
    assert [entry.inputs for entry in inner] == [("x",), ("x",), ("a",), ("a",)]
    assert {entry.outputs[0] for entry in inner}.isdisjoint({"x", "a", "y"})
    x = np.ones((2, 3), np.float32)
    assert np.array_equal(ReferenceEvaluator(write_model(read)).run(None, {"x": x, "c": np.array(True)})[0], x)


def test_graphs_as_attributes_keep_the_callers_names() -> None:
    choose = node("If", ["c"], ["r"])
    for name in ("then_branch", "else_branch"):
        choose.attribute.append(AttributeProto(name=name, ref_attr_name="body", type=AttributeProto.GRAPH))
    apply = function("Apply", ["c"], ["r"], [node("Not", ["c"], ["x"]), choose])
    apply.attribute.append("body")
    inner = subgraph(
        "inner", [call("Apply", ["c"], ["z"], body=subgraph("in", [node("Neg", ["x"], ["b"])], ["b"]))], ["z"]
    )
    read = read_model(
        local_model(
            [call("Apply", ["c"], ["y"], body=inner)],
            [apply],
            inputs=[value("x"), value("c", [], TensorProto.BOOL)],
        )
    )
    assert {entry.inputs for entry in all_nodes(read.graph) if entry.op == "Neg"} == {("x",)}
    x = np.ones((2, 3), np.float32)
    assert np.array_equal(ReferenceEvaluator(write_model(read)).run(None, {"x": x, "c": np.array(True)})[0], -x)


def test_values_that_functions_pass_through() -> None:
    passing = function("Pass", ["a"], ["a", "b", "b"], [node("Neg", ["a"], ["b"])])
    read = read_model(
        local_model([call("Pass", ["x"], ["p", "q", "r"]), node("Sum", ["p", "q", "r"], ["y"])], [passing])
    )
    assert read.graph.nodes[1].inputs == ("x", "q", "q")
    (output,) = read_model(local_model([call("Pass", ["x"], ["y"])], [passing])).graph.outputs
    assert (output.name, output.shows) == ("y", "x")


def test_recursion_is_an_error() -> None:
    ping = function("Ping", ["a"], ["b"], [call("Pong", ["a"], ["b"])])
    branch = subgraph("branch", [call("Ping", ["a"], ["c"])], ["c"])
    pong = function("Pong", ["a"], ["b"], [node("If", ["a"], ["b"], then_branch=branch, else_branch=branch)])
    with pytest.raises(InvalidModelError, match="Ping → Pong → Ping"):
        read_model(local_model([call("Ping", ["x"], ["y"])], [ping, pong]))


def test_too_many_and_too_deep_calls_are_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inline, "MAX_NODES", 10_000)
    doubling = [function("F0", ["a"], ["b"], [node("Neg", ["a"], ["b"])])]
    for level in range(1, 60):
        nodes = [call(f"F{level - 1}", ["a"], ["t"]), call(f"F{level - 1}", ["t"], ["b"])]
        doubling.append(function(f"F{level}", ["a"], ["b"], nodes))
    with pytest.raises(UnsupportedModelError, match="expand to more than"):
        read_model(local_model([call("F59", ["x"], ["y"])], doubling))
    tower = [function(f"F{level}", ["a"], ["b"], [call(f"F{level + 1}", ["a"], ["b"])]) for level in range(3000)]
    with pytest.raises(InvalidModelError, match="deep"):
        read_model(local_model([call("F0", ["x"], ["y"])], tower))


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (function("F", ["a"], ["b"], [node("Add", ["a", "x"], ["b"])]), "'x', which is not defined"),
        (function("F", ["a"], ["z"], [node("Neg", ["a"], ["b"])]), "never defines its output 'z'"),
        (function("F", ["a"], ["b"], [node("Neg", ["a"], ["b"]), node("Abs", ["a"], ["b"])]), "'b' more than once"),
        (function("F", ["a"], ["b"], [node("Neg", ["a"], ["a"])]), "'a' more than once"),
        (function("F", [], ["b"], [node("Neg", ["a"], ["b"])]), "is called with"),
        (function("F", ["a", "a"], ["b"], [node("Neg", ["a"], ["b"])]), "two inputs"),
    ],
)
def test_invalid_functions(body: onnx.FunctionProto, message: str) -> None:
    with pytest.raises(InvalidModelError, match=message):
        read_model(local_model([call("F", ["x"], ["y"])], [body]))


def test_functions_defined_twice() -> None:
    body = function("F", ["a"], ["b"], [node("Neg", ["a"], ["b"])])
    with pytest.raises(InvalidModelError, match="F is defined more than once"):
        read_model(local_model([call("F", ["x"], ["y"])], [body, body]))
    body.overload = "other"
    proto = local_model([call("F", ["x"], ["y"])], [body, function("F", ["a"], ["b"], [node("Abs", ["a"], ["b"])])])
    proto.graph.node[0].overload = "other"
    assert read_model(proto).graph.nodes[0].op == "Neg"


def defines_all_but(ops: set[str]) -> Callable[[str, str, int], bool]:
    return lambda _domain, op, _version: op not in ops


def test_onnx_functions_are_inlined_unless_defined() -> None:
    proto = model([node("Mish", ["x"], ["y"])])
    assert [entry.op for entry in read_model(proto).graph.nodes] == ["Mish"]
    expanded = read_model(proto, is_defined=defines_all_but({"Mish"})).graph
    assert [entry.op for entry in expanded.nodes] == ["Softplus", "Tanh", "Mul"]


def test_type_dependent_functions_in_subgraphs() -> None:
    branch = subgraph("branch", [node("Relu", ["x"], ["r"]), node("Gelu", ["r"], ["b"])], ["b"])
    proto = model(
        [node("If", ["c"], ["y"], then_branch=branch, else_branch=branch)],
        [value("x"), value("c", [], TensorProto.BOOL)],
    )
    read = read_model(proto, is_defined=defines_all_but({"Gelu"}))
    assert "Gelu" not in {entry.op for entry in all_nodes(read.graph)}
    feeds = {"x": np.ones((2, 3), np.float32), "c": np.array(True)}
    expected = ReferenceEvaluator(proto).run(None, feeds)[0]
    np.testing.assert_allclose(ReferenceEvaluator(write_model(read)).run(None, feeds)[0], expected, rtol=1e-5)


CASES = {
    "test_gelu_default_1": {"Gelu"},
    "test_layer_normalization_4d_axis1": {"LayerNormalization"},
    "test_clip": {"Clip"},
    "test_celu": {"Celu", "CastLike"},
    "test_softmax_axis_1": {"Softmax"},
    "test_nllloss_NCd1": {"NegativeLogLikelihoodLoss"},
    "test_sce_mean_weight_ii": {"SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss", "LogSoftmax"},
    "test_center_crop_pad_crop_axes_hwc": {"CenterCropPad"},
    "test_group_normalization_epsilon": {"GroupNormalization"},
    "test_rotary_embedding": {"RotaryEmbedding"},
    "test_affine_grid_2d": {"AffineGrid", "CastLike"},
    "test_hannwindow": {"HannWindow"},
}


@pytest.mark.filterwarnings("ignore")
def test_inlining_onnx_functions_preserves_results() -> None:
    cases = {case.name: case for case in load_node_tests()}
    for name, ops in CASES.items():
        read = read_model(cases[name].model, is_defined=defines_all_but(ops))
        assert not ops & {entry.op for entry in all_nodes(read.graph)}, name
        for inputs, outputs in cases[name].data_sets:
            feeds = dict(zip((entry.name for entry in read.graph.inputs), inputs, strict=False))
            results = ReferenceEvaluator(write_model(read)).run(None, feeds)
            for output, expected in zip(results, outputs, strict=True):
                np.testing.assert_allclose(output, expected, rtol=1e-3, atol=1e-5, err_msg=name)
