"""The reference in float64, compared with onnxruntime on the same model in float64, and with numpy."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from attack.float64 import Exact
from frontend.samples import model, node, tensor, value
from models.catalog import load_catalog, random_inputs
from onnx import TensorProto

import weft
from weft.report.contenders import InFloat64

CATALOG = {entry.name: entry for entry in load_catalog()}
RANDOM = np.random.default_rng(4)


def in_float64(built: Any, inputs: dict[str, Any]) -> dict[str, Any]:
    return InFloat64(weft.load(built, device="reference").source.graph, inputs).outputs()


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16], ids=["single", "half", "bfloat16"])
def test_intermediate_values_are_not_rounded(dtype: Any) -> None:
    kind = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    x, w = (RANDOM.standard_normal(shape).astype(dtype) for shape in ((5, 7), (7, 3)))
    built = model(
        [node("MatMul", ["x", "w"], ["p"]), node("Softmax", ["p"], ["s"]), node("Log", ["s"], ["y"])],
        [value("x", [5, 7], kind)],
        [value("y", [5, 3], kind)],
        [onnx.helper.make_tensor("w", kind, w.shape, w.tobytes(), raw=True)],
    )
    product = x.astype(np.float64) @ w.astype(np.float64)
    expected = product - np.log(np.exp(product).sum(1, keepdims=True))
    actual = in_float64(built, {"x": x})["y"]
    assert actual.dtype == np.float64
    np.testing.assert_allclose(actual, expected, rtol=1e-13, atol=1e-15)


def test_constants_are_not_rounded() -> None:
    """1 / 3 in float16 and back would be off by 2e-4."""
    third = node("Div", ["one", "three"], ["third"])
    built = model(
        [third, node("Cast", ["third"], ["wide"], to=TensorProto.FLOAT), node("Mul", ["x", "wide"], ["y"])],
        [value("x", [1])],
        [value("y", [1])],
        [tensor("one", np.array([1], np.float16)), tensor("three", np.array([3], np.float16))],
    )
    assert in_float64(built, {"x": np.ones(1, np.float32)})["y"] == pytest.approx(1 / 3, abs=1e-15)


def test_quantisation_still_rounds() -> None:
    built = model(
        [node("QuantizeLinear", ["x", "s", "z"], ["q"]), node("DequantizeLinear", ["q", "s", "z"], ["y"])],
        [value("x", [50])],
        [value("q", [50], TensorProto.INT8), value("y", [50])],
        [tensor("s", np.float32(0.1)), tensor("z", np.int8(3))],
    )
    x = RANDOM.standard_normal(50).astype(np.float32)
    actual = in_float64(built, {"x": x})
    scale = np.float64(np.float32(0.1))
    codes = np.clip(np.rint(x.astype(np.float64) / scale) + 3, -128, 127).astype(np.int8)
    np.testing.assert_array_equal(actual["q"], codes)
    assert actual["q"].dtype == np.int8
    np.testing.assert_allclose(actual["y"], (codes.astype(np.float64) - 3) * scale, rtol=1e-15)


def test_bitcasts_use_the_types_of_the_file() -> None:
    built = model(
        [node("BitCast", ["x"], ["bits"], to=TensorProto.INT32)],
        [value("x", [3])],
        [value("bits", [3], TensorProto.INT32)],
        opsets={"": 26},
        ir_version=13,
    )
    x = np.array([1, -2, 0.1], np.float32)
    np.testing.assert_array_equal(in_float64(built, {"x": x})["bits"], x.view(np.int32))


@pytest.mark.parametrize(
    "name", ["reachy-mini__fknetwork", "silero-vad__silero_vad_16k_op15", "openwakeword__embedding_model"]
)
def test_models_agree_with_onnxruntime_in_float64(name: str, record_property: Any) -> None:
    entry = CATALOG[name]
    if entry.missing:
        record_property("left out", entry.missing)
        pytest.skip(entry.missing)
    inputs = random_inputs(entry)
    expected = Exact(onnx.load(entry.file)).run(inputs)
    for actual, array in zip(in_float64(entry.file, inputs).values(), expected):
        np.testing.assert_allclose(actual, array, rtol=1e-10, atol=1e-12 * np.abs(array).max())
