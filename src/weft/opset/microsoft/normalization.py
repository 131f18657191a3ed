"""Layer, root-mean-square and group normalization, fused with sums and embeddings before them.

onnxruntime also has layer normalizations of its own in the default domain, older than ONNX's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from weft.ir import dims
from weft.ir.dtypes import DType
from weft.opset import registry
from weft.opset.functions import cast, equal, sigmoid, sqrt, wide_dtype
from weft.opset.language import (
    Element,
    Tensor,
    build,
    elementwise,
    expand_dims,
    full,
    gather,
    mean,
    reduce,
    reshape,
)
from weft.opset.microsoft.domain import op
from weft.opset.microsoft.scales import dequantize_tensor
from weft.opset.normalization import layer_normalization, moments
from weft.opset.registry import REQUIRED, ElementType, normalize_axis, require

registry.op("LayerNormalization", since=1, outputs=(1, 3))(layer_normalization)


@registry.op("SimplifiedLayerNormalization", since=1, outputs=(1, 2))
def simplified_layer_normalization(
    x: Tensor,
    scale: Tensor,
    *,
    axis: int = -1,
    epsilon: float = 1e-5,
    stash_type: ElementType = 1,
    **ignored: Any,  # onnxruntime checks no attributes of this operator
) -> tuple[Tensor, Tensor]:
    """Divide by the root mean square of the dimensions from `axis` on."""
    axes = range(normalize_axis(axis, x.rank), x.rank)
    wide = wide_dtype(x.dtype)
    squares = mean(elementwise(lambda v: cast(v, wide) * cast(v, wide), x), axes, keep=True)
    inverse = elementwise(lambda v: 1.0 / sqrt(v + epsilon), squares)
    return _scale_rows(x, inverse, scale), inverse


def _scale_rows(
    x: Tensor, inverse: Tensor, scale: Tensor, average: Tensor | None = None, bias: Tensor | None = None
) -> Tensor:
    """Compute (x - average) * inverse * scale + bias in the dtype of the statistics, cast to x's dtype."""
    wide = inverse.dtype
    present = [tensor for tensor in (average, bias) if tensor is not None]

    def element(v: Element, r: Element, s: Element, *parameters: Element) -> Element:
        optional = iter(parameters)
        centred = cast(v, wide) if average is None else cast(v, wide) - next(optional)
        result = centred * r * cast(s, wide)
        return cast(result if bias is None else result + cast(next(optional), wide), x.dtype)

    return elementwise(element, x, inverse, scale, *present)


@op("SkipLayerNormalization", outputs=(1, 4))
def skip_layer_normalization(
    x: Tensor,
    skip: Tensor,
    gamma: Tensor,
    beta: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    epsilon: float = 1e-12,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    total = _add_up(x, skip, bias)
    average, inverse = _compute_statistics(total, epsilon)
    return _scale_rows(total, inverse, gamma, average, beta), average, inverse, total


@op("SkipSimplifiedLayerNormalization", outputs=(1, 4))
def skip_simplified_layer_normalization(
    x: Tensor, skip: Tensor, gamma: Tensor, bias: Tensor | None = None, *, epsilon: float = 1e-12
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    total = _add_up(x, skip, bias)
    result, inverse = simplified_layer_normalization(total, gamma, epsilon=epsilon)
    return result, full(inverse.shape, 0.0, inverse.dtype), inverse, total


def _add_up(x: Tensor, *addends: Tensor | None) -> Tensor:
    wide = wide_dtype(x.dtype)
    present = [tensor for tensor in addends if tensor is not None]

    def element(*values: Element) -> Element:
        result = cast(values[0], wide)
        for value in values[1:]:
            result = result + cast(value, wide)
        return cast(result, x.dtype)

    return elementwise(element, x, *present)


def _compute_statistics(x: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    """Compute mean and reciprocal standard deviation of each row."""
    average, variance = moments(cast(x, wide_dtype(x.dtype)), [x.rank - 1], keep=True)
    return average, elementwise(lambda v: 1.0 / sqrt(v + epsilon), variance)


@op("EmbedLayerNormalization", outputs=(1, 3))
def embed_layer_normalization(
    input_ids: Tensor,
    segment_ids: Tensor | None,
    word_embedding: Tensor,
    position_embedding: Tensor,
    segment_embedding: Tensor | None,
    gamma: Tensor,
    beta: Tensor,
    mask: Tensor | None = None,
    position_ids: Tensor | None = None,
    *,
    epsilon: float = 1e-12,
    mask_index_type: int | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    require(input_ids.rank == 2, f"word ids {input_ids.type} must have a batch and a sequence")
    words = gather(word_embedding, input_ids, 0)
    if position_ids is None:
        positions = build(input_ids.shape[1:], lambda i: i)
    else:
        positions = position_ids
    position_rows = gather(position_embedding, positions, 0)
    segments = None
    if segment_ids is not None and segment_embedding is not None:
        segments = gather(segment_embedding, segment_ids, 0)
    total = _add_up(words, position_rows, segments)
    average, inverse = _compute_statistics(total, epsilon)
    return _scale_rows(total, inverse, gamma, average, beta), _count_words(input_ids, mask), total


def _count_words(input_ids: Tensor, mask: Tensor | None) -> Tensor:
    """Count the words of each sequence; without a mask 0."""
    if mask is None:
        return full(input_ids.shape[:1], 0, DType.int32)
    return reduce("sum", elementwise(lambda v: cast(equal(v, 1), DType.int32), mask), [1])


@op("QEmbedLayerNormalization", outputs=(2, 2))
def quantized_embed_layer_normalization(
    input_ids: Tensor,
    segment_ids: Tensor | None,
    word_embedding: Tensor,
    position_embedding: Tensor,
    segment_embedding: Tensor | None,
    gamma: Tensor,
    beta: Tensor,
    mask: Tensor | None,
    word_scale: Tensor,
    position_scale: Tensor,
    segment_scale: Tensor | None,
    gamma_scale: Tensor,
    beta_scale: Tensor,
    word_zero_point: Tensor,
    position_zero_point: Tensor,
    segment_zero_point: Tensor | None,
    gamma_zero_point: Tensor,
    beta_zero_point: Tensor,
    *,
    epsilon: float = 1e-12,
) -> list[Tensor]:
    segments = None
    if segment_embedding is not None and segment_scale is not None and segment_zero_point is not None:
        segments = dequantize_tensor(segment_embedding, segment_scale, segment_zero_point)
    results = embed_layer_normalization(
        input_ids,
        segment_ids,
        dequantize_tensor(word_embedding, word_scale, word_zero_point),
        dequantize_tensor(position_embedding, position_scale, position_zero_point),
        segments,
        dequantize_tensor(gamma, gamma_scale, gamma_zero_point),
        dequantize_tensor(beta, beta_scale, beta_zero_point),
        mask,
        epsilon=epsilon,
    )
    return list(results[:2])


@op("GroupNorm")
def group_norm(
    x: Tensor,
    gamma: Tensor,
    beta: Tensor,
    *,
    activation: int = REQUIRED,
    channels_last: int = 1,
    epsilon: float = 1e-5,
    groups: int = REQUIRED,
) -> Tensor:
    require(activation in (0, 1), f"activation is {activation}", "0 is none, 1 is SiLU")
    require(x.rank >= 2 and groups > 0, f"{groups} groups of the channels of {x.type}")
    axis = x.rank - 1 if channels_last else 1
    size = dims.floordiv(x.shape[axis], groups)
    grouped = cast(reshape(x, (*x.shape[:axis], groups, size, *x.shape[axis + 1 :])), DType.float32)
    average, variance = moments(grouped, [a for a in range(1, grouped.rank) if a != axis], keep=True)

    def element(*i: Element) -> Element:
        channel = i[axis]
        group_indices = [channel // size if a == axis else i[0] if a == 0 else 0 for a in range(grouped.rank)]
        centred = cast(x.at(*i), DType.float32) - average.at(*group_indices)
        scale = cast(gamma.at(channel), DType.float32) / sqrt(variance.at(*group_indices) + epsilon)
        result = centred * scale + cast(beta.at(channel), DType.float32)
        return cast(result * sigmoid(result) if activation else result, x.dtype)

    return build(x.shape, element)


@op("SkipGroupNorm", outputs=(1, 2))
def skip_group_norm(
    x: Tensor,
    gamma: Tensor,
    beta: Tensor,
    skip: Tensor,
    bias: Tensor | None = None,
    *,
    activation: int = REQUIRED,
    channels_last: int = 1,
    epsilon: float = 1e-5,
    groups: int = REQUIRED,
) -> tuple[Tensor, Tensor]:
    add_spatial_axes: Callable[[Tensor], Tensor] = lambda tensor: tensor  # noqa: E731
    if not channels_last:
        add_spatial_axes = lambda tensor: expand_dims(tensor, range(tensor.rank, tensor.rank + x.rank - 2))  # noqa: E731
    if skip.rank == 2:
        skip = expand_dims(skip, range(1, x.rank - 1)) if channels_last else add_spatial_axes(skip)
    total = _add_up(x, skip, None if bias is None else add_spatial_axes(bias))
    result = group_norm(
        total, gamma, beta, activation=activation, channels_last=channels_last, epsilon=epsilon, groups=groups
    )
    return result, total
