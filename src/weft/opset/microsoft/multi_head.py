"""Attention of projected queries, keys and values, with caches."""

from __future__ import annotations

from weft.errors import UnsupportedModelError
from weft.ir import dims
from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.opset.attention import split_heads
from weft.opset.functions import cast, where
from weft.opset.language import Element, Tensor, assume_equal, build, matmul, reshape, slice_axis, split, squeeze, stack
from weft.opset.microsoft.domain import op
from weft.opset.microsoft.heads import MASK_FILTER_VALUE, Attended, attend, extend_cache, make_mask
from weft.opset.microsoft.padding import compute_lengths, remove_padding_rows, restore_padding
from weft.opset.registry import REQUIRED, Sizes, require


@op("MultiHeadAttention", outputs=(1, 4))
def multi_head_attention(
    query: Tensor,
    key: Tensor | None = None,
    value: Tensor | None = None,
    bias: Tensor | None = None,
    key_padding_mask: Tensor | None = None,
    attention_bias: Tensor | None = None,
    past_key: Tensor | None = None,
    past_value: Tensor | None = None,
    past_sequence_length: Sizes | None = None,
    cache_indirection: Tensor | None = None,
    *,
    mask_filter_value: float = MASK_FILTER_VALUE,
    num_heads: int = REQUIRED,
    scale: float | None = None,
    unidirectional: int = 0,
) -> list[Tensor]:
    parts = _split_projections(query, key, value, bias, num_heads)
    length = past_sequence_length[0] if past_sequence_length else None
    attended, present = _attend_with_past(
        *parts,
        (past_key, past_value),
        length,
        mask=key_padding_mask,
        bias=attention_bias,
        beams=_count_beams(cache_indirection, None),
        indirection=cache_indirection,
        scale=scale,
        filter_value=mask_filter_value,
        causal=bool(unidirectional),
    )
    return [attended.result, *present, cast(attended.scores, query.dtype)]


@op("DecoderMaskedMultiHeadAttention", outputs=(1, 4))
def decoder_masked_multi_head_attention(
    query: Tensor,
    key: Tensor | None = None,
    value: Tensor | None = None,
    mask_index: Tensor | None = None,
    attention_bias: Tensor | None = None,
    past_key: Tensor | None = None,
    past_value: Tensor | None = None,
    past_sequence_length: Sizes | None = None,
    beam_width: Sizes | None = None,
    cache_indirection: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    mask_filter_value: float = MASK_FILTER_VALUE,
    num_heads: int = REQUIRED,
    output_qk: int = 0,
    past_present_share_buffer: int = 0,
    scale: float | None = None,
) -> list[Tensor]:
    if key is None:
        third = dims.floordiv(query.shape[2], 3)
        query, key, value = split(query, 2, (third, third, third))
    parts = _split_projections(query, key, value, bias, num_heads)
    shared = past_present_share_buffer and past_sequence_length
    attended, present = _attend_with_past(
        *parts,
        (past_key, past_value),
        past_sequence_length[0] if shared and past_sequence_length else None,
        mask=mask_index,
        bias=attention_bias,
        beams=_count_beams(cache_indirection, beam_width),
        indirection=cache_indirection,
        scale=scale,
        filter_value=mask_filter_value,
        causal=False,
    )
    return [attended.result, *present, cast(attended.scores, query.dtype)]


@op("DecoderMaskedSelfAttention")
def decoder_masked_self_attention(
    x: Tensor,
    weights: Tensor,
    bias: Tensor,
    mask_index: Tensor | None,
    past: Tensor,
    attention_bias: Tensor | None = None,
    past_sequence_length: Sizes | None = None,
    beam_width: Sizes | None = None,
    cache_indirection: Tensor | None = None,
    *,
    do_rotary: int = 0,
    mask_filter_value: float = MASK_FILTER_VALUE,
    num_heads: int = REQUIRED,
    past_present_share_buffer: int = 0,
    scale: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Attend from one token. In a buffer with room, keys are stored as `_order_by_time` says."""
    if do_rotary:
        raise UnsupportedModelError(
            "attention that rotates its own projections", hint="export with RotaryEmbedding or GroupQueryAttention"
        )
    require(past.rank == 5, f"a past of keys and values has five dimensions, not {past.type}")
    third = dims.floordiv(weights.shape[1], 3)
    query, key, value = (
        split_heads(part, num_heads, "num_heads") for part in split(matmul(x, weights) + bias, 2, (third,) * 3)
    )
    past_key, past_value = (squeeze(slice_axis(past, 0, n, 1), [0]) for n in range(2))
    length = None
    if past_present_share_buffer:
        require(past_sequence_length is not None, "a buffer shared by past and present needs past_sequence_length")
        assert past_sequence_length is not None
        length = past_sequence_length[0]
        past_key = _order_by_time(past_key)
    attended, (present_key, present_value) = _attend_with_past(
        query,
        key,
        value,
        (past_key, past_value),
        length,
        mask=mask_index,
        bias=attention_bias,
        beams=_count_beams(cache_indirection, beam_width),
        indirection=cache_indirection,
        scale=scale,
        filter_value=mask_filter_value,
        causal=False,
    )
    present_key = _order_by_chunk(present_key) if length is not None else present_key
    return attended.result, stack([present_key, present_value], 0)


def _order_by_time(keys: Tensor) -> Tensor:
    """Rearrange a buffer that holds [batch, heads, size / chunk, time, chunk] as [batch, heads, time, size]."""
    batch, heads, length, size = keys.shape
    chunk = _count_chunk(keys)
    split_keys = reshape(keys, (batch, heads, dims.floordiv(size, chunk), length, chunk))
    return build(keys.shape, lambda b, n, t, h: split_keys.at(b, n, h // chunk, t, h % chunk))


def _order_by_chunk(keys: Tensor) -> Tensor:
    """Undo `_order_by_time`."""
    batch, heads, length, size = keys.shape
    chunk = _count_chunk(keys)
    shape = (batch, heads, dims.floordiv(size, chunk), length, chunk)
    return reshape(build(shape, lambda b, n, c, t, i: keys.at(b, n, t, c * chunk + i)), keys.shape)


def _count_chunk(keys: Tensor) -> int:
    """Return how many elements a chunk of 16 bytes has."""
    chunk = 16 // keys.dtype.numpy.itemsize
    assume_equal(dims.floordiv(keys.shape[3], chunk) * chunk, keys.shape[3], f"a head is made of {chunk} elements")
    return chunk


@op("PackedMultiHeadAttention")
def packed_multi_head_attention(
    query: Tensor,
    key: Tensor | None,
    value: Tensor | None,
    bias: Tensor | None,
    token_offset: Tensor,
    cumulative_sequence_length: Tensor,
    attention_bias: Tensor | None = None,
    *,
    mask_filter_value: float = MASK_FILTER_VALUE,
    num_heads: int = REQUIRED,
    scale: float | None = None,
) -> Tensor:
    """Attend within each sequence; `token_offset` says where tokens are in the padded batch."""
    if query.rank == 4:
        tokens, heads, _, size = query.shape
        packed = query
        query, key, value = (
            build((tokens, heads * size), lambda t, h, n=n: packed.at(t, h // size, n, h % size)) for n in range(3)
        )
    require(key is not None and value is not None, "keys and values are missing")
    assert key is not None and value is not None
    q, k, v = (restore_padding(tensor, token_offset) for tensor in (query, key, value))
    attended, _ = _attend_with_past(
        *_split_projections(q, k, v, bias, num_heads),
        (None, None),
        None,
        mask=compute_lengths(cumulative_sequence_length),
        bias=attention_bias,
        beams=1,
        indirection=None,
        scale=scale,
        filter_value=mask_filter_value,
        causal=False,
    )
    return remove_padding_rows(attended.result, token_offset, query.shape[0])


def _count_beams(indirection: Tensor | None, width: tuple[Dim, ...] | None) -> Dim:
    return width[0] if width else 1 if indirection is None else indirection.shape[1]


def _split_projections(
    query: Tensor, key: Tensor | None, value: Tensor | None, bias: Tensor | None, heads: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return queries, keys and values as [batch, heads, sequence, size], with biases added."""
    if query.rank == 5:
        q, k, v = (_take_part(query, number) for number in range(3))
    elif key is not None and key.rank == 5:
        q, k, v = split_heads(query, heads, "num_heads"), _take_part(key, 0), _take_part(key, 1)
    else:
        require(key is not None and value is not None, "keys and values are missing")
        assert key is not None and value is not None
        q, k, v = (split_heads(tensor, heads, "num_heads") for tensor in (query, key, value))
    if bias is None:
        return q, k, v
    width = q.shape[1] * q.shape[3]
    q = _add_bias(q, bias, 0)
    if key is not None and key.rank == 4:  # the bias of projected keys and values is included
        return q, k, v
    return q, _add_bias(k, bias, width), _add_bias(v, bias, width * 2)


def _take_part(packed: Tensor, number: int) -> Tensor:
    """Take part `number` of [batch, sequence, heads, parts, size]."""
    batch, length, heads, _, size = packed.shape
    return build((batch, heads, length, size), lambda b, n, s, h: packed.at(b, s, n, number, h))


def _add_bias(x: Tensor, bias: Tensor, start: Dim) -> Tensor:
    size = x.shape[3]
    return build(x.shape, lambda b, n, s, h: x.at(b, n, s, h) + bias.at(n * size + h + start))


def _attend_with_past(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    past: tuple[Tensor | None, Tensor | None],
    past_length: Dim | None,
    *,
    mask: Tensor | None,
    bias: Tensor | None,
    beams: Dim,
    indirection: Tensor | None,
    scale: float | None,
    filter_value: float,
    causal: bool,
) -> tuple[Attended, list[Tensor]]:
    present_key, key = extend_cache(past[0], key, past_length)
    present_value, value = extend_cache(past[1], value, past_length)
    if indirection is not None and past[0] is not None:
        length = past_length if past_length is not None else past[0].shape[2]
        key, value = (_select_beams(cache, indirection, beams, length) for cache in (key, value))
    if bias is not None and past_length is not None:
        bias = slice_axis(bias, 3, 0, key.shape[2])
    adjust = make_mask(
        mask,
        bias,
        filter_value=filter_value,
        causal=causal,
        batch=query.shape[0],
        queries=query.shape[2],
        keys=key.shape[2],
    )
    return attend(query, key, value, scale, adjust), [present_key, present_value]


def _select_beams(cache: Tensor, indirection: Tensor, beams: Dim, past_length: Dim) -> Tensor:
    """Take rows of a cache [batch * beams, ...] before `past_length` from the beam that they came from."""

    def element(b: Element, n: Element, t: Element, h: Element) -> Element:
        first = b // beams
        origin = first * beams + cast(indirection.at(first, b - first * beams, t), DType.int64)
        return where(t < past_length, cache.at(origin, n, t, h), cache.at(b, n, t, h))

    return build(cache.shape, element)
