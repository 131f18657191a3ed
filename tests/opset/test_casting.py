"""Conversions between every pair of element types, by ONNX's rules."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from opset.oracle import check, node_model, random_array, run_weft

from weft.errors import ExecutionError, WeftError
from weft.ir.dtypes import DType, from_number

NUMBERS = {from_number(number): number for number in range(1, 29)}
NUMERIC = [dtype for dtype in DType if not dtype.is_complex and dtype is not DType.string]
SMALL_FLOATS = ["float8e4m3fn", "float8e4m3fnuz", "float8e5m2", "float8e5m2fnuz"]


@pytest.mark.parametrize("target", NUMERIC, ids=str)
@pytest.mark.parametrize("source", NUMERIC, ids=str)
def test_zero_and_one_survive(source: DType, target: DType) -> None:
    """1 is a number of every type, and 0 of all but float8e8m0."""
    powers = DType.float8e8m0 in (source, target)
    x = np.array([1, 1] if powers else [1, 0]).astype(np.float32).astype(source.numpy)
    expected = np.array([1, 1] if powers else [1, 0]).astype(np.float32).astype(target.numpy)
    check("Cast", [x], opset=28, to=NUMBERS[target], expected=[expected])


PLAIN = [np.float16, np.float32, np.float64, np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32,
         np.uint64, np.bool_]  # fmt: skip


@pytest.mark.parametrize("target", PLAIN, ids=lambda d: d.__name__)
@pytest.mark.parametrize("source", PLAIN, ids=lambda d: d.__name__)
def test_common_types(source: Any, target: Any) -> None:
    low = 0 if np.dtype("u8") in (target, source) or "u" in (np.dtype(target).kind, np.dtype(source).kind) else -100
    check(
        "Cast", [random_array(1, (50,), source, low=low, high=100)], opset=13, to=NUMBERS[DType(np.dtype(target).name)]
    )


def test_integers_lose_their_high_bits() -> None:
    x = np.array([200, -200, 65535, 7], np.int32)
    check("Cast", [x], opset=13, to=NUMBERS[DType.int8], expected=[np.array([-56, 56, -1, 7], np.int8)])
    check("Cast", [x], opset=21, to=NUMBERS[DType.int4], expected=[np.array([-8, -8, -1, 7], ml_dtypes.int4)])
    large = np.array([2**63 + 2**40, 1e19, 5], np.float64)
    check(
        "Cast", [large], opset=13, to=NUMBERS[DType.uint64], expected=[np.array([2**63 + 2**40, 10**19, 5], np.uint64)]
    )


@pytest.mark.parametrize("source", [np.float16, np.float32, np.float64, ml_dtypes.bfloat16])
@pytest.mark.parametrize("saturate", [1, 0])
@pytest.mark.parametrize("target", SMALL_FLOATS)
def test_small_floats(target: str, saturate: int, source: Any) -> None:
    """Compare with ml_dtypes, which overflows; saturating keeps everything but NaN within the largest number."""
    dtype = DType(target)
    largest = float(ml_dtypes.finfo(dtype.numpy).max)
    edges = [
        0,
        -0.0,
        np.nan,
        np.inf,
        -np.inf,
        largest,
        -largest,
        largest * 1.01,
        largest * 2,
        1e-9,
        0.3,
        1.0625,
        1.1875,
    ]
    with np.errstate(all="ignore"):
        x = np.concatenate([np.array(edges).astype(source), random_array(2, (100,), source, low=-600, high=600)])
        expected = (np.clip(x, -largest, largest).astype(source) if saturate else x).astype(dtype.numpy)
    check("Cast", [x], opset=19, to=NUMBERS[dtype], saturate=saturate, expected=[expected], rtol=0, atol=0)
    like = np.zeros(1, dtype.numpy)
    check("CastLike", [x, like], opset=19, saturate=saturate, expected=[expected], rtol=0, atol=0)


@pytest.mark.parametrize("source", [np.float32, np.float64])
@pytest.mark.parametrize("mode", ["up", "down", "nearest"])
def test_powers_of_two(mode: str, source: Any) -> None:
    x = np.array([1, 1.001, 1.499, 1.5, 1.999, 2, 3, 1e-3, 2.0**-126, 2.0**-127, 1.5 * 2.0**-127, 2.0**127], source)
    exponents = np.log2(x.astype(np.float64))
    whole = np.floor(exponents)
    fraction = x.astype(np.float64) / 2.0**whole - 1
    step = {"up": fraction > 0, "down": np.zeros(len(x), bool), "nearest": fraction >= 0.5}[mode]
    expected = (2.0 ** (whole + step)).astype(np.float32).astype(ml_dtypes.float8_e8m0fnu)
    check("Cast", [x], opset=24, to=NUMBERS[DType.float8e8m0], round_mode=mode, expected=[expected], rtol=0)


@pytest.mark.parametrize(
    ("saturate", "mode", "codes"), [(1, "up", [0, 255, 254, 254, 0]), (0, "nearest", [255, 255, 255, 255, 255])]
)
def test_powers_of_two_at_the_edges(saturate: int, mode: str, codes: list[int]) -> None:
    """Zero, NaN, infinity, beyond the largest, below the smallest: as the tables of the specification say."""
    x = np.array([0, np.nan, np.inf, 1.9 * 2.0**127, 2.0**-140], np.float32)
    model = node_model("Cast", [x], opset=24, to=NUMBERS[DType.float8e8m0], saturate=saturate, round_mode=mode)
    assert run_weft(model, [x])[0].view(np.uint8).tolist() == codes


@pytest.mark.parametrize("target", ["float4e2m1", "float6e2m3", "float6e3m2"])
def test_floats_without_infinity_saturate(target: str) -> None:
    dtype = DType(target)
    x = np.array([1000, -1000, np.inf, 0.3, 1.3, 5.0, -2.6], np.float32)
    check("Cast", [x], opset=28, to=NUMBERS[dtype], expected=[x.astype(dtype.numpy)], rtol=0)


@pytest.mark.parametrize("target", [np.float32, np.float64, np.float16, np.int32, np.uint8, np.int64])
def test_reading_text(target: Any) -> None:
    words = (
        ["1", "-3", " 7", "1.5"]
        if np.dtype(target).kind in "iu"
        else ["1.5", "-3", "1e3", "INF", "+inf", "-INF", "NaN"]
    )
    check("Cast", [np.array(words, object)], opset=13, to=NUMBERS[DType(np.dtype(target).name)])


def test_writing_text() -> None:
    x = np.array([0, 1, -0.0, 314.15926, 0.1, 1e10, 123456789, 1 / 3, np.inf, -np.inf, np.nan, 1.5e6], np.float32)
    for values in (x, x[np.abs(x) < 1000].astype(np.float16), np.array([-3, 200]), np.array([True, False])):
        check("Cast", [values], opset=13, to=8)
    exact = np.array(["0.1", "314.15926", "1e+20", "2"], object)
    check("Cast", [np.array([0.1, 314.15926, 1e20, 2])], opset=13, to=8, expected=[exact])
    check("Cast", [np.array(["a", ""], object)], opset=13, to=8)


def test_mistakes() -> None:
    words = [np.array(["five"], object)]
    with pytest.raises(ExecutionError, match="five"):
        run_weft(node_model("Cast", words, opset=13, to=1), words)
    with pytest.raises(WeftError, match="99"):
        run_weft(node_model("Cast", [np.zeros(1)], opset=13, to=99), [np.zeros(1)])
    with pytest.raises(WeftError, match="sideways"):
        run_weft(node_model("Cast", [np.zeros(1)], opset=24, to=24, round_mode="sideways"), [np.zeros(1)])
