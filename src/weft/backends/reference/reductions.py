"""Reductions, pooling, running sums, sorting, random numbers."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from weft.errors import ExecutionError
from weft.ir import dims
from weft.ir.arrays import Array
from weft.ir.dtypes import DType
from weft.ir.program import ArgReduce, Cumulate, Pool, Random, Reduce, Sort


def reduce(primitive: Reduce, x: Array) -> Array:
    """Reduce axes; narrow floats are summed in float32, an empty maximum or minimum is the type's extreme."""
    match primitive.kind:
        case "sum" | "product":
            function: Any = np.sum if primitive.kind == "sum" else np.prod
            if _is_narrow(x):
                return np.asarray(function(x.astype(np.float32), axis=primitive.axes)).astype(x.dtype)
            if x.dtype == object:
                return _reduce_objects(primitive, x)
            return np.asarray(function(x, axis=primitive.axes, dtype=x.dtype))
        case "maximum" | "minimum":
            if x.dtype == object:
                return _reduce_objects(primitive, x)
            function = np.max if primitive.kind == "maximum" else np.min
            initial = {"initial": _extreme(x.dtype, lowest=primitive.kind == "maximum")} if 0 in x.shape else {}
            if x.dtype.kind == "V":
                return np.asarray(function(x.astype(np.float32), axis=primitive.axes, **initial)).astype(x.dtype)
            return np.asarray(function(x, axis=primitive.axes, **initial))
    raise ValueError(primitive.kind)


def _reduce_objects(primitive: Reduce, x: Array) -> Array:
    """Reduce symbolic sizes by the arithmetic of `weft.ir.dims`."""
    combine = _COMBINE_SIZES[primitive.kind]
    result = x
    for axis in sorted(primitive.axes, reverse=True):
        result = np.asarray(combine.reduce(result, axis=axis), dtype=object)
    return result


_COMBINE_SIZES: dict[str, Any] = {
    "sum": np.add,
    "product": np.multiply,
    "maximum": np.frompyfunc(dims.maximum, 2, 1),
    "minimum": np.frompyfunc(dims.minimum, 2, 1),
}


def _is_narrow(x: Array) -> bool:
    return bool(x.dtype.kind == "V" or x.dtype == np.float16)


def _extreme(dtype: np.dtype[Any], *, lowest: bool) -> Any:
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        return info.min if lowest else info.max
    if dtype.kind == "b":
        return not lowest
    return -np.inf if lowest else np.inf


def arg_reduce(primitive: ArgReduce, x: Array) -> Array:
    function = np.argmax if primitive.kind == "maximum" else np.argmin
    other_sizes = x.shape[: primitive.axis] + x.shape[primitive.axis + 1 :]
    if x.size == 0:
        if 0 in other_sizes:
            return np.empty(other_sizes, np.int64)
        raise ExecutionError(f"axis {primitive.axis} has size 0, so it has no extreme element")
    if x.dtype.kind == "V":
        x = x.astype(np.float32)
    if primitive.last:
        from_end = np.asarray(function(np.flip(x, primitive.axis), axis=primitive.axis), np.int64)
        return np.asarray(x.shape[primitive.axis] - 1 - from_end)
    return np.asarray(function(x, axis=primitive.axis)).astype(np.int64)


def pool(primitive: Pool, x: Array, window: list[int], pads: list[tuple[int, int]], shape: tuple[int, ...]) -> Array:
    """Pool in one pass per window element, over all windows at once."""
    if primitive.kind == "sum" and _is_narrow(x):
        return pool(primitive, x.astype(np.float32), window, pads, shape).astype(x.dtype)
    neutral = 0 if primitive.kind == "sum" else _extreme(x.dtype, lowest=True)
    padded = _pad_for_windows(x, neutral, window, primitive, pads, shape[2:])
    result = np.full(shape, neutral, x.dtype)
    if primitive.kind == "argmax":
        return _pool_positions(primitive, x, padded, window, pads, result)
    combine: Any = np.add if primitive.kind == "sum" else np.maximum
    for offset in np.ndindex(*window):
        combine(result, padded[_window_positions(primitive, offset, shape[2:])], out=result)
    return result


def _pool_positions(
    primitive: Pool, x: Array, padded: Array, window: list[int], pads: list[tuple[int, int]], result: Array
) -> Array:
    """Return the position of each window's first maximum; `result` starts as the neutral element."""
    shape = result.shape
    numbers = np.arange(int(np.prod(x.shape[2:]))).reshape(1, 1, *x.shape[2:])
    where = _pad_for_windows(numbers, -1, window, primitive, pads, shape[2:])
    positions = np.full(shape, -1, np.int64)
    for offset in np.ndindex(*window):
        place = _window_positions(primitive, offset, shape[2:])
        part, here = padded[place], np.broadcast_to(where[place], shape)
        better = (here >= 0) & ((positions < 0) | (part > result))
        result = np.where(better, part, result)
        positions = np.where(better, here, positions)
    return positions


def _window_positions(primitive: Pool, offset: tuple[int, ...], counts: tuple[int, ...]) -> tuple[slice, ...]:
    """Return the padded input positions of the window element at `offset`, for all windows."""
    spatial = (
        slice(k * dilation, k * dilation + (count - 1) * stride + 1, stride)
        for k, count, stride, dilation in zip(offset, counts, primitive.strides, primitive.dilations)
    )
    return (slice(None), slice(None), *spatial)


def _pad_for_windows(
    x: Array, fill: Any, window: list[int], primitive: Pool, pads: list[tuple[int, int]], counts: tuple[int, ...]
) -> Array:
    """Pad or crop x to exactly the extent of the windows."""
    index: list[slice] = [slice(None), slice(None)]
    grow = [(0, 0), (0, 0)]
    for size, k, stride, dilation, (before, _), count in zip(
        x.shape[2:], window, primitive.strides, primitive.dilations, pads, counts
    ):
        extent = (count - 1) * stride + dilation * (k - 1) + 1
        after = extent - before - size
        index.append(slice(max(-before, 0), size + min(after, 0)))
        grow.append((max(before, 0), max(after, 0)))
    return np.pad(x[tuple(index)], grow, constant_values=fill)


def cumulate(primitive: Cumulate, x: Array) -> Array:
    if x.size == 0:
        return np.array(x)
    function: Any = np.cumsum if primitive.kind == "sum" else np.cumprod
    axis = primitive.axis
    wide = x.astype(np.float32) if _is_narrow(x) else x
    wide = np.flip(wide, axis) if primitive.reverse else wide
    result = function(wide, axis=axis, dtype=wide.dtype)
    if primitive.exclusive:
        first = np.full_like(np.take(wide, [0], axis), 0 if primitive.kind == "sum" else 1)
        rest = np.take(result, np.arange(max(x.shape[axis] - 1, 0)), axis)
        result = np.concatenate([first, rest], axis) if x.shape[axis] else result
    return np.asarray(np.flip(result, axis) if primitive.reverse else result).astype(x.dtype)


def sort(primitive: Sort, x: Array, count: int) -> tuple[Array, Array]:
    axis = primitive.axis
    keys = x.astype(np.float32) if x.dtype.kind == "V" else x
    if primitive.descending:  # reversing twice keeps ties in their order
        reverse = np.argsort(np.flip(keys, axis), axis=axis, kind="stable")
        positions = np.flip(x.shape[axis] - 1 - reverse, axis)
    else:
        positions = np.argsort(keys, axis=axis, kind="stable")
    positions = np.take(positions, np.arange(count), axis).astype(np.int64)
    return np.take_along_axis(x, positions, axis), positions


def random(primitive: Random, shape: tuple[int, ...], dtype: DType) -> Array:
    """Generate random numbers by Philox 4x32-10: element i is lane i % 4 of counter i // 4."""
    count = int(np.prod(shape, dtype=np.int64))
    seed = primitive.seed if primitive.seed is not None else int.from_bytes(os.urandom(8), "little")
    if primitive.kind == "uniform":
        return _uniform(_philox(seed, count)).reshape(shape).astype(dtype.numpy)
    bits = _philox(seed, count + count % 2)
    first, second = _uniform(bits[0::2]), _uniform(bits[1::2])
    radius = np.sqrt(-2.0 * np.log(1.0 - first))
    pairs = np.stack([radius * np.cos(2.0 * np.pi * second), radius * np.sin(2.0 * np.pi * second)], axis=1)
    return pairs.reshape(-1)[:count].reshape(shape).astype(dtype.numpy)


def _uniform(bits: Array) -> Array:
    """Use 24 bits of each number, which float32 holds exactly and never rounds up to 1."""
    return np.asarray((bits >> np.uint64(8)).astype(np.float64) * 2.0**-24)


def _philox(seed: int, count: int) -> Array:
    mask = np.uint64(0xFFFFFFFF)
    counters = np.arange((count + 3) // 4, dtype=np.uint64)
    words = [counters & mask, counters >> np.uint64(32), np.zeros_like(counters), np.zeros_like(counters)]
    keys = [seed & 0xFFFFFFFF, (seed >> 32) & 0xFFFFFFFF]
    for _ in range(10):
        first, second = words[0] * np.uint64(0xD2511F53), words[2] * np.uint64(0xCD9E8D57)
        words = [
            (second >> np.uint64(32)) ^ words[1] ^ np.uint64(keys[0]),
            second & mask,
            (first >> np.uint64(32)) ^ words[3] ^ np.uint64(keys[1]),
            first & mask,
        ]
        keys = [(keys[0] + 0x9E3779B9) & 0xFFFFFFFF, (keys[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return np.stack(words, axis=1).reshape(-1)[:count]
