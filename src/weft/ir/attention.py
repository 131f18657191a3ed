"""Attention: a softmax between two matrix products, as expressions of its operands."""

from __future__ import annotations

from weft.ir.dims import Dim
from weft.ir.scalar import Scalar
from weft.ir.types import Shape
from weft.records import dataclass


@dataclass(frozen=True, slots=True)
class CausalBound:
    """Keys from `bound` on are masked for a row, with scores of about `score`."""

    bound: Dim
    score: float


@dataclass(frozen=True, slots=True)
class Attention:
    """result[*i, column] = sum over keys of softmax(score)[*i, key] * value[*i, key, column].

    Expressions are over the axes of `shape` (i, then the keys) and, after these, `depth` (query and key) or `width`
    (value). Keys and values are constant along the axes `rows`. The placeholder `ELEMENT` stands for the
    product of query and key in `score`, for the sum of exponentials in `divisor`, and in `epilogue`, over the result's
    axes, for an element of the result.

    With a `block_size`, keys and values are in blocks: their expressions are linear in key // block_size and key %
    block_size instead of the key, and the former may index a table of blocks.
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
    shifts_nothing: bool  # a row of only -inf is shifted by 0; otherwise its scores become NaN
    drops_nan: bool  # NaN weights are replaced by 0
    causal_bounds: tuple[CausalBound, ...]
    loaded_bounds: tuple[Scalar, ...]  # as causal bounds with a score of -inf, but they depend on data
    loaded_starts: tuple[Scalar, ...]  # keys before these have a score of -inf; they depend on data
    sink: Scalar | None  # a score that takes part in a row's softmax, and has no value
    axes: tuple[int, ...]  # of the result, as indices of the axes above
    epilogue: Scalar | None
    block_size: int | None = None
