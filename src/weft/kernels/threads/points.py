"""A domain whose points are threads: neighbouring lanes are neighbours along the innermost axis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from weft.ir import dims
from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.ir.kernel import Call, Code, Integer, block, lane
from weft.kernels.lower.kernel_builder import KernelBuilder


@dataclass(frozen=True, slots=True)
class Points:
    """Where a thread is along each axis, always inside; those without a point of their own are not in `mask`."""

    places: tuple[Dim, ...]
    mask: Code | None
    blocks: Dim


def points(sizes: Sequence[Dim], builder: KernelBuilder, lanes: int) -> Points:
    """A point for each lane of each block, for axes from the outermost in."""
    total = dims.product(sizes)
    position: Dim = block() * lanes + lane(lanes)
    mask: Code | None = None
    if not isinstance(total, int) or total % lanes:
        mask = Call("less", (Integer(position), Integer(builder.named("points", total))), DType.bool)
        position = dims.minimum(position, builder.named("last", dims.maximum(total - 1, 0)))
    places: list[Dim] = [0] * len(sizes)
    real = [axis for axis, size in enumerate(sizes) if size != 1]
    for axis in reversed(real):
        if axis == real[0]:
            places[axis] = position
            break
        size = builder.named(f"points{axis}", dims.maximum(sizes[axis], 1))
        places[axis] = dims.mod(position, size)
        position = dims.floordiv(position, size)
    return Points(tuple(places), mask, dims.ceildiv(total, lanes))


def all_of(tests: Sequence[Code]) -> Code | None:
    """Whether all tests hold; None where there is none."""
    result: Code | None = None
    for test in tests:
        result = test if result is None else Call("logical_and", (result, test), DType.bool)
    return result
