"""Rotary position embeddings."""

from __future__ import annotations

from typing import Any

from weft.ir import dims
from weft.ir.dtypes import DType
from weft.ops.attention import rotate
from weft.ops.functions import cast, cos, sin
from weft.ops.language import Element, Tensor, build, reshape
from weft.ops.microsoft.domain import op
from weft.ops.registry import require


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
    require(x.rank in (3, 4), f"a rotary embedding needs a tensor of rank 3 or 4, not {x.type}")
    rotated = rotary_embedding_dim or cos_cache.shape[1] * 2
    batch, length = x.shape[0], x.shape[2 if x.rank == 4 else 1]
    positions = position_ids
    if position_ids.rank == 1:
        positions = build((batch, length), lambda _, s: position_ids.at(0) + s)
    caches = cos_cache, sin_cache, positions
    if x.rank == 4:
        return rotate(x, *caches, rotated, bool(interleaved), heads_first=True)
    heads = num_heads or dims.floordiv(x.shape[2], rotated)
    parted = reshape(x, (batch, length, heads, dims.floordiv(x.shape[2], heads)))
    return reshape(rotate(parted, *caches, rotated, bool(interleaved), heads_first=False), x.shape)


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
