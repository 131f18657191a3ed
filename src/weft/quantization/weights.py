"""Quantize weights: int8 with a scale for each output channel, int4 with a scale for each block of a row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from weft.ir.arrays import Array

MOST_INT8 = 127  # symmetric: -128 is not used
MOST_INT4, LEAST_INT4 = 7, -8
CHUNK = 1 << 22  # weights that are quantized at once
LARGEST_BIAS = 0.9 * 2**31
SHRINKS = (
    1.0,
    0.96,
    0.92,
    0.88,
    0.84,
    0.8,
    0.75,
    0.7,
)  # of a block's range: clipping may reduce the error
TINIEST = float(np.finfo(np.float32).tiny)


@dataclass(frozen=True, slots=True)
class QuantizedWeights:
    """Integers and their scales."""

    integers: Array
    scales: Array


def channel_scales(weights: Array, axis: int, bias: Array | None = None, input_scale: float = 1.0) -> Array:
    """Return a scale for each index along an axis, large enough that the bias fits into 32 bits."""
    others = tuple(each for each in range(weights.ndim) if each != axis)
    scales = np.abs(weights).max(axis=others).astype(np.float64) / MOST_INT8
    if bias is not None:
        scales = np.maximum(scales, np.abs(bias.astype(np.float64)) / (input_scale * LARGEST_BIAS))
    return np.where(scales > TINIEST, scales, 1.0).astype(np.float32)


def quantize_channels(weights: Array, axis: int, scales: Array) -> Array:
    """Quantize weights to int8 with a scale for each index along an axis."""
    shape = [1] * weights.ndim
    shape[axis] = -1
    return np.clip(np.rint(weights / scales.reshape(shape)), -MOST_INT8, MOST_INT8).astype(np.int8)


def quantize_bias(bias: Array, scales: Array) -> Array:
    """Quantize a bias to int32 with the scales of the products that it is added to."""
    return np.rint(bias.astype(np.float64) / scales).astype(np.int32)


def quantize_blocks(rows: Array, block: int) -> QuantizedWeights:
    """Quantize rows [N, K] to -8..7 [N, K] with scales [N, blocks] that minimise the error of each block."""
    step = max(1, CHUNK // max(1, rows.shape[1]))
    chunks = [_quantize_rows(rows[start : start + step], block) for start in range(0, len(rows), step)]
    return QuantizedWeights(
        np.concatenate([chunk.integers for chunk in chunks]), np.concatenate([chunk.scales for chunk in chunks])
    )


def _quantize_rows(rows: Array, block: int) -> QuantizedWeights:
    count, depth = rows.shape
    blocks = -(-depth // block)
    padded = np.zeros((count, blocks * block), np.float32)
    padded[:, :depth] = rows
    weights = padded.reshape(count, blocks, block)
    extreme = np.take_along_axis(weights, np.abs(weights).argmax(axis=2)[..., None], axis=2)[..., 0]
    best = extreme / LEAST_INT4  # the weight of the largest magnitude becomes -8, whatever its sign
    least = np.full(best.shape, np.inf, np.float32)
    for shrink in SHRINKS:
        scales = _round_scales(extreme * np.float32(shrink / LEAST_INT4), rows.dtype)
        difference = _round_to_int4(weights, scales) * scales[..., None] - weights
        error = np.einsum("nbk,nbk->nb", difference, difference)
        better = error < least
        best, least = np.where(better, scales, best), np.where(better, error, least)
    scales = _round_scales(best, rows.dtype)
    integers = _round_to_int4(weights, scales).astype(np.int8).reshape(count, blocks * block)
    return QuantizedWeights(integers[:, :depth], scales.astype(rows.dtype))


def pack_blocks(quantized: QuantizedWeights, block: int) -> Array:
    """Pack integers into bytes [N, blocks, block / 2]: two per byte, the first in the low half, with zero point 8."""
    count, depth = quantized.integers.shape
    blocks = quantized.scales.shape[1]
    shifted = np.full((count, blocks * block), -LEAST_INT4, np.uint8)
    shifted[:, :depth] = (quantized.integers - LEAST_INT4).astype(np.uint8)
    pairs = shifted.reshape(count, blocks, block // 2, 2)
    return np.ascontiguousarray(pairs[..., 0] | pairs[..., 1] << 4)


def as_int4(integers: Array) -> Array:
    return integers.astype(ml_dtypes.int4)


def _round_scales(scales: Array, dtype: np.dtype[Any]) -> Array:
    """Round scales to the type in which they are stored, and replace 0 by 1."""
    stored = scales.astype(dtype).astype(np.float32)
    return np.where(stored == 0, np.float32(1), stored)


def _round_to_int4(weights: Array, scales: Array) -> Array:
    return np.clip(np.rint(weights / scales[..., None]), LEAST_INT4, MOST_INT4)
