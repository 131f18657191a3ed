"""Scatters: a copy of the tensor, then the updates in their order, which each family has its own way for."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from weft.ir import dims
from weft.ir.dtypes import DType
from weft.ir.program import Scatter
from weft.ir.scalar import Apply, Index, Load, Scalar
from weft.kernels.build.accumulators import wide_dtype
from weft.kernels.common.concat import AnyTarget, MapLaunch
from weft.kernels.lower.tensors import RESULT, Launch, Reference, StoredTensor, Work, Workspace

Updates = Callable[
    [Scatter, Sequence[StoredTensor], StoredTensor, AnyTarget, Reference, int],
    tuple[list[Launch], tuple[Workspace, ...]],
]


def scatter_launches(
    primitive: Scatter,
    operands: Sequence[StoredTensor],
    result: StoredTensor,
    target: AnyTarget,
    map_launch: MapLaunch[AnyTarget],
    updates: Updates[AnyTarget],
) -> Work:
    """The copy, the updates, and for sums of narrow floats a rounding at the end.

    `updates` are a family's launches and their workspaces, numbered from a number on, that change the copy.
    """
    combines = primitive.reduction != "none"
    wide = wide_dtype("sum", result.dtype) if combines else result.dtype
    plain = tuple(Index(dims.axis(axis, size)) for axis, size in enumerate(result.shape))
    copied = StoredTensor(wide, result.shape, result.layout)
    narrow = wide is not result.dtype
    spaces: tuple[Workspace, ...] = (Workspace(wide, dims.product(result.shape)),) if narrow else ()
    place = Reference("workspace", 0) if narrow else RESULT
    copy = map_launch(_cast(Load(0, plain, result.dtype), wide), operands[:1], copied, target, None)
    changes, more = updates(primitive, operands, copied, target, place, len(spaces))
    launches = [copy.rebound({RESULT: place}), *changes]
    if narrow:
        back = map_launch(_cast(Load(0, plain, wide), result.dtype), [copied], result, target, None)
        launches.append(back.rebound({Reference("operand", 0): place}))
    return Work(tuple(launches), (*spaces, *more))


def _cast(value: Scalar, dtype: DType) -> Scalar:
    return value if value.dtype is dtype else Apply("cast", (value,), dtype)
