"""Products of quantized values are summed as integers on every device, with the results of the float formula."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import weft
from weft.ir.program import Contract, Convolve
from weft.passes.quantized_products import LEAST_DEPTH

Array = np.ndarray[Any, Any]
DEVICES = ("reference", "cpu")


class Side:
    """An operand, its zero point and scale; per channel along `axis`, or one for all."""

    def __init__(self, random: np.random.Generator, shape: tuple[int, ...], axis: int, *, constant: bool) -> None:
        self.kind = random.choice([np.uint8, np.int8])
        limits = np.iinfo(self.kind)
        self.numbers = random.integers(limits.min, limits.max + 1, shape).astype(self.kind)
        count = shape[axis] if constant and random.random() < 0.5 else None
        self.axis, self.constant = axis, constant
        zero = random.integers(limits.min, limits.max + 1, count).astype(self.kind)
        usual = random.choice([0, 128]) if self.kind is np.uint8 else 0
        self.zero = np.asarray(zero if random.random() < 0.5 else np.full_like(zero, usual))
        self.scale = np.asarray(random.uniform(0.01, 0.1, count), np.float32)

    def real(self) -> Array:
        shape = [1] * self.numbers.ndim
        if self.zero.ndim:
            shape[self.axis] = -1
        centered = self.numbers.astype(np.float64) - self.zero.reshape(shape).astype(np.float64)
        return np.asarray(centered * self.scale.reshape(shape).astype(np.float64))


def model_of(left: Side, right: Side, rank: int) -> onnx.ModelProto:
    nodes, initializers, inputs = [], [], []
    for name, side in (("a", left), ("b", right)):
        for suffix, array in (("zero", side.zero), ("scale", side.scale)):
            initializers.append(numpy_helper.from_array(array, f"{name}_{suffix}"))
        if side.constant:
            initializers.append(numpy_helper.from_array(side.numbers, name))
        else:
            kind = helper.np_dtype_to_tensor_dtype(np.dtype(side.kind))
            inputs.append(helper.make_tensor_value_info(name, kind, side.numbers.shape))
        parts = [name, f"{name}_scale", f"{name}_zero"]
        nodes.append(helper.make_node("DequantizeLinear", parts, [f"{name}_real"], axis=side.axis))
    nodes.append(helper.make_node("MatMul", ["a_real", "b_real"], ["y"]))
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [None] * rank)]
    graph = helper.make_graph(nodes, "g", inputs, outputs, initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


@pytest.mark.parametrize("seed", range(24))
def test_dequantized_operands(seed: int) -> None:
    random = np.random.default_rng(seed)
    m, n, k = (int(random.choice(sizes)) for sizes in ((1, 2, 13, 40), (1, 5, 33, 128), (8, 9, 31, 64, 130)))
    batch = () if random.random() < 0.5 else (3,)
    constant = bool(random.random() < 0.6)
    left = Side(random, (*batch, m, k), -2, constant=constant and random.random() < 0.2)
    right = Side(random, (k, n) if constant else (*batch, k, n), -1, constant=constant and not left.constant)
    feeds = {name: side.numbers for name, side in (("a", left), ("b", right)) if not side.constant}
    expected = left.real() @ right.real()
    model = model_of(left, right, expected.ndim)
    for device in DEVICES:
        loaded = weft.load(model, device=device, cache=False)
        (product,) = [step for step in loaded.program.steps if isinstance(step.primitive, Contract)]
        assert product.results[0].dtype.name == "int32"
        (actual,) = loaded.run(feeds).values()
        np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max())


def test_scales_along_the_sums_stay_floats() -> None:
    random = np.random.default_rng(0)
    left, right = Side(random, (5, 16), -2, constant=False), Side(random, (16, 7), -2, constant=True)
    right.zero = np.zeros(16, right.kind)
    right.scale = np.asarray(random.uniform(0.01, 0.1, 16), np.float32)
    expected = left.real() @ right.real()
    for device in DEVICES:
        (actual,) = weft.load(model_of(left, right, 2), device=device, cache=False).run({"a": left.numbers}).values()
        np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("seed", range(6))
def test_integer_products(seed: int, device: str) -> None:
    random = np.random.default_rng(seed)
    left, right = Side(random, (13, 37), -2, constant=False), Side(random, (37, 21), -1, constant=seed % 2 == 0)
    values = [("a_zero", left.zero), ("b_zero", right.zero)] + [("b", right.numbers)] * right.constant
    initializers = [numpy_helper.from_array(array, name) for name, array in values]
    feeds = {"a": left.numbers} | ({} if right.constant else {"b": right.numbers})
    inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in feeds.items()
    ]
    node = helper.make_node("MatMulInteger", ["a", "b", "a_zero", "b_zero"], ["y"])
    outputs = [helper.make_tensor_value_info("y", TensorProto.INT32, [13, 21])]
    graph = helper.make_graph([node], "g", inputs, outputs, initializers)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    (actual,) = weft.load(model, device=device, cache=False).run(feeds).values()
    centered = [side.numbers.astype(np.int64) - side.zero.astype(np.int64) for side in (left, right)]
    np.testing.assert_array_equal(actual, centered[0] @ centered[1])


@pytest.mark.parametrize("channels", [1, 2, 3, 4, 16, 70])
@pytest.mark.parametrize("seed", range(6))
def test_convolutions(seed: int, channels: int) -> None:
    random = np.random.default_rng(100 * seed + channels)
    spatial, features = 1 + seed % 2, int(random.choice([1, 6, 33, 128]))
    kernel = tuple(int(random.choice([1, 3] if channels > 2 else [3, 5, 8])) for _ in range(spatial))
    x = Side(random, (2, channels, *(int(random.integers(15, 30)) for _ in range(spatial))), 1, constant=False)
    w = Side(random, (features, channels, *kernel), 0, constant=True)
    attributes = {
        "strides": [int(random.choice([1, 2]))] * spatial,
        "dilations": [int(random.choice([1, 2]))] * spatial,
        "pads": random.integers(0, 3, 2 * spatial).tolist(),
    }
    model = model_of(x, w, spatial + 2)
    model.graph.node[-1].CopyFrom(helper.make_node("Conv", ["a_real", "b_real"], ["y"], **attributes))
    plain = helper.make_graph(
        [helper.make_node("Conv", ["a", "b"], ["y"], **attributes)],
        "g",
        [helper.make_tensor_value_info(n, TensorProto.DOUBLE, s.numbers.shape) for n, s in (("a", x), ("b", w))],
        [helper.make_tensor_value_info("y", TensorProto.DOUBLE, [None] * (spatial + 2))],
    )
    oracle = helper.make_model(plain, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    (expected,) = weft.load(oracle, device="reference").run({"a": x.real(), "b": w.real()}).values()
    for device in DEVICES:
        loaded = weft.load(model, device=device, cache=False)
        (product,) = [step for step in loaded.program.steps if isinstance(step.primitive, Convolve)]
        assert product.results[0].dtype.name == ("int32" if w.numbers[0].size >= LEAST_DEPTH else "float32")
        (actual,) = loaded.run({"a": x.numbers}).values()
        np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max())
