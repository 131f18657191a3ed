"""Ops that need a rank or type known only at run time are traced then, including those with subgraphs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from attack.devices import DEVICES, missing
from onnx import parser
from peers import onnxruntime_run

import weft
from weft.cache import files

Array = np.ndarray[Any, Any]

LOOP = """
agraph (int64 n, float x, float[K] start) => (float last, float all) {
  two = Constant<value_float = 2.0>()
  factor = Mul(x, two)
  last, all = Loop <body = step (int64 i, bool c, float state) => (bool again, float next, float row) {
    again = Identity(c)
    index = Cast<to = 1>(i)
    sum = Add(state, factor)
    next = Add(sum, index)
    row = Mul(state, x)
  }> (n, , start)
}
"""

SCAN = """
agraph (float start, float rows) => (float total, float sums) {
  total, sums = Scan <num_scan_inputs = 1, body = step (float[3] state, float[3] row)
      => (float[3] next, float[3] out) {
    scaled = Mul(row, start)
    next = Add(state, scaled)
    out = Identity(next)
  }> (start, rows)
}
"""

SCAN_OF_UNKNOWN_TYPES = """
agraph (float[T, 2, 3] x, int64[T, 1] axes) => (float[T, m] y) {
  y = Scan <num_scan_inputs = 2, body = step (float[2, 3] row, int64[1] axis) => (float[n] sums) {
    sums = ReduceSum<keepdims = 0>(row, axis)
  }> (x, axes)
}
"""

INSIDE_A_BRANCH = """
agraph (bool flag, float x) => (float y) {
  y = If (flag) <then_branch = yes () => (float a) {
    turns = Constant<value_int = 3>()
    a, rows = Loop <body = step (int64 i, bool c, float state) => (bool again, float next, float row) {
      again = Identity(c)
      next = Add(state, x)
      row = Identity(state)
    }> (turns, , x)
  }, else_branch = no () => (float b) { b = Neg(x) }>
}
"""


def model_of(text: str, opens: tuple[str, ...] = ()) -> onnx.ModelProto:
    """Parse a model and remove the rank of some inputs (the parser gives them rank 0)."""
    model = parser.parse_model(f'<ir_version: 10, opset_import: ["" : 21]>\n{text}')
    for value in (*model.graph.input, *model.graph.output):
        if value.name in opens or value in model.graph.output:
            value.type.tensor_type.ClearField("shape")
    for node in model.graph.node:
        for attribute in node.attribute:
            for value in (*attribute.g.input, *attribute.g.output):
                if value.name in ("state", "next", "row", "sums", "a", "b") and not value.type.tensor_type.shape.dim:
                    value.type.tensor_type.ClearField("shape")
    return model


def numbers(*shape: int) -> Array:
    return np.asarray(np.arange(np.prod(shape)).reshape(shape) / 8, np.float32)


CASES = {
    "loop": (model_of(LOOP, ("n", "x")), {"n": np.array([3]), "x": numbers(2), "start": numbers(2) + 1}),
    "loop of a scalar": (model_of(LOOP, ("n", "x")), {"n": np.array(2), "x": numbers(), "start": numbers(2)}),
    "scan": (model_of(SCAN, ("start", "rows")), {"start": numbers(3) + 1, "rows": numbers(4, 3)}),
    "scan of unknown types": (
        model_of(SCAN_OF_UNKNOWN_TYPES),
        {"x": numbers(2, 2, 3), "axes": np.array([[1], [-1]])},
    ),
    "branch": (model_of(INSIDE_A_BRANCH, ("flag", "x")), {"flag": np.array([True]), "x": numbers(2, 3)}),
    "other branch": (model_of(INSIDE_A_BRANCH, ("flag", "x")), {"flag": np.array(False), "x": numbers(4)}),
}


@pytest.mark.parametrize("device", ["reference", *DEVICES])
@pytest.mark.parametrize("name", CASES)
def test_late_steps_agree_with_onnxruntime(
    name: str, device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reason = missing(device) if device in DEVICES else None
    if reason:
        pytest.skip(reason)
    monkeypatch.setenv(files.VARIABLE, str(tmp_path / "cache"))
    model, inputs = CASES[name]
    expected = onnxruntime_run(model, inputs)
    for _ in ("cold", "from the cache"):
        outputs = list(weft.load(model, device=device).run(inputs).values())
        for array, expected_output in zip(outputs, expected, strict=True):
            np.testing.assert_array_equal(array, expected_output, strict=True)


NOTHING = """
agraph (float[n, 3] x) => (float[n, m] y) {
  sizes = Shape<end = 1>(x)
  none = Constant<value_ints = [0]>()
  shape = Concat<axis = 0>(sizes, none)
  empty = ConstantOfShape(shape)
  y = Concat<axis = 1>(empty, x, empty)
}
"""


@pytest.mark.parametrize("device", ["reference", *DEVICES])
def test_empty_tensor_of_dynamic_size_is_not_folded(device: str) -> None:
    """The tensor has n × 0 elements, and n is known only at run time."""
    reason = missing(device) if device in DEVICES else None
    if reason:
        pytest.skip(reason)
    loaded = weft.load(parser.parse_model(f'<ir_version: 10, opset_import: ["" : 21]>\n{NOTHING}'), device=device)
    for rows in (2, 5):
        np.testing.assert_array_equal(loaded.run({"x": numbers(rows, 3)})["y"], numbers(rows, 3), strict=True)


@pytest.mark.parametrize("device", ["reference", *DEVICES])
def test_sums_do_not_depend_on_memory_order(device: str) -> None:
    """This holds for steps that numpy computes, too, although numpy sums along the fastest axis first."""
    reason = missing(device) if device in DEVICES else None
    if reason:
        pytest.skip(reason)
    text = "agraph (float[7, 9, 11] x, int64[k] axes) => (float y) { y = ReduceMean<keepdims = 0>(x, axes) }"
    loaded = weft.load(model_of(text), device=device)
    x = np.random.default_rng(3).standard_normal((7, 9, 11)).astype(np.float32)
    inputs = {"x": x, "axes": np.array([0, 1, 2])}
    expected = loaded.run(inputs)["y"]
    np.testing.assert_allclose(expected, x.astype(np.float64).mean(), rtol=1e-4)
    backward = np.flip(np.ascontiguousarray(np.flip(x)))
    for other in (np.asfortranarray(x), backward, np.repeat(x, 2, -1)[..., ::2]):
        assert loaded.run({**inputs, "x": other})["y"].tobytes() == expected.tobytes()
