"""Shapes: reading them, and changing them without moving data."""

from __future__ import annotations

from collections.abc import Sequence

from weft.ir import dims
from weft.ir.dims import Dim
from weft.opset.language import Tensor, assume_at_least, dims_tensor, expand_dims, reshape, squeeze
from weft.opset.registry import REQUIRED, Sizes, Static, normalize_axis, op, require


@op("Shape")
def shape(x: Tensor, *, start: int = 0, end: int | None = None) -> Tensor:
    return dims_tensor(x.shape[slice(start, end)])


@op("Size")
def size(x: Tensor) -> Tensor:
    return dims_tensor([x.size], ())


@op("Reshape", since=5)
def reshape_(x: Tensor, shape: Sizes, *, allowzero: int = 0) -> Tensor:
    sizes: list[Dim] = list(shape)
    for axis, size in enumerate(sizes):
        if size == 0 and not allowzero:
            require(axis < x.rank, f"a 0 at {axis} copies a dimension that the input of rank {x.rank} lacks")
            sizes[axis] = x.shape[axis]
    if allowzero and 0 in sizes and not isinstance(x.size, int):
        raise dims.UndecidedError(f"whether {x.size} elements are none")
    unknown = [axis for axis, size in enumerate(sizes) if size == -1]
    for axis, size in enumerate(sizes):
        if not isinstance(size, int):  # a computed -1 or, usually, 0 has a special meaning
            means_itself = not unknown and (allowzero or _copies_zero(x.shape[axis : axis + 1], size))
            assume_at_least(
                size, 0 if means_itself else 1, "a computed size must not be 0 or -1, which have a special meaning"
            )
    require(len(unknown) <= 1, f"only one dimension may be -1, not {tuple(shape)}")
    if unknown:
        others = [size for axis, size in enumerate(sizes) if axis != unknown[0]]
        sizes[unknown[0]] = _infer_size(x, others)
    return reshape(x, sizes)


def _copies_zero(copied: Sequence[Dim], size: Dim) -> bool:
    """Return whether the dimension that a 0 copies is 0 whenever the size is."""
    return any(
        size == factor or size == factor * dims.floordiv(size, factor)
        for factor in copied
        if not isinstance(factor, int)
    )


def _infer_size(x: Tensor, others: Sequence[Dim]) -> Dim:
    """Infer the size for -1 from the `others`; zeros among them are ignored if x has the same ones."""
    product = dims.product(others)
    if product != 0:
        return dims.floordiv(x.size, product)
    count = dims.product(size for size in x.shape if size != 0)
    product = dims.product(size for size in others if size != 0)
    require(x.size == 0 and dims.mod(count, product) == 0, "a dimension of -1 cannot be inferred beside one of size 0")
    return dims.floordiv(count, product)


@op("Squeeze")
def squeeze_1(x: Tensor, *, axes: tuple[int, ...] | None = None) -> Tensor:
    return _squeeze(x, axes)


@op("Squeeze", since=13)
def squeeze_13(x: Tensor, axes: Static | None = None) -> Tensor:
    return _squeeze(x, None if axes is None else axes.reshape(-1).tolist())


def _squeeze(x: Tensor, axes: Sequence[int] | None) -> Tensor:
    if axes is None:
        axes = [axis for axis, size in enumerate(x.shape) if dims.decide_equal(size, 1)]
    return squeeze(x, axes)


@op("Unsqueeze")
def unsqueeze_1(x: Tensor, *, axes: tuple[int, ...] = REQUIRED) -> Tensor:
    return expand_dims(x, axes)


@op("Unsqueeze", since=13)
def unsqueeze_13(x: Tensor, axes: Static) -> Tensor:
    return expand_dims(x, axes.reshape(-1).tolist())


@op("Flatten")
def flatten(x: Tensor, *, axis: int = 1) -> Tensor:
    axis = axis if axis == x.rank else normalize_axis(axis, x.rank)
    return reshape(x, [dims.product(x.shape[:axis]), dims.product(x.shape[axis:])])
