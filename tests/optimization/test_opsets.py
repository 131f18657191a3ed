"""Test the upgrade of opsets: the same results in onnxruntime."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from frontend.samples import model, node, tensor, value

from weft.errors import InputError, UnsupportedModelError
from weft.frontend import read_model
from weft.frontend.write import write_model
from weft.optimization.graph_edit import with_shown_outputs
from weft.optimization.opset_upgrade import newest_version, upgrade_graph
from weft.optimization.optimize import optimize

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
    (10, 13, node("Resize", ["x", "s"], ["y"]), {"s": np.array([1, 1, 0.6, 0.3], np.float32)}),
    (10, 19, node("Resize", ["x", "s"], ["y"], mode="nearest"), {"s": np.array([1, 1, 1.7, 0.6], np.float32)}),
    (10, 11, node("Resize", ["x", "s"], ["y"], mode="linear"), {"s": np.array([1, 1, 0.6, 0.8], np.float32)}),
    (9, 13, node("Squeeze", ["x"], ["y"]), {}),
    (9, 13, node("ReduceSum", ["x"], ["y"]), {}),
    (11, 13, node("Hardmax", ["x"], ["y"], axis=-2), {}),
    (11, 13, node("Squeeze", ["u"], ["y"], axes=[-3]), {"u": X[:, :1]}),
    (11, 14, node("Unsqueeze", ["x"], ["y"], axes=[-1, -3]), {}),
    (16, 20, node("GridSample", ["x", "g"], ["y"], mode="bilinear"), {"g": X[:, :2, :3, :2].copy()}),
]


@pytest.mark.parametrize(("old", "new", "case", "constants"), CASES, ids=lambda case: getattr(case, "op_type", None))
@pytest.mark.parametrize("with_ranks", [True, False])
def test_same_results(old: int, new: int, case: onnx.NodeProto, constants: dict[str, Any], with_ranks: bool) -> None:
    shape = (
        X.shape if case.op_type in ("Softmax", "LogSoftmax", "Hardmax") else None
    )  # onnx cannot infer the shape of a Reshape
    outputs = [value(name, shape, 7 if (name == "i" and case.op_type == "TopK") else 1) for name in case.output]
    initializers = [tensor(name, array) for name, array in constants.items()]
    nodes, inputs = [case], [value("x", X.shape)]
    if not with_ranks:
        nodes = [node("Reshape", ["flat", "shape"], ["x"]), case]
        inputs = [value("flat", [X.size]), value("shape", ["rank"], 7)]
    proto = model(nodes, inputs, outputs, initializers, opsets={"": old}, ir_version=4)
    read = read_model(proto)
    graph = upgrade_graph(with_shown_outputs(read.graph, old), new)
    assert newest_version(graph) == new
    written = write_model(replace(read, graph=graph, opsets={"": new}, ir_version=10))
    if with_ranks:  # otherwise onnx cannot infer the shapes of outputs, which its checker needs
        onnx.checker.check_model(written, full_check=True)
    feed = {"x": X} if with_ranks else {"flat": X.reshape(-1), "shape": np.array(X.shape, np.int64)}
    for expected, result in zip(_run(proto, feed), _run(written, feed), strict=True):
        np.testing.assert_allclose(result, expected, rtol=1e-6, atol=1e-6)


def _upgrade(proto: onnx.ModelProto, version: int) -> onnx.ModelProto:
    read = read_model(proto)
    graph = upgrade_graph(with_shown_outputs(read.graph, newest_version(read.graph)), version)
    written = write_model(replace(read, graph=graph, opsets={"": version}))
    onnx.checker.check_model(written, full_check=True)
    return written


def _run(proto: onnx.ModelProto, feed: dict[str, Any]) -> list[Any]:
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    return list(session.run(None, feed))


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("inside", [False, True])
def test_constants_have_the_dtype_of_the_data(dtype: Any, inside: bool) -> None:
    """In bodies, too. Limits beyond the range of a type become its largest numbers."""
    kind = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    nodes = [
        node("Clip", ["x"], ["l"], min=1e6, max=1e6),
        node("Sub", ["l", "l"], ["zero"]),
        node("Add", ["x", "zero"], ["s"]),
        node("Clip", ["s"], ["c"], min=-0.5, max=1e6),
        node("Pad", ["c"], ["y"], pads=[0, 0, 0, 1, 0, 0, 0, 0], value=0.25),
    ]
    inputs, outputs = [value("x", X.shape, kind)], [value("y", None, kind)]
    if inside:
        bodies = {
            f"{name}_branch": onnx.helper.make_graph(nodes, name, [], [value("y", None, kind)])
            for name in ("then", "else")
        }
        nodes, inputs = [node("If", ["b"], ["y"], **bodies)], [*inputs, value("b", (), 9)]
    upgraded = _upgrade(model(nodes, inputs, outputs, opsets={"": 10}, ir_version=4), 13)
    data = X.astype(dtype)
    feed = {"x": data, "b": np.array(True)} if inside else {"x": data}
    expected = np.pad(np.maximum(data, dtype(-0.5)), [(0, 0)] * 3 + [(1, 0)], constant_values=0.25)
    np.testing.assert_array_equal(_run(upgraded, feed)[0], expected)


def test_masks_of_dropout_keep_their_type() -> None:
    """In opset 7 the mask has the type of the data, from 10 on it is bool."""
    outputs = [value("y", X.shape), value("m", X.shape)]
    proto = model([node("Dropout", ["x"], ["y", "m"])], [value("x", X.shape)], outputs, opsets={"": 7}, ir_version=4)
    report = optimize(proto, opset=13)
    onnx.checker.check_model(report.model, full_check=True)
    data, mask = _run(report.model, {"x": X})
    np.testing.assert_array_equal(data, X)
    assert mask.dtype == np.float32


def test_softmax_of_no_elements() -> None:
    proto = model([node("Softmax", ["x"], ["y"], axis=2)], [value("x", ["a", "b", "c", 2])], [value("y", None)],
                  opsets={"": 12})  # fmt: skip
    report = optimize(proto, opset=14)
    assert _run(report.model, {"x": np.zeros((3, 0, 4, 2), np.float32)})[0].shape == (3, 0, 4, 2)


REFUSED = {
    "scales that are not constant": (10, node("Resize", ["x", "s"], ["y"], name="n")),
    "tf_half_pixel_for_nn": (
        11,
        node("Resize", ["x", "r", "s"], ["y"], name="n", coordinate_transformation_mode="tf_half_pixel_for_nn"),
    ),
    "the type of u is not known": (9, node("Clip", ["u"], ["y"], name="n", min=0.0)),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_changes_of_meaning_are_refused(reason: str) -> None:
    opset, case = REFUSED[reason]
    nodes = [node("Unknown", ["x"], ["u"], domain="nowhere"), case]
    inputs = [value("x", X.shape), value("s", [4]), value("r", [8])]
    proto = model(nodes, inputs, [value("y", None)], opsets={"": opset, "nowhere": 1}, ir_version=4)
    with pytest.raises(UnsupportedModelError, match=reason) as raised:
        optimize(proto, opset=13)
    assert raised.value.node == "n"


def test_opsets_newer_than_onnx() -> None:
    proto = model([node("Relu", ["x"], ["y"])], [value("x", X.shape)], [value("y", X.shape)], opsets={"": 13})
    with pytest.raises(InputError, match="knows versions up to"):
        optimize(proto, opset=99)


def test_nodes_without_an_equivalent_are_named() -> None:
    proto = model(
        [node("Add", ["x", "w"], ["y"], name="sum", broadcast=1, axis=1)],
        [value("x", X.shape)],
        [value("y", X.shape)],
        [tensor("w", np.ones(3, np.float32))],
        opsets={"": 6},
        ir_version=4,
    )
    with pytest.raises(UnsupportedModelError, match="Add of opset 6") as raised:
        upgrade_graph(read_model(proto).graph, 13)
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
    graph = upgrade_graph(read.graph, 13)
    written = write_model(replace(read, graph=graph, opsets={"": 13}))
    onnx.checker.check_model(written, full_check=True)
    session = onnxruntime.InferenceSession(written.SerializeToString(), providers=["CPUExecutionProvider"])
    assert session.run(None, {"x": X, "c": np.array(True)})[0].shape == (1, *X.shape)
