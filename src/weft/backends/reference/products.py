"""Contractions and convolutions by matrix products."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import product as cartesian
from typing import Any, Union

import numpy as np

from weft.ir.arrays import Array
from weft.ir.program import Contract, Convolve

Positions = tuple[Union[slice, int], ...]
_EXACT = float(2**53)  # integers up to here are exact in float64


def contract(primitive: Contract, left: Array, right: Array) -> Array:
    if left.dtype != right.dtype:
        left, right = left.astype(_common_dtype(left, right)), right.astype(_common_dtype(left, right))
    left, left_labels = _sum_private(left, primitive.left, {*primitive.right, *primitive.output})
    right, right_labels = _sum_private(right, primitive.right, {*primitive.left, *primitive.output})
    output = primitive.output
    shared = [label for label in left_labels if label in right_labels]
    batch = [label for label in shared if label in output]
    summed = [label for label in shared if label not in output]
    rows = [label for label in left_labels if label not in shared]
    columns = [label for label in right_labels if label not in shared]
    sizes = dict(zip((*left_labels, *right_labels), (*left.shape, *right.shape)))

    def size(labels: list[int]) -> int:
        return int(np.prod([sizes[label] for label in labels], dtype=np.int64))

    a = _arrange(left, left_labels, [*batch, *rows, *summed]).reshape(size(batch), size(rows), size(summed))
    b = _arrange(right, right_labels, [*batch, *summed, *columns]).reshape(size(batch), size(summed), size(columns))
    result = in_wide_type(np.matmul, a, b, size(summed)).reshape([sizes[x] for x in (*batch, *rows, *columns)])
    return _arrange(result, (*batch, *rows, *columns), output)


def _common_dtype(left: Array, right: Array) -> np.dtype[Any]:
    """Return the dtype in which to multiply operands of two types: uint8 and int8, or bfloat16 and float32."""
    return np.dtype(np.int32 if {left.dtype.kind, right.dtype.kind} <= {"i", "u"} else np.float32)


def in_wide_type(multiply: Callable[[Array, Array], Array], a: Array, b: Array, depth: int) -> Array:
    """Multiply floats up to 32 bits in float64, and integers where sums stay exact.

    BLAS rounds sums differently for equal rows and for other numbers of threads; float64 keeps that out of the result.
    """
    dtype = a.dtype
    if dtype.kind == "V" or dtype in (np.float16, np.float32):
        return multiply(a.astype(np.float64), b.astype(np.float64)).astype(dtype)
    if dtype.kind in "iu" and a.size and b.size:
        bound = float(np.abs(a.astype(np.float64)).max()) * float(np.abs(b.astype(np.float64)).max()) * depth
        if bound < _EXACT:
            return multiply(a.astype(np.float64), b.astype(np.float64)).astype(np.int64).astype(dtype)
    return multiply(a, b)


def _sum_private(x: Array, labels: tuple[int, ...], needed: set[int]) -> tuple[Array, tuple[int, ...]]:
    """Take diagonals of repeated labels and sum over those that nothing else needs."""
    while len(set(labels)) != len(labels):
        label = next(label for label in labels if labels.count(label) > 1)
        first, second = [axis for axis, other in enumerate(labels) if other == label][:2]
        x = np.diagonal(x, axis1=first, axis2=second)
        labels = (*(o for axis, o in enumerate(labels) if axis not in (first, second)), label)
    axes = tuple(axis for axis, label in enumerate(labels) if label not in needed)
    if axes:
        x = x.sum(axis=axes, dtype=x.dtype)
        labels = tuple(label for label in labels if label in needed)
    return x, labels


def _arrange(x: Array, labels: tuple[int, ...] | list[int], order: tuple[int, ...] | list[int]) -> Array:
    arranged: Array = x.transpose([list(labels).index(label) for label in order])
    return arranged


def convolve(primitive: Convolve, x: Array, w: Array, groups: int, pads: list[tuple[int, int]], shape: Any) -> Array:
    """`shape` is the result's; groups and pads are evaluated."""
    if x.dtype != w.dtype:
        x, w = x.astype(_common_dtype(x, w)), w.astype(_common_dtype(x, w))
    compute = _transposed if primitive.transposed else _direct
    depth = w.shape[0] // groups * int(np.prod(w.shape[2:])) if primitive.transposed else int(np.prod(w.shape[1:]))

    def multiply(a: Array, b: Array) -> Array:
        return compute(primitive, a, b, groups, pads, shape)

    return in_wide_type(multiply, x, w, depth)


def _direct(
    primitive: Convolve, x: Array, w: Array, groups: int, pads: list[tuple[int, int]], shape: tuple[int, ...]
) -> Array:
    padded = _pad(x, pads)
    spatial = shape[2:]
    batch, channels = x.shape[:2]
    kernel = w.shape[2:]
    if 0 in shape or 0 in x.shape:
        return np.zeros(shape, x.dtype)
    if channels == groups == w.shape[0]:
        return _depthwise(primitive, padded, w, shape)
    weights = np.ascontiguousarray(w).reshape(groups, w.shape[0] // groups, -1)
    if np.prod(kernel) == 1:  # is a plain matrix product
        window = padded[_positions(primitive, (0,) * len(kernel), spatial)]
        product: Array = np.matmul(weights, window.reshape(batch, groups, channels // groups, -1))
        return product.reshape(shape)
    result = np.empty((batch, groups, w.shape[0] // groups, int(np.prod(spatial))), x.dtype)
    for image in range(batch):
        columns = np.empty((groups, channels // groups, int(np.prod(kernel)), *spatial), x.dtype)
        for number, offset in enumerate(np.ndindex(*kernel)):
            window = padded[image][_positions(primitive, offset, spatial)[1:]]
            columns[:, :, number] = window.reshape(groups, channels // groups, *spatial)
        np.matmul(weights, columns.reshape(groups, weights.shape[2], -1), out=result[image])
    return result.reshape(shape)


def _depthwise(primitive: Convolve, padded: Array, w: Array, shape: tuple[int, ...]) -> Array:
    result = np.zeros(shape, padded.dtype)
    ones = (1,) * len(shape[2:])
    for offset in np.ndindex(*w.shape[2:]):
        factor = w[_all_channels(offset)].reshape(1, -1, *ones)
        result += padded[_positions(primitive, offset, shape[2:])] * factor
    return result


def _transposed(
    primitive: Convolve, x: Array, w: Array, groups: int, pads: list[tuple[int, int]], shape: tuple[int, ...]
) -> Array:
    if 0 in shape or 0 in x.shape:
        return np.zeros(shape, x.dtype)
    batch, channels = x.shape[:2]
    kernel = w.shape[2:]
    per_group = w.shape[1]
    a = np.ascontiguousarray(w).reshape(groups, channels // groups, -1).transpose(0, 2, 1)
    b = np.ascontiguousarray(x).reshape(batch, groups, channels // groups, -1)
    columns = np.matmul(a, b).reshape(batch, groups * per_group, *kernel, *x.shape[2:])
    full = [
        max((size - 1) * stride + dilation * (k - 1) + 1, before + result_size)
        for size, stride, dilation, k, (before, _), result_size in zip(
            x.shape[2:], primitive.strides, primitive.dilations, kernel, pads, shape[2:]
        )
    ]
    result = np.zeros((batch, groups * per_group, *full), x.dtype)
    for offset in cartesian(*map(range, kernel)):
        result[_positions(primitive, offset, x.shape[2:])] += columns[_all_channels(offset)]
    crop = [slice(before, before + size) for (before, _), size in zip(pads, shape[2:])]
    return result[_all_channels(crop)]


def _positions(primitive: Convolve, offset: tuple[int, ...], counts: tuple[int, ...]) -> Positions:
    """Return the input positions of the kernel element at `offset`, for all windows."""
    return _all_channels(
        slice(k * dilation, k * dilation + (count - 1) * stride + 1, stride)
        for k, count, stride, dilation in zip(offset, counts, primitive.strides, primitive.dilations)
    )


def _all_channels(spatial: Iterable[slice | int]) -> Positions:
    """Extend an index of the spatial axes to all batches and channels."""
    return (slice(None), slice(None), *spatial)


def _pad(x: Array, pads: list[tuple[int, int]]) -> Array:
    """Pad the spatial axes with zeros; negative pads crop."""
    crop = [slice(max(-before, 0), size - max(-after, 0)) for size, (before, after) in zip(x.shape[2:], pads)]
    x = x[_all_channels(crop)]
    grow = [(max(before, 0), max(after, 0)) for before, after in pads]
    return np.pad(x, [(0, 0), (0, 0), *grow]) if any(map(any, grow)) else x
