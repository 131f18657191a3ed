"""Quantizing, dequantizing, and products of quantized numbers, against onnxruntime or numpy."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from opset.oracle import check, node_model, random_array, run_weft

from weft.errors import WeftError
from weft.ir.dtypes import DType, from_number

NUMBERS = {from_number(number): number for number in range(1, 29)}
INTEGERS = [np.int8, np.uint8, np.int16, np.uint16, ml_dtypes.int4, ml_dtypes.uint4, ml_dtypes.int2, ml_dtypes.uint2]


def name(dtype: Any) -> str:
    return np.dtype(dtype).name


@pytest.mark.parametrize("dtype", INTEGERS[:6], ids=name)
@pytest.mark.parametrize("granularity", ["tensor", "tensor-vector", "axis", "negative axis"])
@pytest.mark.parametrize("with_zero_point", [True, False])
def test_there_and_back(dtype: Any, granularity: str, with_zero_point: bool) -> None:
    x = random_array(1, (2, 3, 4), low=-100, high=100)
    shape = {"tensor": (), "tensor-vector": (1,), "axis": (3,), "negative axis": (4,)}[granularity]
    axis = -1 if granularity == "negative axis" else 1
    scale = random_array(2, shape, low=0.5, high=3)
    zero = np.asarray(random_array(3, shape, np.int32, low=0, high=1)).astype(dtype) if with_zero_point else None
    options = {"axis": axis} if with_zero_point else {"axis": axis, "output_dtype": NUMBERS[DType(name(dtype))]}
    quantized = random_array(4, (2, 3, 4), dtype, low=0, high=1)
    there, back = None, None
    if np.dtype(dtype).kind == "V":  # onnxruntime returns no packed types
        spread = [
            p if p.ndim == 0 or axis == -1 else p[:, None] for p in (scale, np.zeros(()) if zero is None else zero)
        ]
        limits = ml_dtypes.iinfo(dtype)
        moved = np.rint(x / spread[0]) + spread[1].astype(np.float32)
        there = [np.clip(moved, int(limits.min), int(limits.max)).astype(np.int32).astype(dtype)]
        back = [(quantized.astype(np.float32) - spread[1].astype(np.float32)) * spread[0]]
    check("QuantizeLinear", [x, scale, zero], opset=21, expected=there, **options)
    check("DequantizeLinear", [quantized, scale, zero], opset=21, axis=axis, expected=back)


@pytest.mark.parametrize("opset", [10, 13, 19])
def test_older_opsets(opset: int) -> None:
    x, scale, zero = random_array(5, (4, 5), low=-300, high=300), np.float32(0.7), np.uint8(128)
    inputs = [x, np.asarray(scale), np.asarray(zero)]
    check("QuantizeLinear", inputs, opset=opset)
    check("QuantizeLinear", [x, np.asarray(scale)], opset=opset)
    check("DequantizeLinear", [random_array(6, (4, 5), np.uint8, low=0, high=255), *inputs[1:]], opset=opset)
    check("DequantizeLinear", [random_array(6, (4,), np.int32, low=-99, high=99), np.asarray(scale)], opset=opset)


@pytest.mark.parametrize("dtype", INTEGERS, ids=name)
def test_rounding_and_bounds(dtype: Any) -> None:
    """Halves round to even; numbers out of range saturate."""
    limits = ml_dtypes.iinfo(dtype)
    x = np.array([0.5, 1.5, -0.5, -1.5, 2.5, 1e9, -1e9, 1e30, -1e30, np.inf, -np.inf], np.float32)
    expected = (
        np.clip(np.rint(x.astype(np.float64)), float(limits.min), float(limits.max)).astype(np.int64).astype(dtype)
    )
    check("QuantizeLinear", [x, np.float32(1)], opset=25, output_dtype=NUMBERS[DType(name(dtype))], expected=[expected])


@pytest.mark.parametrize("dtype", ["float8e4m3fn", "float8e5m2", "float4e2m1", "float6e3m2"])
@pytest.mark.parametrize("saturate", [1, 0])
def test_float_targets(dtype: str, saturate: int) -> None:
    target = DType(dtype)
    x = np.array([0.3, -1.7, 5, 1000, -1e6, 0], np.float32)
    scaled = x / np.float32(2)
    largest = float(ml_dtypes.finfo(target.numpy).max)
    expected = (np.clip(scaled, -largest, largest) if saturate else scaled).astype(target.numpy)
    zero = np.zeros((), target.numpy)
    check("QuantizeLinear", [x, np.float32(2), zero], opset=28, saturate=saturate, expected=[expected], rtol=0)
    back = expected.astype(np.float32) * 2
    check("DequantizeLinear", [expected, np.float32(2), zero], opset=28, expected=[back])


@pytest.mark.parametrize(("size", "block"), [(6, 2), (6, 3), (7, 3), (5, 8)])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_blocks(size: int, block: int, axis: int) -> None:
    shape, blocks = [2, 4], [2, 4]
    shape[axis], blocks[axis] = size, -(-size // block)
    x, scale = random_array(7, shape, low=-50, high=50), random_array(8, blocks, low=0.5, high=2)
    zero = random_array(9, blocks, np.int8, low=-20, high=20)
    repeated = [np.repeat(p, block, axis).take(range(size), axis) for p in (scale, zero)]
    quantized = np.clip(np.rint(x / repeated[0]) + repeated[1], -128, 127).astype(np.int8)
    check("QuantizeLinear", [x, scale, zero], opset=21, axis=axis, block_size=block, expected=[quantized])
    back = ((quantized.astype(np.float32) - repeated[1]) * repeated[0]).astype(np.float32)
    check("DequantizeLinear", [quantized, scale, zero], opset=21, axis=axis, block_size=block, expected=[back])


def test_precision_and_other_types() -> None:
    x = random_array(10, (30,), np.float16, low=-100, high=100)
    half = np.array(0.3, np.float16)
    expected = np.clip(np.rint(x / half).astype(np.float32), -128, 127).astype(np.int8)
    check("QuantizeLinear", [x, half, np.int8(0)], opset=21, expected=[expected])
    wide = np.clip(np.rint(x.astype(np.float32) / half.astype(np.float32)), -128, 127).astype(np.int8)
    check("QuantizeLinear", [x, half, np.int8(0)], opset=23, precision=1, expected=[wide])
    power = np.array(4, ml_dtypes.float8_e8m0fnu)
    check("DequantizeLinear", [np.int8([1, -3]), power], opset=23, output_dtype=1, expected=[np.float32([4, -12])])
    check("DequantizeLinear", [np.int8([1, -3]), half], opset=21, expected=[np.float16([0.3, -0.9])], rtol=1e-3)


@pytest.mark.parametrize(("low", "high"), [(-3, 5), (1, 4), (-4, -1), (0, 0)])
@pytest.mark.parametrize("shape", [(3, 4), ()])
def test_dynamic(low: float, high: float, shape: tuple[int, ...]) -> None:
    check("DynamicQuantizeLinear", [random_array(11, shape, low=low, high=high)], opset=11, outputs=3)


@pytest.mark.parametrize("types", [(np.uint8, np.uint8), (np.uint8, np.int8)])
@pytest.mark.parametrize("shapes", [((3, 4), (4, 5)), ((2, 3, 4), (4, 5)), ((2, 3, 4), (2, 4, 5))], ids=str)
def test_integer_matmul(types: Any, shapes: Any) -> None:
    a = random_array(12, shapes[0], types[0], low=0, high=255)
    b = random_array(13, shapes[1], types[1], low=0, high=127)
    for zeros in ([], [np.array(7, types[0])], [np.array(7, types[0]), np.array([3], types[1])]):
        check("MatMulInteger", [a, b, *zeros], opset=10)
    columns = random_array(14, (5,), types[1], low=0, high=9)
    if len(shapes[1]) == 2:
        check("MatMulInteger", [a, b, np.array(7, types[0]), columns], opset=10)
    rows = random_array(15, (3,), types[0], low=0, high=9)
    expected = np.matmul(a.astype(np.int32) - rows.astype(np.int32)[:, None], b.astype(np.int32))
    check("MatMulInteger", [a, b, rows], opset=10, expected=[expected])


@pytest.mark.parametrize("per_column", [False, True])
@pytest.mark.parametrize("types", [(np.uint8, np.uint8), (np.uint8, np.int8), (np.int8, np.int8)])
def test_quantized_matmul(types: Any, per_column: bool) -> None:
    low, high = (-100, 100) if types[0] == np.int8 else (0, 255)
    a, b = (
        random_array(16, (2, 3, 4), types[0], low=low, high=high),
        random_array(17, (4, 5), types[1], low=0, high=100),
    )
    b_scale = random_array(18, (5,) if per_column else (), low=0.01, high=0.05)
    b_zero = np.zeros((5,) if per_column else (), types[1])
    inputs = [a, np.float32(0.02), np.array(3, types[0]), b, b_scale, b_zero, np.float32(0.1), np.array(5, types[0])]
    check("QLinearMatMul", [np.asarray(value) for value in inputs], opset=21, rtol=0, atol=1)


@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize(
    "attributes",
    [{}, {"pads": [1, 2, 0, 1]}, {"strides": [2, 1], "dilations": [1, 2]}, {"auto_pad": "SAME_UPPER"}, {"group": 2}],
    ids=str,
)
def test_quantized_convolution(attributes: dict[str, Any], per_channel: bool) -> None:
    x = random_array(19, (2, 4, 7, 8), np.uint8, low=0, high=255)
    w = random_array(20, (6, 4 // attributes.get("group", 1), 3, 3), np.int8, low=-100, high=100)
    shape = (6,) if per_channel else ()
    w_scale, w_zero = random_array(21, shape, low=0.01, high=0.05), np.zeros(shape, np.int8)
    bias = random_array(22, (6,), np.int32, low=-1000, high=1000)
    inputs = [x, np.float32(0.02), np.uint8(120), w, w_scale, w_zero, np.float32(0.3), np.uint8(100)]
    arrays = [np.asarray(value) for value in inputs]
    check("QLinearConv", arrays, opset=10, rtol=0, atol=1, **attributes)
    check("QLinearConv", [*arrays, bias], opset=10, rtol=0, atol=1, **attributes)
    check("ConvInteger", [x, w.astype(np.uint8), np.asarray(np.uint8(120))], opset=10, **attributes)


def test_mistakes() -> None:
    x, scale = np.zeros((2, 3), np.float32), np.ones(3, np.float32)
    for inputs, attributes in (
        ([x, scale], {"axis": 0}),
        ([x, scale], {"axis": 5}),
        ([x, np.ones((2, 2), np.float32)], {}),
        ([x, np.ones((2, 2), np.float32)], {"block_size": 3}),
        ([x, scale, np.zeros(3, np.int8)], {"output_dtype": 2}),
    ):
        with pytest.raises(WeftError):
            run_weft(node_model("QuantizeLinear", inputs, opset=21, **attributes), inputs)
