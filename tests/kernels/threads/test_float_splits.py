"""Constants for tile products: float32 as sums of bfloat16."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from weft.ir.dtypes import DType
from weft.kernels.threads.float_splits import convert_array

LARGE = 3.4e38  # rounds to an infinity in bfloat16
SPECIAL = np.float32([np.inf, -np.inf, np.nan, LARGE, -LARGE, 0.0, -0.0, 1.0])


def split(array: np.ndarray[Any, Any], planes: int = 3) -> np.ndarray[Any, Any]:
    return convert_array(array, DType.bfloat16, planes).astype(np.float32)


@pytest.mark.parametrize("shape", [(0, 3), (7,), (257, 391)])
def test_planes_add_up(shape: tuple[int, ...]) -> None:
    """Three planes have all bits of a float32, wherever it is in the array."""
    random = np.random.default_rng(0)
    array = (random.standard_normal(shape) * 10.0 ** random.integers(-9, 9, shape)).astype(np.float32)
    for source in (array, array.T, array[::2]):
        parts = split(source)
        assert parts.shape == (3, *source.shape)
        np.testing.assert_array_equal(parts.astype(np.float64).sum(axis=0), source.astype(np.float64))
        np.testing.assert_array_equal(split(source, 2), parts[:2])


def test_special_numbers() -> None:
    """The last plane has infinities and NaN; the first has their sign. Other numbers beside them are split as usual."""
    array = np.random.default_rng(1).standard_normal(1 << 17).astype(np.float32)
    usual = split(array)
    places = np.arange(8) * 16001
    array[places] = SPECIAL
    first, second, last = parts = split(array)
    np.testing.assert_array_equal(np.delete(parts, places, 1), np.delete(usual, places, 1))
    np.testing.assert_array_equal(first[places[:3]], [1, -1, -1])
    np.testing.assert_array_equal(second[places[:3]], 0)
    np.testing.assert_array_equal(last[places[:3]], SPECIAL[:3])
    np.testing.assert_array_equal(parts.astype(np.float64).sum(axis=0)[places[3:]], SPECIAL[3:].astype(np.float64))
