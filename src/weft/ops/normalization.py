"""Normalisation: by statistics of a batch, a layer, a group, neighbouring channels, or by a norm."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from weft.ir import dims
from weft.ir.dtypes import DType, from_number
from weft.ops.functions import absolute, cast, equal, sqrt, where, wide_dtype
from weft.ops.language import (
    Element,
    Tensor,
    assume_equal,
    build,
    elementwise,
    expand_dims,
    mean,
    pool,
    reduce,
    reshape,
)
from weft.ops.registry import REQUIRED, normalize_axes, normalize_axis, op, require

FLOAT32_EPSILON = 1e-05


@op("BatchNormalization", since=7)
def batch_normalization_7(
    x: Tensor,
    scale: Tensor,
    bias: Tensor,
    mean: Tensor,
    variance: Tensor,
    *,
    epsilon: float = FLOAT32_EPSILON,
    momentum: float = 0.9,
    spatial: int = 1,
    output_count: int = 1,
) -> list[Tensor]:
    if spatial:
        return _batch_normalization(x, scale, bias, mean, variance, epsilon, momentum, output_count)
    count = dims.product(x.shape[1:])
    flat = [reshape(tensor, [count]) for tensor in (scale, bias, mean, variance)]
    results = _batch_normalization(reshape(x, [x.shape[0], count]), *flat, epsilon, momentum, output_count)
    return [reshape(results[0], x.shape), *(reshape(result, scale.shape) for result in results[1:])]


@op("BatchNormalization", since=9)
def batch_normalization_9(
    x: Tensor,
    scale: Tensor,
    bias: Tensor,
    mean: Tensor,
    variance: Tensor,
    *,
    epsilon: float = FLOAT32_EPSILON,
    momentum: float = 0.9,
    output_count: int = 1,
) -> list[Tensor]:
    return _batch_normalization(x, scale, bias, mean, variance, epsilon, momentum, output_count)


@op("BatchNormalization", since=14)
def batch_normalization(
    x: Tensor,
    scale: Tensor,
    bias: Tensor,
    mean: Tensor,
    variance: Tensor,
    *,
    epsilon: float = FLOAT32_EPSILON,
    momentum: float = 0.9,
    training_mode: int = 0,
) -> list[Tensor]:
    count = 3 if training_mode else 1
    return _batch_normalization(x, scale, bias, mean, variance, epsilon, momentum, count)


def _batch_normalization(
    x: Tensor,
    scale: Tensor,
    bias: Tensor,
    running_mean: Tensor,
    running_variance: Tensor,
    epsilon: float,
    momentum: float,
    output_count: int,
) -> list[Tensor]:
    """More than one output means training: statistics of this batch, handed on and blended into the running ones."""
    require(x.rank >= 1, f"batch normalisation of {x.type}")
    x = expand_dims(x, [1]) if x.rank == 1 else x
    wide = wide_dtype(x.dtype)
    if output_count == 1:
        y = _scale_channels(x, scale, bias, running_mean, running_variance, epsilon, wide)
        return [y]
    average, variance = moments(cast(x, wide), [axis for axis in range(x.rank) if axis != 1])
    y = _scale_channels(x, scale, bias, average, variance, epsilon, wide)
    blend = lambda old, new: cast(  # noqa: E731
        cast(old, wide) * momentum + new * (1.0 - momentum), running_mean.dtype
    )
    running = [
        elementwise(blend, running_mean, average),
        elementwise(blend, running_variance, variance),
    ]
    saved = [cast(average, running_mean.dtype), cast(variance, running_variance.dtype)]
    return [y, *running, *saved]


def _scale_channels(
    x: Tensor, scale: Tensor, bias: Tensor, average: Tensor, variance: Tensor, epsilon: float, wide: DType
) -> Tensor:
    """x * factor + offset per channel, both known in advance where the statistics are."""
    channels = x.shape[1]
    for tensor in (scale, bias, average, variance):
        require(tensor.rank == 1, f"one number per channel is needed, not {tensor.type}")
        assume_equal(tensor.shape[0], channels, "one number per channel")
    factor = elementwise(lambda s, v: cast(s, wide) / sqrt(cast(v, wide) + epsilon), scale, variance)
    offset = elementwise(lambda b, m, f: cast(b, wide) - cast(m, wide) * f, bias, average, factor)
    return build(x.shape, lambda *i: cast(cast(x.at(*i), wide) * factor.at(i[1]) + offset.at(i[1]), x.dtype))


def moments(x: Tensor, axes: Sequence[int], keep: bool = False) -> tuple[Tensor, Tensor]:
    """Mean and variance along `axes`, in two passes."""
    average = mean(x, axes, keep=True)
    spread = mean(elementwise(lambda v, m: (v - m) * (v - m), x, average), axes, keep)
    if keep:
        return average, spread
    return reshape(average, spread.shape), spread
