"""Shared parts of the attention ops of the domain: masks, caches of keys and values, and the products."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Any

from weft.errors import UnsupportedModelError
from weft.ir.dims import Dim
from weft.opset.attention import default_scale, multiply_heads, softmax_of_visible, weigh_values
from weft.opset.functions import cast, where
from weft.opset.language import Element, Tensor, assume_equal, build, check_range, concat, slice_axis
from weft.opset.registry import require
from weft.records import dataclass

MASK_FILTER_VALUE = -10000.0

Adjust = Callable[[Any, tuple[Element, ...]], Any]


@dataclass(frozen=True, slots=True)
class Attended:
    """The result [batch, queries, heads * size], and its scores and weights [batch, heads, queries, keys]."""

    result: Tensor
    scores: Tensor
    weights: Tensor


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scale: float | None,
    adjust: Adjust,
    softmax: Callable[[Tensor], Tensor] = softmax_of_visible,
) -> Attended:
    """Attend with [batch, heads, sequence, size] tensors; `adjust` masks the score at (batch, head, query, key)."""
    products = multiply_heads(query, key)
    factor = scale or default_scale(query.shape[3], products.dtype)
    scores = build(products.shape, lambda *indices: adjust(products.at(*indices) * factor, indices))
    weights = softmax(scores)
    result = cast(weigh_values(weights, value, merge=True), query.dtype)
    return Attended(result, scores, weights)


def make_mask(
    mask: Tensor | None, bias: Tensor | None, *, filter_value: float, causal: bool, batch: Dim, queries: Dim, keys: Dim
) -> Adjust:
    """Return a function that adds the bias, and the filter value for padding, and masks later keys if causal."""
    is_padding = None if mask is None else _make_padding_test(mask, batch, queries, keys)

    def adjust(score: Any, indices: tuple[Element, ...]) -> Element:
        if bias is not None:
            score = score + cast(bias.at(*(0 if size == 1 else i for size, i in zip(bias.shape, indices))), score.dtype)
        if is_padding is not None:
            score = where(is_padding(indices), score + filter_value, score)
        return where(indices[3] <= indices[2] + (keys - queries), score, -inf) if causal else score

    if bias is not None:
        require(bias.rank == 4, f"an attention bias has four dimensions, not {bias.type}")
        assume_equal(bias.shape[3], keys, "an attention bias has a number for each key")
    return adjust


def _make_padding_test(mask: Tensor, batch: Dim, queries: Dim, keys: Dim) -> Callable[[tuple[Element, ...]], Any]:
    """Return a function that tests whether the key at (batch, head, query, key) is padding, for a mask of any form."""
    if mask.rank == 1:
        return _make_length_test(mask, batch, keys)
    assume_equal(mask.shape[0], batch, "a mask has a row for each sequence of the batch")
    match mask.rank:
        case 2:
            assume_equal(mask.shape[1], keys, "a mask has a number for each key")
            return lambda indices: mask.at(indices[0], indices[3]) <= 0
        case 3:
            assume_equal(mask.shape[2], keys, "a mask has a number for each key")
            return lambda indices: mask.at(indices[0], indices[2], indices[3]) <= 0
        case 4:
            return lambda indices: mask.at(indices[0], 0, indices[2] + (keys - queries), indices[3]) <= 0
    raise UnsupportedModelError(f"attention takes masks of rank 1 to 4, not {mask.type}")


def _make_length_test(mask: Tensor, batch: Dim, keys: Dim) -> Callable[[tuple[Element, ...]], Any]:
    """Return this test for a mask that holds the ends of the sequences, and optionally their starts."""
    if mask.shape[0] == 3 * batch + 2:
        raise UnsupportedModelError("a mask of cumulated sequence lengths", hint="export with a mask of 0 and 1")

    ends = check_range(mask, 0, keys, "mask_index")

    def bound(position: Any) -> Any:
        return ends.at(position)

    if mask.shape[0] == 2 * batch:
        return lambda indices: (indices[3] >= bound(indices[0])) | (indices[3] < bound(indices[0] + batch))
    assume_equal(mask.shape[0], batch, "a mask has a length for each sequence of the batch")
    return lambda indices: indices[3] >= bound(indices[0])


def extend_cache(past: Tensor | None, new: Tensor, past_length: Dim | None) -> tuple[Tensor, Tensor]:
    """Add new rows [batch, heads, sequence, size] to a cache; return it, and the part of it that is in use.

    Without a past length the cache is as long as the past; with one it is a buffer with room.
    """
    if past is None:
        return new, new
    if past_length is None:
        joined = concat([past, new], 2)
        return joined, joined
    count = new.shape[2]

    def element(b: Element, n: Element, t: Element, h: Element) -> Element:
        fresh = (t >= past_length) & (t < past_length + count)
        return where(fresh, new.at(b, n, t - past_length, h), past.at(b, n, t, h))

    buffer = build(past.shape, element)
    return buffer, slice_axis(buffer, 2, 0, past_length + count)
