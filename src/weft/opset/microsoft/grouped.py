"""Attention in which several query heads share one head of keys and values, as decoders of language models use it."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Any

from weft.errors import UnsupportedModelError
from weft.ir import dims
from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.opset.attention import rotate, softmax_of_visible, split_heads
from weft.opset.functions import absolute, cast, equal, exp, maximum, tanh, where
from weft.opset.language import (
    Element,
    Tensor,
    assume_at_least,
    assume_equal,
    build,
    check_range,
    elementwise,
    index,
    is_held,
    reduce,
    reshape,
    scatter,
    slice_axis,
    split,
)
from weft.opset.microsoft.caches import CacheFormat, choose_format
from weft.opset.microsoft.domain import op
from weft.opset.microsoft.heads import Adjust, attend
from weft.opset.microsoft.normalization import simplified_layer_normalization
from weft.opset.registry import REQUIRED, Sizes, require
from weft.records import dataclass

LARGEST_UNREAD = 1e38  # magnitude of numbers after the tokens of a cache
KEY_ALIGNMENT = 256  # a multiple of the keys that kernels add up at a time


@dataclass(frozen=True, slots=True)
class Lengths:
    """Lengths of sequences: `queries` new tokens, at most `total` tokens with the past, `last` + 1 in each sequence."""

    queries: Dim
    total: Dim
    last: Tensor

    def before(self, batch: Element) -> Any:
        """Return the number of tokens before the new ones; a first prompt has none, whatever its padding."""
        count = cast(self.last.at(batch), DType.int64) + (1 - index(self.queries))
        return where(self.is_first_prompt, 0, maximum(count, 0))

    @property
    def is_first_prompt(self) -> Any:
        return equal(index(self.total), index(self.queries))


@dataclass(frozen=True, slots=True)
class WindowLayout:
    """Where a cache of `capacity` rows that evicts by itself has its tokens: in order, from its first row on.

    A cache holds the last `window` tokens, and up to `capacity`: how many depends on their number alone.
    """

    capacity: Dim
    window: int
    lengths: Lengths

    def _count_evicted(self, tokens: Any) -> Any:
        """Return the position of the token in the first row, after `tokens` tokens."""
        step = self.capacity - (self.window - 1)
        excess = maximum(tokens - index(self.capacity), 0)
        return (excess + index(step - 1)) / index(step) * index(step)

    def past_start(self, batch: Element) -> Any:
        return self._count_evicted(self.lengths.before(batch))

    def present_start(self, batch: Element) -> Any:
        return self._count_evicted(cast(self.lengths.last.at(batch), DType.int64) + 1)

    def first_key(self, batch: Element) -> Any:
        """Return the position of the first key that queries are multiplied with.

        It is aligned, so that sums over keys have the same order for any chunks of a sequence.
        """
        start = self.past_start(batch)
        return start - start % KEY_ALIGNMENT

    @property
    def keys(self) -> Dim:
        """Return how many keys the queries are multiplied with."""
        return dims.minimum(self.lengths.total, self.capacity + self.lengths.queries + (KEY_ALIGNMENT - 1))


@op("GroupQueryAttention", outputs=(1, 4))
def group_query_attention(
    query: Tensor,
    key: Tensor | None,
    value: Tensor | None,
    past_key: Tensor | None,
    past_value: Tensor | None,
    seqlens_k: Tensor,
    total_sequence_length: Sizes,
    cos_cache: Tensor | None = None,
    sin_cache: Tensor | None = None,
    position_ids: Tensor | None = None,
    attention_bias: Tensor | None = None,
    head_sink: Tensor | None = None,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
    q_norm_weight: Tensor | None = None,
    k_norm_weight: Tensor | None = None,
    *,
    causal: int = 1,
    do_rotary: int = 0,
    k_quant_type: str = "NONE",
    kv_cache_bit_width: int = 0,
    kv_num_heads: int = REQUIRED,
    local_window_size: int = -1,
    num_heads: int = REQUIRED,
    qk_norm_epsilon: float = 1e-6,
    qk_output: int = 0,
    rotary_interleaved: int = 0,
    scale: float | None = None,
    sliding_window_cache: int = 0,
    smooth_softmax: int = -1,
    softcap: float = 0.0,
    v_quant_type: str = "NONE",
) -> list[Tensor]:
    require(kv_num_heads > 0 and num_heads % kv_num_heads == 0, f"{num_heads} heads cannot share {kv_num_heads}")
    q, k, v = split_projections(query, key, value, num_heads, kv_num_heads)
    total = total_sequence_length[0]
    last = check_range(reshape(seqlens_k, (seqlens_k.size,)), 0, total - 1, "seqlens_k")
    lengths = Lengths(q.shape[2], total, last)
    if q_norm_weight is not None and k_norm_weight is not None:
        q, _ = simplified_layer_normalization(q, q_norm_weight, epsilon=qk_norm_epsilon)
        k, _ = simplified_layer_normalization(k, k_norm_weight, epsilon=qk_norm_epsilon)
    if do_rotary:
        require(cos_cache is not None and sin_cache is not None, "a rotation needs cos_cache and sin_cache")
        assert cos_cache is not None and sin_cache is not None
        rotate_tokens = make_rotation(cos_cache, sin_cache, position_ids, lengths, bool(rotary_interleaved))
        q, k = rotate_tokens(q), rotate_tokens(k)
    bits = kv_cache_bit_width or 8
    sizes: dict[str, Any] = {"bits": bits, "heads": k.shape[1], "size": k.shape[3]}
    key_format = choose_format("key", past_key, k.dtype, quant_type=k_quant_type, scale=k_scale, **sizes)
    value_format = choose_format("value", past_value, v.dtype, quant_type=v_quant_type, scale=v_scale, **sizes)
    new_keys, new_values = _encode_rows(k, key_format), _encode_rows(v, value_format)
    layout = None
    if sliding_window_cache and not (past_key is not None and is_held(past_key)):  # a held cache keeps all tokens
        layout = _check_window(past_key, past_value, local_window_size, qk_output, lengths)
        assert past_key is not None and past_value is not None
        present_key, k = _slide_window(past_key, new_keys, layout)
        present_value, v = _slide_window(past_value, new_values, layout)
    else:
        present_key, present_value = (
            extend_buffer(past_key, new_keys, lengths),
            extend_buffer(past_value, new_values, lengths),
        )
        k, v = slice_axis(present_key, 2, 0, lengths.total), slice_axis(present_value, 2, 0, lengths.total)
    k, v = _decode_rows(k, key_format, query.dtype), _decode_rows(v, value_format, query.dtype)
    adjust = _make_mask(attention_bias, lengths, bool(causal), local_window_size, softcap, layout)
    sink = make_sink(head_sink, smooth_softmax)
    attended = attend(q, k, v, scale, adjust, softmax_of_visible if sink is None else make_softmax_with_sink(sink))
    scores = attended.weights if qk_output == 2 else attended.scores
    return [attended.result, present_key, present_value, cast(scores, query.dtype)]


def _check_window(
    past_key: Tensor | None, past_value: Tensor | None, window: int, qk_output: int, lengths: Lengths
) -> WindowLayout:
    require(window > 0, f"local_window_size is {window}", "a cache of a window needs a positive number of tokens")
    require(past_key is not None and past_value is not None, "a cache of a window needs past_key and past_value")
    assert past_key is not None and past_value is not None
    if qk_output:
        raise UnsupportedModelError("qk_output of a cache of a window", hint="export with caches of the full length")
    capacity = past_key.shape[2]
    assume_equal(past_value.shape[2], capacity, "past_key and past_value have the same number of rows")
    assume_at_least(capacity, window, "a cache of a window has a row for each of its tokens")
    return WindowLayout(capacity, window, lengths)


def _encode_rows(rows: Tensor, cache: CacheFormat) -> Tensor:
    """Convert [batch, heads, sequence, size] to the format of a cache."""
    if cache.scale is None:
        return rows
    shape = (*rows.shape[:3], cache.width)
    return build(shape, lambda b, n, s, i: cache.encode(lambda h: rows.at(b, n, s, h), n, i))


def _decode_rows(stored: Tensor, cache: CacheFormat, dtype: DType) -> Tensor:
    if cache.scale is None:
        return stored
    shape = (*stored.shape[:3], cache.size)
    return build(shape, lambda b, n, s, h: cache.decode(lambda i: stored.at(b, n, s, i), n, h, dtype))


def split_projections(
    query: Tensor, key: Tensor | None, value: Tensor | None, heads: int, shared: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return each as [batch, heads, sequence, size], from three tensors or from one that holds them side by side."""
    if key is None or value is None:
        size = dims.floordiv(query.shape[2], heads + 2 * shared)
        query, key, value = split(query, 2, (size * heads, size * shared, size * shared))
    return (
        split_heads(query, heads, "num_heads"),
        split_heads(key, shared, "kv_num_heads"),
        split_heads(value, shared, "kv_num_heads"),
    )


def make_rotation(
    cosines: Tensor, sines: Tensor, positions: Tensor | None, lengths: Lengths, interleaved: bool
) -> Callable[[Tensor], Tensor]:
    """Return a function that rotates queries or keys by their positions.

    Without `position_ids`, positions continue after the past tokens. In a first prompt the schema says "the kernel uses
    only the first element" of them: all sequences of the batch start there and count up, as onnxruntime does. In later
    calls each token has its own.
    """

    def rotate_tokens(x: Tensor) -> Tensor:
        batch = x.shape[0]
        if positions is None:
            token_positions = build((batch, lengths.queries), lambda b, s: s + lengths.before(b))
        else:
            require(positions.rank == 2, f"position_ids have two dimensions, not {positions.type}")
            assume_equal(positions.shape[0], batch, "position_ids have a row for each sequence of the batch")
            assume_at_least(positions.shape[1], lengths.queries, "position_ids have a number for each token")

            def position(b: Element, s: Element) -> Any:
                return where(lengths.is_first_prompt, positions.at(0, 0) + s, positions.at(b, s))

            token_positions = build((batch, lengths.queries), position)
        return rotate(x, cosines, sines, token_positions, cosines.shape[1] * 2, interleaved, heads_first=True)

    return rotate_tokens


def extend_buffer(past: Tensor | None, new: Tensor, lengths: Lengths) -> Tensor:
    """Write the new rows after the past ones of each sequence of the batch.

    Where the past has room for `total` rows, past and present are one buffer, and rows after the new ones keep their
    values. Where the cache grows, they are 0, as in onnxruntime. A buffer may be uninitialized memory: NaN in it become
    0, since attention multiplies masked values by 0.
    """
    if past is not None and is_held(past):
        return _write_rows(past, new, lengths)
    batch, heads, count, size = new.shape
    if past is not None:
        assume_at_least(past.shape[2], lengths.total - count, "the past has a row for each token before the new ones")
    room = lengths.total if past is None else dims.maximum(past.shape[2], lengths.total)

    def element(b: Element, n: Element, t: Element, h: Element) -> Any:
        start = lengths.before(b)
        is_fresh = (t >= start) & (t < start + index(count))
        old: Any = 0
        if past is not None:
            has_room = index(past.shape[2]) >= index(lengths.total)
            row = past.at(b, n, t, h)
            old = where(t < start, row, where(has_room, _without_nonfinite(row), 0))
        return where(is_fresh, new.at(b, n, t - start, h), old)

    return build((batch, heads, room, size), element)


def _write_rows(past: Tensor, new: Tensor, lengths: Lengths) -> Tensor:
    """Write the new rows into a past that a state holds; no query sees the rows after the new ones of its sequence."""
    batch, heads, count, size = new.shape
    assume_at_least(lengths.total, past.shape[2], "a cache that a state holds grows")
    assume_at_least(past.shape[2], lengths.total - count, "the past has a row for each token before the new ones")

    def read(b: Element, n: Element, t: Element, h: Element) -> Any:
        return where(t < past.shape[2], past.at(b, n, t, h), 0)

    def place(b: Element, n: Element, s: Element, h: Element) -> tuple[tuple[Any, ...], Any]:
        return (b, n, s + lengths.before(b), h), new.at(b, n, s, h)

    return scatter(build((batch, heads, lengths.total, size), read), new.shape, place, checked=False)


def _slide_window(past: Tensor, new: Tensor, layout: WindowLayout) -> tuple[Tensor, Tensor]:
    """Return the present, whose rows after the last token are 0, and the keys or values of past and new tokens."""
    lengths = layout.lengths
    batch, heads, count, size = new.shape
    starts = build((batch,), layout.past_start)
    present_starts = build((batch,), layout.present_start)
    first_keys = build((batch,), layout.first_key)

    def load(b: Element, n: Element, position: Any, h: Element) -> Any:
        before, start = lengths.before(b), starts.at(b)
        old = where(position >= start, past.at(b, n, position - start, h), 0)
        fresh = where(position < before + index(count), new.at(b, n, position - before, h), 0)
        return where(position < before, old, fresh)

    def present_element(b: Element, n: Element, row: Element, h: Element) -> Any:
        position = row + present_starts.at(b)
        return where(position <= lengths.last.at(b), load(b, n, position, h), 0)

    present = build((batch, heads, layout.capacity, size), present_element)
    keys = build((batch, heads, layout.keys, size), lambda b, n, t, h: load(b, n, t + first_keys.at(b), h))
    return present, keys


def _without_nonfinite(v: Element) -> Element:
    """Replace NaN, infinities and numbers that bfloat16 rounds to infinity by 0."""
    return where(absolute(cast(v, DType.float32)) < LARGEST_UNREAD, v, 0) if v.dtype.is_float else v


def _make_mask(
    bias: Tensor | None, lengths: Lengths, causal: bool, window: int, softcap: float, layout: WindowLayout | None = None
) -> Adjust:
    """Return a function that caps scores, adds the bias, and masks later keys and those outside the window."""
    if bias is not None:
        require(bias.rank == 4, f"an attention bias has four dimensions, not {bias.type}")
        assume_equal(bias.shape[3], lengths.total, "an attention bias has a number for each key")

    def adjust(score: Any, indices: tuple[Element, ...]) -> Element:
        batch, head, query, key = indices
        first_key = 0 if layout is None else layout.first_key(batch)
        if softcap > 0.0:
            score = tanh(score / softcap) * softcap
        if bias is not None:
            place = batch, head, query, key + first_key
            score = score + cast(bias.at(*(0 if size == 1 else i for size, i in zip(bias.shape, place))), score.dtype)
        position = query + lengths.before(batch) - first_key
        is_visible = key <= position if causal else key <= cast(lengths.last.at(batch), DType.int64) - first_key
        if window > 0:
            is_visible = is_visible & (key > position - window)
        return where(is_visible, score, -inf)

    return adjust


def make_sink(head_sink: Tensor | None, smooth_softmax: int) -> Callable[[Element], Any] | None:
    """Return a score per head that takes part in the softmax and is then dropped."""
    if head_sink is not None:
        return lambda head: cast(head_sink.at(head), DType.float32)
    return (lambda _: 0.0) if smooth_softmax == 1 else None


def make_softmax_with_sink(sink: Callable[[Element], Any]) -> Callable[[Tensor], Tensor]:
    def softmax(scores: Tensor) -> Tensor:
        highest = reduce("maximum", scores, [3], keep=True)
        largest = build(highest.shape, lambda b, n, q, k: maximum(highest.at(b, n, q, k), sink(n)))
        powers = elementwise(lambda s, m: exp(s - m), scores, largest)
        total = reduce("sum", powers, [3], keep=True)
        total_with_sink = build(
            total.shape, lambda b, n, q, k: total.at(b, n, q, k) + exp(sink(n) - largest.at(b, n, q, k))
        )
        return elementwise(lambda p, t: p / t, powers, total_with_sink)

    return softmax
