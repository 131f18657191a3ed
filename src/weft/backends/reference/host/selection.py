"""Functions whose result sizes depend on data, or whose operands have a rank known only during the run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from weft.errors import ExecutionError
from weft.ir.arrays import Array


def nonzero(x: Array) -> tuple[Array]:
    """Return the positions of non-zero elements, one column each, in row-major order."""
    return (np.array(np.nonzero(x), np.int64).reshape(x.ndim, -1),)


def unique(x: Array, *, axis: int, sorted: bool) -> tuple[Array, Array, Array, Array]:
    """Return the distinct slices along `axis`, their first positions, the inverse indices and the counts.

    In ascending order, or in the order of first occurrence.
    """
    if x.dtype == object:  # numpy cannot sort rows of objects: sort their ranks instead
        numbers = np.unique(x, return_inverse=True)[1].reshape(x.shape)
    else:
        numbers = x.astype(np.float32) if x.dtype.kind == "V" else x
    results = np.unique(numbers, return_index=True, return_inverse=True, return_counts=True, axis=axis)
    first, inverse, counts = results[1], results[2].reshape(-1), results[3]
    if not sorted:
        order = np.argsort(first)
        first, counts = first[order], counts[order]
        inverse = np.argsort(order)[inverse]
    return np.take(x, first, axis), first.astype(np.int64), inverse.astype(np.int64), counts.astype(np.int64)


def scalar(x: Array) -> tuple[Array]:
    """Return the only element of a tensor of any rank."""
    if x.size != 1:
        raise ExecutionError(f"a tensor with one element is needed, not one of shape {x.shape}")
    return (x.reshape(()),)


SELECTION: dict[str, Callable[..., tuple[Any, ...]]] = {"nonzero": nonzero, "scalar": scalar, "unique": unique}
