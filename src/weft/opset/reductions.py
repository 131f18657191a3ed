"""Reductions along axes: sums, norms, extremes and their positions, softmax, running sums, top k."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from weft.ir import dims
from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.opset.functions import absolute, cast, equal, exp, is_inf, log, sqrt, where
from weft.opset.language import (
    Tensor,
    arg_reduce,
    assume_at_least,
    build,
    cumulate,
    elementwise,
    full,
    mean,
    reduce,
    reshape,
    sort,
)
from weft.opset.registry import REQUIRED, Sizes, Static, normalize_axes, normalize_axis, op, require

Reduction = Callable[[Tensor, Sequence[int], bool], Tensor]


def reduction(name: str, axes_as_input_since: int = 18) -> Callable[[Reduction], Reduction]:
    """Register a reduction (x, axes, keep) under both of its signatures: axes as an attribute, later as an input."""

    def register(function: Reduction) -> Reduction:
        def with_attribute(x: Tensor, *, axes: tuple[int, ...] | None = None, keepdims: int = 1) -> Tensor:
            return function(x, _resolve_axes(x, axes, noop=False), bool(keepdims))

        def with_input(
            x: Tensor, axes: Static | None = None, *, keepdims: int = 1, noop_with_empty_axes: int = 0
        ) -> Tensor:
            chosen = None if axes is None else axes.reshape(-1).tolist()
            return function(x, _resolve_axes(x, chosen, noop=bool(noop_with_empty_axes)), bool(keepdims))

        op(name)(with_attribute)
        op(name, since=axes_as_input_since)(with_input)
        return function

    return register


def _resolve_axes(x: Tensor, axes: Sequence[int] | None, *, noop: bool) -> tuple[int, ...]:
    """Return the axes to reduce: by default all of them or, if `noop`, none."""
    if x.rank == 0:
        return ()
    if not axes:
        return () if noop else tuple(range(x.rank))
    return normalize_axes(axes, x.rank)


def compute_precisely(x: Tensor, compute: Callable[[Tensor], Tensor]) -> Tensor:
    """Compute in a more precise float type (float32 for narrow floats, float64 for integers)."""
    if x.dtype in (DType.float32, DType.float64):
        return compute(x)
    wide = DType.float32 if x.dtype.is_float else DType.float64
    return cast(compute(cast(x, wide)), x.dtype)


def compute_wide(x: Tensor, compute: Callable[[Tensor], Tensor]) -> Tensor:
    """Compute narrow floats in float32; integers and wide floats as they are."""
    return compute_precisely(x, compute) if x.dtype.is_float else compute(x)


@reduction("ReduceSum", axes_as_input_since=13)
def reduce_sum(x: Tensor, axes: Sequence[int], keep: bool) -> Tensor:
    return reduce("sum", x, axes, keep)


@reduction("ReduceMean")
def reduce_mean(x: Tensor, axes: Sequence[int], keep: bool) -> Tensor:
    return compute_wide(x, lambda x: mean(x, axes, keep) if axes else x)


@reduction("ReduceProd")
def reduce_product(x: Tensor, axes: Sequence[int], keep: bool) -> Tensor:
    return reduce("product", x, axes, keep)


@reduction("ReduceMax")
def reduce_maximum(x: Tensor, axes: Sequence[int], keep: bool) -> Tensor:
    return reduce("maximum", x, axes, keep)


@reduction("ReduceMin")
def reduce_minimum(x: Tensor, axes: Sequence[int], keep: bool) -> Tensor:
    return reduce("minimum", x, axes, keep)


@reduction("ReduceL1")
def reduce_l1(x: Tensor, axes: Sequence[int], keep: bool) -> Tensor:
    return compute_wide(x, lambda x: reduce("sum", absolute(x), axes, keep))


@reduction("ReduceL2")
def reduce_l2(x: Tensor, axes: Sequence[int], keep: bool) -> Tensor:
    return compute_precisely(x, lambda x: sqrt(_sum_of_squares(x, axes, keep)))


@reduction("ReduceSumSquare")
def reduce_sum_square(x: Tensor, axes: Sequence[int], keep: bool) -> Tensor:
    return compute_wide(x, lambda x: _sum_of_squares(x, axes, keep))


def _sum_of_squares(x: Tensor, axes: Sequence[int], keep: bool) -> Tensor:
    return reduce("sum", elementwise(lambda v: v * v, x), axes, keep)


@reduction("ReduceLogSum")
def reduce_log_sum(x: Tensor, axes: Sequence[int], keep: bool) -> Tensor:
    return compute_precisely(x, lambda x: log(reduce("sum", x, axes, keep)))


@reduction("ReduceLogSumExp")
def reduce_log_sum_exp(x: Tensor, axes: Sequence[int], keep: bool) -> Tensor:
    return compute_precisely(x, lambda x: _log_sum_exp(x, axes, keep))


def _log_sum_exp(x: Tensor, axes: Sequence[int], keep: bool) -> Tensor:
    highest = reduce("maximum", x, axes, keep=True)
    offset = elementwise(lambda v: where(is_inf(v), 0.0, v), highest)
    total = reduce("sum", elementwise(lambda v, m: exp(v - m), x, offset), axes, keep=True)
    result = elementwise(lambda s, m: log(s) + m, total, offset)
    return result if keep else reshape(result, [size for axis, size in enumerate(x.shape) if axis not in axes])


# -- positions -------------------------------------------------------------------------------------------------------


@op("ArgMax")
def arg_max(x: Tensor, *, axis: int = 0, keepdims: int = 1, select_last_index: int = 0) -> Tensor:
    return _find_position("maximum", x, axis, keepdims, select_last_index)


@op("ArgMin")
def arg_min(x: Tensor, *, axis: int = 0, keepdims: int = 1, select_last_index: int = 0) -> Tensor:
    return _find_position("minimum", x, axis, keepdims, select_last_index)


def _find_position(kind: str, x: Tensor, axis: int, keepdims: int, select_last_index: int) -> Tensor:
    axis = normalize_axis(axis, x.rank)
    if x.rank == 0:
        return full((), 0, DType.int64)
    if 0 not in (*x.shape[:axis], *x.shape[axis + 1 :]):
        assume_at_least(x.shape[axis], 1, f"there is no {kind} along an axis without elements")
    return arg_reduce(kind, x, axis, keep=bool(keepdims), last=bool(select_last_index))


@op("TopK")
def top_k_1(x: Tensor, *, k: int = REQUIRED, axis: int = -1) -> tuple[Tensor, Tensor]:
    return _take_top(x, k, axis, largest=True)


@op("TopK", since=10)
def top_k(x: Tensor, k: Sizes, *, axis: int = -1, largest: int = 1, sorted: int = 1) -> tuple[Tensor, Tensor]:
    require(len(k) == 1, f"k must be one number, not {len(k)}")
    return _take_top(x, k[0], axis, largest=bool(largest))


def _take_top(x: Tensor, k: Dim, axis: int, *, largest: bool) -> tuple[Tensor, Tensor]:
    require(x.rank > 0, "the largest elements of a scalar")
    axis = normalize_axis(axis, x.rank)
    size = x.shape[axis]
    if isinstance(k, int):
        require(k >= 0, f"k must not be negative, as {k} is")
        require(not isinstance(size, int) or k <= size, f"k is {k} but the axis has only {size} elements")
    return sort(x, axis, count=k, descending=largest)


# -- softmax ---------------------------------------------------------------------------------------------------------


def softmax(x: Tensor, axes: Sequence[int]) -> Tensor:
    """Compute softmax along `axes`, narrow floats in float32."""

    def compute(x: Tensor) -> Tensor:
        weights = _exp_below_highest(x, axes)
        return weights / reduce("sum", weights, axes, keep=True)

    return compute_precisely(x, compute)


def log_softmax(x: Tensor, axes: Sequence[int]) -> Tensor:
    """Compute the logarithm of `softmax`, accurately where that is tiny."""

    def compute(x: Tensor) -> Tensor:
        highest = reduce("maximum", x, axes, keep=True)
        total = reduce("sum", elementwise(lambda v, m: exp(v - m), x, highest), axes, keep=True)
        return elementwise(lambda v, m, s: v - m - log(s), x, highest, total)

    return compute_precisely(x, compute)


def _exp_below_highest(x: Tensor, axes: Sequence[int]) -> Tensor:
    return elementwise(lambda v, m: exp(v - m), x, reduce("maximum", x, axes, keep=True))


@op("Softmax")
def softmax_1(x: Tensor, *, axis: int = 1) -> Tensor:
    return softmax(x, _axes_from(x, axis))


@op("Softmax", since=13)
def softmax_13(x: Tensor, *, axis: int = -1) -> Tensor:
    return softmax(x, _one_axis(x, axis))


@op("LogSoftmax")
def log_softmax_1(x: Tensor, *, axis: int = 1) -> Tensor:
    return log_softmax(x, _axes_from(x, axis))


@op("LogSoftmax", since=13)
def log_softmax_13(x: Tensor, *, axis: int = -1) -> Tensor:
    return log_softmax(x, _one_axis(x, axis))


def _axes_from(x: Tensor, axis: int) -> tuple[int, ...]:
    """Return all axes from `axis` on, which a coercion to two dimensions merges into the second."""
    return tuple(range(_coerced_axis(x, axis), x.rank))


def _coerced_axis(x: Tensor, axis: int) -> int:
    return x.rank if axis == x.rank else normalize_axis(axis, x.rank)


def _one_axis(x: Tensor, axis: int) -> tuple[int, ...]:
    axis = normalize_axis(axis, x.rank)
    return (axis,) if x.rank else ()


@op("Hardmax")
def hardmax_1(x: Tensor, *, axis: int = 1) -> Tensor:
    split = _coerced_axis(x, axis)
    rows = reshape(x, (dims.product(x.shape[:split]), dims.product(x.shape[split:])))
    return reshape(_hardmax(rows, 1), x.shape)


@op("Hardmax", since=13)
def hardmax_13(x: Tensor, *, axis: int = -1) -> Tensor:
    return _hardmax(x, normalize_axis(axis, x.rank)) if x.rank else full((), 1, x.dtype)


def _hardmax(x: Tensor, axis: int) -> Tensor:
    """Return 1 at the first maximum along `axis`, 0 elsewhere."""
    winner = arg_reduce("maximum", x, axis)
    return build(x.shape, lambda *i: cast(equal(winner.at(*i[:axis], *i[axis + 1 :]), i[axis]), x.dtype))


# -- running sums and products ---------------------------------------------------------------------------------------


@op("CumSum", since=11)
def cumulative_sum(x: Tensor, axis: Static, *, exclusive: int = 0, reverse: int = 0) -> Tensor:
    return _cumulate("sum", x, axis, exclusive, reverse)


@op("CumProd", since=26)
def cumulative_product(x: Tensor, axis: Static, *, exclusive: int = 0, reverse: int = 0) -> Tensor:
    return _cumulate("product", x, axis, exclusive, reverse)


def _cumulate(kind: str, x: Tensor, axis: Any, exclusive: int, reverse: int) -> Tensor:
    require(axis.size == 1, f"the axis must be one number, not {axis.tolist()}")
    require(x.rank > 0, "a running sum along a scalar")
    chosen = normalize_axis(int(axis.reshape(-1)[0]), x.rank)
    return cumulate(kind, x, chosen, exclusive=bool(exclusive), reverse=bool(reverse))
