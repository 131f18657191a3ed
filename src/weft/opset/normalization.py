"""Normalization by the statistics of a batch, a layer, a group or neighbouring channels, or by a norm."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from weft.ir import dims
from weft.ir.dtypes import DType, from_number
from weft.opset.functions import absolute, cast, equal, sqrt, where, wide_dtype
from weft.opset.language import (
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
from weft.opset.registry import REQUIRED, ElementType, normalize_axes, normalize_axis, op, require

FLOAT32_EPSILON = 1e-05
UNROLLED = 7  # neighbouring channels, at most, that are added up in one expression


@op("BatchNormalization", outputs=(1, 5))
def batch_normalization_1(
    x: Tensor,
    scale: Tensor,
    bias: Tensor,
    mean: Tensor,
    variance: Tensor,
    *,
    epsilon: float = FLOAT32_EPSILON,
    momentum: float = 0.9,
    spatial: int = 1,
    is_test: int = 0,
    consumed_inputs: tuple[int, ...] | None = None,
    output_count: int = 1,
) -> list[Tensor]:
    if spatial:
        return _batch_normalization(x, scale, bias, mean, variance, epsilon, momentum, output_count)
    count = dims.product(x.shape[1:])
    rows = reshape(x, [x.shape[0], count])
    factor, offset, average, running_variance = (reshape(tensor, [count]) for tensor in (scale, bias, mean, variance))
    results = _batch_normalization(rows, factor, offset, average, running_variance, epsilon, momentum, output_count)
    return [reshape(results[0], x.shape), *(reshape(result, scale.shape) for result in results[1:])]


@op("BatchNormalization", since=9, outputs=(1, 5))
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


@op("BatchNormalization", since=14, outputs=(1, 3))
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
    """Normalize; several outputs mean training, where statistics of this batch are used and update the running ones."""
    require(x.rank >= 1, f"batch normalization of {x.type}")
    x = expand_dims(x, [1]) if x.rank == 1 else x
    wide = wide_dtype(x.dtype)
    if output_count == 1:
        return [_scale_channels(x, scale, bias, running_mean, running_variance, epsilon, wide)]
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
    """Compute x * factor + offset per channel; both are constants where the statistics are."""
    channels = x.shape[1]
    for tensor in (scale, bias, average, variance):
        require(tensor.rank == 1, f"one number per channel is needed, not {tensor.type}")
        assume_equal(tensor.shape[0], channels, "one number per channel")
    factor = elementwise(lambda s, v: cast(s, wide) / sqrt(cast(v, wide) + epsilon), scale, variance)
    offset = elementwise(lambda b, m, f: cast(b, wide) - cast(m, wide) * f, bias, average, factor)
    return build(x.shape, lambda *i: cast(cast(x.at(*i), wide) * factor.at(i[1]) + offset.at(i[1]), x.dtype))


def moments(x: Tensor, axes: Sequence[int], keep: bool = False) -> tuple[Tensor, Tensor]:
    """Compute mean and variance along `axes`, in two passes."""
    average = mean(x, axes, keep=True)
    variance = mean(elementwise(lambda v, m: (v - m) * (v - m), x, average), axes, keep)
    if keep:
        return average, variance
    return reshape(average, variance.shape), variance


@op("InstanceNormalization")
def instance_normalization(x: Tensor, scale: Tensor, bias: Tensor, *, epsilon: float = FLOAT32_EPSILON) -> Tensor:
    require(x.rank >= 2, f"instance normalization of {x.type}")
    for tensor in (scale, bias):
        assume_equal(tensor.size, x.shape[1], "one number per channel")
    wide = wide_dtype(x.dtype)
    average, inverse = _compute_statistics(cast(x, wide), range(2, x.rank), epsilon)

    def element(*i: Element) -> Element:
        channel_indices: tuple[Element | int, ...] = (*i[:2], *(0 for _ in i[2:]))
        normalized = (cast(x.at(*i), wide) - average.at(*channel_indices)) * inverse.at(*channel_indices)
        return cast(normalized * cast(scale.at(i[1]), wide) + cast(bias.at(i[1]), wide), x.dtype)

    return build(x.shape, element)


@op("LayerNormalization", since=17, outputs=(1, 3))
def layer_normalization(
    x: Tensor,
    scale: Tensor,
    bias: Tensor | None = None,
    *,
    axis: int = -1,
    epsilon: float = FLOAT32_EPSILON,
    stash_type: ElementType = 1,
    **ignored: Any,  # onnxruntime checks no attributes of this operator
) -> tuple[Tensor, Tensor, Tensor]:
    stash = from_number(stash_type)
    wide = _choose_statistics_type(x.dtype, stash)
    axes = range(normalize_axis(axis, x.rank), x.rank)
    average, inverse = _compute_statistics(cast(x, wide), axes, epsilon)

    def element(v: Element, m: Element, r: Element, s: Element, *b: Element) -> Element:
        scaled = cast((cast(v, wide) - m) * r, x.dtype) * s
        return scaled + b[0] if b else scaled

    result = elementwise(element, x, average, inverse, scale, *(() if bias is None else (bias,)))
    return result, cast(average, stash), cast(inverse, stash)


@op("RMSNormalization", since=23)
def rms_normalization(
    x: Tensor, scale: Tensor, *, axis: int = -1, epsilon: float = FLOAT32_EPSILON, stash_type: ElementType = 1
) -> Tensor:
    wide = _choose_statistics_type(x.dtype, from_number(stash_type))
    axes = range(normalize_axis(axis, x.rank), x.rank)
    squares = mean(elementwise(lambda v: cast(v, wide) * cast(v, wide), x), axes, keep=True)
    root = elementwise(lambda v: sqrt(v + epsilon), squares)
    return elementwise(lambda v, r, s: cast(cast(v, wide) / r, x.dtype) * s, x, root, scale)


@op("GroupNormalization", since=18)
def group_normalization_18(
    x: Tensor, scale: Tensor, bias: Tensor, *, epsilon: float = FLOAT32_EPSILON, num_groups: int = REQUIRED
) -> Tensor:
    shape = (1, num_groups, 1, 1)
    return _group_normalization(x, reshape(scale, shape), reshape(bias, shape), epsilon, num_groups, DType.float32)


@op("GroupNormalization", since=21)
def group_normalization(
    x: Tensor,
    scale: Tensor,
    bias: Tensor,
    *,
    epsilon: float = FLOAT32_EPSILON,
    num_groups: int = REQUIRED,
    stash_type: ElementType = 1,
) -> Tensor:
    require(num_groups > 0, f"num_groups is {num_groups}")
    shape = (1, num_groups, dims.floordiv(x.shape[1], num_groups), 1)
    stash = from_number(stash_type)
    return _group_normalization(x, reshape(scale, shape), reshape(bias, shape), epsilon, num_groups, stash)


def _group_normalization(x: Tensor, scale: Tensor, bias: Tensor, epsilon: float, groups: int, stash: DType) -> Tensor:
    require(x.rank >= 2 and groups > 0, f"{groups} groups of the channels of {x.type}")
    wide = _choose_statistics_type(x.dtype, stash)
    channels = dims.floordiv(x.shape[1], groups)
    grouped = reshape(x, (x.shape[0], groups, channels, dims.product(x.shape[2:])))
    average, inverse = _compute_statistics(cast(grouped, wide), (2, 3), epsilon)
    result = elementwise(
        lambda v, m, r, s, b: cast((cast(v, wide) - m) * r, x.dtype) * s + b, grouped, average, inverse, scale, bias
    )
    return reshape(result, x.shape)


@op("MeanVarianceNormalization", since=9)
def mean_variance_normalization(x: Tensor, *, axes: tuple[int, ...] = (0, 2, 3)) -> Tensor:
    wide = wide_dtype(x.dtype)
    average, variance = moments(cast(x, wide), normalize_axes(axes, x.rank), keep=True)
    return elementwise(lambda v, m, s: cast((cast(v, wide) - m) / (sqrt(s) + 1e-9), x.dtype), x, average, variance)


@op("LpNormalization")
def lp_normalization(x: Tensor, *, axis: int = -1, p: int = 2) -> Tensor:
    """Divide by the norm; where that is 0, so is the result."""
    require(p in (1, 2), f"p is {p}", "only 1 and 2 are allowed")
    wide = wide_dtype(x.dtype)
    power = (lambda v: absolute(cast(v, wide))) if p == 1 else (lambda v: cast(v, wide) * cast(v, wide))
    total = reduce("sum", elementwise(power, x), [normalize_axis(axis, x.rank)], keep=True)
    norm = total if p == 1 else elementwise(sqrt, total)
    return elementwise(
        lambda v, n: cast(where(equal(n, 0.0), 0.0, cast(v, wide) / where(equal(n, 0.0), 1.0, n)), x.dtype), x, norm
    )


@op("LRN")
def local_response_normalization(
    x: Tensor, *, alpha: float = 0.0001, beta: float = 0.75, bias: float = 1.0, size: int = REQUIRED
) -> Tensor:
    require(x.rank >= 2 and size > 0, f"a window of {size} channels of {x.type}")
    wide = wide_dtype(x.dtype)

    def normalized(v: Element, total: Element) -> Element:
        base = total * (alpha / size) + bias
        if beta == 0.75 and alpha >= 0 and bias >= 0:  # the base is not negative; roots are faster than a power
            divisor = sqrt(base) * sqrt(sqrt(base))
        else:
            divisor = base**beta
        return cast(cast(v, wide) / divisor, x.dtype)

    if size > UNROLLED:
        return elementwise(normalized, x, _sum_squares(x, size))

    def element(*i: Element) -> Element:
        total: Any = 0.0
        for channel in (i[1] + number - (size - 1) // 2 for number in range(size)):
            v = cast(where((channel >= 0) & (channel < x.shape[1]), x.at(i[0], channel, *i[2:]), 0), wide)
            total = v * v + total
        return normalized(x.at(*i), total)

    return build(x.shape, element)


def _sum_squares(x: Tensor, size: int) -> Tensor:
    """Add up squares over `size` neighbouring channels."""
    wide = wide_dtype(x.dtype)
    batch, channels = x.shape[:2]
    squares = elementwise(lambda v: cast(v, wide) * cast(v, wide), x)
    # a window larger than the channels adds only zeros
    before, after = (dims.minimum(side, dims.maximum(channels - 1, 0)) for side in ((size - 1) // 2, size // 2))
    total = pool(
        "sum",
        reshape(squares, (batch, 1, channels, dims.product(x.shape[2:]))),
        window=(before + 1 + after, 1),
        strides=(1, 1),
        dilations=(1, 1),
        pads=((before, after), (0, 0)),
        spatial=(channels, dims.product(x.shape[2:])),
    )
    return reshape(total, x.shape)


def _compute_statistics(x: Tensor, axes: Sequence[int], epsilon: float) -> tuple[Tensor, Tensor]:
    """Compute mean and reciprocal of the standard deviation along `axes`, which keep size 1."""
    average, variance = moments(x, axes, keep=True)
    return average, elementwise(lambda v: 1.0 / sqrt(v + epsilon), variance)


def _choose_statistics_type(dtype: DType, stash: DType) -> DType:
    """Return the type for statistics: the stash type, or the input's own if that is more precise."""
    require(stash.is_float, f"stash_type {stash} is no floating-point type")
    return stash if stash.bits >= dtype.bits else dtype
