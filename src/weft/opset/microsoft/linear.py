"""Inverses and distances."""

from __future__ import annotations

from typing import Any

from weft.ir import dims
from weft.opset.flow import scan
from weft.opset.functions import absolute, cast, equal, sqrt, where, wide_dtype
from weft.opset.language import (
    Element,
    Tensor,
    arg_reduce,
    assume_equal,
    build,
    elementwise,
    reduce,
    reshape,
    slice_axis,
)
from weft.opset.microsoft.domain import op
from weft.opset.registry import require


@op("Inverse")
def inverse(x: Tensor) -> Tensor:
    """Elimination, with pivoting, of each matrix next to the identity, which becomes the inverse."""
    require(x.rank >= 2, f"the inverse of {x.type}")
    *batch, size, columns = x.shape
    assume_equal(size, columns, "only a square matrix has an inverse")
    count = dims.product(batch)
    wide = wide_dtype(x.dtype)
    matrices = reshape(cast(x, wide), (count, size, size))

    def beside_identity(b: Element, i: Element, j: Element) -> Any:
        return where(j < size, matrices.at(b, i, j), cast(equal(j, i + size), wide))

    def eliminate(matrix: Tensor, step: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        k = step.at()
        candidates = build((count, size), lambda b, i: where(i >= k, absolute(matrix.at(b, i, k)), -1.0))
        best = arg_reduce("maximum", candidates, 1)

        def exchanged(b: Element, i: Element, j: Element) -> Element:
            return matrix.at(b, where(equal(i, k), best.at(b), where(equal(i, best.at(b)), k, i)), j)

        swapped = build(matrix.shape, exchanged)

        def reduced(b: Element, i: Element, j: Element) -> Any:
            row = swapped.at(b, k, j) / swapped.at(b, k, k)
            return where(equal(i, k), row, swapped.at(b, i, j) - swapped.at(b, i, k) * row)

        return [build(matrix.shape, reduced)], []

    (result,), _ = scan(eliminate, [build((count, size, size * 2), beside_identity)], [build((size,), lambda i: i)])
    return reshape(cast(slice_axis(result, 2, size, size), x.dtype), x.shape)


@op("CDist")
def distances(a: Tensor, b: Tensor, *, metric: str = "sqeuclidean") -> Tensor:
    """Distances between each row of a and each row of b."""
    require(metric in ("euclidean", "sqeuclidean"), f"metric is {metric!r}", "weft has euclidean and sqeuclidean")
    require(a.rank == 2 and b.rank == 2, f"distances between rows of {a.type} and {b.type}")
    assume_equal(a.shape[1], b.shape[1], "rows must be equally long")

    def square(i: Element, j: Element, k: Element) -> Any:
        difference = a.at(i, k) - b.at(j, k)
        return difference * difference

    total = reduce("sum", build((a.shape[0], b.shape[0], a.shape[1]), square), [2])
    return total if metric == "sqeuclidean" else elementwise(sqrt, total)
