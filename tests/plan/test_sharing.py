"""Results in place of operands, operands inside a concatenation, slices inside their source."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import weft
from weft.ir.work import PlannedLaunch
from weft.plan.plan import Plan

Array = np.ndarray[Any, Any]


def build(
    nodes: Sequence[onnx.NodeProto], shapes: dict[str, list[int]], weights: dict[str, Array], *outputs: str
) -> Any:
    graph = helper.make_graph(
        nodes,
        "sharing",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def check(proto: onnx.ModelProto, shapes: dict[str, list[int]]) -> Plan:
    """Compare with the reference on one and three threads, and return the plan."""
    rng = np.random.default_rng(5)
    inputs = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    expected = weft.load(proto, device="reference").run(inputs)
    for threads in (1, 3):
        model = weft.load(proto, device="cpu", threads=threads, cache=False)
        for name, array in model.run(inputs).items():
            np.testing.assert_allclose(array, expected[name], rtol=1e-4, atol=1e-4 * max(1, np.abs(array).max()))
    (part,) = model.plan()[0].sections
    return part.plan


def overwriting(plan: Plan) -> list[str]:
    """Return the nodes of launches that overwrite an operand."""
    origins = []
    for entry in plan.launches:
        if isinstance(entry, PlannedLaunch):
            buffers = [buffer for buffer in entry.kernel.buffers if buffer.local_size is None]
            written = {place for place, buffer in zip(entry.buffers, buffers) if buffer.written}
            read = {place for place, buffer in zip(entry.buffers, buffers) if not buffer.written}
            if written & read:
                origins.append(entry.origin)
    return origins


def weights(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32) * np.float32(0.2)


@pytest.mark.parametrize("rows", [1, 5, 37])
@pytest.mark.parametrize("columns", [1, 7, 48, 130])
def test_product_overwrites_its_residual(rows: int, columns: int) -> None:
    shapes = {"x": [rows, 24], "r": [rows, columns]}
    nodes = [
        helper.make_node("Softmax", ["r"], ["s"], name="other"),
        helper.make_node("MatMul", ["x", "w"], ["p"], name="product"),
        helper.make_node("Add", ["p", "s"], ["t"], name="residual"),
        helper.make_node("Softmax", ["t"], ["y"], name="end"),
    ]
    plan = check(build(nodes, shapes, {"w": weights(24, columns)}, "y"), shapes)
    assert any("residual" in origin for origin in overwriting(plan))


@pytest.mark.parametrize("side", [1, 6, 13, 30])
@pytest.mark.parametrize(
    ("channels", "features", "attributes"),
    [
        (8, 5, {"kernel_shape": [1, 1]}),
        (8, 33, {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}),
        (32, 64, {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}),
        (24, 24, {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "group": 24}),
    ],
)
def test_convolution_overwrites_its_residual(
    side: int, channels: int, features: int, attributes: dict[str, Any]
) -> None:
    shapes = {"x": [1, channels, side, side], "r": [1, features, side, side]}
    kernel = attributes["kernel_shape"]
    w = weights(features, channels // attributes.get("group", 1), *kernel)
    nodes = [
        helper.make_node("Conv", ["r", "v"], ["s"], name="other"),
        helper.make_node("Conv", ["x", "w"], ["p"], name="convolution", **attributes),
        helper.make_node("Add", ["p", "s"], ["t"], name="residual"),
        helper.make_node("Conv", ["t", "v"], ["y"], name="end"),
    ]
    check(build(nodes, shapes, {"w": w, "v": weights(features, features, 1, 1, seed=1)}, "y"), shapes)


@pytest.mark.parametrize("size", [1, 15, 16, 333])
def test_maps_in_place(size: int) -> None:
    shapes = {"x": [3, size]}
    nodes = [
        helper.make_node("Softmax", ["x"], ["a"], name="start"),
        helper.make_node("Softmax", ["a"], ["b"], name="next"),
        helper.make_node("Mul", ["a", "b"], ["c"], name="times"),
        helper.make_node("Softmax", ["c"], ["d"], name="more"),
        helper.make_node("Add", ["d", "c"], ["y"], name="plus"),
    ]
    check(build(nodes, shapes, {}, "y"), shapes)


def test_concatenation_and_slices_without_copies() -> None:
    shapes = {"x": [6, 40], "z": [3, 40]}
    nodes = [
        helper.make_node("Softmax", ["x"], ["a"], name="first"),
        helper.make_node("Softmax", ["z"], ["b"], name="second"),
        helper.make_node("Concat", ["a", "b"], ["c"], name="joined", axis=0),
        helper.make_node("MatMul", ["c", "w"], ["d"], name="product"),
        helper.make_node("Split", ["d"], ["e", "f"], name="parts", axis=0),
        helper.make_node("MatMul", ["e", "w"], ["y1"], name="one"),
        helper.make_node("MatMul", ["f", "w"], ["y2"], name="two"),
    ]
    model = build(nodes, shapes, {"w": weights(40, 40), "sizes": np.array([4, 5])}, "y1", "y2")
    model.graph.node[4].input.append("sizes")
    plan = check(model, shapes)
    origins = [entry.origin for entry in plan.launches if isinstance(entry, PlannedLaunch)]
    assert "joined" not in origins
    assert "parts" not in origins


def test_concatenated_outputs() -> None:
    """An operand that is an output as well, the same operand twice, and operands of an output."""
    shapes = {"x": [2, 16]}
    nodes = [
        helper.make_node("Softmax", ["x"], ["a"], name="first"),
        helper.make_node("Softmax", ["a"], ["b"], name="second"),
        helper.make_node("Concat", ["a", "b", "b"], ["c"], name="joined", axis=0),
        helper.make_node("Concat", ["c", "x", "c"], ["y"], name="again", axis=0),
        helper.make_node("Add", ["b", "b"], ["e"], name="sum"),
    ]
    check(build(nodes, shapes, {}, "a", "y", "e"), shapes)
