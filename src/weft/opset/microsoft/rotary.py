"""Rotary position embeddings."""

from __future__ import annotations

from typing import Any

from weft.ir import dims
from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.opset.attention import rotate
from weft.opset.functions import cast, cos, equal, sin, where
from weft.opset.language import Element, Tensor, assume_equal, build, reshape
from weft.opset.microsoft.domain import op
from weft.opset.registry import REQUIRED, require


@op("RotaryEmbedding")
def rotary_embedding(
    x: Tensor,
    position_ids: Tensor,
    cos_cache: Tensor,
    sin_cache: Tensor,
    *,
    interleaved: int = 0,
    is_packed_batching: int = 0,
    num_heads: int = 0,
    rotary_embedding_dim: int = 0,
    scale: float = 1.0,
) -> Tensor:
    positions = position_ids
    if position_ids.rank == 1:
        positions = build(_tokens(x), lambda _, s: position_ids.at(0) + s)
    return _rotated(x, cos_cache, sin_cache, positions, num_heads, rotary_embedding_dim, bool(interleaved))


def _tokens(x: Tensor) -> tuple[Dim, Dim]:
    """The sizes of batch and sequence."""
    require(x.rank in (3, 4), f"a rotary embedding needs a tensor of rank 3 or 4, not {x.type}")
    return x.shape[0], x.shape[2 if x.rank == 4 else 1]


def _rotated(
    x: Tensor, cosines: Tensor, sines: Tensor, positions: Tensor | None, heads: Dim, rotated: Dim, interleaved: bool
) -> Tensor:
    """[batch, heads, sequence, size], or [batch, sequence, heads * size]; see `rotate` for the rest."""
    batch, length = _tokens(x)
    rotated = rotated or cosines.shape[-1] * 2
    if x.rank == 4:
        return rotate(x, cosines, sines, positions, rotated, interleaved, heads_first=True)
    size = dims.floordiv(x.shape[2], heads) if heads else rotated
    parted = reshape(x, (batch, length, heads or dims.floordiv(x.shape[2], size), size))
    return reshape(rotate(parted, cosines, sines, positions, rotated, interleaved, heads_first=False), x.shape)


@op("MRotaryEmbedding")
def multimodal_rotary_embedding(
    x: Tensor,
    position_ids: Tensor,
    cos_cache: Tensor,
    sin_cache: Tensor,
    *,
    interleaved: int = 0,
    is_packed_batching: int = 0,
    mrope_layout: int = 0,
    mrope_section: tuple[int, ...] = REQUIRED,
    num_heads: int = 0,
    rotary_embedding_dim: int = 0,
    scale: float = 1.0,
) -> Tensor:
    """Each pair is turned by the time, the height or the width of its token, as the sections tell."""
    require(len(mrope_section) == 3 and position_ids.rank == 3, f"sections {mrope_section} of {position_ids.type}")
    require(mrope_layout in (0, 1), f"mrope_layout is {mrope_layout}")
    times, heights, widths = mrope_section
    half = cos_cache.shape[1]
    assume_equal(half, times + heights + widths, "the sections share the pairs of a head")

    def stream(pair: Element) -> Any:
        number = pair * 0
        if mrope_layout == 0:
            return where(pair >= times + heights, number + 2, where(pair >= times, number + 1, number))
        tall = equal(pair % 3, 1) & (pair < heights * 3)
        wide = equal(pair % 3, 2) & (pair < widths * 3)
        return where(tall, number + 1, where(wide, number + 2, number))

    def of_tokens(cache: Tensor) -> Tensor:
        def element(b: Element, s: Element, pair: Element) -> Element:
            return cache.at(position_ids.at(stream(pair), b, s), pair, checked=True)

        return build((*_tokens(x), half), element)

    caches = of_tokens(cos_cache), of_tokens(sin_cache)
    return _rotated(x, *caches, None, num_heads, rotary_embedding_dim, bool(interleaved))


@op("GemmaRotaryEmbedding")
def gemma_rotary_embedding(
    angles: Tensor, q: Tensor, q_rotated: Tensor, k: Tensor, k_rotated: Tensor
) -> tuple[Tensor, Tensor]:
    """x * cos + rotated x * sin, for queries and keys; angles [batch, sequence, size] repeat along the heads."""

    def turned(x: Tensor, rotated: Tensor) -> Tensor:
        def element(b: Element, n: Element, s: Element, h: Element) -> Any:
            angle = angles.at(b, s, h)
            cosine, sine = (cast(cast(function(angle), x.dtype), DType.float32) for function in (cos, sin))
            own, other = cast(x.at(b, n, s, h), DType.float32), cast(rotated.at(b, n, s, h), DType.float32)
            return cast(own * cosine + other * sine, x.dtype)

        return build(x.shape, element)

    return turned(q, q_rotated), turned(k, k_rotated)
