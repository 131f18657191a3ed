"""Comparisons of integers widened to int64, which driver optimizers may get wrong."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from frontend.samples import model, node, tensor, value
from onnx import TensorProto

import weft

SOURCES = [
    TensorProto.BOOL, TensorProto.INT8, TensorProto.UINT8, TensorProto.INT16, TensorProto.INT32, TensorProto.UINT32,
]  # fmt: skip
COMPARISONS = {"Less": np.less, "GreaterOrEqual": np.greater_equal, "Equal": np.equal}


@pytest.mark.parametrize("bound", [0, 1, -1, 5, 2**31, -(2**40)])
@pytest.mark.parametrize("source", SOURCES)
def test_comparisons_with_a_constant(source: int, bound: int) -> None:
    dtype = onnx.helper.tensor_dtype_to_np_dtype(source)
    numbers = [0, 1] if dtype == np.bool_ else [*np.array([np.iinfo(dtype).min, 0, 1, 5, np.iinfo(dtype).max])]
    x = np.array(numbers, dtype)
    nodes = [node("Cast", ["x"], ["wide"], to=TensorProto.INT64)]
    nodes += [node(name, ["wide", "bound"], [name]) for name in COMPARISONS]
    built = model(
        nodes,
        [value("x", x.shape, source)],
        [value(name, x.shape, TensorProto.BOOL) for name in COMPARISONS],
        [tensor("bound", np.int64(bound))],
    )
    outputs = weft.load(built, device="webgpu:llvmpipe").run({"x": x})
    for name, compare in COMPARISONS.items():
        np.testing.assert_array_equal(outputs[name], compare(x.astype(np.int64), bound), name)
