"""Inverses, linear equations and distances."""

from __future__ import annotations

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
    require(x.rank >= 2, f"the inverse of {x.type}")
    *batch, size, columns = x.shape
    assume_equal(size, columns, "only a square matrix has an inverse")
    matrices = reshape(cast(x, wide_dtype(x.dtype)), (dims.product(batch), size, size))
    identity = build(matrices.shape, lambda _, i, j: cast(equal(i, j), matrices.dtype))
    return reshape(cast(_solve(matrices, identity), x.dtype), x.shape)


@op("Solve")
def solve(a: Tensor, y: Tensor, *, lower: int = 0, transposed: int = 0) -> Tensor:
    """Solve a x = y, or the same with a transposed; `lower` has no effect, as all of a is read."""
    require(a.rank == 2 and y.rank in (1, 2), f"equations {a.type} with right-hand sides {y.type}")
    size = a.shape[0]
    assume_equal(size, a.shape[1], "as many equations as unknowns")
    assume_equal(size, y.shape[0], "a right-hand side for each equation")
    wide = wide_dtype(a.dtype)
    matrix = build((1, size, size), lambda _, i, j: cast(a.at(j, i) if transposed else a.at(i, j), wide))
    right = reshape(cast(y, wide), (1, size, 1 if y.rank == 1 else y.shape[1]))
    return reshape(cast(_solve(matrix, right), a.dtype), y.shape)


def _solve(matrices: Tensor, right: Tensor) -> Tensor:
    """Solve by Gaussian elimination with pivoting, for each matrix [batch, size, size] of the batch."""
    count, size, _ = matrices.shape
    columns = right.shape[2]

    def augmented(b: Element, i: Element, j: Element) -> Element:
        return where(j < size, matrices.at(b, i, j), right.at(b, i, j - size))

    def eliminate(matrix: Tensor, step: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        k = step.at()
        candidates = build((count, size), lambda b, i: where(i >= k, absolute(matrix.at(b, i, k)), -1.0))
        best = arg_reduce("maximum", candidates, 1)

        def exchanged(b: Element, i: Element, j: Element) -> Element:
            return matrix.at(b, where(equal(i, k), best.at(b), where(equal(i, best.at(b)), k, i)), j)

        swapped = build(matrix.shape, exchanged)

        def reduced(b: Element, i: Element, j: Element) -> Element:
            row = swapped.at(b, k, j) / swapped.at(b, k, k)
            return where(equal(i, k), row, swapped.at(b, i, j) - swapped.at(b, i, k) * row)

        return [build(matrix.shape, reduced)], []

    (result,), _ = scan(eliminate, [build((count, size, size + columns), augmented)], [build((size,), lambda i: i)])
    return slice_axis(result, 2, size, columns)


@op("CDist")
def distances(a: Tensor, b: Tensor, *, metric: str = "sqeuclidean") -> Tensor:
    """Compute distances between each row of a and each row of b."""
    require(metric in ("euclidean", "sqeuclidean"), f"metric is {metric!r}", "weft has euclidean and sqeuclidean")
    require(a.rank == 2 and b.rank == 2, f"distances between rows of {a.type} and {b.type}")
    assume_equal(a.shape[1], b.shape[1], "rows must be equally long")

    def square(i: Element, j: Element, k: Element) -> Element:
        difference = a.at(i, k) - b.at(j, k)
        return difference * difference

    total = reduce("sum", build((a.shape[0], b.shape[0], a.shape[1]), square), [2])
    return total if metric == "sqeuclidean" else elementwise(sqrt, total)
