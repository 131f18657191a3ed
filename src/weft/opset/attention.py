"""Attention: masked scaled dot products, and rotary embeddings."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Any

from weft.ir import dims
from weft.ir.dims import Dim
from weft.ir.dtypes import DType, from_number
from weft.opset.functions import cast, equal, exp, sqrt, tanh, where, wide_dtype
from weft.opset.language import (
    Element,
    Tensor,
    assume_equal,
    broadcast_shapes,
    build,
    check_range,
    concat,
    contract,
    elementwise,
    index,
    reduce,
    reshape,
    transpose,
)
from weft.opset.registry import ElementType, op, require
from weft.records import dataclass


@dataclass(frozen=True, slots=True)
class Mask:
    """Which keys a query attends to, and the bias of its scores.

    Query q is at position q + `offset` among the keys; a window of -1 is unbounded. `valid` is how many keys of each
    batch are not padding; the queries are then the last of them.
    """

    bias: Tensor | None = None
    causal: bool = False
    left: int = -1
    right: int = -1
    offset: Dim = 0
    valid: Tensor | None = None

    def apply(self, score: Element, indices: Sequence[Element], queries: Dim, keys: Dim) -> Element:
        """Return the score at (batch, head, query, key), -inf where the key is masked."""
        batch, _, query, key = indices
        if self.bias is not None:
            score = self._add_bias(score, self.bias, indices, keys)
        position: Any = query + self.offset
        if self.valid is not None:
            count = cast(self.valid.at(batch), DType.int64)
            score = where(key < count, score, -inf)
            position = query + count - index(queries)
        if self.causal:
            score = where(key <= position, score, -inf)
        if self.left >= 0:
            score = where(key >= position - self.left, score, -inf)
        if self.right >= 0:
            score = where(key <= position + self.right, score, -inf)
        return score

    @staticmethod
    def _add_bias(score: Element, bias: Tensor, indices: Sequence[Element], keys: Dim) -> Element:
        """Add a bias that broadcasts along all axes but the keys; keys beyond its end are masked."""
        *outer, key = indices[len(indices) - bias.rank :]
        picked = bias.at(*(0 if size == 1 else i for size, i in zip(bias.shape, outer)), key)
        if bias.dtype is DType.bool:
            score = where(picked, score, -inf)
        else:
            score = score + cast(picked, score.dtype)
        return score if bias.shape[-1] == keys else where(key < bias.shape[-1], score, -inf)


@op("Attention", since=23, outputs=(1, 4))
def attention_23(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None = None,
    past_key: Tensor | None = None,
    past_value: Tensor | None = None,
    *,
    is_causal: int = 0,
    kv_num_heads: int | None = None,
    q_num_heads: int | None = None,
    qk_matmul_output_mode: int = 0,
    scale: float | None = None,
    softcap: float = 0.0,
    softmax_precision: ElementType | None = None,
    output_count: int = 1,
) -> Any:
    return attention_25(
        q,
        k,
        v,
        mask,
        past_key,
        past_value,
        is_causal=is_causal,
        kv_num_heads=kv_num_heads,
        q_num_heads=q_num_heads,
        qk_matmul_output_mode=qk_matmul_output_mode,
        scale=scale,
        softcap=softcap,
        softmax_precision=softmax_precision,
        output_count=output_count,
    )


@op("Attention", since=25, outputs=(1, 4))
@op("Attention", since=24, outputs=(1, 4))
def attention_25(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None = None,
    past_key: Tensor | None = None,
    past_value: Tensor | None = None,
    nonpad_kv_seqlen: Tensor | None = None,
    *,
    is_causal: int = 0,
    kv_num_heads: int | None = None,
    left_window_size: int = -1,
    q_num_heads: int | None = None,
    qk_matmul_output_mode: int = 0,
    right_window_size: int = -1,
    scale: float | None = None,
    softcap: float = 0.0,
    softmax_precision: ElementType | None = None,
    output_count: int = 1,
) -> list[Tensor | None]:
    require(qk_matmul_output_mode in (0, 1, 2, 3), f"qk_matmul_output_mode is {qk_matmul_output_mode}")
    require((past_key is None) == (past_value is None), "past_key and past_value must be given together")
    query = split_heads(q, q_num_heads, "q_num_heads")
    key = split_heads(k, kv_num_heads, "kv_num_heads")
    value = split_heads(v, kv_num_heads, "kv_num_heads")
    offset: Dim = 0
    if past_key is not None and past_value is not None:
        require(nonpad_kv_seqlen is None, "nonpad_kv_seqlen cannot be combined with past_key")
        offset = past_key.shape[2]
        key, value = concat([past_key, key], 2), concat([past_value, value], 2)
    if nonpad_kv_seqlen is not None:
        assume_equal(
            nonpad_kv_seqlen.shape[0], key.shape[0], "nonpad_kv_seqlen has one length for each sequence of the batch"
        )
        nonpad_kv_seqlen = check_range(nonpad_kv_seqlen, 0, key.shape[2], "nonpad_kv_seqlen")
    rules = Mask(mask, bool(is_causal), left_window_size, right_window_size, offset, nonpad_kv_seqlen)
    products = multiply_heads(query, key)
    factor = default_scale(query.shape[3], products.dtype) if scale is None else scale
    scores = _compute_scores(products, factor, softcap, rules, 2)
    precision = wide_dtype(q.dtype) if softmax_precision is None else from_number(softmax_precision)
    weights = softmax_of_visible(cast(scores, precision))
    result = weigh_values(cast(weights, wide_dtype(q.dtype)), value, merge=q.rank == 3)
    qk_output = None
    if output_count > 3:
        mode = qk_matmul_output_mode
        qk_output = (
            weights if mode == 3 else scores if mode == 2 else _compute_scores(products, factor, softcap, rules, mode)
        )
        qk_output = cast(qk_output, q.dtype)
    return [cast(result, q.dtype), key, value, qk_output]


def _compute_scores(products: Tensor, factor: Any, softcap: float, mask: Mask, stage: int) -> Tensor:
    """Compute scores from products: scaled, then (stage 1) capped, then (stage 2) masked."""
    if stage == 2 and mask.bias is not None:
        require(1 <= mask.bias.rank <= 4, f"a mask of {mask.bias.type} does not broadcast to the scores")
        broadcast_shapes(products.shape[:3], mask.bias.shape[:-1])

    def element(*indices: Element) -> Element:
        score = products.at(*indices) * factor
        if stage >= 1 and softcap > 0.0:
            score = tanh(score / softcap) * softcap
        return mask.apply(score, indices, *products.shape[2:]) if stage == 2 else score

    return build(products.shape, element)


def split_heads(x: Tensor, heads: int | None, name: str) -> Tensor:
    """Split [batch, sequence, heads * size] into [batch, heads, sequence, size]; rank 4 is returned as it is."""
    require(x.rank in (3, 4), f"attention needs tensors of rank 3 or 4, not {x.type}")
    if x.rank == 4:
        return x
    require(heads is not None and heads > 0, f"with three dimensions {name} must be given, not {heads}")
    assert heads is not None
    batch, length, hidden = x.shape
    return transpose(reshape(x, (batch, length, heads, dims.floordiv(hidden, heads))), (0, 2, 1, 3))


def multiply_heads(query: Tensor, key: Tensor) -> Tensor:
    """Compute dot products [batch, query heads, queries, keys]; each key head serves consecutive query heads."""
    wide = wide_dtype(query.dtype)
    batch, heads, queries, size = query.shape
    shared = key.shape[1]
    grouped = reshape(cast(query, wide), (batch, shared, count_sharing_heads(heads, shared), queries, size))
    products = contract(grouped, cast(key, wide), "bhgqd", "bhkd", "bhgqk")
    return reshape(products, (batch, heads, queries, key.shape[2]))


def count_sharing_heads(heads: Dim, shared: Dim) -> Dim:
    """Return how many query heads share one head of keys and values."""
    if shared == 0:
        require(heads == 0, f"{heads} query heads need at least one head of keys")
        return 1
    return dims.floordiv(heads, shared)


def weigh_values(weights: Tensor, value: Tensor, *, merge: bool) -> Tensor:
    """Compute weighted sums of values, [batch, heads, queries, size] or, merged, [batch, queries, heads * size]."""
    batch, heads, queries, keys = weights.shape
    shared, size = value.shape[1], value.shape[3]
    grouped = reshape(weights, (batch, shared, count_sharing_heads(heads, shared), queries, keys))
    result = contract(grouped, cast(value, weights.dtype), "bhgqk", "bhkv", "bqhgv" if merge else "bhgqv")
    return reshape(result, (batch, queries, heads * size) if merge else (batch, heads, queries, size))


def softmax_of_visible(scores: Tensor) -> Tensor:
    """Compute softmax along the last axis; a row of only -inf gives zeros."""
    wide = wide_dtype(scores.dtype)
    axis = scores.rank - 1
    largest = reduce("maximum", cast(scores, wide), [axis], keep=True)
    powers = elementwise(lambda s, m: exp(cast(s, wide) - where(equal(m, -inf), 0.0, m)), scores, largest)
    total = reduce("sum", powers, [axis], keep=True)
    return elementwise(lambda p, t: cast(p / where(equal(t, 0.0), 1.0, t), scores.dtype), powers, total)


def default_scale(size: Dim, dtype: DType) -> Any:
    """Return 1 / sqrt(size), as a number or, for a symbolic size, an element."""
    if isinstance(size, int):
        return 1.0 / max(size, 1) ** 0.5
    return 1.0 / sqrt(cast(index(size), dtype))


@op("FlexAttention", domain="ai.onnx.preview")
def flex_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    prob_mod: Any = None,
    scale: float | None = None,
    score_mod: Any = None,
    softmax_precision: ElementType | None = None,
) -> Tensor:
    for tensor in (q, k, v):
        require(tensor.rank == 4, f"FlexAttention needs tensors of rank 4, not {tensor.type}")
    precision = wide_dtype(q.dtype) if softmax_precision is None else from_number(softmax_precision)
    products = multiply_heads(q, k)
    factor = default_scale(q.shape[3], products.dtype) if scale is None else scale
    scores = elementwise(lambda p: cast(p * factor, precision), products)
    weights = softmax_of_visible(_modify(scores, score_mod, "score_mod"))
    weights = _modify(weights, prob_mod, "prob_mod")
    return cast(weigh_values(cast(weights, wide_dtype(q.dtype)), v, merge=False), q.dtype)


def _modify(x: Tensor, subgraph: Any, name: str) -> Tensor:
    if subgraph is None:
        return x
    results = subgraph(x)
    require(len(results) == 1, f"{name} must return one tensor, not {len(results)}")
    require(results[0].dtype is x.dtype and results[0].rank == x.rank, f"{name} must keep {x.type}")
    for before, after in zip(x.shape, results[0].shape):
        assume_equal(before, after, f"{name} must keep the shape")
    return results[0]  # type: ignore[no-any-return]


@op("RotaryEmbedding", since=23)
def rotary_embedding(
    x: Tensor,
    cos_cache: Tensor,
    sin_cache: Tensor,
    position_ids: Tensor | None = None,
    *,
    interleaved: int = 0,
    num_heads: int | None = None,
    rotary_embedding_dim: int = 0,
) -> Tensor:
    require(x.rank in (3, 4), f"a rotary embedding needs a tensor of rank 3 or 4, not {x.type}")
    if x.rank == 4:
        return rotate(x, cos_cache, sin_cache, position_ids, rotary_embedding_dim, bool(interleaved), heads_first=True)
    require(num_heads is not None and num_heads > 0, f"with three dimensions num_heads must be given, not {num_heads}")
    assert num_heads is not None
    batch, length, hidden = x.shape
    split = reshape(x, (batch, length, num_heads, dims.floordiv(hidden, num_heads)))
    caches = cos_cache, sin_cache, position_ids
    return reshape(rotate(split, *caches, rotary_embedding_dim, bool(interleaved), heads_first=False), x.shape)


def rotate(
    x: Tensor,
    cosines: Tensor,
    sines: Tensor,
    positions: Tensor | None,
    rotated: Dim,
    interleaved: bool,
    *,
    heads_first: bool,
) -> Tensor:
    """Rotate pairs among the first `rotated` (0: all) elements of each head by the angle of their position.

    The caches hold one row per position or, without positions, per batch and token.
    """
    wide = wide_dtype(x.dtype)
    size = rotated if rotated != 0 else x.shape[3]
    half = dims.floordiv(size, 2)
    assume_equal(2 * half, size, "an even number of elements is rotated, in pairs")
    for cache in (cosines, sines):
        require(cache.rank == (3 if positions is None else 2), f"a cache of {cache.type} does not fit")
        assume_equal(cache.shape[-1], half, "a cache has a number for each pair")

    def element(*i: Element) -> Element:
        batch, step, column = i[0], i[2] if heads_first else i[1], i[3]
        if interleaved:
            angle, partner, second = (column // 2) % half, column + 1 - (column % 2) * 2, equal(column % 2, 1)
        else:
            angle, partner, second = column % half, (column + half) % size, column >= half
        row: list[Any] = [batch, step] if positions is None else [positions.at(batch, step)]
        cosine, sine = (cast(cache.at(*row, angle, checked=positions is not None), wide) for cache in (cosines, sines))
        value, other = cast(x.at(*i), wide), cast(x.at(*i[:3], partner), wide)
        result = value * cosine + where(second, other, -other) * sine
        return cast(result if size == x.shape[3] else where(column < size, result, value), x.dtype)

    return build(x.shape, element)
