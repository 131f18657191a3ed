"""Add the nodes of `tensor[...]`: slices, integers, new axes, index tensors and masks, with numpy's semantics.

An index that ONNX cannot express (several masks, new axes between several index tensors) is an error.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from weft import ops
from weft.builder.handle import Handle
from weft.errors import GraphError, short_repr
from weft.ir.dims import Expr
from weft.ir.dtypes import DType

if TYPE_CHECKING:
    from weft.builder.tensor import GraphTensor

LAST, BEFORE_FIRST = 2**63 - 1, -(2**63)  # bounds of slices without a limit
LARGEST_INT32 = 2**31 - 1  # ONNX reads it like LAST; as the stop of a negative step, both mean the first element


def index(x: GraphTensor, key: Any) -> GraphTensor:
    """Return `x[key]` with numpy's semantics."""
    items = _expand_ellipsis(x, list(key) if isinstance(key, tuple) else [key])
    if any(_is_mask(item) for item in items):
        return _apply_mask(x, items)
    axes = [item for item in items if item is not None]  # one for each axis of x
    x = _apply_slices(x, axes)
    arrays = [axis for axis, item in enumerate(axes) if _is_array(item)]
    for axis in arrays:
        _check_indices(x, axis, axes[axis])
    if not arrays:
        for axis in reversed(range(len(axes))):
            if not isinstance(axes[axis], slice):
                x = ops.gather(x, _check_position(x, axis, axes[axis]), axis=axis)
        return _add_new_axes(x, items)
    if len(arrays) == 1 and not any(_is_number(item) for item in axes):
        return _add_new_axes(ops.gather(x, axes[arrays[0]], axis=arrays[0]), items)
    if len(axes) != len(items):
        problem = "new axes cannot be combined with several index tensors"
        raise GraphError(problem, hint="index first, then use ops.unsqueeze")
    return _gather_several(x, axes)


def _expand_ellipsis(x: GraphTensor, items: list[Any]) -> list[Any]:
    """Replace the ellipsis, or what is missing at the end, by full slices."""
    for item in items:
        if not (item is None or item is Ellipsis or isinstance(item, slice) or _is_number(item) or _is_array(item)):
            raise GraphError(
                f"{short_repr(item)} is not an index", hint="use integers, slices, None, ..., tensors or arrays"
            )
    used = sum(_count_axes(item) for item in items)
    rank = len(x.shape)
    if used > rank:
        raise GraphError(f"{used} indices for a tensor of {rank} dimensions ({x.type})")
    dots = [position for position, item in enumerate(items) if item is Ellipsis]
    if len(dots) > 1:
        raise GraphError("an index may have only one ellipsis")
    at = dots[0] if dots else len(items)
    return [*items[:at], *[slice(None)] * (rank - used), *items[at + 1 :]]


def _count_axes(item: Any) -> int:
    """Return the number of axes that an item indexes."""
    if item is None or item is Ellipsis:
        return 0
    if _is_mask(item):
        return _rank(item)
    return 1


def _rank(item: Any) -> int:
    if not isinstance(item, Handle):
        return np.ndim(item)
    if item.type.shape is None:
        raise GraphError(f"the rank of the index {item.name!r} must be known ({item.type})")
    return len(item.type.shape)


def _apply_slices(x: GraphTensor, axes: Sequence[Any]) -> GraphTensor:
    """Apply all slices with one node."""
    cuts = [(axis, item) for axis, item in enumerate(axes) if isinstance(item, slice) and not _is_full(item)]
    if not cuts:
        return x
    bounds = []
    for axis, item in cuts:
        step = 1 if item.step is None else item.step
        if not _is_number(step) or isinstance(step, Expr) or step == 0:
            raise GraphError(f"the step of a slice must be an integer other than 0, not {short_repr(step)}")
        for bound in (item.start, item.stop):
            if bound is not None and not _is_number(bound) and not isinstance(bound, Handle):
                raise GraphError(f"the bounds of a slice must be integers, not {short_repr(bound)}")
        if step < 0:
            x, start, stop = _reversed_bounds(x, axis, item.start, item.stop)
        else:
            start, stop = 0 if item.start is None else item.start, LAST if item.stop is None else item.stop
        bounds.append((_within_int64(start), _within_int64(stop), _within_int64(step)))
    starts, stops, steps = zip(*bounds)
    return ops.slice(x, list(starts), list(stops), [axis for axis, _ in cuts], list(steps))


def _reversed_bounds(x: GraphTensor, axis: int, start: Any, stop: Any) -> tuple[GraphTensor, Any, Any]:
    """Return the tensor to slice and the bounds of a slice with a negative step.

    A start before the first element gives no elements in numpy, but the first element in ONNX. Where that is possible,
    the tensor is first cut off after the start, and the slice begins with the last remaining element.
    """
    start, stop = (int(bound) if _is_integer(bound) else bound for bound in (start, stop))
    if _is_integer(stop):
        stop = stop + 1 if stop == LARGEST_INT32 else min(stop, LAST - 1)
    if start is None or (_is_integer(start) and start >= 0):
        return x, LAST if start is None else start, BEFORE_FIRST if stop is None else stop
    if _is_integer(start) and (stop is None or _is_integer(stop)):
        if stop is not None and start <= stop < 0:
            return x, 0, 0  # no elements
        prefix = x if start == -1 else ops.slice(x, [0], [_within_int64(start + 1)], [axis], [1])
        distance = stop - start - 1 if stop is not None and stop < 0 else stop
        return prefix, LAST, BEFORE_FIRST if distance is None else distance
    size = x.constant_like(x.shape[axis], DType.int64)
    first = _from_front(x, start, size)
    prefix = ops.slice(x, [0], ops.max(ops.reshape(first, [1]) + 1, [0]), [axis], [1])
    if stop is None:
        return prefix, LAST, BEFORE_FIRST
    last = _from_front(x, stop, size)
    return prefix, LAST, ops.where(last < 0, BEFORE_FIRST, ops.min(last, LAST - 1))


def _from_front(x: GraphTensor, position: Any, size: GraphTensor) -> GraphTensor:
    """Convert a position that may count from the end to one from the front, negative if before the first element."""
    number = ops.cast(x.constant_like(position), to=DType.int64)
    return ops.where(number < 0, number + size, number)


def _is_integer(bound: Any) -> bool:
    return isinstance(bound, (int, np.integer))


def _within_int64(bound: Any) -> Any:
    return max(min(int(bound), LAST), BEFORE_FIRST) if _is_integer(bound) else bound


def _apply_mask(x: GraphTensor, items: Sequence[Any]) -> GraphTensor:
    """Select the elements where a mask is true; one new axis replaces those of the mask."""
    masks = [item for item in items if _is_mask(item)]
    if len(masks) != 1 or not all(_is_full(item) for item in items if not _is_mask(item)):
        raise GraphError("a mask must be the only index", hint="index with the mask first, then with the others")
    mask, axis = masks[0], [_is_mask(item) for item in items].index(True)
    if _count_axes(mask) == 1:
        return ops.compress(x, mask, axis=axis)
    if axis:
        raise GraphError("a mask of several dimensions must be the first index", hint="transpose the tensor")
    return ops.gather_nd(x, ops.transpose(ops.non_zero(x.constant_like(mask))))


def _gather_several(x: GraphTensor, axes: Sequence[Any]) -> GraphTensor:
    """Index with several tensors, broadcast together; their axes come first unless they are adjacent."""
    indexed = [axis for axis, item in enumerate(axes) if not isinstance(item, slice)]
    others = [axis for axis in range(len(axes)) if axis not in indexed]
    indices = [_as_indices(x, axis, axes[axis]) for axis in indexed]
    total = indices[0]
    for index in indices[1:]:
        total = total + index  # the sum has the broadcast shape
    zero = total - total
    columns = [ops.unsqueeze(zero + index, axes=[-1]) for index in indices]
    result = ops.gather_nd(ops.transpose(x, perm=[*indexed, *others]), ops.concat(*columns, axis=-1))
    are_adjacent = indexed == list(range(indexed[0], indexed[0] + len(indexed)))
    if not are_adjacent or indexed[0] == 0:
        return result
    rank, before = len(zero.shape), indexed[0]
    order = [*range(rank, rank + before), *range(rank), *range(rank + before, rank + len(others))]
    return ops.transpose(result, perm=order)


def _as_indices(x: GraphTensor, axis: int, item: Any) -> GraphTensor:
    if isinstance(item, Handle):
        return ops.cast(x.constant_like(item), to=DType.int64)
    if _is_number(item):
        item = _check_position(x, axis, item)
    return x.constant_like(item, DType.int64)


def _add_new_axes(x: GraphTensor, items: Sequence[Any]) -> GraphTensor:
    """Add an axis of size 1 for each item that is None, after all others are applied."""
    new, position = [], 0
    for item in items:
        if item is None:
            new.append(position)
        position += 1 if item is None or isinstance(item, slice) else _rank(item) if _is_array(item) else 0
    return ops.unsqueeze(x, axes=new) if new else x


def _check_position(x: GraphTensor, axis: int, number: Any) -> Any:
    """Return an integer index; raise GraphError if it is out of range of a known size."""
    size = x.shape[axis]
    if isinstance(number, (int, np.integer)) and isinstance(size, int) and not -size <= number < size:
        raise GraphError(f"index {number} is out of range for axis {axis} of {x.type}")
    return int(number) if isinstance(number, np.integer) else number


def _check_indices(x: GraphTensor, axis: int, item: Any) -> None:
    """Raise GraphError if a constant index is out of range of a known size."""
    indices, size = None if isinstance(item, Handle) else np.asarray(item), x.shape[axis]
    if indices is None or indices.dtype.kind not in "iu" or not isinstance(size, int):
        return
    for position in indices.reshape(-1).tolist():
        if not -size <= position < size:
            raise GraphError(f"index {position} is out of range for axis {axis} of {x.type}")


def _is_full(item: Any) -> bool:
    return isinstance(item, slice) and item.start is None and item.stop is None and item.step is None


def _is_number(item: Any) -> bool:
    return isinstance(item, (int, np.integer, Expr)) and not isinstance(item, bool)


def _is_array(item: Any) -> bool:
    return isinstance(item, (Handle, np.ndarray, list))


def _is_mask(item: Any) -> bool:
    if isinstance(item, Handle):
        return getattr(item.type, "dtype", None) is DType.bool
    return _is_array(item) and np.asarray(item).dtype == np.bool_
