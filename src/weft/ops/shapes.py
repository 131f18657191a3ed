"""Shapes: asking for them, and changing them without moving data."""

from __future__ import annotations

from weft.ir import dims
from weft.ir.dims import Dim
from weft.ops.language import Tensor, dims_tensor, reshape
from weft.ops.registry import Sizes, op, require


@op("Shape")
def shape(x: Tensor, *, start: int = 0, end: int | None = None) -> Tensor:
    return dims_tensor(x.shape[slice(start, end)])


@op("Reshape", since=5)
def reshape_(x: Tensor, shape: Sizes, *, allowzero: int = 0) -> Tensor:
    sizes: list[Dim] = list(shape)
    for axis, size in enumerate(sizes):
        if size == 0 and not allowzero:
            require(axis < x.rank, f"a 0 at {axis} copies a dimension that the input of rank {x.rank} lacks")
            sizes[axis] = x.shape[axis]
    unknown = [axis for axis, size in enumerate(sizes) if size == -1]
    require(len(unknown) <= 1, f"only one dimension may be -1, not {tuple(shape)}")
    if unknown:
        rest = dims.product(size for axis, size in enumerate(sizes) if axis != unknown[0])
        require(rest != 0, "a dimension of -1 cannot be told beside one of size 0")
        sizes[unknown[0]] = dims.floordiv(x.size, rest)
    return reshape(x, sizes)
