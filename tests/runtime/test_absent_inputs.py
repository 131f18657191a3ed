"""None as an input that the model tests with OptionalHasElement, whether its type is optional or not."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

import weft
import weft.compat.onnxruntime

Y = np.array([1, 2, 3], np.float32)
ROW = helper.make_tensor_type_proto(TensorProto.FLOAT, ["K"])
KINDS = {"tensor": ROW, "any rank": helper.make_tensor_type_proto(TensorProto.FLOAT, None),
         "optional": helper.make_optional_type_proto(ROW)}  # fmt: skip


def model(kind: str, consumer: str = "Add") -> bytes:
    """Return x + y if x is present, otherwise -y."""
    declared = helper.make_tensor_value_info
    get = helper.make_node("OptionalGetElement", ["x"], ["element"])
    nodes = [get, helper.make_node(consumer, ["element", "y"], ["sum"])]
    then = helper.make_graph(nodes, "then", [], [declared("sum", TensorProto.FLOAT, None)])
    negated = helper.make_node("Neg", ["y"], ["negative"])
    otherwise = helper.make_graph([negated], "otherwise", [], [declared("negative", TensorProto.FLOAT, None)])
    graph = helper.make_graph(
        [
            helper.make_node("OptionalHasElement", ["x"], ["has"]),
            helper.make_node("If", ["has"], ["z"], then_branch=then, else_branch=otherwise),
        ],
        "graph",
        [helper.make_value_info("x", KINDS[kind]), declared("y", TensorProto.FLOAT, ["K"])],
        [declared("z", TensorProto.FLOAT, None), declared("has", TensorProto.BOOL, [])],
    )
    imports = [helper.make_opsetid("", 18)]
    content: bytes = helper.make_model(graph, opset_imports=imports, ir_version=9).SerializeToString()
    return content


def agree(results: list[Any], content: bytes, inputs: dict[str, Any]) -> None:
    expected = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"]).run(None, inputs)
    for result, expected_output in zip(results, expected, strict=True):
        np.testing.assert_array_equal(result, expected_output)


@pytest.mark.parametrize("device", ["cpu", "reference", "webgpu:0"])
@pytest.mark.parametrize("kind", KINDS)
def test_none_is_an_absent_input(kind: str, device: str) -> None:
    content = model(kind)
    loaded = weft.load(content, device=device)
    for x in (None, Y, None):
        inputs = {"x": x, "y": Y}
        agree(list(loaded.run(inputs).values()), content, inputs)
    empty = {"x": None, "y": Y[:0]}
    agree(list(loaded.run(empty).values()), content, empty)


@pytest.mark.parametrize("kind", KINDS)
def test_none_is_an_absent_input_in_the_drop_in(kind: str) -> None:
    content = model(kind)
    session = weft.compat.onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    agree(session.run(None, {"x": None, "y": Y}), content, {"x": None, "y": Y})


def test_none_for_a_required_input_is_refused() -> None:
    graph = onnx.parser.parse_model("""<ir_version: 9, opset_import: ["" : 18]>
        agraph (float[K] x, float[K] y) => (float[K] z, bool has) { has = OptionalHasElement(x) z = Add(x, y) }""")
    with pytest.raises(weft.ExecutionError, match=r"value x, node Add_z \(Add\)"):
        weft.load(graph).run({"x": None, "y": Y})
    with pytest.raises(weft.InputError, match="'y' must be an array, not nothing"):
        weft.load(graph).run({"x": Y, "y": None})
    with pytest.raises(weft.InputError, match="'x' is missing"):
        weft.load(graph).run({"y": Y})
