"""Reductions as sweeps, with the reduced expression and the epilogue inside the kernel.

Both families build kernels for sweeps. A long reduction with few rows is split into chunks, which depend on the sizes
alone, and a second kernel combines their results.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from weft.ir import dims
from weft.ir.access import substitute_axes
from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.ir.groups import ReduceGroup
from weft.ir.layout import row_major
from weft.ir.program import ArgReduce, Reduce
from weft.ir.scalar import ELEMENT, Index, Load, Placeholder, Scalar, bind_placeholders, loads, rebuild
from weft.ir.target import Target
from weft.ir.types import Shape
from weft.kernels.build.accumulators import Fold, reduction_dtype
from weft.kernels.build.positions import position_dtype
from weft.kernels.build.row_passes import Pass, Result, Sweep, Write
from weft.kernels.build.templates import Request
from weft.kernels.lower.tensors import Epilogue, Launch, Reference, StoredTensor, Work, Workspace


def plan_reduce_group(request: Request[ReduceGroup, Target]) -> Sweep:
    """Plan the sweep of a reduction group; its operands are those of the element, then the epilogue's."""
    group = request.group
    primitive, element = group.heavy.primitive, group.element.expression
    assert isinstance(primitive, (Reduce, ArgReduce))
    domain = request.tensors[group.heavy.operands[0]].shape
    operands, result = request.take(group.element.operands), request.result
    return plan_reduction(primitive, element, domain, operands, result, request.epilogue(group.epilogue))


def plan_reduction(
    primitive: Reduce | ArgReduce,
    element: Scalar,
    domain: Shape,
    operands: Sequence[StoredTensor],
    result: StoredTensor,
    epilogue: Epilogue | None = None,
) -> Sweep:
    """Plan the reduction of `element`, an expression over the domain that loads from the operands."""
    if isinstance(primitive, Reduce):
        reduced = frozenset(primitive.axes)
        fold = Fold(0, primitive.kind, element, element.dtype)
    else:
        reduced = frozenset({primitive.axis})
        which = "last" if primitive.last else "first"
        positions = position_dtype(domain[primitive.axis])
        fold = Fold(0, primitive.kind, element, DType.int64, which, positions)
    row_axes = [axis for axis in range(len(domain)) if axis not in reduced]
    write = Write(0, _build_row_value(epilogue, len(operands), fold, domain, row_axes))
    return Sweep(
        domain,
        reduced,
        memory_order(element, domain, operands),
        (Pass((fold,), then=(write,)),),
        (*operands, *(epilogue.operands if epilogue is not None else ())),
        (Result(result.dtype, spread_strides(len(domain), row_axes, result.strides)),),
    )


def spread_strides(rank: int, axes: Sequence[int], strides: Sequence[Dim]) -> tuple[Dim, ...]:
    """Return strides along all axes of a domain: those of `axes` as given, and 0 along the others."""
    along = dict(zip(axes, strides, strict=True))
    return tuple(along.get(axis, 0) for axis in range(rank))


def _build_row_value(
    epilogue: Epilogue | None, count: int, fold: Fold, domain: Shape, row_axes: Sequence[int]
) -> Scalar:
    """Build the value written for a row, over the domain's axes; the epilogue's operands come after `count` others."""
    if epilogue is None:
        return Placeholder(fold.key, fold.dtype)

    def renumber(load: Load) -> Scalar:
        return Load(count + load.operand, load.indices, load.dtype, load.checked)

    axes = {position: dims.axis(axis, domain[axis]) for position, axis in enumerate(row_axes)}
    moved = substitute_axes(rebuild(epilogue.expression, renumber), axes)
    return bind_placeholders(moved, {ELEMENT: Placeholder(fold.key, fold.dtype)})


def memory_order(element: Scalar, domain: Shape, operands: Sequence[StoredTensor]) -> tuple[int, ...]:
    """Return the axes in the order of the operand that has the most of them, outermost in memory first."""
    axis_of = {dims.axis(axis, size): axis for axis, size in enumerate(domain) if size != 1}
    best: list[int] = []
    for load in loads(element):
        indices = [load.indices[axis] for axis in operands[load.operand].layout.order]
        axes = [axis_of[index.value] for index in indices if isinstance(index, Index) and index.value in axis_of]
        best = list(dict.fromkeys(axes)) if len(axes) > len(best) else best
    return (*(axis for axis in range(len(domain)) if axis not in best), *best)


# -- works -----------------------------------------------------------------------------------------------------------


def is_single_reduction(sweep: Sweep) -> bool:
    """Return whether a sweep is one reduction to one value per row, and nothing else."""
    folds = [fold for part in sweep.passes for fold in part.folds]
    single = bool(sweep.reduced) and len(folds) == 1 and folds[0].position is None
    return single and not any(part.writes for part in sweep.passes)


def build_chunked_work(
    sweep: Sweep, chunks: Dim, first_launch: Callable[[Sweep], Launch], second_launch: Callable[[Sweep], Launch]
) -> Work:
    """Reduce each row in chunks into a workspace, then reduce the chunks into the results."""
    (number,) = (n for n, part in enumerate(sweep.passes) if part.folds)
    part = sweep.passes[number]
    (fold,) = part.folds
    sum_dtype = reduction_dtype(fold.kind, fold.element.dtype)
    row_axes = [axis for axis in sweep.order if axis not in sweep.reduced]
    row_sizes = [sweep.domain[axis] for axis in row_axes]
    stacked = StoredTensor(sum_dtype, (chunks, *row_sizes), row_major(len(row_axes) + 1))
    write = Write(0, Placeholder(fold.key, sum_dtype))
    first = replace(
        sweep,
        passes=(*sweep.passes[:number], Pass((replace(fold, dtype=sum_dtype),), then=(write,))),
        results=(Result(sum_dtype, spread_strides(len(sweep.domain), row_axes, stacked.strides[1:])),),
    )
    along_chunks = _fold_chunks(sweep, fold, stacked, row_axes)
    second = _combine_chunks(sweep, replace(part, folds=(along_chunks,)), number, stacked)
    workspace = Reference("workspace", 0)
    launches = (
        first_launch(first).rebound({Reference("result", 0): workspace}),
        second_launch(second).rebound({Reference("operand", len(sweep.operands)): workspace}),
    )
    return Work(launches, (Workspace(sum_dtype, dims.product(row_sizes) * chunks),))


def _fold_chunks(sweep: Sweep, fold: Fold, stacked: StoredTensor, row_axes: Sequence[int]) -> Fold:
    """Return the same reduction of the chunks, which lie along an axis after the domain's."""
    along = Index(dims.axis(len(sweep.domain), stacked.shape[0]))
    indices = (along, *(Index(dims.axis(axis, sweep.domain[axis])) for axis in row_axes))
    return replace(fold, element=Load(len(sweep.operands), indices, stacked.dtype))


def _combine_chunks(sweep: Sweep, part: Pass, number: int, stacked: StoredTensor) -> Sweep:
    """Return the sweep over chunks: one new axis replaces the reduced ones."""
    after = len(sweep.domain)
    domain = (*(1 if axis in sweep.reduced else size for axis, size in enumerate(sweep.domain)), stacked.shape[0])
    results = tuple(
        replace(result, strides=None if result.strides is None else (*result.strides, 0)) for result in sweep.results
    )
    return Sweep(
        domain,
        frozenset({after}),
        (after, *sweep.order),
        (*sweep.passes[:number], part, *sweep.passes[number + 1 :]),
        (*sweep.operands, stacked),
        results,
    )
