"""Weights of eight bits on devices whose kernels multiply floats: small ones are dequantized, others stay packed."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import weft

SIZES = [(32, 16), (256, 64), (96, 200)]  # those of the first are folded with all small constants


def quantized_product(depth: int, columns: int, dtype: np.dtype) -> onnx.ModelProto:
    generator = np.random.default_rng(depth)
    limits = np.iinfo(dtype)
    weights = generator.integers(limits.min, limits.max, (depth, columns)).astype(dtype)
    constants = {"q": weights, "scale": np.float32(0.01), "zero": dtype.type(limits.max // 2)}
    graph = helper.make_graph(
        [
            helper.make_node("DequantizeLinear", ["q", "scale", "zero"], ["w"]),
            helper.make_node("MatMul", ["x", "w"], ["y"]),
        ],
        "product",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", depth])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", columns])],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 14)], ir_version=8)


@pytest.mark.parametrize("dtype", [np.dtype(np.uint8), np.dtype(np.int8)], ids=str)
@pytest.mark.parametrize("sizes", SIZES, ids=lambda sizes: "x".join(map(str, sizes)))
def test_a_product_with_weights_of_eight_bits(sizes: tuple[int, int], dtype: np.dtype) -> None:
    model = quantized_product(*sizes, dtype)
    x = np.random.default_rng(1).normal(size=(3, sizes[0])).astype(np.float32)
    q, scale, zero = (numpy_helper.to_array(constant).astype(np.float64) for constant in model.graph.initializer)
    actual = weft.load(model, device="webgpu:0").run({"x": x})["y"]
    np.testing.assert_allclose(actual, x @ ((q - zero) * scale), rtol=1e-4, atol=1e-4)
