"""Weights as small integers: codes within bounds, near to what they stand for, packed as they are read."""

from __future__ import annotations

import numpy as np
import pytest

from weft.quantization import weights
from weft.quantization.weights import (
    channel_scales,
    coded_bias,
    coded_blocks,
    coded_channels,
    packed_blocks,
)

SEED = 11


@pytest.mark.parametrize("axis", [0, 1, 3])
def test_channels(axis: int) -> None:
    array = np.random.default_rng(SEED).standard_normal((4, 5, 3, 6)).astype(np.float32)
    array[(slice(None),) * axis + (1,)] = 0  # a channel of nothing but zeros
    scales = channel_scales(array, axis)
    codes = coded_channels(array, axis, scales)
    shape = [-1 if each == axis else 1 for each in range(4)]
    assert np.abs(codes * scales.reshape(shape) - array).max() <= scales.max() * 0.501
    assert codes.min() >= -127
    assert np.isfinite(scales).all()


def test_a_bias_that_32_bits_would_not_hold_makes_scales_larger() -> None:
    array, bias = np.full((2, 3), 1e-6, np.float32), np.array([1e3, 1e-3], np.float32)
    input_scale = 1e-6
    scales = channel_scales(array, 0, bias, input_scale)
    codes = coded_bias(bias, scales.astype(np.float64) * input_scale)
    np.testing.assert_allclose(codes * scales * input_scale, bias, rtol=1e-5)


@pytest.mark.parametrize("depth", [32, 50, 96])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_blocks(depth: int, dtype: type, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = np.random.default_rng(SEED).standard_normal((7, depth)).astype(dtype)
    rows[2] = 0
    coded = coded_blocks(rows, 32)
    blocks = -(-depth // 32)
    assert coded.scales.shape == (7, blocks)
    assert coded.scales.dtype == dtype
    wide = np.repeat(coded.scales.astype(np.float32), 32, axis=1)[:, :depth]
    noise = np.linalg.norm(coded.codes * wide - rows) / np.linalg.norm(rows)
    assert noise < 0.11
    plain = np.abs(rows.astype(np.float32)).max(axis=1, keepdims=True) / 7
    whole = np.clip(np.rint(rows / np.where(plain == 0, 1, plain)), -8, 7) * plain
    assert noise < np.linalg.norm(whole - rows) / np.linalg.norm(rows)
    monkeypatch.setattr(weights, "PIECE", 100)
    again = coded_blocks(rows, 32)
    assert (again.codes == coded.codes).all()
    assert (again.scales == coded.scales).all()


def test_packing() -> None:
    rows = np.zeros((1, 40), np.float32)
    rows[0, :3] = (-8, 7, 1)
    coded = coded_blocks(rows, 32)
    packed = packed_blocks(coded, 32)
    assert packed.shape == (1, 2, 16)
    low, high = packed & 15, packed >> 4
    codes = np.stack([low, high], -1).reshape(1, -1).astype(int) - 8
    assert (codes[:, :40] == coded.codes).all()
    assert (codes[:, 40:] == 0).all()
