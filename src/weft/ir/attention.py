"""Attention as data: a softmax between two products, as expressions of its operands."""

from __future__ import annotations

from weft.ir.dims import Dim
from weft.ir.scalar import Scalar
from weft.ir.types import Shape
from weft.records import dataclass


@dataclass(frozen=True, slots=True)
class CausalBound:
    """Keys from `bound` on are hidden from a row: `score` is about what they have."""

    bound: Dim
    score: float


@dataclass(frozen=True, slots=True)
class Attention:
    """result[places, column] = sum over keys of softmax(score)[places, key] * value[places, key, column].

    Expressions are over the axes of `shape` (the places, then the keys) and, after these, `depth` (query and key) or
    `width` (value). Along the places `rows` neither keys nor values change. What is at hand (`AT_HAND`) is in `score`
    the product of query and key, in `divisor` the total, and in `epilogue`, over the axes of the result, an element.
    """

    shape: Shape
    depth: int
    width: int
    rows: tuple[int, ...]
    query: Scalar
    key: Scalar
    value: Scalar
    score: Scalar
    divisor: Scalar
    shifts_nothing: bool  # where all of a row is -inf its scores are shifted by 0; else they become NaN
    drops_nan: bool  # weights that are NaN are 0
    causal_bounds: tuple[CausalBound, ...]
    axes: tuple[int, ...]  # of the result, as numbers of axes above
    epilogue: Scalar | None
