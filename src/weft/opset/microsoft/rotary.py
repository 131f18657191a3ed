"""Rotary position embeddings."""

from __future__ import annotations

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
        positions = build(_token_shape(x), lambda _, s: position_ids.at(0) + s)
    return _rotate_heads(x, cos_cache, sin_cache, positions, num_heads, rotary_embedding_dim, bool(interleaved))


def _token_shape(x: Tensor) -> tuple[Dim, Dim]:
    """Return the sizes of batch and sequence."""
    require(x.rank in (3, 4), f"a rotary embedding needs a tensor of rank 3 or 4, not {x.type}")
    return x.shape[0], x.shape[2 if x.rank == 4 else 1]


def _rotate_heads(
    x: Tensor, cosines: Tensor, sines: Tensor, positions: Tensor | None, heads: Dim, rotated: Dim, interleaved: bool
) -> Tensor:
    """Apply `rotate` to [batch, heads, sequence, size], or to [batch, sequence, heads * size]."""
    batch, length = _token_shape(x)
    rotated = rotated or cosines.shape[-1] * 2
    if x.rank == 4:
        return rotate(x, cosines, sines, positions, rotated, interleaved, heads_first=True)
    size = dims.floordiv(x.shape[2], heads) if heads else rotated
    split_x = reshape(x, (batch, length, heads or dims.floordiv(x.shape[2], size), size))
    return reshape(rotate(split_x, cosines, sines, positions, rotated, interleaved, heads_first=False), x.shape)


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
    """Rotate each pair by the time, height or width position of its token, depending on its section."""
    require(len(mrope_section) == 3 and position_ids.rank == 3, f"sections {mrope_section} of {position_ids.type}")
    require(mrope_layout in (0, 1), f"mrope_layout is {mrope_layout}")
    times, heights, widths = mrope_section
    half = cos_cache.shape[1]
    assume_equal(half, times + heights + widths, "the sections share the pairs of a head")

    def stream(pair: Element) -> Element:
        number = pair * 0
        if mrope_layout == 0:
            return where(pair >= times + heights, number + 2, where(pair >= times, number + 1, number))
        tall = equal(pair % 3, 1) & (pair < heights * 3)
        wide = equal(pair % 3, 2) & (pair < widths * 3)
        return where(tall, number + 1, where(wide, number + 2, number))

    def select_rows(cache: Tensor) -> Tensor:
        def element(b: Element, s: Element, pair: Element) -> Element:
            return cache.at(position_ids.at(stream(pair), b, s), pair, checked=True)

        return build((*_token_shape(x), half), element)

    caches = select_rows(cos_cache), select_rows(sin_cache)
    return _rotate_heads(x, *caches, None, num_heads, rotary_embedding_dim, bool(interleaved))


@op("GemmaRotaryEmbedding")
def gemma_rotary_embedding(
    angles: Tensor, q: Tensor, q_rotated: Tensor, k: Tensor, k_rotated: Tensor
) -> tuple[Tensor, Tensor]:
    """Compute x * cos + rotated x * sin for queries and keys; all heads have the angles [batch, sequence, size]."""

    def rotate_tokens(x: Tensor, rotated: Tensor) -> Tensor:
        def element(b: Element, n: Element, s: Element, h: Element) -> Element:
            angle = angles.at(b, s, h)
            cosine, sine = (cast(cast(function(angle), x.dtype), DType.float32) for function in (cos, sin))
            value, other = cast(x.at(b, n, s, h), DType.float32), cast(rotated.at(b, n, s, h), DType.float32)
            return cast(value * cosine + other * sine, x.dtype)

        return build(x.shape, element)

    return rotate_tokens(q, q_rotated), rotate_tokens(k, k_rotated)
