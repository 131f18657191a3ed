"""Weights as small integers: int8 with a scale for each output, four bits with a scale for each block of a row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from weft.ir.arrays import Array

MOST_INT8 = 127  # so that a weight and its negative are both there
MOST_INT4, LEAST_INT4 = 7, -8
PIECE = 1 << 22  # weights that are coded at once
LARGEST_BIAS = 0.9 * 2**31
SHRINKS = (1.0, 0.96, 0.92, 0.88, 0.84, 0.8, 0.75, 0.7)  # of a block's range: clipping a few may serve the others
TINIEST = float(np.finfo(np.float32).tiny)


@dataclass(frozen=True, slots=True)
class CodedWeights:
    """Integers and the scales that they stand with."""

    codes: Array
    scales: Array


def channel_scales(weights: Array, axis: int, bias: Array | None = None, input_scale: float = 1.0) -> Array:
    """A scale for each index along an axis, large enough for a bias in 32 bits, too."""
    others = tuple(each for each in range(weights.ndim) if each != axis)
    scales = np.abs(weights).max(axis=others).astype(np.float64) / MOST_INT8
    if bias is not None:
        scales = np.maximum(scales, np.abs(bias.astype(np.float64)) / (input_scale * LARGEST_BIAS))
    return np.where(scales > TINIEST, scales, 1.0).astype(np.float32)


def coded_channels(weights: Array, axis: int, scales: Array) -> Array:
    """The weights as int8, by these scales."""
    shape = [1] * weights.ndim
    shape[axis] = -1
    codes = np.rint(weights / scales.reshape(shape))
    return np.clip(codes, -MOST_INT8, MOST_INT8).astype(np.int8)


def coded_bias(bias: Array, scales: Array) -> Array:
    """A bias as int32, by the scales of the products that it is added to."""
    return np.rint(bias.astype(np.float64) / scales).astype(np.int32)


def coded_blocks(rows: Array, block: int) -> CodedWeights:
    """Rows [N, K] as codes from -8 to 7 [N, K] and scales [N, blocks], by what leaves the least error in each block."""
    at_once = max(1, PIECE // max(1, rows.shape[1]))
    pieces = [_coded_rows(rows[start : start + at_once], block) for start in range(0, len(rows), at_once)]
    return CodedWeights(
        np.concatenate([piece.codes for piece in pieces]), np.concatenate([piece.scales for piece in pieces])
    )


def _coded_rows(rows: Array, block: int) -> CodedWeights:
    count, depth = rows.shape
    blocks = -(-depth // block)
    padded = np.zeros((count, blocks * block), np.float32)
    padded[:, :depth] = rows
    parts = padded.reshape(count, blocks, block)
    extreme = np.take_along_axis(parts, np.abs(parts).argmax(axis=2)[..., None], axis=2)[..., 0]
    best = extreme / LEAST_INT4  # the largest has the code -8, whatever its sign is
    least = np.full(best.shape, np.inf, np.float32)
    for shrink in SHRINKS:
        scales = _usable(extreme * np.float32(shrink / LEAST_INT4), rows.dtype)
        found = _codes(parts, scales) * scales[..., None] - parts
        error = np.einsum("nbk,nbk->nb", found, found)
        better = error < least
        best, least = np.where(better, scales, best), np.where(better, error, least)
    scales = _usable(best, rows.dtype)
    codes = _codes(parts, scales).astype(np.int8).reshape(count, blocks * block)
    return CodedWeights(codes[:, :depth], scales.astype(rows.dtype))


def packed_blocks(coded: CodedWeights, block: int) -> Array:
    """Codes as bytes [N, blocks, block / 2]: two to a byte, the first in the low half, 8 standing for 0."""
    count, depth = coded.codes.shape
    blocks = coded.scales.shape[1]
    shifted = np.full((count, blocks * block), -LEAST_INT4, np.uint8)
    shifted[:, :depth] = (coded.codes - LEAST_INT4).astype(np.uint8)
    pairs = shifted.reshape(count, blocks, block // 2, 2)
    return np.ascontiguousarray(pairs[..., 0] | pairs[..., 1] << 4)


def as_int4(codes: Array) -> Array:
    return codes.astype(ml_dtypes.int4)


def _usable(scales: Array, dtype: np.dtype[Any]) -> Array:
    """Scales as a file will hold them, none of them 0."""
    stored = scales.astype(dtype).astype(np.float32)
    return np.where(stored == 0, np.float32(1), stored)


def _codes(parts: Array, scales: Array) -> Array:
    return np.clip(np.rint(parts / scales[..., None]), LEAST_INT4, MOST_INT4)
