"""Concatenation: each operand is copied into its slice of the result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from weft.ir import dims
from weft.ir.dims import Dim
from weft.ir.layout import offset
from weft.ir.program import Concat
from weft.ir.scalar import Index, Load, Scalar
from weft.ir.target import Target
from weft.kernels.common.maps import Region
from weft.kernels.lower.tensors import Copy, Launch, Reference, StoredTensor, Work

AnyTarget = TypeVar("AnyTarget", bound=Target)
MapLaunch = Callable[[Scalar, Sequence[StoredTensor], StoredTensor, AnyTarget, Region | None], Launch]


def concat_work(
    primitive: Concat,
    operands: Sequence[StoredTensor],
    result: StoredTensor,
    target: AnyTarget,
    map_launch: MapLaunch[AnyTarget],
) -> Work:
    """One kernel for each operand that has elements; `map_launch` builds the family's."""
    launches: list[Launch] = []
    copies: list[Copy] = []
    start: list[Dim] = [0] * len(result.shape)
    for number, operand in enumerate(operands):
        if 0 not in operand.shape:
            plain = tuple(Index(dims.axis(axis, size)) for axis, size in enumerate(operand.shape))
            part = StoredTensor(operand.dtype, operand.shape, result.layout)
            element, region = Load(0, plain, operand.dtype), Region(result, tuple(start))
            launch = map_launch(element, [operand], part, target, region)
            if operand.layout == result.layout:
                place = offset(result.strides, start)
                pieces = dims.product(result.shape[axis] for axis in _outside(primitive.axis, result))
                copies.append(Copy(len(launches), number, 0, place, dims.product(operand.shape), pieces))
            launches.append(launch.rebound({Reference("operand", 0): Reference("operand", number)}))
        start[primitive.axis] = start[primitive.axis] + operand.shape[primitive.axis]
    return Work(tuple(launches), copies=tuple(copies))


def _outside(axis: int, tensor: StoredTensor) -> tuple[int, ...]:
    """The axes that lie further out in memory than this one."""
    order = tensor.layout.order
    return order[: order.index(axis)]
