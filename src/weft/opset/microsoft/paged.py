"""Attention of packed sequences whose keys and values are in blocks of a shared pool."""

from __future__ import annotations

from math import inf
from typing import Any

from weft.ir import dims
from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.opset.attention import rotate, softmax_of_visible
from weft.opset.functions import cast, maximum, tanh, where
from weft.opset.language import (
    Element,
    Tensor,
    assume_at_least,
    assume_equal,
    build,
    check_range,
    concat,
    index,
    observe,
    reduce,
    reshape,
    scatter,
    slice_axis,
    split,
)
from weft.opset.microsoft.caches import CacheFormat, choose_format
from weft.opset.microsoft.domain import op
from weft.opset.microsoft.grouped import make_sink, make_softmax_with_sink
from weft.opset.microsoft.heads import Adjust, attend
from weft.opset.microsoft.normalization import simplified_layer_normalization
from weft.opset.microsoft.padding import compute_lengths, find_owners
from weft.opset.registry import REQUIRED, require
from weft.records import dataclass

_BITS = {"": 8, "float16": 8, "bfloat16": 8, "float32": 8, "int8": 8, "float8e4m3fn": 8, "int4": 4}


@dataclass(frozen=True, slots=True)
class PackedSequences:
    """Sequences whose new tokens are packed one after the other.

    `starts` and `counts` of the new tokens of each sequence, and `past`, the number of tokens before them; `owners` and
    `positions` of each token; the largest number of new tokens and of tokens in all, `queries` and `keys`.
    """

    starts: Tensor
    counts: Tensor
    past: Tensor
    owners: Tensor
    positions: Tensor
    queries: Dim
    keys: Dim

    @property
    def batch(self) -> Dim:
        return self.past.shape[0]

    @property
    def tokens(self) -> Dim:
        return self.owners.shape[0]

    def length(self, batch: Element) -> Any:
        return self.past.at(batch) + self.counts.at(batch)


def unpack_sequences(tokens: Dim, cumulated: Tensor, past: Tensor) -> PackedSequences:
    """Find the sequence and the position of each packed token."""
    require(cumulated.rank == 1 and past.rank == 1, f"lengths {cumulated.type} and {past.type} have one dimension")
    batch = past.shape[0]
    assume_equal(cumulated.shape[0], batch + 1, "cumulative_sequence_length has a number more than past_seqlens")
    ends = check_range(cumulated, 0, tokens, "cumulative_sequence_length")
    before = cast(past, DType.int64)
    counts = compute_lengths(ends)
    starts = slice_axis(ends, 0, 0, batch)
    owners = find_owners(tokens, ends)
    positions = build((tokens,), lambda t: t - starts.at(owners.at(t)) + before.at(owners.at(t)))
    largest = build((2, batch), lambda n, b: counts.at(b) + where(n < 1, 0, before.at(b)))
    queries, keys = observe(reduce("maximum", largest, [1]), "tokens")
    return PackedSequences(starts, counts, before, owners, positions, queries, keys)


@dataclass(frozen=True, slots=True)
class BlockPool:
    """A cache [blocks, block size, heads, width] in a format; `table` [batch, blocks] has the blocks of a sequence."""

    cache: Tensor
    format: CacheFormat
    table: Tensor

    def write(self, rows: Tensor, slots: Tensor) -> BlockPool:
        """Store rows [tokens, heads, size] in slots, numbered across blocks; a negative slot is not stored."""
        size = self.cache.shape[1]

        def place(t: Element, n: Element, i: Element) -> tuple[tuple[Any, ...], Any]:
            slot = slots.at(t)
            block = where(slot < 0, -1, maximum(slot, 0) / index(size))
            offset = maximum(slot, 0) % size
            return (block, offset, n, i), self.format.encode(lambda h: rows.at(t, n, h), n, i)

        domain = (*rows.shape[:2], self.format.width)
        return BlockPool(scatter(self.cache, domain, place, checked=False), self.format, self.table)

    def read(self, sequences: PackedSequences, width: Dim, dtype: DType) -> Tensor:
        """Load the first `width` channels of all tokens of the sequences: [batch, heads, keys, width]."""
        size, heads = self.cache.shape[1:3]
        assume_at_least(self.table.shape[1] * size, sequences.keys, "block_table has blocks for all tokens")

        def element(b: Element, n: Element, t: Element, h: Element) -> Any:
            is_token = t < sequences.length(b)
            block = where(is_token, cast(self.table.at(b, t // size), DType.int64), 0)
            stored = self.format.decode(lambda i: self.cache.at(block, t % size, n, i, checked=True), n, h, dtype)
            return where(is_token, stored, 0)

        return build((sequences.batch, heads, sequences.keys, width), element)


@op("PagedAttention", outputs=(1, 3))
def paged_attention(
    query: Tensor,
    key: Tensor | None,
    value: Tensor | None,
    key_cache: Tensor,
    value_cache: Tensor | None,
    cumulative_sequence_length: Tensor,
    past_seqlens: Tensor,
    block_table: Tensor,
    cos_cache: Tensor | None = None,
    sin_cache: Tensor | None = None,
    slot_mapping: Tensor | None = None,
    head_sink: Tensor | None = None,
    q_norm_weight: Tensor | None = None,
    k_norm_weight: Tensor | None = None,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
    attention_metadata: Tensor | None = None,
    *,
    do_rotary: int = 0,
    is_causal: int = 1,
    k_cache_dtype: str = "",
    k_quant_type: str = "NONE",
    kv_cache_layout: str = "SEPARATE",
    kv_num_heads: int = REQUIRED,
    local_window_size: int = -1,
    num_heads: int = REQUIRED,
    qk_norm_epsilon: float = 1e-6,
    rotary_interleaved: int = 0,
    rotary_offset: int = 0,
    scale: float | None = None,
    softcap: float = 0.0,
    v_cache_dtype: str = "",
    v_head_size: int = 0,
    v_quant_type: str = "NONE",
) -> list[Tensor | None]:
    """Attend within each sequence, to the tokens in its blocks; the new ones are stored there first."""
    require(kv_cache_layout in ("SEPARATE", "LATENT"), f"kv_cache_layout is {kv_cache_layout!r}")
    is_latent = kv_cache_layout == "LATENT"
    _check_forms(is_latent, value, value_cache, kv_num_heads, num_heads, v_head_size)
    require(
        key_cache.rank == 4 and block_table.rank == 2,
        f"a cache of blocks has four dimensions and its table two, not {key_cache.type} and {block_table.type}",
    )
    q, k, v = _split_packed(query, key, value, num_heads, kv_num_heads, is_latent)
    sequences = unpack_sequences(query.shape[0], cumulative_sequence_length, past_seqlens)
    assume_equal(block_table.shape[0], sequences.batch, "block_table has a row for each sequence")
    if q_norm_weight is not None and k_norm_weight is not None:
        q, _ = simplified_layer_normalization(q, q_norm_weight, epsilon=qk_norm_epsilon)
        k, _ = simplified_layer_normalization(k, k_norm_weight, epsilon=qk_norm_epsilon)
    if do_rotary:
        require(cos_cache is not None and sin_cache is not None, "a rotation needs cos_cache and sin_cache")
        assert cos_cache is not None and sin_cache is not None
        q, k = (
            _rotate_part(x, cos_cache, sin_cache, sequences.positions, rotary_offset, bool(rotary_interleaved))
            for x in (q, k)
        )
    slots = _find_slots(slot_mapping, sequences, block_table, key_cache.shape[1])
    sizes: dict[str, Any] = {"heads": k.shape[1], "size": k.shape[2]}
    key_format = choose_format(
        "key", key_cache, k.dtype, quant_type=k_quant_type, scale=k_scale, bits=_count_bits(k_cache_dtype), **sizes
    )
    keys = BlockPool(key_cache, key_format, block_table).write(k, slots)
    width: Dim = v_head_size or k.shape[2]
    if is_latent:
        values = keys
    else:
        assert v is not None and value_cache is not None
        value_format = choose_format(
            "value",
            value_cache,
            v.dtype,
            quant_type=v_quant_type,
            scale=v_scale,
            bits=_count_bits(v_cache_dtype),
            **sizes,
        )
        values = BlockPool(value_cache, value_format, block_table).write(v, slots)
    sink = make_sink(head_sink, 0)
    attended = attend(
        _pad_queries(q, sequences),
        keys.read(sequences, k.shape[2], query.dtype),
        values.read(sequences, width, query.dtype),
        scale,
        _make_mask(sequences, bool(is_causal), local_window_size, softcap),
        softmax_of_visible if sink is None else make_softmax_with_sink(sink),
    ).result

    def element(t: Element, h: Element) -> Element:
        owner = sequences.owners.at(t)
        return attended.at(owner, t - sequences.starts.at(owner), h)

    result = build((sequences.tokens, num_heads * width), element)
    return [result, keys.cache, None if is_latent else values.cache]


def _check_forms(
    is_latent: bool, value: Tensor | None, value_cache: Tensor | None, shared: int, heads: int, v_head_size: int
) -> None:
    require(shared > 0 and heads % shared == 0, f"{heads} heads cannot share {shared}")
    if is_latent:
        require(value is None and value_cache is None, "a latent cache holds the values, too", "leave out value_cache")
        require(shared == 1, f"a latent cache has one head, not {shared}")
    else:
        require(value_cache is not None, "value_cache is missing")
        require(not v_head_size, "v_head_size is for latent caches", "set kv_cache_layout to LATENT")


def _count_bits(dtype: str) -> int:
    require(dtype in _BITS, f"a cache of {dtype!r}", f"weft has {', '.join(filter(None, _BITS))}")
    return _BITS[dtype]


def _split_packed(
    query: Tensor, key: Tensor | None, value: Tensor | None, heads: int, shared: int, is_latent: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return each as [tokens, heads, size], from three tensors or from one that holds them side by side."""
    require(query.rank == 2, f"packed tokens have two dimensions, not {query.type}")
    if key is None and is_latent:
        size = dims.floordiv(query.shape[1], heads + shared)
        query, key = split(query, 1, (size * heads, size * shared))
    elif key is None:
        size = dims.floordiv(query.shape[1], heads + 2 * shared)
        query, key, value = split(query, 1, (size * heads, size * shared, size * shared))
    require(value is not None or is_latent, "keys without values")

    def split_heads(x: Tensor, count: int) -> Tensor:
        return reshape(x, (x.shape[0], count, dims.floordiv(x.shape[1], count)))

    return split_heads(query, heads), split_heads(key, shared), None if value is None else split_heads(value, shared)


def _rotate_part(
    x: Tensor, cosines: Tensor, sines: Tensor, positions: Tensor, offset: int, interleaved: bool
) -> Tensor:
    """Rotate the channels of [tokens, heads, size] from `offset` on, as many as the caches have angles for."""
    tokens, heads, size = x.shape
    rotated: Dim = cosines.shape[1] * 2
    before, middle, after = split(x, 2, (offset, rotated, size - offset - rotated))
    middle = rotate(
        reshape(middle, (1, tokens, heads, rotated)),
        cosines,
        sines,
        reshape(positions, (1, tokens)),
        rotated,
        interleaved,
        heads_first=False,
    )
    return (
        concat([before, reshape(middle, (tokens, heads, rotated)), after], 2)
        if offset or rotated != size
        else (reshape(middle, x.shape))
    )


def _find_slots(mapping: Tensor | None, sequences: PackedSequences, table: Tensor, block_size: Dim) -> Tensor:
    """Return the slot of each token in the caches."""
    if mapping is not None:
        assume_equal(mapping.shape[0], sequences.tokens, "slot_mapping has a slot for each token")
        return cast(mapping, DType.int64)

    def slot(t: Element) -> Any:
        position = sequences.positions.at(t)
        block = table.at(sequences.owners.at(t), position / index(block_size), checked=True)
        return cast(block, DType.int64) * index(block_size) + position % block_size

    return build((sequences.tokens,), slot)


def _pad_queries(q: Tensor, sequences: PackedSequences) -> Tensor:
    """Rearrange [tokens, heads, size] as [batch, heads, queries, size]; the rows of padding are not used."""
    shape = (sequences.batch, q.shape[1], sequences.queries, q.shape[2])
    return build(shape, lambda b, n, s, h: q.at(s + sequences.starts.at(b), n, h))


def _make_mask(sequences: PackedSequences, causal: bool, window: int, softcap: float) -> Adjust:
    def adjust(score: Any, indices: tuple[Element, ...]) -> Element:
        batch, _, query, key = indices
        if softcap > 0.0:
            score = tanh(score / softcap) * softcap
        position = query + sequences.past.at(batch)
        is_visible = key <= position if causal else key < sequences.length(batch)
        if window > 0:
            is_visible = is_visible & (key > position - window)
        return where(is_visible, score, -inf)

    return adjust
