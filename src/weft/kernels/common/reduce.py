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
from weft.ir.scalar import ELEMENT, Apply, Index, Load, Placeholder, Scalar, bind_placeholders, loads, rebuild
from weft.ir.target import Target
from weft.ir.types import Shape
from weft.kernels.build.accumulators import Fold, reduction_dtype
from weft.kernels.build.positions import position_dtype
from weft.kernels.build.row_passes import Pass, Result, RowValue, Sweep, Write
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
    return bool(sweep.reduced) and len(folds) == 1 and not any(part.writes for part in sweep.passes)


def finds_position(sweep: Sweep) -> bool:
    """Return whether a sweep finds the position of an element."""
    return any(fold.position is not None for part in sweep.passes for fold in part.folds)


def build_chunked_work(
    sweep: Sweep, chunks: Dim, first_launch: Callable[[Sweep], Launch], second_launch: Callable[[Sweep], Launch]
) -> Work:
    """Reduce each row in chunks into workspaces, then reduce the chunks into the results.

    A chunk has one value, or its best element and the position of that in the row.
    """
    (number,) = (n for n, part in enumerate(sweep.passes) if part.folds)
    part = sweep.passes[number]
    (fold,) = part.folds
    row_axes = [axis for axis in sweep.order if axis not in sweep.reduced]
    chunk_shape = (chunks, *(sweep.domain[axis] for axis in row_axes))
    chunk_fold = _reduce_chunk(sweep, fold)
    values = [Placeholder(chunk_fold.key, chunk_fold.dtype)]
    if chunk_fold.best is not None:
        values.insert(0, Placeholder(chunk_fold.best, reduction_dtype(fold.kind, fold.element.dtype)))
    stacked = [StoredTensor(value.dtype, chunk_shape, row_major(len(chunk_shape))) for value in values]
    strides = spread_strides(len(sweep.domain), row_axes, stacked[0].strides[1:])
    writes = tuple(Write(result, value) for result, value in enumerate(values))
    first = replace(
        sweep,
        passes=(*sweep.passes[:number], Pass((chunk_fold,), then=writes)),
        results=tuple(Result(tensor.dtype, strides) for tensor in stacked),
    )
    second = _combine_chunks(sweep, number, stacked, row_axes)
    spaces = [Reference("workspace", space) for space in range(len(stacked))]
    count = len(sweep.operands)
    launches = (
        first_launch(first).rebound({Reference("result", n): space for n, space in enumerate(spaces)}),
        second_launch(second).rebound({Reference("operand", count + n): space for n, space in enumerate(spaces)}),
    )
    return Work(launches, tuple(Workspace(tensor.dtype, dims.product(chunk_shape)) for tensor in stacked))


def _reduce_chunk(sweep: Sweep, fold: Fold) -> Fold:
    """Return the fold of a chunk, with the accumulator's dtype."""
    if fold.position is None:
        return replace(fold, dtype=reduction_dtype(fold.kind, fold.element.dtype))
    return replace(fold, dtype=fold.positions, best=_free_key(sweep))


def _free_key(sweep: Sweep) -> int:
    """Return a key that no value of a sweep has."""
    folds = [fold.key for part in sweep.passes for fold in part.folds]
    values = [action.key for part in sweep.passes for action in part.then if isinstance(action, RowValue)]
    return max((*folds, *values)) + 1


def _combine_chunks(sweep: Sweep, number: int, stacked: Sequence[StoredTensor], row_axes: Sequence[int]) -> Sweep:
    """Return the sweep over chunks: one new axis replaces the reduced ones."""
    part, after = sweep.passes[number], len(sweep.domain)
    (fold,) = part.folds
    rows = [Index(dims.axis(axis, sweep.domain[axis])) for axis in row_axes]
    chunks = stacked[0].shape[0]
    element = Load(len(sweep.operands), (Index(dims.axis(after, chunks)), *rows), stacked[0].dtype)
    actions = part.then
    if fold.position is None:
        along_chunks = replace(fold, element=element)
    else:
        along_chunks = replace(fold, key=_free_key(sweep), element=element, positions=position_dtype(chunks))
        chunk = Placeholder(along_chunks.key, along_chunks.dtype)
        position: Scalar = Load(len(sweep.operands) + 1, (chunk, *rows), stacked[1].dtype)
        position = position if position.dtype is fold.dtype else Apply("cast", (position,), fold.dtype)
        actions = tuple(replace(a, value=bind_placeholders(a.value, {fold.key: position})) for a in actions)
    domain = (*(1 if axis in sweep.reduced else size for axis, size in enumerate(sweep.domain)), chunks)
    results = tuple(
        replace(result, strides=None if result.strides is None else (*result.strides, 0)) for result in sweep.results
    )
    return Sweep(
        domain,
        frozenset({after}),
        (after, *sweep.order),
        (*sweep.passes[:number], replace(part, folds=(along_chunks,), then=actions), *sweep.passes[number + 1 :]),
        (*sweep.operands, *stacked),
        results,
    )
