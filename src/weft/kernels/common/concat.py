"""Concatenation: copy each operand into its slice of the result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from weft.ir import dims
from weft.ir.dims import Dim
from weft.ir.layout import offset
from weft.ir.program import Concat
from weft.ir.scalar import Load, Scalar, identity_indices
from weft.ir.target import Target
from weft.kernels.common.maps import Region
from weft.kernels.lower.tensors import Copy, Launch, Reference, StoredTensor, Work

AnyTarget = TypeVar("AnyTarget", bound=Target)
MapLaunch = Callable[[Scalar, Sequence[StoredTensor], StoredTensor, AnyTarget, Region | None], Launch]


def build_concat(
    primitive: Concat,
    operands: Sequence[StoredTensor],
    result: StoredTensor,
    target: AnyTarget,
    map_launch: MapLaunch[AnyTarget],
) -> Work:
    """Build one copy kernel for each operand that is not empty; `map_launch` builds the family's maps."""
    launches: list[Launch] = []
    copies: list[Copy] = []
    start: list[Dim] = [0] * len(result.shape)
    for number, operand in enumerate(operands):
        if 0 not in operand.shape:
            indices = identity_indices(operand.shape)
            part = StoredTensor(operand.dtype, operand.shape, result.layout)
            element, region = Load(0, indices, operand.dtype), Region(result, tuple(start))
            launch = map_launch(element, [operand], part, target, region)
            if operand.layout == result.layout:
                order = result.layout.order
                outer = order[: order.index(primitive.axis)]
                runs = dims.product(result.shape[axis] for axis in outer)
                first = offset(result.strides, start)
                copies.append(Copy(len(launches), number, 0, first, dims.product(operand.shape), runs))
            launches.append(launch.rebound({Reference("operand", 0): Reference("operand", number)}))
        start[primitive.axis] = start[primitive.axis] + operand.shape[primitive.axis]
    return Work(tuple(launches), copies=tuple(copies))
