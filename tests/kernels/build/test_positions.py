"""Positions that do not fit 32 bits are stored in 64; small tensors show it with a lowered limit."""

from __future__ import annotations

import numpy as np
import pytest
from frontend.samples import model, node, tensor, value
from onnx import TensorProto
from peers import onnxruntime_run, trace_model

import weft
from weft.ir import dims
from weft.ir.dtypes import DType
from weft.ir.program import Guard
from weft.kernels.build.positions import position_dtype

NODES = {
    "first of the largest": [node("ArgMax", ["x"], ["y"], axis=3)],
    "last of the smallest": [node("ArgMin", ["x"], ["y"], axis=1, select_last_index=1)],
    "order": [node("TopK", ["x", "all"], ["v", "y"], axis=3, sorted=1)],
    "largest few": [node("TopK", ["x", "few"], ["v", "y"], axis=3, sorted=1)],
    "place in an image": [node("MaxPool", ["x"], ["v", "y"], kernel_shape=[2, 2], strides=[2, 1])],
}


@pytest.mark.parametrize("name", NODES)
def test_wide_positions(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dims, "LARGEST_POSITION", 3)
    counts = [tensor("all", np.array([70])), tensor("few", np.array([2]))]
    built = model(NODES[name], [value("x", [2, 5, 4, 70])], [value("y", None, TensorProto.INT64)], counts)
    x = np.random.default_rng(3).integers(0, 30, (2, 5, 4, 70)).astype(np.float32)
    (expected,) = onnxruntime_run(built, {"x": x})
    np.testing.assert_array_equal(weft.load(built, device="cpu", cache=False)(x), expected)


def test_position_dtypes() -> None:
    sizes = (1, 2**31 - 1, 2**31, 2**40, dims.symbol("n"))
    narrow, wide = DType.int32, DType.int64
    assert [position_dtype(size) for size in sizes] == [narrow, narrow, wide, wide, narrow]


def test_sizes_that_may_be_too_large_are_guarded() -> None:
    """A single size is at most LARGEST_SIZE; a product of two may be larger, and gets a guard."""
    shape = tensor("s", np.array([-1]))
    flat = model([node("Reshape", ["x", "s"], ["a"]), node("ArgMax", ["a"], ["y"], axis=0)], [value("x", ["n", "m"])],
                 [value("y", None, TensorProto.INT64)], [shape])  # fmt: skip
    size = dims.symbol("n") * dims.symbol("m")
    assert [g for g in trace_model(flat).guards if g.at_least] == [Guard(2**31 - 1, size, "ArgMax_y", at_least=True)]
    plain = model([node("ArgMax", ["x"], ["y"], axis=0)], [value("x", ["n"])], [value("y", None, TensorProto.INT64)])
    assert trace_model(plain).guards == ()


def test_a_position_beyond_32_bits() -> None:
    """Search 2 GB of zeros, which take no memory until they are written to."""
    x = np.zeros(2**31 + 64, np.uint8)
    x[[5, 2**31 + 10]] = 3, 7
    built = model([node("ArgMax", ["x"], ["y"], keepdims=0)], [value("x", ["n"], TensorProto.UINT8)],
                  [value("y", None, TensorProto.INT64)])  # fmt: skip
    assert weft.load(built, device="cpu")(x) == 2**31 + 10
