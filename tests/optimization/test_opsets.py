"""Nodes of old opsets written in newer ones: the same results in onnxruntime."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from frontend.samples import model, node, tensor, value

from weft.errors import UnsupportedModelError
from weft.frontend import read_model
from weft.frontend.write import write_model
from weft.optimization.editing import with_shown_outputs
from weft.optimization.opsets import newest_version, upgraded
from weft.quantization.preparing import value_types

X = np.random.default_rng(5).standard_normal((2, 3, 4, 4)).astype(np.float32)
SCALES = np.array([1, 1, 2, 2], np.float32)

CASES: list[tuple[int, int, onnx.NodeProto, dict[str, Any]]] = [
    (9, 13, node("Softmax", ["x"], ["y"]), {}),
    (9, 13, node("Softmax", ["x"], ["y"], axis=2), {}),
    (12, 21, node("LogSoftmax", ["x"], ["y"], axis=3), {}),
    (9, 13, node("Clip", ["x"], ["y"], min=-0.5, max=0.25), {}),
    (9, 13, node("Clip", ["x"], ["y"], max=0.25), {}),
    (9, 21, node("Pad", ["x"], ["y"], pads=[0, 0, 1, 1, 0, 0, 2, 0], value=3.0), {}),
    (9, 13, node("Slice", ["x"], ["y"], starts=[1], ends=[3], axes=[2]), {}),
    (9, 13, node("Slice", ["x"], ["y"], starts=[0, 1], ends=[1, 3]), {}),
    (9, 13, node("TopK", ["x"], ["y", "i"], k=2, axis=3), {}),
    (9, 21, node("Split", ["x"], ["y", "i"], axis=2), {}),
    (9, 21, node("Split", ["x"], ["y", "i"], axis=2, split=[1, 3]), {}),
    (9, 13, node("Dropout", ["x"], ["y"], ratio=0.3), {}),
    (9, 13, node("ReduceSum", ["x"], ["y"], axes=[1, 2], keepdims=0), {}),
    (11, 18, node("ReduceMean", ["x"], ["y"], axes=[-1]), {}),
    (11, 18, node("ReduceMax", ["x"], ["y"]), {}),
    (9, 13, node("Unsqueeze", ["x"], ["y"], axes=[0, 3]), {}),
    (9, 21, node("Upsample", ["x", "s"], ["y"], mode="nearest"), {"s": SCALES}),
    (7, 13, node("Upsample", ["x"], ["y"], scales=SCALES.tolist(), mode="linear"), {}),
    (10, 13, node("Resize", ["x", "s"], ["y"], mode="linear"), {"s": SCALES}),
    (
        7,
        15,
        node("BatchNormalization", ["x", *"abcd"], ["y"], spatial=1),
        dict.fromkeys("abcd", np.ones(3, np.float32)),
    ),
    (16, 20, node("GridSample", ["x", "g"], ["y"], mode="bilinear"), {"g": X[:, :2, :3, :2].copy()}),
]


@pytest.mark.parametrize(("old", "new", "case", "constants"), CASES, ids=lambda case: getattr(case, "op_type", None))
@pytest.mark.parametrize("with_ranks", [True, False])
def test_same_results(old: int, new: int, case: onnx.NodeProto, constants: dict[str, Any], with_ranks: bool) -> None:
    shape = X.shape if case.op_type.endswith("oftmax") else None  # which onnx cannot infer of a Reshape
    outputs = [value(name, shape, 7 if (name == "i" and case.op_type == "TopK") else 1) for name in case.output]
    initializers = [tensor(name, array) for name, array in constants.items()]
    proto = model([case], [value("x", X.shape)], outputs, initializers, opsets={"": old}, ir_version=4)
    read = read_model(proto)
    graph = with_shown_outputs(read.graph, old)
    ranks = {name: len(type.shape or ()) for name, type in value_types(graph).items()} if with_ranks else {}
    graph = upgraded(graph, new, ranks)
    assert newest_version(graph) == new
    written = write_model(replace(read, graph=graph, opsets={"": new}, ir_version=10))
    onnx.checker.check_model(written, full_check=True)
    for expected, found in zip(_run(proto), _run(written), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)


def _run(proto: onnx.ModelProto) -> list[Any]:
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    found: list[Any] = session.run(None, {"x": X})
    return found


def test_what_cannot_be_said_is_refused_by_name() -> None:
    proto = model(
        [node("Add", ["x", "w"], ["y"], name="sum", broadcast=1, axis=1)],
        [value("x", X.shape)],
        [value("y", X.shape)],
        [tensor("w", np.ones(3, np.float32))],
        opsets={"": 6},
        ir_version=4,
    )
    with pytest.raises(UnsupportedModelError, match="Add of opset 6") as raised:
        upgraded(read_model(proto).graph, 13, {})
    assert raised.value.node == "sum"


def test_bodies_are_upgraded_too() -> None:
    branch = [
        onnx.helper.make_graph([node("Unsqueeze", ["x"], [name], axes=[0])], name, [], [value(name, None)])
        for name in ("t", "e")
    ]
    proto = model(
        [node("If", ["c"], ["y"], then_branch=branch[0], else_branch=branch[1])],
        [value("x", X.shape), value("c", (), 9)],
        [value("y", None)],
        opsets={"": 11},
        ir_version=6,
    )
    read = read_model(proto)
    graph = upgraded(read.graph, 13, {})
    written = write_model(replace(read, graph=graph, opsets={"": 13}))
    onnx.checker.check_model(written, full_check=True)
    session = onnxruntime.InferenceSession(written.SerializeToString(), providers=["CPUExecutionProvider"])
    assert session.run(None, {"x": X, "c": np.array(True)})[0].shape == (1, *X.shape)
