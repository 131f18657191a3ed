"""Reductions, with the expression of what is reduced and of what becomes of the result inside the kernel.

A sweep is what both families build kernels for. A long reduction that few blocks would share is cut into pieces,
always the same ones, whose results a second kernel combines.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from weft.ir import dims
from weft.ir.access import move_axes
from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.ir.groups import ReduceGroup
from weft.ir.layout import row_major
from weft.ir.program import ArgReduce, Reduce
from weft.ir.scalar import AT_HAND, Held, Index, Load, Scalar, loads, rebuild, with_held
from weft.ir.target import Target
from weft.ir.types import Shape
from weft.kernels.build.accumulators import Fold, wide_dtype
from weft.kernels.build.positions import position_dtype
from weft.kernels.build.row_passes import Pass, Result, Sweep, Write
from weft.kernels.build.templates import Request
from weft.kernels.lower.tensors import Epilogue, Launch, Reference, StoredTensor, Work, Workspace


def reduce_sweep(request: Request[ReduceGroup, Target]) -> Sweep:
    """The sweep of a reduction; its operands are those of the element, then the epilogue's."""
    group = request.group
    primitive, element = group.heavy.primitive, group.element.expression
    assert isinstance(primitive, (Reduce, ArgReduce))
    domain = request.tensors[group.heavy.operands[0]].shape
    operands, result = request.take(group.element.operands), request.result
    return reduction_sweep(primitive, element, domain, operands, result, request.epilogue(group.epilogue))


def reduction_sweep(
    primitive: Reduce | ArgReduce,
    element: Scalar,
    domain: Shape,
    operands: Sequence[StoredTensor],
    result: StoredTensor,
    epilogue: Epilogue | None = None,
) -> Sweep:
    """Reduce `element`, an expression over the domain that loads from the operands."""
    if isinstance(primitive, Reduce):
        reduced = frozenset(primitive.axes)
        fold = Fold(0, primitive.kind, element, element.dtype)
    else:
        reduced = frozenset({primitive.axis})
        which = "last" if primitive.last else "first"
        positions = position_dtype(domain[primitive.axis])
        fold = Fold(0, primitive.kind, element, DType.int64, which, positions)
    kept = [axis for axis in range(len(domain)) if axis not in reduced]
    written = Write(0, _finished(epilogue, len(operands), fold, domain, kept))
    strides: list[Dim] = [0] * len(domain)
    for axis, stride in zip(kept, result.strides, strict=True):
        strides[axis] = stride
    return Sweep(
        domain,
        reduced,
        memory_order(element, domain, operands),
        (Pass((fold,), then=(written,)),),
        (*operands, *(epilogue.operands if epilogue is not None else ())),
        (Result(result.dtype, tuple(strides)),),
    )


def _finished(epilogue: Epilogue | None, count: int, fold: Fold, domain: Shape, kept: Sequence[int]) -> Scalar:
    """What is written for a row, over the domain's axes; the epilogue's operands come after the first `count`."""
    if epilogue is None:
        return Held(fold.key, fold.dtype)

    def renumber(load: Load) -> Scalar:
        return Load(count + load.operand, load.indices, load.dtype, load.checked)

    axes = {position: dims.axis(axis, domain[axis]) for position, axis in enumerate(kept)}
    moved = move_axes(rebuild(epilogue.expression, renumber), axes)
    return with_held(moved, {AT_HAND: Held(fold.key, fold.dtype)})


def memory_order(element: Scalar, domain: Shape, operands: Sequence[StoredTensor]) -> tuple[int, ...]:
    """The order in which the operand with the most axes of the domain stores them, outermost first."""
    own = {dims.axis(axis, size): axis for axis, size in enumerate(domain) if size != 1}
    best: list[int] = []
    for load in loads(element):
        indices = [load.indices[axis] for axis in operands[load.operand].layout.order]
        found = [own[index.value] for index in indices if isinstance(index, Index) and index.value in own]
        best = list(dict.fromkeys(found)) if len(found) > len(best) else best
    return (*(axis for axis in range(len(domain)) if axis not in best), *best)


# -- works -----------------------------------------------------------------------------------------------------------


def is_lone(sweep: Sweep) -> bool:
    """Whether there is one reduction to one number a row, and nothing else."""
    folds = [fold for part in sweep.passes for fold in part.folds]
    lone = bool(sweep.reduced) and len(folds) == 1 and folds[0].position is None
    return lone and not any(part.writes for part in sweep.passes)


def pieces_work(
    sweep: Sweep, pieces: Dim, first_launch: Callable[[Sweep], Launch], second_launch: Callable[[Sweep], Launch]
) -> Work:
    """So many pieces of each row into a workspace, then the pieces into the results."""
    (number,) = (n for n, part in enumerate(sweep.passes) if part.folds)
    part = sweep.passes[number]
    (fold,) = part.folds
    wide = wide_dtype(fold.kind, fold.element.dtype)
    kept = [other for other in sweep.order if other not in sweep.reduced]
    rows = dims.product(sweep.domain[other] for other in kept)
    stacked = StoredTensor(wide, (pieces, *(sweep.domain[other] for other in kept)), row_major(len(kept) + 1))
    strides: list[Dim] = [0] * len(sweep.domain)
    for other, stride in zip(kept, stacked.strides[1:], strict=True):
        strides[other] = stride
    write = Write(0, Held(fold.key, wide))
    first = replace(
        sweep,
        passes=(*sweep.passes[:number], Pass((replace(fold, dtype=wide),), then=(write,))),
        results=(Result(wide, tuple(strides)),),
    )
    second = _combining(sweep, replace(part, folds=(_fold_of_pieces(sweep, fold, stacked, kept),)), number, stacked)
    workspace = Reference("workspace", 0)
    launches = (
        first_launch(first).rebound({Reference("result", 0): workspace}),
        second_launch(second).rebound({Reference("operand", len(sweep.operands)): workspace}),
    )
    return Work(launches, (Workspace(wide, rows * pieces),))


def _fold_of_pieces(sweep: Sweep, fold: Fold, stacked: StoredTensor, kept: Sequence[int]) -> Fold:
    """The same reduction of the pieces, which lie along an axis after the domain's."""
    along = Index(dims.axis(len(sweep.domain), stacked.shape[0]))
    indices = (along, *(Index(dims.axis(other, sweep.domain[other])) for other in kept))
    return replace(fold, element=Load(len(sweep.operands), indices, stacked.dtype))


def _combining(sweep: Sweep, part: Pass, number: int, stacked: StoredTensor) -> Sweep:
    """The sweep with pieces for elements: reduced axes give way to one more, which is innermost for few rows."""
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
