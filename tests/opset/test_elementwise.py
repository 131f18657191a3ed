"""Arithmetic, comparisons, bits, activations and constants, against onnxruntime or numpy."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from opset.oracle import check, node_model, random_array, run_weft

from weft.errors import WeftError

BFLOAT16 = ml_dtypes.bfloat16

UNARY = [
    ("Abs", 7), ("Neg", 7), ("Sqrt", 7), ("Exp", 7), ("Log", 7), ("Reciprocal", 7), ("Sign", 9), ("Floor", 7),
    ("Ceil", 7), ("Round", 11), ("Sin", 7), ("Cos", 7), ("Tan", 7), ("Asin", 7), ("Acos", 7), ("Atan", 7),
    ("Sinh", 9), ("Cosh", 9), ("Tanh", 7), ("Asinh", 9), ("Acosh", 9), ("Atanh", 9), ("Erf", 9), ("Identity", 7),
    ("Relu", 7), ("Sigmoid", 7), ("Softplus", 7), ("Softsign", 7), ("HardSwish", 14), ("Mish", 18), ("Gelu", 20),
    ("Elu", 7), ("Selu", 7), ("Celu", 12), ("LeakyRelu", 7), ("ThresholdedRelu", 10), ("HardSigmoid", 7),
    ("Shrink", 9),
]  # fmt: skip


@pytest.mark.parametrize("shape", [(), (0, 3), (2, 3, 4)], ids=str)
@pytest.mark.parametrize(("op", "opset"), UNARY)
def test_unary(op: str, opset: int, shape: tuple[int, ...]) -> None:
    low = 1.1 if op == "Acosh" else -0.9 if op in ("Asin", "Acos", "Atanh") else 0.1 if op in ("Sqrt", "Log") else -4
    check(op, [random_array(1, shape, low=low, high=0.95 if -1 < low < 0 else 4)], opset=opset, rtol=1e-5)


@pytest.mark.parametrize("dtype", [np.float16, BFLOAT16, np.float64], ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize(("op", "opset"), [pair for pair in UNARY if pair[0] != "Identity"])
def test_unary_types(op: str, opset: int, dtype: Any) -> None:
    """Narrow floats are as good as float32 rounded once (or, for a lone function, rounded in its own type)."""
    low = 1.1 if op == "Acosh" else -0.9 if op in ("Asin", "Acos", "Atanh") else 0.1
    x = random_array(2, (50,), dtype, low=low, high=0.95 if low < 1 else 4)
    wide = run_weft(node_model(op, [x.astype(np.float64)], opset=22), [x.astype(np.float64)])[0]
    bits = ml_dtypes.finfo(dtype).nmant
    check(op, [x], opset=max(opset, 22), expected=[wide.astype(dtype)], rtol=2.0**-bits, atol=1e-12)


@pytest.mark.parametrize(
    ("op", "attributes"),
    [
        ("Elu", {"alpha": 2.5}),
        ("Selu", {"alpha": 1.5, "gamma": 2.0}),
        ("Celu", {"alpha": 0.7}),
        ("LeakyRelu", {"alpha": 0.3}),
        ("ThresholdedRelu", {"alpha": 0.5}),
        ("HardSigmoid", {"alpha": 0.4, "beta": 0.3}),
        ("Shrink", {"bias": 1.5, "lambd": 1.0}),
        ("Gelu", {"approximate": "tanh"}),
        ("Swish", {"alpha": 0.5}),
        ("Clip", {}),
    ],
)
def test_attributes(op: str, attributes: dict[str, Any]) -> None:
    x = random_array(3, (3, 7), low=-5, high=5)
    if op == "Swish":
        expected = [(x / (1 + np.exp(-0.5 * x.astype(np.float64)))).astype(np.float32)]
        check(op, [x], opset=24, expected=expected, **attributes)
    else:
        check(op, [x], opset=20, **attributes)


BROADCASTS = [((2, 3, 4), (3, 1)), ((4,), (2, 1)), ((), (2, 3)), ((2, 0), (1,)), ((1, 5), (5,)), ((), ())]


@pytest.mark.parametrize("shapes", BROADCASTS, ids=str)
@pytest.mark.parametrize(
    ("op", "opset", "dtype"),
    [
        ("Add", 7, np.float32), ("Sub", 13, np.int32), ("Mul", 7, np.int64), ("Div", 7, np.float64),
        ("Add", 14, np.uint8), ("Mul", 14, np.float16), ("Pow", 7, np.float32), ("Sum", 8, np.float32),
        ("Mean", 13, np.float32), ("Max", 8, np.float32), ("Min", 13, np.int32), ("Max", 13, np.float16),
        ("Equal", 7, np.int32), ("Equal", 7, np.bool_), ("Equal", 13, np.float32), ("Greater", 7, np.float32),
        ("Less", 9, np.int64), ("GreaterOrEqual", 16, np.float32), ("LessOrEqual", 12, np.float32),
        ("And", 7, np.bool_), ("Or", 7, np.bool_), ("Xor", 7, np.bool_), ("BitwiseAnd", 18, np.int16),
        ("BitwiseOr", 18, np.uint8), ("BitwiseXor", 18, np.int64), ("PRelu", 9, np.float32),
    ],
)  # fmt: skip
def test_binary(op: str, opset: int, dtype: Any, shapes: Any) -> None:
    if op == "PRelu":
        shapes = (np.broadcast_shapes(*shapes), shapes[1])
    low = 0 if op in ("Pow",) or np.dtype(dtype).kind == "u" else -3
    inputs = [random_array(4 + number, shape, dtype, low=low) for number, shape in enumerate(shapes)]
    check(op, inputs, opset=opset)


@pytest.mark.parametrize("fmod", [0, 1])
@pytest.mark.parametrize("dtype", [np.int8, np.uint16, np.int64, np.float32, np.float16], ids=lambda d: d.__name__)
def test_mod(dtype: Any, fmod: int) -> None:
    a = random_array(6, (40,), dtype, low=0 if np.dtype(dtype).kind == "u" else -9, high=9)
    b = np.where((b := random_array(7, (40,), dtype, low=1, high=4)) == 0, 1, b).astype(dtype)
    b = b if np.dtype(dtype).kind == "u" else b * np.where(np.arange(40) % 2, 1, -1).astype(dtype)
    check("Mod", [a, b], opset=13, fmod=fmod, expected=[(np.fmod if fmod else np.mod)(a, b)])


@pytest.mark.parametrize("dtype", [np.int8, np.int32, np.int64], ids=lambda d: d.__name__)
def test_integer_division_truncates(dtype: Any) -> None:
    a = np.array([7, -7, 7, -7, 0, 1], dtype)
    b = np.array([2, 2, -2, -2, 5, 3], dtype)
    check("Div", [a, b], opset=14, expected=[np.array([3, -3, -3, 3, 0, 0], dtype)])


@pytest.mark.parametrize("exponent", [np.int32, np.int64, np.float32, np.float64], ids=lambda d: d.__name__)
@pytest.mark.parametrize("base", [np.int32, np.int64, np.float32, np.float64], ids=lambda d: d.__name__)
def test_power_types(base: Any, exponent: Any) -> None:
    x = np.array([1, 2, 3, 4, 5], base)
    y = np.array([0, 1, 2, 3, 4], exponent)
    check("Pow", [x, y], opset=15)


def test_power_of_narrow_integers_wraps() -> None:
    x, y = np.array([2, 3, -2], np.int8), np.array([7, 5, 300], np.int64)
    check("Pow", [x, y], opset=15, expected=[np.array([-128, -13, 0], np.int8)])


@pytest.mark.parametrize("count", [1, 2, 5])
@pytest.mark.parametrize("op", ["Sum", "Mean", "Max", "Min"])
def test_variadic(op: str, count: int) -> None:
    shapes = [(3, 1), (4,), (), (1, 1), (3, 4)]
    check(op, [random_array(8 + n, shapes[n]) for n in range(count)], opset=13)


def test_nan_goes_through_extremes() -> None:
    x, y = np.array([np.nan, 1, 2], np.float32), np.array([0, np.nan, 3], np.float32)
    check("Max", [x, y], opset=13, expected=[np.array([np.nan, np.nan, 3], np.float32)])
    check("Clip", [x, np.float32(0), np.float32(1)], opset=13, expected=[np.array([np.nan, 1, 1], np.float32)])


@pytest.mark.parametrize("limits", [{}, {"min": -1.0}, {"max": 0.5}, {"min": -1.0, "max": 0.5}], ids=str)
@pytest.mark.parametrize("opset", [7, 10])
def test_clip_by_attributes(opset: int, limits: dict[str, float]) -> None:
    check("Clip", [random_array(10, (3, 5))], opset=opset, **limits)


@pytest.mark.parametrize(
    ("dtype", "low", "high"),
    [(np.float32, -1, 1), (np.float32, None, 1), (np.float32, -1, None), (np.int8, -2, 2), (np.float64, 2, -2)],
)
@pytest.mark.parametrize("constants", [(), (1, 2)])
def test_clip_by_inputs(dtype: Any, low: Any, high: Any, constants: tuple[int, ...]) -> None:
    limits = [None if limit is None else np.array(limit, dtype) for limit in (low, high)]
    stored = [position for position in constants if limits[position - 1] is not None]
    check("Clip", [random_array(11, (4, 5), dtype), *limits], opset=13, constants=stored)


def test_where_and_text() -> None:
    condition = np.array([[True], [False]])
    check("Where", [condition, random_array(12, (3,)), random_array(13, (2, 3))], opset=16)
    words, others = np.array(["a", "b"], object), np.array([["a"], ["x"]], object)
    check("Where", [np.array([True, False]), words, others], opset=16)
    check("Equal", [words, others], opset=19)


def test_predicates() -> None:
    x = np.array([np.nan, np.inf, -np.inf, 1, 0], np.float32)
    check("IsNaN", [x], opset=9)
    for negative, positive in ((1, 1), (0, 1), (1, 0), (0, 0)):
        check("IsInf", [x], opset=10, detect_negative=negative, detect_positive=positive)
    check("IsNaN", [x.astype(BFLOAT16)], opset=20, expected=[np.isnan(x)])
    check("Not", [np.array([True, False])], opset=7)


@pytest.mark.parametrize("direction", ["LEFT", "RIGHT"])
@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.uint32, np.uint64], ids=lambda d: d.__name__)
def test_unsigned_shift(dtype: Any, direction: str) -> None:
    bits = np.dtype(dtype).itemsize * 8
    x, by = np.array([1, 7, 200, 255, 255], dtype), np.array([0, 1, 3, bits - 1, bits], dtype)
    exact = [int(v) << int(s) if direction == "LEFT" else int(v) >> int(s) for v, s in zip(x, by)]
    check("BitShift", [x, by], opset=11, direction=direction, expected=[np.array([v % 2**bits for v in exact], dtype)])


def test_signed_shift() -> None:
    x = np.array([-8, -8, -8, 5, 100, -1], np.int8)
    by = np.array([1, 8, -1, -1, 1, 100], np.int8)
    right = np.array([-4, -1, -1, 0, 50, -1], np.int8)
    left = np.array([-16, 0, 0, 0, -56, 0], np.int8)
    check("BitShift", [x, by], opset=28, direction="RIGHT", expected=[right])
    check("BitShift", [x, by], opset=28, direction="LEFT", expected=[left])


@pytest.mark.parametrize(
    ("source", "target", "number"), [("int8", "uint8", 2), ("float32", "int32", 6), ("uint16", "float16", 10)]
)
@pytest.mark.parametrize("shape", [(), (3, 2)])
def test_bit_cast(source: str, target: str, number: int, shape: tuple[int, ...]) -> None:
    x = random_array(14, shape, source, low=0)
    check("BitCast", [x], opset=26, to=number, expected=[x.view(target)])


def test_bit_cast_of_packed_types() -> None:
    x = np.array([-1, -8, 7], ml_dtypes.int4)
    check("BitCast", [x], opset=26, to=21, expected=[np.array([15, 8, 7], ml_dtypes.uint4)])


def test_gates() -> None:
    gate, linear = random_array(15, (2, 5)), random_array(16, (2, 5))
    expected = gate / (1 + np.exp(-1.5 * gate.astype(np.float64))) * linear
    check("SwiGLU", [gate, linear], opset=28, alpha=1.5, expected=[expected.astype(np.float32)])


@pytest.mark.parametrize("x", [-1000.0, -100.0, -20.0, 0.0, 20.0, 100.0, 1000.0])
def test_saturation(x: float) -> None:
    """Overflow of an intermediate result must not affect a bounded result."""
    value = np.array([x], np.float32)
    softplus = max(x, 0) + math.log1p(math.exp(-abs(x)))
    for op, reference in (
        ("Sigmoid", 1 / (1 + math.exp(-x)) if x > -700 else 0.0),
        ("Softplus", softplus),
        ("Mish", x * math.tanh(softplus)),
        ("Gelu", 0.5 * x * math.erfc(-x / math.sqrt(2))),
        ("Elu", x if x >= 0 else math.expm1(x)),
    ):
        check(op, [value], opset=22, expected=[np.array([reference], np.float32)], rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(
    ("attributes", "expected"),
    [
        ({"value_float": 1.5}, np.array(1.5, np.float32)),
        ({"value_floats": [1.5, 2.0]}, np.array([1.5, 2.0], np.float32)),
        ({"value_int": 3}, np.array(3, np.int64)),
        ({"value_ints": [3, 4]}, np.array([3, 4], np.int64)),
        ({"value_string": "a"}, np.array("a", object)),
        ({"value_strings": ["a", "b"]}, np.array(["a", "b"], object)),
    ],
)
def test_constants(attributes: dict[str, Any], expected: Any) -> None:
    check("Constant", [], opset=13, expected=[expected], **attributes)


@pytest.mark.parametrize("shape", [[], [0], [2, 3], [2, 0, 4]], ids=str)
@pytest.mark.parametrize("stored", [True, False])
def test_constant_of_shape(shape: list[int], stored: bool) -> None:
    inputs = [np.array(shape, np.int64)]
    check("ConstantOfShape", inputs, opset=9, constants=[0] if stored else [])


@pytest.mark.parametrize(
    ("op", "inputs", "attributes"),
    [
        ("Add", [np.zeros(2, np.float32), np.zeros(3, np.float32)], {}),
        ("Add", [np.zeros(2, np.float32), np.zeros(2, np.int32)], {}),
        ("Gelu", [np.zeros(2, np.float32)], {"approximate": "half"}),
        ("BitShift", [np.zeros(2, np.uint8), np.zeros(2, np.uint8)], {"direction": "UP"}),
        ("BitCast", [np.zeros(2, np.uint8)], {"to": 1}),
        ("PRelu", [np.zeros((2, 3), np.float32), np.zeros((4, 2, 3), np.float32)], {}),
    ],
)
def test_mistakes(op: str, inputs: list[Any], attributes: dict[str, Any]) -> None:
    with pytest.raises(WeftError):
        run_weft(node_model(op, inputs, opset=26, **attributes), inputs)
