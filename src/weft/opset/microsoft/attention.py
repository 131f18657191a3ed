"""Attention with its input projection: in floats, of 8-bit numbers, and of sequences packed without padding."""

from __future__ import annotations

from weft.errors import UnsupportedModelError
from weft.ir import dims
from weft.ir.dims import Dim
from weft.opset.attention import split_heads
from weft.opset.language import (
    Tensor,
    elementwise,
    matmul,
    slice_axis,
    split,
    squeeze,
    stack,
)
from weft.opset.microsoft.domain import op
from weft.opset.microsoft.heads import MASK_FILTER_VALUE, attend, extend_cache, make_mask
from weft.opset.microsoft.padding import compute_lengths, remove_padding_rows, restore_padding
from weft.opset.microsoft.quantized_products import matmul_integer_to_float
from weft.opset.registry import REQUIRED, Sizes, require


@op("Attention", outputs=(1, 2))
def attention(
    x: Tensor,
    weights: Tensor,
    bias: Tensor | None = None,
    mask_index: Tensor | None = None,
    past: Tensor | None = None,
    attention_bias: Tensor | None = None,
    past_sequence_length: Sizes | None = None,
    *,
    do_rotary: int = 0,
    mask_filter_value: float = MASK_FILTER_VALUE,
    num_heads: int = REQUIRED,
    output_count: int = 2,
    past_present_share_buffer: int = 0,
    qkv_hidden_sizes: tuple[int, ...] | None = None,
    rotary_embedding_dim: int = 0,
    scale: float | None = None,
    unidirectional: int = 0,
) -> list[Tensor]:
    _refuse_rotation(do_rotary)
    if output_count > 1:
        _require_equal_heads(qkv_hidden_sizes)
    projected = matmul(x, weights)
    if bias is not None:
        projected = projected + bias
    shared = past_sequence_length[0] if past_present_share_buffer and past_sequence_length else None
    return _self_attend(
        projected,
        mask_index,
        past,
        attention_bias,
        past_length=shared,
        heads=num_heads,
        hidden_sizes=qkv_hidden_sizes,
        scale=scale,
        filter_value=mask_filter_value,
        causal=bool(unidirectional),
    )


@op("QAttention", outputs=(1, 2))
def quantized_attention(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    input_scale: Tensor,
    weight_scale: Tensor,
    mask_index: Tensor | None = None,
    input_zero_point: Tensor | None = None,
    weight_zero_point: Tensor | None = None,
    past: Tensor | None = None,
    *,
    do_rotary: int = 0,
    mask_filter_value: float = MASK_FILTER_VALUE,
    num_heads: int = REQUIRED,
    past_present_share_buffer: int = 0,
    scale: float | None = None,
    unidirectional: int = 0,
) -> list[Tensor]:
    _refuse_rotation(do_rotary)
    require(
        not past_present_share_buffer, "a buffer shared by past and present needs a past length, which QAttention lacks"
    )
    projected = matmul_integer_to_float(x, weight, input_scale, weight_scale, input_zero_point, weight_zero_point, bias)
    return _self_attend(
        projected,
        mask_index,
        past,
        None,
        past_length=None,
        heads=num_heads,
        hidden_sizes=None,
        scale=scale,
        filter_value=mask_filter_value,
        causal=bool(unidirectional),
    )


def _refuse_rotation(do_rotary: int) -> None:
    if do_rotary:
        raise UnsupportedModelError(
            "attention that rotates its own projections", hint="export with RotaryEmbedding or GroupQueryAttention"
        )


def _require_equal_heads(sizes: tuple[int, ...] | None) -> None:
    """Refuse a cache of keys and values of different sizes: `present` is one tensor with one size for both."""
    if sizes is not None and len(sizes) == 3 and sizes[1] != sizes[2]:
        raise UnsupportedModelError(
            f"`present` of keys and values of different sizes, qkv_hidden_sizes={list(sizes)}",
            hint="leave the output `present` out, or export with MultiHeadAttention, which has an output for each",
        )


def _self_attend(
    projected: Tensor,
    mask: Tensor | None,
    past: Tensor | None,
    bias: Tensor | None,
    *,
    past_length: Dim | None,
    heads: int,
    hidden_sizes: tuple[int, ...] | None,
    scale: float | None,
    filter_value: float,
    causal: bool,
) -> list[Tensor]:
    """Compute the result and, for keys and values of one size, the cache [2, batch, heads, sequence, size]."""
    query, key, value = (split_heads(part, heads, "num_heads") for part in _split_hidden(projected, hidden_sizes))
    past_key, past_value = (None, None) if past is None else _split_past(past)
    present_key, key = extend_cache(past_key, key, past_length)
    present_value, value = extend_cache(past_value, value, past_length)
    adjust = make_mask(
        mask,
        bias,
        filter_value=filter_value,
        causal=causal,
        batch=query.shape[0],
        queries=query.shape[2],
        keys=key.shape[2],
    )
    attended = attend(query, key, value, scale, adjust)
    if key.shape[3] != value.shape[3]:
        return [attended.result]
    return [attended.result, stack([present_key, present_value], 0)]


def _split_hidden(projected: Tensor, sizes: tuple[int, ...] | None) -> list[Tensor]:
    third = dims.floordiv(projected.shape[-1], 3)
    return split(projected, -1, sizes or (third, third, third))


def _split_past(past: Tensor) -> tuple[Tensor, Tensor]:
    require(past.rank == 5, f"a past of keys and values has five dimensions, not {past.type}")
    return squeeze(slice_axis(past, 0, 0, 1), [0]), squeeze(slice_axis(past, 0, 1, 1), [0])


@op("PackedAttention")
def packed_attention(
    x: Tensor,
    weights: Tensor,
    bias: Tensor,
    token_offset: Tensor,
    cumulative_sequence_length: Tensor,
    attention_bias: Tensor | None = None,
    *,
    num_heads: int = REQUIRED,
    qkv_hidden_sizes: tuple[int, ...] | None = None,
    scale: float | None = None,
) -> Tensor:
    """Attend within each sequence; `token_offset` says where tokens are in the padded batch."""
    tokens = x.shape[0]
    projected = restore_padding(elementwise(lambda v, b: v + b, matmul(x, weights), bias), token_offset)
    result, *_ = _self_attend(
        projected,
        compute_lengths(cumulative_sequence_length),
        None,
        attention_bias,
        past_length=None,
        heads=num_heads,
        hidden_sizes=qkv_hidden_sizes,
        scale=scale,
        filter_value=MASK_FILTER_VALUE,
        causal=False,
    )
    return remove_padding_rows(result, token_offset, tokens)
