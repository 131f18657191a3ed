"""Scatters: copy the tensor, then apply the updates in order with the family's kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from weft.ir import dims
from weft.ir.dtypes import DType
from weft.ir.program import Scatter
from weft.ir.scalar import Apply, Load, Scalar, identity_indices
from weft.kernels.build.accumulators import reduction_dtype
from weft.kernels.common.concat import AnyTarget, MapLaunch
from weft.kernels.lower.tensors import RESULT, Launch, Reference, StoredTensor, Work, Workspace

Updates = Callable[
    [Scatter, Sequence[StoredTensor], StoredTensor, AnyTarget, Reference, int],
    tuple[list[Launch], tuple[Workspace, ...]],
]


def build_scatter_work(
    primitive: Scatter,
    operands: Sequence[StoredTensor],
    result: StoredTensor,
    target: AnyTarget,
    map_launch: MapLaunch[AnyTarget],
    updates: Updates[AnyTarget],
) -> Work:
    """Build the copy, the updates, and for reductions of narrow floats a final rounding.

    `updates` builds a family's launches that change the copy, and their workspaces, numbered from its last argument on.
    In place there is no copy: the result is the memory of operand 0.
    """
    if primitive.in_place:
        launches, workspaces = updates(primitive, operands, result, target, RESULT, 0)
        return Work(tuple(launches), workspaces)
    combines = primitive.reduction != "none"
    sum_dtype = reduction_dtype("sum", result.dtype) if combines else result.dtype
    indices = identity_indices(result.shape)
    copied = StoredTensor(sum_dtype, result.shape, result.layout)
    narrow = sum_dtype is not result.dtype
    spaces: tuple[Workspace, ...] = (Workspace(sum_dtype, dims.product(result.shape)),) if narrow else ()
    place = Reference("workspace", 0) if narrow else RESULT
    copy = map_launch(_cast(Load(0, indices, result.dtype), sum_dtype), operands[:1], copied, target, None)
    changes, change_spaces = updates(primitive, operands, copied, target, place, len(spaces))
    all_launches = [copy.rebound({RESULT: place}), *changes]
    if narrow:
        back = map_launch(_cast(Load(0, indices, sum_dtype), result.dtype), [copied], result, target, None)
        all_launches.append(back.rebound({Reference("operand", 0): place}))
    return Work(tuple(all_launches), (*spaces, *change_spaces))


def _cast(value: Scalar, dtype: DType) -> Scalar:
    return value if value.dtype is dtype else Apply("cast", (value,), dtype)
