"""Models that break ONNX's rules: those that onnxruntime accepts have the same results, and the log reports repairs.

The table says what weft does with each model: it "reads" it unchanged, "repairs" it, "ignores" an attribute, or
"rejects" it. The tests check that onnxruntime rejects the same models.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import weft
import weft.compat.onnxruntime

X = np.array([[1, -2, 3], [4, 5, -6]], np.float32)
make_node = helper.make_node


def value(name: str, kind: int = TensorProto.FLOAT, shape: Sequence[Any] | None = ("N", 3)) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def tensor(values: Any, name: str = "c") -> onnx.TensorProto:
    return numpy_helper.from_array(np.array(values, np.float32), name)


def constant(values: Any, name: str = "c") -> onnx.NodeProto:
    return make_node("Constant", [], [name], value=tensor(values, ""))


ONE, TEN = [1, 2, 3], [10, 20, 30]
RELU, ADD = make_node("Relu", ["x"], ["y"]), make_node("Add", ["x", "c"], ["y"])
NORM = make_node("LayerNormalization", ["x", "c"], ["y"], epsion=1e-3)
CONDITION = helper.make_tensor_value_info("b", TensorProto.BOOL, [])


def model(
    *nodes: onnx.NodeProto,
    inputs: Sequence[onnx.ValueInfoProto] = (value("x"),),
    outputs: Sequence[onnx.ValueInfoProto] = (value("y"),),
    weights: Sequence[onnx.TensorProto] = (),
    values: Sequence[onnx.ValueInfoProto] = (),
    opsets: Sequence[tuple[str, int]] = (("", 17),),
    version: int = 8,
) -> onnx.ModelProto:
    graph = helper.make_graph(nodes, "graph", inputs, outputs, weights, value_info=values)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid(*opset) for opset in opsets])
    proto.ir_version = version
    return proto


def branch(node: onnx.NodeProto, weights: Sequence[onnx.TensorProto] = ()) -> onnx.GraphProto:
    return helper.make_graph([node], "branch", [], [value(node.output[0], shape=None)], weights)


def choice(then: onnx.GraphProto, otherwise: onnx.GraphProto) -> onnx.NodeProto:
    return make_node("If", ["b"], ["y"], then_branch=then, else_branch=otherwise)


def unnamed_graph() -> onnx.ModelProto:
    proto = model(RELU)
    proto.graph.ClearField("name")
    return proto


class Case(NamedTuple):
    verdict: str
    model: onnx.ModelProto


BRANCHED = (value("x"), CONDITION)
NEG, ABS = make_node("Neg", ["x"], ["n"]), make_node("Abs", ["x"], ["a"])
CASES = {
    "constant twice": Case("repairs", model(constant(ONE), constant(TEN), ADD)),
    "constant used between": Case(
        "repairs",
        model(constant(ONE), make_node("Mul", ["x", "c"], ["x2"]), constant(TEN), make_node("Add", ["x2", "c"], ["y"])),
    ),
    "constant and initializer": Case("repairs", model(constant(TEN), ADD, weights=[tensor(ONE)])),
    "constant and input": Case("repairs", model(constant(TEN), ADD, inputs=[value("x"), value("c", shape=[3])])),
    "initializer twice": Case("repairs", model(ADD, weights=[tensor(ONE), tensor(TEN)])),
    "initializer of two shapes": Case("rejects", model(ADD, weights=[tensor(ONE), tensor([1])])),
    "constant of two types": Case(
        "rejects",
        model(constant(ONE), make_node("Constant", [], ["c"], value=numpy_helper.from_array(np.array(ONE))), ADD),
    ),
    "constant and node": Case("rejects", model(constant(ONE), make_node("Relu", ["x"], ["c"]), ADD)),
    "initializer and node": Case("rejects", model(make_node("Relu", ["x"], ["c"]), ADD, weights=[tensor(ONE)])),
    "node twice": Case("rejects", model(make_node("Relu", ["x"], ["c"]), make_node("Neg", ["x"], ["c"]), ADD)),
    "initializer without name": Case("repairs", model(RELU, weights=[tensor(ONE, "")])),
    "initializer unused": Case("reads", model(RELU, weights=[tensor(ONE)])),
    "initializer is output": Case(
        "reads", model(RELU, outputs=[value("y"), value("c", shape=[3])], weights=[tensor(ONE)])
    ),
    "initializer and no input, IR 3": Case("reads", model(ADD, weights=[tensor(ONE)], version=3)),
    "no default opset": Case("repairs", model(RELU, opsets=[("com.microsoft", 1)])),
    "no default opset, foreign import": Case("repairs", model(RELU, opsets=[("elsewhere", 3)])),
    "no opset": Case("rejects", model(RELU, opsets=[("", 0)])),
    "no ml opset": Case(
        "repairs", model(make_node("Scaler", ["x"], ["y"], domain="ai.onnx.ml", offset=[0.0], scale=[2.0]))
    ),
    "no microsoft opset": Case("reads", model(make_node("Gelu", ["x"], ["y"], domain="com.microsoft"))),
    "no foreign opset": Case("rejects", model(make_node("Foo", ["x"], ["y"], domain="elsewhere"))),
    "two opsets": Case(
        "repairs",
        model(make_node("Softmax", ["x"], ["y"]), inputs=[value("x", shape=[2, 3])], opsets=[("", 13), ("", 12)]),
    ),
    "two spellings of a domain": Case(
        "repairs",
        model(
            make_node("Softmax", ["x"], ["y"]), inputs=[value("x", shape=[2, 3])], opsets=[("", 12), ("ai.onnx", 13)]
        ),
    ),
    "opset of the future": Case("rejects", model(RELU, opsets=[("", 99)])),
    "IR version 0": Case("reads", model(RELU, version=0)),
    "graph without name": Case("reads", unnamed_graph()),
    "unknown attribute": Case("rejects", model(make_node("Relu", ["x"], ["y"], nonsense=3))),
    "unknown attribute of a norm": Case("ignores", model(NORM, weights=[tensor(ONE)])),
    "unknown attribute of an old norm": Case("ignores", model(NORM, weights=[tensor(ONE)], opsets=[("", 12)])),
    "unknown attribute of a simplified norm": Case(
        "ignores",
        model(make_node("SimplifiedLayerNormalization", ["x", "c"], ["y"], epsion=1e-3), weights=[tensor(ONE)]),
    ),
    "attribute of another opset": Case("rejects", model(make_node("Clip", ["x"], ["y"], min=0.0))),
    "attribute of another type": Case("rejects", model(make_node("Softmax", ["x"], ["y"], axis=1.0))),
    "unsorted": Case("reads", model(make_node("Neg", ["z"], ["y"]), make_node("Relu", ["x"], ["z"]))),
    "output is input": Case("reads", model(make_node("Relu", ["x"], ["z"]), outputs=[value("x")])),
    "output never made": Case("rejects", model(make_node("Relu", ["x"], ["z"]))),
    "output without type": Case("reads", model(RELU, outputs=[onnx.ValueInfoProto(name="y")])),
    "output of another size": Case("reads", model(RELU, outputs=[value("y", shape=["N", 7])])),
    "output of another rank": Case("reads", model(RELU, outputs=[value("y", shape=[3])])),
    "value of another size": Case(
        "reads",
        model(make_node("Relu", ["x"], ["z"]), make_node("Neg", ["z"], ["y"]), values=[value("z", shape=["N", 7])]),
    ),
    "value nowhere": Case("reads", model(RELU, values=[value("nowhere")])),
    "input nowhere": Case("rejects", model(make_node("Add", ["x", "nowhere"], ["y"]))),
    "input twice": Case("rejects", model(RELU, inputs=[value("x"), value("x")])),
    "cycle": Case("rejects", model(make_node("Add", ["x", "y"], ["z"]), make_node("Relu", ["z"], ["y"]))),
    "branch with own output name": Case(
        "reads",
        model(choice(branch(make_node("Neg", ["x"], ["y"])), branch(make_node("Abs", ["x"], ["y"]))), inputs=BRANCHED),
    ),
    "branch with a later name": Case(
        "reads",
        model(
            choice(branch(make_node("Neg", ["x"], ["z"])), branch(ABS)),
            make_node("Relu", ["y"], ["z"]),
            inputs=BRANCHED,
            outputs=[value("z")],
        ),
    ),
    "branch of other declared shape": Case(
        "reads",
        model(choice(helper.make_graph([NEG], "branch", [], [value("n", shape=[7])]), branch(ABS)), inputs=BRANCHED),
    ),
    "initializer twice in a branch": Case(
        "rejects",
        model(
            choice(branch(make_node("Add", ["x", "c"], ["n"]), [tensor(ONE), tensor(TEN)]), branch(ABS)),
            inputs=BRANCHED,
        ),
    ),
    "branches of other counts": Case(
        "rejects",
        model(choice(helper.make_graph([NEG], "branch", [], [value("n"), value("n")]), branch(ABS)), inputs=BRANCHED),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_invalid_models(name: str, caplog: pytest.LogCaptureFixture) -> None:
    verdict, proto = CASES[name]
    content = proto.SerializeToString()
    inputs = {
        "x": X,
        **({"b": np.array(True)} if len(proto.graph.input) > 1 and name.startswith(("branch", "init")) else {}),
    }
    if verdict == "rejects":
        with pytest.raises(weft.ModelError):
            weft.load(content)
        with pytest.raises(Exception, match="ONNXRuntimeError"):
            run_onnxruntime(content, inputs)
        return
    with caplog.at_level(logging.WARNING, "weft.loading"):
        results = weft.load(content, cache=False).run(inputs)
    assert bool(caplog.records) == (verdict != "reads")
    for result, expected in zip(results.values(), run_onnxruntime(content, inputs), strict=True):
        np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6)
    if verdict == "reads":
        weft.load(content, strict=True)
        return
    with pytest.raises(weft.InvalidModelError):
        weft.load(content, strict=True)


def run_onnxruntime(content: bytes, inputs: dict[str, Any]) -> list[Any]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    return list(onnxruntime.InferenceSession(content, options, ["CPUExecutionProvider"]).run(None, inputs))


def test_a_strict_load_does_not_use_the_cached_repaired_model() -> None:
    content = CASES["constant twice"].model.SerializeToString()
    weft.load(content)
    with pytest.raises(weft.InvalidModelError, match="'c' is defined more than once"):
        weft.load(content, strict=True)


def test_weights_of_a_repaired_model() -> None:
    loaded = weft.load(CASES["constant and initializer"].model)
    loaded.set_weights({"c": np.array([7, 7, 7], np.float32)})
    np.testing.assert_array_equal(loaded.run({"x": X})["y"], X + 7)


def test_an_output_that_is_declared_twice() -> None:
    """A dict of results has it once, the drop-in's list twice."""
    content = model(RELU, outputs=[value("y"), value("y")]).SerializeToString()
    assert list(weft.load(content).run({"x": X})) == ["y"]
    results = weft.compat.onnxruntime.InferenceSession(content).run(None, {"x": X})
    for result, expected in zip(results, run_onnxruntime(content, {"x": X}), strict=True):
        np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.verdict in ("repairs", "ignores")])
def test_the_drop_in_repairs_models(name: str) -> None:
    content = CASES[name].model.SerializeToString()
    session = weft.compat.onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    peer = onnxruntime.InferenceSession(content, options, ["CPUExecutionProvider"])
    assert [value.name for value in session.get_inputs()] == [value.name for value in peer.get_inputs()]
    np.testing.assert_allclose(session.run(None, {"x": X})[0], peer.run(None, {"x": X})[0], rtol=1e-5, atol=1e-6)
