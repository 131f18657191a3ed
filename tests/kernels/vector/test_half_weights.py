"""Products of float32 values with weights that are stored in 16 bits and cast, against numpy, and their memory."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from kernels.vector.test_block_products import template_names
from onnx import TensorProto, helper, numpy_helper

import weft
from weft.backends.host import machine

Array = np.ndarray[Any, Any]
KINDS = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
DEPTH, COLUMNS = 1100, 1001  # float32 weights of more than 4 MiB


def make_model(kind: str, *, transposed: bool, rows: int | str = "rows") -> tuple[onnx.ModelProto, Array]:
    random = np.random.default_rng(7)
    weights = (random.standard_normal((DEPTH, COLUMNS)) * 0.1).astype(KINDS[kind])
    stored = np.ascontiguousarray(weights.T) if transposed else weights
    product = (
        helper.make_node("Gemm", ["a", "w", "bias"], ["p"], transB=1)
        if transposed
        else helper.make_node("MatMul", ["a", "w"], ["p"])
    )
    graph = helper.make_graph(
        [
            helper.make_node("Cast", ["halves"], ["w"], to=TensorProto.FLOAT),
            product,
            helper.make_node("Relu", ["p"], ["y"]),
        ],
        "halves",
        [helper.make_tensor_value_info("a", TensorProto.FLOAT, [rows, DEPTH])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(stored, "halves"), numpy_helper.from_array(np.zeros(COLUMNS, np.float32), "bias")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), weights


def check(source: onnx.ModelProto, weights: Array, rows: int) -> weft.Model:
    a = np.random.default_rng(rows).standard_normal((rows, DEPTH), np.float32)
    model = weft.load(source, device="cpu", cache=False)
    expected = np.maximum(a.astype(np.float64) @ weights.astype(np.float64), 0)
    assert np.abs(model.run({"a": a})["y"] - expected).max() <= 2e-6 * expected.max()
    return model


@pytest.mark.parametrize("transposed", [False, True], ids=["matmul", "gemm"])
@pytest.mark.parametrize("kind", KINDS)
def test_weights_stay_in_16_bits(kind: str, transposed: bool) -> None:
    for rows in (1, 3, 70):
        model = check(*make_model(kind, transposed=transposed), rows)
        assert list(template_names(model)) == ["register tiles"]
        assert model.memory().weights <= 2 * DEPTH * (COLUMNS + 16) + 8192
        check(*make_model(kind, transposed=transposed, rows=rows), rows)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_have_the_same_bits_in_any_batch(kind: str) -> None:
    source, _ = make_model(kind, transposed=False)
    model = weft.load(source, device="cpu", cache=False)
    a = np.random.default_rng(1).standard_normal((40, DEPTH), np.float32)
    whole = model.run({"a": a})["y"]
    for rows in (1, 2, 5, 8, 13, 33):
        assert model.run({"a": a[:rows]})["y"].tobytes() == whole[:rows].tobytes()


@pytest.mark.parametrize("kind", KINDS)
def test_targets_that_do_not_widen_weights(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    host = machine.host()
    other = replace(host, target=replace(host.target, widens_weights=False))
    monkeypatch.setattr(machine, "host", lambda: other)
    model = check(*make_model(kind, transposed=False), 3)
    assert list(template_names(model)) == ["register tiles"]
    assert model.memory().weights >= 4 * DEPTH * COLUMNS


def test_narrow_products() -> None:
    """A precision that rounds operands to bfloat16 may do so with weights of 16 bits."""
    source, weights = make_model("float16", transposed=False)
    a = np.random.default_rng(1).standard_normal((9, DEPTH), np.float32)
    expected = np.maximum(a.astype(np.float64) @ weights.astype(np.float64), 0)
    actual = weft.load(source, device="cpu", cache=False, precision="fast").run({"a": a})["y"]
    assert np.abs(actual - expected).max() <= 2e-2 * expected.max()
