"""Host functions whose result sizes depend on data, or whose operands have ranks that only the run knows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from weft.errors import ExecutionError

Array = np.ndarray[Any, Any]


def nonzero(x: Array) -> tuple[Array]:
    """The positions of non-zero elements, one column each, in row-major order."""
    return (np.array(np.nonzero(x), np.int64).reshape(x.ndim, -1),)


def unique(x: Array, *, axis: int, sorted: bool) -> tuple[Array, Array, Array, Array]:
    """The distinct slices along `axis`, where each is first found, which one each slice is, and how many there are.

    In ascending order, or in the order of first occurrence.
    """
    if x.dtype == object:  # numpy sorts no rows of objects: let numbers that sort alike stand in
        numbers = np.unique(x, return_inverse=True)[1].reshape(x.shape)
    else:
        numbers = x.astype(np.float32) if x.dtype.kind == "V" else x
    found = np.unique(numbers, return_index=True, return_inverse=True, return_counts=True, axis=axis)
    first, inverse, counts = found[1], found[2].reshape(-1), found[3]
    if not sorted:
        order = np.argsort(first)
        first, counts = first[order], counts[order]
        inverse = np.argsort(order)[inverse]
    return np.take(x, first, axis), first.astype(np.int64), inverse.astype(np.int64), counts.astype(np.int64)


def scalar(x: Array) -> tuple[Array]:
    """The one element of a tensor of any rank."""
    if x.size != 1:
        raise ExecutionError(f"one element is asked for where there is a tensor of shape {x.shape}")
    return (x.reshape(()),)


SELECTION: dict[str, Callable[..., tuple[Any, ...]]] = {"nonzero": nonzero, "scalar": scalar, "unique": unique}
