"""Spatial normalisations between convolutions keep channels innermost and split rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from kernels.vector.works import TARGET
from onnx import TensorProto, helper, numpy_helper

import weft
from weft.backends.reference.interpret import Interpreter
from weft.frontend import read_model
from weft.fuse import fuse
from weft.ir.groups import RowGroup
from weft.ir.layout import channels_last
from weft.kernels.sections import build_sections
from weft.opset.lower import lower
from weft.passes import PIPELINE


def model(shape: list[Any], norm: str, end: bool = False) -> bytes:
    """Convolution, normalisation, activation and, but at the `end`, another convolution."""
    rng = np.random.default_rng(5)
    weights = {
        "w": rng.normal(size=(20, 3, 1, 1)),
        "v": rng.normal(size=(4, 20, 1, 1)),
        "s": rng.uniform(0.5, 2, 20),
        "b": rng.normal(size=20),
    }
    nodes = [helper.make_node("Conv", ["x", "w"], ["c"])]
    if norm == "instance":
        nodes.append(helper.make_node("InstanceNormalization", ["c", "s", "b"], ["n"]))
    elif norm == "softmax":
        nodes.append(helper.make_node("Softmax", ["c"], ["n"], axis=1))
    else:
        nodes.append(helper.make_node("MeanVarianceNormalization", ["c"], ["n"], axes=[2, 3]))
    nodes.append(helper.make_node("Relu", ["n"], ["y" if end else "r"]))
    if not end:
        nodes.append(helper.make_node("Conv", ["r", "v"], ["y"]))
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(array.astype(np.float32), name) for name, array in weights.items()],
    )
    built = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    return onnx.load_from_string(built.SerializeToString()).SerializeToString()


@pytest.mark.parametrize("end", [False, True])
@pytest.mark.parametrize("norm", ["instance", "softmax", "mean and variance"])
@pytest.mark.parametrize("shape", [[2, 3, 67, 59], ["n", 3, "h", "w"]])
def test_results(shape: list[Any], norm: str, end: bool) -> None:
    data = model(shape, norm, end)
    x = np.random.default_rng(1).normal(3, 1, size=(2, 3, 67, 59)).astype(np.float32)
    session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    (expected,) = session.run(None, {"x": x})
    results = [weft.load(data, device="cpu", threads=threads).run({"x": x})["y"] for threads in (1, 2)]
    np.testing.assert_allclose(results[0], expected, rtol=2e-4, atol=2e-4)
    np.testing.assert_array_equal(results[0], results[1])


@pytest.mark.parametrize("norm", ["instance", "softmax", "mean and variance"])
def test_channels_stay_innermost(norm: str) -> None:
    evaluator = Interpreter()
    program = lower(read_model(model([1, 3, 64, 64], norm), is_defined=lambda *_: True).graph, evaluator)
    for apply in PIPELINE:
        program = apply(program, evaluator)
    fused = fuse(program, TARGET)
    (rows,) = (group for group in fused.groups if isinstance(group, RowGroup))
    full = [value for value in (*rows.operands, *rows.results) if rows.frame.is_full(value)]
    assert full
    assert all(fused.layouts[value] == channels_last(4) for value in full)
    (section,) = build_sections(fused, TARGET)
    built = [task.template for task in section.tasks]  # type: ignore[union-attr]
    assert built.count("copy") == 1, "the input alone is copied"
