"""Test the quantization of weights: integers in range, small errors, and packing."""

from __future__ import annotations

import numpy as np
import pytest

from weft.quantization import weights
from weft.quantization.weights import (
    channel_scales,
    pack_blocks,
    quantize_bias,
    quantize_blocks,
    quantize_channels,
)

SEED = 11


@pytest.mark.parametrize("axis", [0, 1, 3])
def test_channels(axis: int) -> None:
    array = np.random.default_rng(SEED).standard_normal((4, 5, 3, 6)).astype(np.float32)
    array[(slice(None),) * axis + (1,)] = 0  # a channel of zeros
    scales = channel_scales(array, axis)
    integers = quantize_channels(array, axis, scales)
    shape = [-1 if each == axis else 1 for each in range(4)]
    assert np.abs(integers * scales.reshape(shape) - array).max() <= scales.max() * 0.501
    assert integers.min() >= -127
    assert np.isfinite(scales).all()


def test_scales_grow_so_that_the_bias_fits_into_32_bits() -> None:
    array, bias = np.full((2, 3), 1e-6, np.float32), np.array([1e3, 1e-3], np.float32)
    input_scale = 1e-6
    scales = channel_scales(array, 0, bias, input_scale)
    integers = quantize_bias(bias, scales.astype(np.float64) * input_scale)
    np.testing.assert_allclose(integers * scales * input_scale, bias, rtol=1e-5)


@pytest.mark.parametrize("depth", [32, 50, 96])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_blocks(depth: int, dtype: type, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = np.random.default_rng(SEED).standard_normal((7, depth)).astype(dtype)
    rows[2] = 0
    quantized = quantize_blocks(rows, 32)
    blocks = -(-depth // 32)
    assert quantized.scales.shape == (7, blocks)
    assert quantized.scales.dtype == dtype
    wide = np.repeat(quantized.scales.astype(np.float32), 32, axis=1)[:, :depth]
    noise = np.linalg.norm(quantized.integers * wide - rows) / np.linalg.norm(rows)
    assert noise < 0.11
    plain = np.abs(rows.astype(np.float32)).max(axis=1, keepdims=True) / 7
    whole = np.clip(np.rint(rows / np.where(plain == 0, 1, plain)), -8, 7) * plain
    assert noise < np.linalg.norm(whole - rows) / np.linalg.norm(rows)
    monkeypatch.setattr(weights, "CHUNK", 100)
    again = quantize_blocks(rows, 32)
    assert (again.integers == quantized.integers).all()
    assert (again.scales == quantized.scales).all()


def test_packing() -> None:
    rows = np.zeros((1, 40), np.float32)
    rows[0, :3] = (-8, 7, 1)
    quantized = quantize_blocks(rows, 32)
    packed = pack_blocks(quantized, 32)
    assert packed.shape == (1, 2, 16)
    low, high = packed & 15, packed >> 4
    integers = np.stack([low, high], -1).reshape(1, -1).astype(int) - 8
    assert (integers[:, :40] == quantized.integers).all()
    assert (integers[:, 40:] == 0).all()
