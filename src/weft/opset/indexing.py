"""Indexing: reading and writing at computed positions, and finding positions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from weft.ir import dims
from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.ir.types import TensorType
from weft.opset.functions import cast
from weft.opset.language import (
    Element,
    Tensor,
    assume_equal,
    build,
    fresh_symbol,
    gather,
    host,
    reshape,
    scatter,
    wrap_index,
)
from weft.opset.registry import normalize_axis, op, require
from weft.opset.trace import is_symbolic

REDUCTIONS = {"none": "none", "add": "add", "mul": "multiply", "min": "minimum", "max": "maximum"}


# -- reading ---------------------------------------------------------------------------------------------------------


@op("Gather")
def gather_(x: Tensor, indices: Tensor, *, axis: int = 0) -> Tensor:
    require(x.rank > 0, "nothing can be gathered from a scalar")
    return gather(x, indices, axis)


@op("GatherElements", since=11)
def gather_elements(x: Tensor, indices: Tensor, *, axis: int = 0) -> Tensor:
    axis = normalize_axis(axis, x.rank)
    require(indices.rank == x.rank, f"indices of rank {indices.rank} for data of rank {x.rank}")

    def element(*i: Element) -> Element:
        return x.at(*i[:axis], wrap_index(indices.at(*i), x.shape[axis]), *i[axis + 1 :], checked=True)

    return build(indices.shape, element)


@op("GatherND", since=11)
def gather_nd(x: Tensor, indices: Tensor, *, batch_dims: int = 0) -> Tensor:
    depth = _index_depth(x, indices, batch_dims)
    for size, other in zip(x.shape[:batch_dims], indices.shape[:batch_dims]):
        assume_equal(size, other, "data and indices must have the same batch dimensions")
    outer = indices.rank - 1
    shape = (*indices.shape[:-1], *x.shape[batch_dims + depth :])

    def element(*i: Element) -> Element:
        return x.at(*i[:batch_dims], *_wrap_indices(x, indices, i[:outer], batch_dims, depth), *i[outer:], checked=True)

    return build(shape, element)


def _index_depth(x: Tensor, indices: Tensor, batch: int) -> int:
    """Return how many leading dimensions of x (after the batch) one row of indices addresses."""
    require(indices.rank > batch >= 0 and x.rank >= batch, f"batch_dims is {batch} for indices of rank {indices.rank}")
    depth = indices.shape[-1]
    if not isinstance(depth, int):
        raise dims.UndecidedError(f"the number of dimensions that indices address is {depth}")
    require(batch + depth <= x.rank, f"indices address {batch} + {depth} dimensions of data of rank {x.rank}")
    return depth


def _wrap_indices(x: Tensor, indices: Tensor, row: Sequence[Element], batch: int, depth: int) -> list[Element]:
    return [wrap_index(indices.at(*row, number), x.shape[batch + number]) for number in range(depth)]


# -- writing ---------------------------------------------------------------------------------------------------------


@op("Scatter", since=9)
@op("ScatterElements", since=11)
def scatter_elements(x: Tensor, indices: Tensor, updates: Tensor, *, axis: int = 0, reduction: str = "none") -> Tensor:
    axis = normalize_axis(axis, x.rank)
    require(indices.rank == x.rank, f"indices of rank {indices.rank} for data of rank {x.rank}")
    _check_updates(indices.shape, updates.shape)

    def place(*i: Element) -> tuple[Sequence[Element], Element]:
        position = wrap_index(indices.at(*i), x.shape[axis])
        return (*i[:axis], position, *i[axis + 1 :]), updates.at(*i)

    return scatter(x, indices.shape, place, reduction=_check_reduction(reduction))


@op("ScatterND", since=11)
def scatter_nd(x: Tensor, indices: Tensor, updates: Tensor, *, reduction: str = "none") -> Tensor:
    outer = indices.rank - 1
    depth = x.rank + outer - updates.rank
    require(0 <= depth <= x.rank and outer >= 0, f"updates have rank {updates.rank} for indices of rank {indices.rank}")
    assume_equal(indices.shape[-1], depth, "indices must address the dimensions that updates leave out")
    domain = (*indices.shape[:-1], *x.shape[depth:])
    _check_updates(domain, updates.shape)

    def place(*i: Element) -> tuple[Sequence[Element], Element]:
        return (*_wrap_indices(x, indices, i[:outer], 0, depth), *i[outer:]), updates.at(*i)

    return scatter(x, domain, place, reduction=_check_reduction(reduction))


def _check_reduction(name: str) -> str:
    require(name in REDUCTIONS, f"reduction is {name!r}, not one of {', '.join(REDUCTIONS)}")
    return REDUCTIONS[name]


def _check_updates(domain: Sequence[Dim], updates: Sequence[Dim]) -> None:
    require(len(domain) == len(updates), f"updates must have rank {len(domain)}, not {len(updates)}")
    for expected, size in zip(domain, updates):
        assume_equal(expected, size, "updates must have one element for each index")


@op("TensorScatter", since=24)
def tensor_scatter(
    past_cache: Tensor, update: Tensor, write_indices: Tensor | None = None, *, axis: int = -2, mode: str = "linear"
) -> Tensor:
    axis = normalize_axis(axis, past_cache.rank)
    require(axis > 0, "axis must not be the batch dimension")
    require(mode in ("linear", "circular"), f"mode is {mode!r}, not linear or circular")
    _check_updates([*past_cache.shape[:axis], update.shape[axis], *past_cache.shape[axis + 1 :]], update.shape)

    def place(*i: Element) -> tuple[Sequence[Element], Element]:
        position = i[axis]
        if write_indices is not None:
            position = cast(write_indices.at(i[0]), DType.int64) + position
        if mode == "circular":
            position = position % past_cache.shape[axis]
        return (*i[:axis], position, *i[axis + 1 :]), update.at(*i)

    return scatter(past_cache, update.shape, place)


# -- finding ---------------------------------------------------------------------------------------------------------


@op("NonZero", since=9)
def non_zero(x: Tensor) -> Tensor:
    x = reshape(x, (1,)) if x.rank == 0 else x
    return host("nonzero", [x], [TensorType(DType.int64, (x.rank, _count_nonzero(x)))])[0]


def _count_nonzero(x: Tensor) -> Dim:
    """Count the elements that are not zero; the count is static where the tensor is."""
    if x.static_value is not None and not is_symbolic(x):
        return int(np.count_nonzero(x.static_value))
    return fresh_symbol("count")


@op("Compress", since=9)
def compress(x: Tensor, condition: Tensor, *, axis: int | None = None) -> Tensor:
    require(condition.rank == 1, f"condition must have one dimension, not {condition.rank}")
    if axis is None:
        x, axis = reshape(x, (x.size,)), 0
    count = _count_nonzero(condition)
    (positions,) = host("nonzero", [condition], [TensorType(DType.int64, (1, count))])
    return gather(x, reshape(positions, (count,)), axis)


@op("Unique", since=11, outputs=(1, 4))
def unique(x: Tensor, *, axis: int | None = None, sorted: int = 1) -> list[Tensor]:
    if axis is None:
        x, axis = reshape(x, (x.size,)), 0
    axis = normalize_axis(axis, x.rank)
    count = fresh_symbol("count")
    shape = (*x.shape[:axis], count, *x.shape[axis + 1 :])
    count_type = TensorType(DType.int64, (count,))
    types = [TensorType(x.dtype, shape), count_type, TensorType(DType.int64, (x.shape[axis],)), count_type]
    return host("unique", [x], types, axis=axis, sorted=bool(sorted))
