"""Attention: scaled dot products under masks, rotary embeddings, and its linear (recurrent) form."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, sqrt
from typing import Any

from weft.ir import dims
from weft.ir.dims import Dim
from weft.ir.dtypes import DType, from_number
from weft.ir.types import Shape
from weft.ops import functions as f
from weft.ops.functions import cast, equal, exp, tanh, where, wide_dtype
from weft.ops.language import (
    Element,
    Tensor,
    assume_equal,
    broadcast_shapes,
    build,
    concat,
    contract,
    elementwise,
    full,
    index,
    reduce,
    reshape,
    scan,
    transpose,
)
from weft.ops.registry import REQUIRED, op, require
from weft.ops.tensor import broadcast_load


@dataclass(frozen=True, slots=True)
class Mask:
    """Which keys a query sees, and what is added to the scores.

    Query q stands at position q + `offset` among the keys; a window of -1 is unbounded. `valid` counts the keys of each
    batch that are no padding.
    """

    bias: Tensor | None = None
    causal: bool = False
    left: int = -1
    right: int = -1
    offset: Dim = 0
    valid: Tensor | None = None

    def apply(self, score: Element, place: Sequence[Element], sizes: Shape) -> Any:
        """The score at (batch, head, query, key), -inf where the key is hidden."""
        batch, _, query, key = place
        if self.bias is not None:
            score = _add_bias(score, self.bias, place)
        position: Any = query + self.offset
        if self.valid is not None:
            count = cast(self.valid.at(batch), DType.int64)
            score = where(key < count, score, -inf)
            position = query + count - index(sizes[2])
        if self.causal:
            score = where(key <= position, score, -inf)
        if self.left >= 0:
            score = where(key >= position - self.left, score, -inf)
        if self.right >= 0:
            score = where(key <= position + self.right, score, -inf)
        return score


def _add_bias(score: Element, bias: Tensor, place: Sequence[Element]) -> Any:
    """Keys past the end of the mask are hidden."""
    length = bias.shape[-1]
    axes = [element.scalar.value for element in place]  # type: ignore[union-attr]
    picked = broadcast_load(bias, axes) if bias.rank == 0 else bias.at(*_aligned(bias, place))
    if bias.dtype is DType.bool:
        return where((place[3] < length) & picked, score, -inf)
    return where(place[3] < length, score + cast(picked, score.dtype), -inf)


def _aligned(bias: Tensor, place: Sequence[Element]) -> list[Element | int]:
    """The mask's own index for a score's: its last dimensions, those of size 1 repeated, the keys never."""
    *outer, key = place[len(place) - bias.rank :]
    return [*(0 if size == 1 else i for size, i in zip(bias.shape, outer)), key]
