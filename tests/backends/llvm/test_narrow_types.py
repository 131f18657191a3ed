"""Types of 8 bits and fewer in kernels, against ml_dtypes: every code, and numbers between them."""

from __future__ import annotations

import numpy as np
import pytest
from kernels.vector.works import TARGET, run_work, tensor_of

from weft.ir import dims
from weft.ir.dtypes import DType
from weft.ir.layout import row_major
from weft.ir.scalar import Apply, Index, Load
from weft.kernels.lower.tensors import StoredTensor
from weft.kernels.vector.maps import build_map

FLOATS = [dtype for dtype in DType if dtype.is_float and dtype.bits <= 8]
INTEGERS = [dtype for dtype in DType if dtype.is_integer and dtype.bits < 8]


def apply(function: str, arrays: list[np.ndarray], kinds: list[DType], result: DType) -> np.ndarray:
    """An element-wise function of one-dimensional arrays, as a kernel."""
    shape = arrays[0].shape
    loads = tuple(Load(n, (Index(dims.axis(0, shape[0])),), kind) for n, kind in enumerate(kinds))
    out = StoredTensor(result, shape, row_major(1))
    work = build_map(Apply(function, loads, result), [tensor_of(array, row_major(1)) for array in arrays], out, TARGET)
    (actual,), _ = run_work(work, [(array, row_major(1)) for array in arrays], [out], {})
    return np.asarray(actual)


def floats() -> np.ndarray:
    """Every exponent with many fractions, halfway cases and their neighbours among them; infinities and NaN."""
    upper = np.arange(1 << 16, dtype=np.uint32) << 16
    return np.concatenate([upper + low for low in (0, 1, 0x7FFF, 0x8000, 0xFFFF)]).view(np.float32)


def codes(dtype: DType) -> np.ndarray:
    return np.arange(1 << dtype.bits, dtype=np.uint8).view(dtype.numpy)


def assert_same_codes(actual: np.ndarray, expected: np.ndarray, inputs: np.ndarray) -> None:
    wrong = np.flatnonzero(actual.view(np.uint8) != expected.view(np.uint8))
    assert not len(wrong), [(inputs[n], actual.view(np.uint8)[n], expected.view(np.uint8)[n]) for n in wrong[:5]]


@pytest.mark.parametrize("dtype", FLOATS)
def test_widening(dtype: DType) -> None:
    actual = apply("cast", [codes(dtype)], [dtype], DType.float32)
    np.testing.assert_array_equal(actual, codes(dtype).astype(np.float32))


@pytest.mark.parametrize("source", [DType.float32, DType.float64, DType.float16, DType.bfloat16])
@pytest.mark.parametrize("dtype", FLOATS)
def test_narrowing(dtype: DType, source: DType) -> None:
    with np.errstate(all="ignore"):
        inputs = floats().astype(source.numpy)
        expected = inputs.astype(dtype.numpy)
    assert_same_codes(apply("cast", [inputs], [source], dtype), expected, inputs)


@pytest.mark.parametrize("source", [DType.int8, DType.int32, DType.int64, DType.uint8, DType.float32])
@pytest.mark.parametrize("dtype", INTEGERS)
def test_small_integers_wrap(dtype: DType, source: DType) -> None:
    low = 0 if source.is_unsigned else -100
    inputs = np.arange(low, 100).astype(source.numpy)
    actual = apply("cast", [inputs], [source], dtype)
    assert_same_codes(actual, inputs.astype(np.int32).astype(dtype.numpy), inputs)
    np.testing.assert_array_equal(apply("cast", [actual], [dtype], DType.int32), actual.astype(np.int32))


@pytest.mark.parametrize("function", ["add", "multiply"])
@pytest.mark.parametrize("dtype", [d for d in (*FLOATS, *INTEGERS) if d is not DType.float8e8m0])
def test_arithmetic_rounds_each_result(dtype: DType, function: str) -> None:
    left, right = (part.reshape(-1).copy() for part in np.meshgrid(codes(dtype), codes(dtype)))
    with np.errstate(all="ignore"):
        expected = np.add(left, right) if function == "add" else np.multiply(left, right)
    actual = apply(function, [left, right], [dtype, dtype], dtype)
    if dtype.is_float:
        np.testing.assert_array_equal(actual.astype(np.float32), expected.astype(np.float32))
    else:
        assert_same_codes(actual, expected, left)
