"""Quantized ops of onnxruntime's domain, against onnxruntime or numpy; results may be one step apart where it rounds
differently.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from opset.oracle import check, random_array

MICROSOFT = {"opset": 1, "domain": "com.microsoft"}
ONE_STEP = {"atol": 1, "rtol": 0}
EIGHT_BITS = [np.uint8, np.int8]


def numbers(seed: int, shape: tuple[int, ...], dtype: Any) -> Any:
    low, high = (0, 255) if dtype == np.uint8 else (-128, 127)
    return random_array(seed, shape, dtype, low, high)


def scale(value: float) -> Any:
    return np.array(value, np.float32)


@pytest.mark.parametrize("dtype", EIGHT_BITS)
@pytest.mark.parametrize("op", ["QLinearAdd", "QLinearMul"])
@pytest.mark.parametrize(("left", "right"), [((2, 3, 4), (2, 3, 4)), ((2, 3, 4), (4,)), ((3, 1), (1, 4)), ((), (3,))])
@pytest.mark.parametrize("zero", [False, True])
def test_arithmetic(op: str, dtype: Any, left: tuple[int, ...], right: tuple[int, ...], zero: bool) -> None:
    points = [np.array(value, dtype) if zero else None for value in (3, 7, 12)]
    a, b = numbers(0, left, dtype), numbers(1, right, dtype)
    scales = [0.02, 0.03, 0.04] if op == "QLinearAdd" else [0.02, 0.03, 0.05]
    inputs = [a, scale(scales[0]), points[0], b, scale(scales[1]), points[1], scale(scales[2]), points[2]]
    expected = None
    if not zero:  # onnxruntime wants zero points, though its documentation does not
        x, y = a.astype(np.float64) * scales[0], b.astype(np.float64) * scales[1]
        expected = [quantize(x + y if op == "QLinearAdd" else x * y, scales[2], 0, dtype)]
    check(op, inputs, expected=expected, constants=[0, 3], **ONE_STEP, **MICROSOFT)


@pytest.mark.parametrize("dtype", EIGHT_BITS)
@pytest.mark.parametrize(
    ("op", "attributes"),
    [
        ("QLinearSigmoid", {}),
        ("QLinearLeakyRelu", {"alpha": 0.2}),
        ("QLinearLeakyRelu", {}),
        ("QLinearSoftmax", {"opset": 13, "axis": 1}),
        ("QLinearSoftmax", {"opset": 13}),
        ("QLinearSoftmax", {"opset": 11, "axis": 1}),
    ],
)
def test_functions(op: str, dtype: Any, attributes: dict[str, Any]) -> None:
    x = numbers(0, (2, 3, 4), dtype)
    inputs = [x, scale(0.03), np.array(5, dtype), scale(1 / 256), np.array(0 if dtype == np.uint8 else -128, dtype)]
    if op == "QLinearLeakyRelu":
        inputs[3:] = [scale(0.04), np.array(11, dtype)]
    from opset.oracle import node_model, run_onnxruntime, run_weft

    def model(symbolic: bool) -> Any:
        created = node_model(op, inputs, symbolic=symbolic, constants=[1, 2, 3, 4], **MICROSOFT)
        from onnx import helper

        created.graph.node[0].attribute.extend(helper.make_attribute(name, value) for name, value in attributes.items())
        return created

    reference = run_onnxruntime(model(False), inputs)[0]
    for symbolic in (False, True):
        actual = run_weft(model(symbolic), inputs)[0]
        assert actual.dtype == reference.dtype
        np.testing.assert_allclose(actual.astype(int), reference.astype(int), atol=1)


@pytest.mark.parametrize("dtype", EIGHT_BITS)
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_concat(dtype: Any, axis: int) -> None:
    parts = [numbers(n, (2, 3, 4), dtype) for n in range(3)]
    inputs = [scale(0.05), np.array(9, dtype)]
    for number, part in enumerate(parts):
        inputs += [part, scale(0.02 + number * 0.03), np.array(number, dtype)]
    check("QLinearConcat", inputs, axis=axis, **ONE_STEP, **MICROSOFT)


@pytest.mark.parametrize("dtype", EIGHT_BITS)
def test_where(dtype: Any) -> None:
    condition = random_array(0, (2, 3, 4), bool)
    x, y = numbers(1, (3, 4), dtype), numbers(2, (2, 1, 4), dtype)
    inputs = [condition, x, scale(0.02), np.array(3, dtype), y, scale(0.03), np.array(5, dtype)]
    check("QLinearWhere", [*inputs, scale(0.04), np.array(7, dtype)], constants=[1, 4], **ONE_STEP, **MICROSOFT)


def quantize(x: Any, step: float, zero: int, dtype: Any) -> Any:
    limits = np.iinfo(dtype)
    return np.clip(np.rint(x / step) + zero, limits.min, limits.max).astype(dtype)


@pytest.mark.parametrize("dtype", EIGHT_BITS)
@pytest.mark.parametrize("keep", [0, 1])
def test_reductions(dtype: Any, keep: int) -> None:
    x = numbers(0, (2, 3, 4), dtype)
    real = (x.astype(np.float64) - 4) * np.float32(0.03)
    expected = [quantize(real.mean((0, 2), keepdims=bool(keep)), np.float32(0.02), 6, dtype)]
    inputs = [x, scale(0.03), np.array(4, dtype), scale(0.02), np.array(6, dtype)]
    check("QLinearReduceMean", inputs, expected=expected, axes=[0, -1], keepdims=keep, **ONE_STEP, **MICROSOFT)
    wide = np.uint32 if dtype == np.uint8 else np.int32
    total = [x.astype(wide).sum((0, 2), keepdims=bool(keep), dtype=wide)]
    check("ReduceSumInteger", [x], expected=total, axes=[0, 2], keepdims=keep, **MICROSOFT)


@pytest.mark.parametrize("dtype", EIGHT_BITS)
@pytest.mark.parametrize("last", [0, 1])
@pytest.mark.parametrize("attributes", [{}, {"pads": [1, 1, 0, 1], "strides": [2, 2]}, {"pads": [1, 1, 1, 1]}])
@pytest.mark.parametrize("padded", [0, 1])
def test_average_pool(dtype: Any, last: int, attributes: dict[str, Any], padded: int) -> None:
    x = numbers(0, (2, 6, 7, 3) if last else (2, 3, 6, 7), dtype)
    inputs = [x, scale(0.03), np.array(4, dtype), scale(0.02), np.array(6, dtype)]
    check(
        "QLinearAveragePool",
        inputs,
        kernel_shape=[3, 2],
        channels_last=last,
        count_include_pad=padded,
        **attributes,
        **ONE_STEP,
        **MICROSOFT,
    )
    if not attributes:
        check("QLinearGlobalAveragePool", inputs, channels_last=last, **ONE_STEP, **MICROSOFT)


@pytest.mark.parametrize("dtype", EIGHT_BITS)
@pytest.mark.parametrize("last", [0, 1])
@pytest.mark.parametrize("attributes", [{}, {"pads": [1, 1, 0, 1], "strides": [2, 1]}, {"group": 2}])
@pytest.mark.parametrize("per_channel", [False, True])
def test_conv(dtype: Any, last: int, attributes: dict[str, Any], per_channel: bool) -> None:
    group = attributes.get("group", 1)
    x = numbers(0, (2, 6, 7, 4) if last else (2, 4, 6, 7), dtype)
    w = numbers(1, (6, 4 // group, 3, 3), np.int8)
    w_scale = random_array(2, (6,), low=0.001, high=0.01) if per_channel else scale(0.004)
    w_zero = np.zeros(6, np.int8) if per_channel else np.array(0, np.int8)
    bias = random_array(3, (6,), np.int32, -500, 500)
    inputs = [x, scale(0.03), np.array(4, dtype), w, w_scale, w_zero, scale(0.1), np.array(6, dtype), bias]
    stored = [1, 2, 3, 4, 5, 6, 7, 8]
    check("QLinearConv", inputs, channels_last=last, constants=stored, **attributes, **ONE_STEP, **MICROSOFT)


@pytest.mark.parametrize(("a_type", "b_type"), [(np.uint8, np.uint8), (np.uint8, np.int8), (np.int8, np.int8)])
@pytest.mark.parametrize("per_column", [False, True])
@pytest.mark.parametrize("extras", [False, True])
def test_matmul_integer_to_float(a_type: Any, b_type: Any, per_column: bool, extras: bool) -> None:
    a, b = numbers(0, (2, 3, 8), a_type), numbers(1, (8, 5), b_type)
    b_scale = random_array(2, (5,), low=0.01, high=0.1) if per_column else scale(0.02)
    a_zero = np.array(7, a_type) if extras else None
    b_zero = (numbers(3, (5,), b_type) if per_column else np.array(3, b_type)) if extras else None
    bias = random_array(4, (5,)) if extras else None
    inputs = [a, b, scale(0.03), b_scale, a_zero, b_zero, bias]
    check("MatMulIntegerToFloat", inputs, atol=1e-3, **MICROSOFT)


@pytest.mark.parametrize("b_type", EIGHT_BITS)
@pytest.mark.parametrize("per_column", [False, True])
@pytest.mark.parametrize("extras", [False, True])
def test_dynamic_quantize_matmul(b_type: Any, per_column: bool, extras: bool) -> None:
    a, b = random_array(0, (2, 3, 8)), numbers(1, (8, 5), b_type)
    b_scale = random_array(2, (5,), low=0.01, high=0.1) if per_column else scale(0.02)
    b_zero = (numbers(3, (5,), b_type) if per_column else np.array(3, b_type)) if extras else None
    bias = random_array(4, (5,)) if extras else None
    check("DynamicQuantizeMatMul", [a, b, b_scale, b_zero, bias], atol=1e-3, **MICROSOFT)


@pytest.mark.parametrize(("a_type", "b_type"), [(np.uint8, np.uint8), (np.uint8, np.int8), (np.int8, np.int8)])
@pytest.mark.parametrize("transposed", [(0, 0), (1, 1)])
@pytest.mark.parametrize("per_column", [False, True])
@pytest.mark.parametrize("output", [False, True])
@pytest.mark.parametrize("addend", [None, (5,), (3, 5)])
def test_gemm(a_type: Any, b_type: Any, transposed: Any, per_column: bool, output: bool, addend: Any) -> None:
    a = numbers(0, (8, 3) if transposed[0] else (3, 8), a_type)
    b = numbers(1, (5, 8) if transposed[1] else (8, 5), b_type)
    b_scale = random_array(2, (5,), low=0.01, high=0.1) if per_column else scale(0.02)
    b_zero = np.full(5, 3, b_type) if per_column else np.array(3, b_type)
    c = None if addend is None else random_array(3, addend, np.int32, -500, 500)
    result = [scale(3.0), np.array(9, a_type)] if output else [None, None]
    inputs = [a, scale(0.03), np.array(7, a_type), b, b_scale, b_zero, c, *result]
    tolerance = ONE_STEP if output else {"atol": 1e-3}
    check("QGemm", inputs, alpha=0.5, transA=transposed[0], transB=transposed[1], **tolerance, **MICROSOFT)


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.uint16, np.int16, ml_dtypes.uint4, ml_dtypes.int4])
@pytest.mark.parametrize("axis", [None, 0, -1])
def test_quantize_and_dequantize(dtype: Any, axis: int | None) -> None:
    shape = (3, 4, 6)
    size = () if axis is None else (shape[axis],)
    steps = random_array(1, size, low=0.01, high=0.1)
    zero = random_array(2, size, dtype, 0, 7)
    attributes = {} if axis is None else {"axis": axis}
    x = random_array(0, shape)
    expected = None
    if dtype in (ml_dtypes.uint4, ml_dtypes.int4):  # which onnxruntime cannot return
        limits = ml_dtypes.iinfo(dtype)
        along = [-1 if axis is not None and a == axis % 3 else 1 for a in range(3)]
        moved = np.rint(x / steps.reshape(along)) + zero.astype(np.float32).reshape(along)
        expected = [np.clip(moved, int(limits.min), int(limits.max)).astype(dtype)]
    check(
        "QuantizeLinear", [x, steps, zero], expected=expected, constants=[1, 2], **attributes, **ONE_STEP, **MICROSOFT
    )
    q = random_array(3, shape, dtype, 0, 7)
    check("DequantizeLinear", [q, steps, zero], constants=[0, 1, 2], **attributes, **MICROSOFT)


def pack(values: Any, bits: int) -> Any:
    """Numbers along the last axis, several to a byte, the first in the lowest bits."""
    per_byte = 8 // bits
    extra = -values.shape[-1] % per_byte
    values = np.concatenate([values, np.zeros((*values.shape[:-1], extra), np.uint8)], -1)
    parts = values.reshape(*values.shape[:-1], -1, per_byte).astype(np.uint8)
    return np.bitwise_or.reduce(parts << (np.arange(per_byte, dtype=np.uint8) * bits), axis=-1).astype(np.uint8)


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("points", ["none", "packed", "float"])
@pytest.mark.parametrize("columns", [64, 48, 33])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("bias", [False, True])
def test_matmul_n_bits(bits: int, points: str, columns: int, dtype: Any, bias: bool) -> None:
    rows, block = 6, 16
    blocks = -(-columns // block)
    rng = np.random.default_rng(bits)
    codes = rng.integers(0, 2**bits, (rows, blocks, block)).astype(np.uint8)
    steps = random_array(1, (rows, blocks), dtype, 0.01, 0.1)
    middle = rng.integers(0, 2**bits, (rows, blocks)).astype(np.uint8)
    zero = {"none": None, "packed": pack(middle, bits), "float": middle.astype(dtype)}[points]
    used = np.full((rows, blocks), 2 ** (bits - 1)) if zero is None else middle
    weights = (codes.astype(np.float64) - used[..., None]) * steps[..., None]
    weights = weights.reshape(rows, -1)[:, :columns]
    a, addend = random_array(0, (2, 3, columns), dtype, -1, 1), random_array(2, (rows,), dtype)
    expected = a.astype(np.float64) @ weights.T + (addend if bias else 0)
    inputs = [a, pack(codes, bits), steps, zero, None, addend if bias else None]
    check(
        "MatMulNBits",
        inputs,
        expected=[expected.astype(dtype)],
        K=columns,
        N=rows,
        bits=bits,
        block_size=block,
        atol=1e-4 if dtype == np.float32 else 0.02,
        rtol=1e-5 if dtype == np.float32 else 1e-2,
        **MICROSOFT,
    )


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("points", [False, True])
def test_matmul_n_bits_as_onnxruntime(bits: int, points: bool) -> None:
    rng = np.random.default_rng(bits)
    codes = rng.integers(0, 2**bits, (8, 3, 32)).astype(np.uint8)
    steps = random_array(1, (8, 3), low=0.01, high=0.1)
    zero = pack(rng.integers(0, 2**bits, (8, 3)).astype(np.uint8), bits) if points else None
    inputs = [random_array(0, (2, 96)), pack(codes, bits), steps, zero]
    stored = [1, 2, 3] if points else [1, 2]
    check("MatMulNBits", inputs, K=96, N=8, bits=bits, block_size=32, constants=stored, atol=1e-3, **MICROSOFT)


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize(("columns", "block"), [(96, 32), (100, 32), (40, 64)])
def test_matmul_n_bits_rounds_rows_at_accuracy_level_4(bits: int, columns: int, block: int) -> None:
    """Rows are rounded to int8 in the blocks of the weights, of which the last may be incomplete."""
    rng, blocks = np.random.default_rng(bits), -(-columns // block)
    codes = rng.integers(0, 2**bits, (8, blocks, block)).astype(np.uint8)
    steps = random_array(1, (8, blocks), low=0.01, high=0.1)
    a = random_array(0, (2, 3, columns))
    a[1, 0, :block] = 0
    padded = np.pad(a, [(0, 0), (0, 0), (0, blocks * block - columns)]).reshape(2, 3, blocks, block)
    largest = np.abs(padded).max(-1, keepdims=True)
    scale = np.float32(127) / np.where(largest == 0, np.float32(1), largest)
    rounded = np.rint(padded * scale).astype(np.float64) * largest / 127
    weights = (codes.astype(np.float64) - 2 ** (bits - 1)) * steps[:, :, np.newaxis]
    expected = np.einsum("xybk,nbk->xyn", rounded, weights).astype(np.float32)
    inputs = [a, pack(codes, bits), steps]
    sizes = {"K": columns, "N": 8, "bits": bits, "block_size": block, "accuracy_level": 4}
    check("MatMulNBits", inputs, expected=[expected], atol=1e-5, rtol=1e-5, **sizes, **MICROSOFT)
    if bits != 2 and block == 32:
        check("MatMulNBits", inputs, constants=[1, 2], atol=1e-4, rtol=1e-5, **sizes, **MICROSOFT)


def test_matmul_n_bits_with_groups() -> None:
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 16, (8, 3, 32)).astype(np.uint8)
    steps = random_array(1, (8, 3), low=0.01, high=0.1)
    groups = rng.integers(0, 3, 96).astype(np.int32)
    a = random_array(0, (2, 96))
    weights = (codes.reshape(8, 96).astype(np.float64) - 8) * steps[:, groups]
    inputs = [a, pack(codes, 4), steps, None, groups]
    expected = [(a @ weights.T).astype(np.float32)]
    check("MatMulNBits", inputs, expected=expected, K=96, N=8, bits=4, block_size=32, atol=1e-3, **MICROSOFT)


@pytest.mark.parametrize("kind", [0, 1])
@pytest.mark.parametrize(("rows", "columns"), [(6, 32), (5, 24)])
def test_matmul_bnb4(kind: int, rows: int, columns: int) -> None:
    packed = numbers(0, ((rows * columns + 1) // 2,), np.uint8)
    largest = random_array(1, (-(-rows * columns // 16),), low=0.1, high=2)
    inputs = [random_array(2, (2, 3, columns)), packed, largest]
    check("MatMulBnb4", inputs, K=columns, N=rows, block_size=16, quant_type=kind, atol=1e-4, **MICROSOFT)


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("points", [False, True])
@pytest.mark.parametrize("index_type", [np.int32, np.int64])
def test_gather_from_packed_blocks(bits: int, points: bool, index_type: Any) -> None:
    rng = np.random.default_rng(bits)
    data = pack(rng.integers(0, 2**bits, (7, 48)).astype(np.uint8), bits)
    zero = pack(rng.integers(0, 2**bits, (7, 3)).astype(np.uint8), bits) if points else None
    indices = np.array([[0, 6, -1], [3, -7, 2]], index_type)
    inputs = [data, indices, random_array(0, (7, 3), low=0.01, high=0.1), zero]
    stored = [0, 2, 3] if points else [0, 2]
    check("GatherBlockQuantized", inputs, bits=bits, block_size=16, constants=stored, **MICROSOFT)


@pytest.mark.parametrize("dtype", [ml_dtypes.uint4, ml_dtypes.int4])
@pytest.mark.parametrize(("gather_axis", "quantize_axis"), [(0, 1), (1, 0), (0, 0), (1, 1), (2, 1)])
@pytest.mark.parametrize("points", [False, True])
def test_gather_from_blocks(dtype: Any, gather_axis: int, quantize_axis: int, points: bool) -> None:
    shape = [20, 24, 4]
    blocks = [-(-size // 16) if axis == quantize_axis else size for axis, size in enumerate(shape)]
    low, high = (0, 15) if dtype == ml_dtypes.uint4 else (-8, 7)
    data = random_array(0, shape, dtype, low, high)
    zero = random_array(1, blocks, dtype, low, high) if points else None
    indices = np.array([[0, 3, -1], [3, -4, 2]], np.int64)
    inputs = [data, indices, random_array(2, blocks, low=0.01, high=0.1), zero]
    stored = [0, 2, 3] if points else [0, 2]
    axes = {"gather_axis": gather_axis, "quantize_axis": quantize_axis}
    check("GatherBlockQuantized", inputs, block_size=16, constants=stored, **axes, **MICROSOFT)


@pytest.mark.parametrize("dtype", EIGHT_BITS)
@pytest.mark.parametrize("per_gate", [False, True])
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("extras", [False, True])
def test_lstm(dtype: Any, per_gate: bool, direction: str, extras: bool) -> None:
    directions, hidden, width, batch, length = 2 if direction == "bidirectional" else 1, 6, 5, 1, 4
    shape = (directions, 4 * hidden) if per_gate else (directions,)
    zeros = [np.full(shape, 0 if dtype == np.int8 else n, dtype) for n in (3, 125)]
    steps = [random_array(n, shape, low=0.002, high=0.008) for n in (6, 7)]
    states = [random_array(n, (directions, batch, hidden), low=-1, high=1) for n in (8, 9)]
    inputs = [
        random_array(0, (length, batch, width)),
        numbers(1, (directions, width, 4 * hidden), dtype),
        numbers(2, (directions, hidden, 4 * hidden), dtype),
        random_array(3, (directions, 8 * hidden), low=-1, high=1) if extras else None,
        np.array([3], np.int32) if extras else None,
        *(states if extras else [None, None]),
        random_array(10, (directions, 3 * hidden), low=-1, high=1) if extras else None,
        steps[0],
        zeros[0],
        steps[1],
        zeros[1],
    ]
    attributes = {"hidden_size": hidden, "direction": direction}
    check(
        "DynamicQuantizeLSTM", inputs, outputs=3, constants=[1, 2, 8, 9, 10, 11], **attributes, atol=1e-3, **MICROSOFT
    )


@pytest.mark.parametrize("bias", [True, False])
def test_gemm_of_8_bit_floats(bias: bool) -> None:
    """onnxruntime's quantizer writes such products, with a bias of float32, but onnxruntime runs none of them."""
    float8 = ml_dtypes.float8_e4m3fn
    a, b = (random_array(seed, shape).astype(float8) for seed, shape in ((0, (3, 8)), (1, (8, 5))))
    c = random_array(2, (5,)) if bias else None
    zero = np.zeros((), float8)
    exact = (a.astype(np.float64) * 0.5) @ (b.astype(np.float64) * 0.25) + (0 if c is None else c)
    inputs = [a, scale(0.5), zero, b, scale(0.25), zero, c]
    check("QGemm", inputs, expected=[exact.astype(np.float32)], rtol=1e-6, atol=1e-6, **MICROSOFT)
