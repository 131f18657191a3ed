"""Reductions, with the expression of what is reduced and of what becomes of the result inside the kernel.

A long reduction that few blocks would share is cut into pieces, always the same ones, whose results a second kernel
combines.
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.ir import dims
from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.ir.program import ArgReduce, Reduce
from weft.ir.scalar import Index, Load, Scalar, loads, rebuild
from weft.ir.target import Target
from weft.ir.types import Shape
from weft.kernels.folds import Fold, wide_dtype
from weft.kernels.launch import Epilogue, Launch, Reference, Tensor, Work, Workspace
from weft.kernels.maps import is_checked
from weft.kernels.merge import move_axes
from weft.kernels.nest import PIECE, estimate
from weft.kernels.sweep import Cut, Pass, Result, Sweep, Write, sweep_launch

PIECE_LENGTH = 2 * PIECE
ENOUGH_BLOCKS = 8


def reduce_work(
    primitive: Reduce | ArgReduce,
    element: Scalar,
    domain: Shape,
    operands: Sequence[Tensor],
    result: Tensor,
    target: Target,
    epilogue: Epilogue | None = None,
) -> Work:
    """Reduce `element`, an expression over the domain that loads from the operands.

    Operands are numbered: those given, then the epilogue's.
    """
    reduced = frozenset(primitive.axes if isinstance(primitive, Reduce) else (primitive.axis,))
    position = None if isinstance(primitive, Reduce) else ("last" if primitive.last else "first")
    dtype = DType.int64 if position else element.dtype
    fold = Fold(0, primitive.kind, element, dtype, position)
    order = memory_order(element, domain, operands)
    length = None if position else _piece_length(domain, reduced, order)
    if length is None:
        launch = _row_launch(fold, domain, reduced, order, operands, result, target, epilogue)
        return Work(((launch, _references(operands, epilogue, element)),))
    return _two_steps(fold, domain, reduced, order, operands, result, target, epilogue, length)


def memory_order(element: Scalar, domain: Shape, operands: Sequence[Tensor]) -> tuple[int, ...]:
    """The order in which the operand with the most axes of the domain stores them, outermost first."""
    best: list[int] = []
    for load in loads(element):
        if load.operand >= len(operands):
            continue
        places = [index.value if isinstance(index, Index) else None for index in load.indices]
        plain = {place: axis for axis, place in enumerate(places) if place is not None and not isinstance(place, int)}
        own = [dims.axis(axis, size) for axis, size in enumerate(domain)]
        found = [own.index(places[axis]) for axis in operands[load.operand].layout.order if places[axis] in own]  # type: ignore[arg-type]
        found = [axis for axis in found if domain[axis] != 1 and own[axis] in plain]
        if len(found) > len(best):
            best = list(dict.fromkeys(found))
    return (*(axis for axis in range(len(domain)) if axis not in best), *best)


def _row_launch(
    fold: Fold,
    domain: Shape,
    reduced: frozenset[int],
    order: tuple[int, ...],
    operands: Sequence[Tensor],
    result: Tensor,
    target: Target,
    epilogue: Epilogue | None,
    cut: Cut | None = None,
) -> Launch:
    kept = [axis for axis in range(len(domain)) if axis not in reduced]
    every = (*operands, *(epilogue.operands if epilogue is not None else ()))
    fold = Fold(len(every), fold.kind, fold.element, fold.dtype, fold.position)
    value = finished(epilogue, len(operands), fold, domain, kept)
    strides: list[Dim] = [0] * len(domain)
    for axis, stride in zip(kept, result.strides, strict=True):
        strides[axis] = stride
    passes = (Pass((fold,), then=(Write(0, value),)),)
    sweep = Sweep(domain, reduced, order, passes, every, (Result(result.dtype, tuple(strides)),))
    return sweep_launch(sweep, target, cut)


def finished(epilogue: Epilogue | None, count: int, fold: Fold, domain: Shape, kept: Sequence[int]) -> Scalar:
    """What is written for a row, over the domain's axes; the epilogue's operands come after the first `count`."""
    if epilogue is None:
        return Load(fold.number, (), fold.dtype)

    def renumber(load: Load) -> Scalar:
        if load.operand == 0:
            return Load(fold.number, (), fold.dtype)
        return Load(count + load.operand - 1, load.indices, load.dtype, load.checked)

    axes = {position: dims.axis(axis, domain[axis]) for position, axis in enumerate(kept)}
    return move_axes(rebuild(epilogue.expression, renumber), axes)


def _references(operands: Sequence[Tensor], epilogue: Epilogue | None, element: Scalar) -> tuple[Reference, ...]:
    count = len(operands) + (len(epilogue.operands) if epilogue is not None else 0)
    references = [*(Reference("operand", number) for number in range(count)), Reference("result", 0)]
    if is_checked(element, *((epilogue.expression,) if epilogue is not None else ())):
        references.append(Reference("errors", 0))
    return tuple(references)


def _piece_length(domain: Shape, reduced: frozenset[int], order: Sequence[int]) -> tuple[int, int] | None:
    """(axis, elements along it) to cut rows at; None where there are blocks enough, or rows are short."""
    rows = dims.product(size for axis, size in enumerate(domain) if axis not in reduced)
    row = dims.product(domain[axis] for axis in reduced)
    unbounded = not isinstance(row, int)
    if not unbounded and estimate(rows) * estimate(row) < 2 * PIECE_LENGTH:
        return None
    inner = order[-1] if order else None
    blocks = -(-estimate(rows) // 64) if inner not in reduced else estimate(rows)
    if blocks >= ENOUGH_BLOCKS:
        return None
    axis = next((a for a in order if a in reduced and not isinstance(domain[a], int)), None)
    if axis is None:
        axis = max((a for a in order if a in reduced), key=lambda a: estimate(domain[a]))
    others = dims.product(domain[a] for a in reduced if a != axis)
    width = 1 if inner in reduced else min(estimate(rows), 64)
    return axis, max(PIECE_LENGTH // max(estimate(others) * width, 1), 1)


def _two_steps(
    fold: Fold,
    domain: Shape,
    reduced: frozenset[int],
    order: tuple[int, ...],
    operands: Sequence[Tensor],
    result: Tensor,
    target: Target,
    epilogue: Epilogue | None,
    length: tuple[int, int],
) -> Work:
    """Pieces of rows into a workspace, then the pieces into the result."""
    axis, size = length
    kept_shape = tuple(size for axis, size in enumerate(domain) if axis not in reduced)
    wide = wide_dtype(fold.kind, fold.element.dtype)
    pieces = dims.ceildiv(domain[axis], size)
    rows = dims.product(kept_shape)
    part = Tensor(wide, kept_shape, result.layout)
    first = Fold(0, fold.kind, fold.element, wide)
    launch = _row_launch(first, domain, reduced, order, operands, part, target, None, Cut(axis, size, rows))
    stacked_layout = (0, *(position + 1 for position in result.layout.order))
    stacked = Tensor(wide, (pieces, *kept_shape), type(result.layout)(stacked_layout))
    load = Load(0, tuple(Index(dims.axis(n, s)) for n, s in enumerate(stacked.shape)), wide)
    second = Fold(0, fold.kind, load, fold.dtype)
    others = epilogue.operands if epilogue is not None else ()
    combine = _row_launch(second, stacked.shape, frozenset({0}), stacked_layout, [stacked], result, target, epilogue)
    workspace = Reference("workspace", 0)
    own = [Reference("operand", number) for number in range(len(operands))]
    more = [Reference("operand", len(operands) + number) for number in range(len(others))]
    errors = Reference("errors", 0)
    first_references = (*own, workspace, *((errors,) if is_checked(fold.element) else ()))
    checked = epilogue is not None and is_checked(epilogue.expression)
    second_references = (workspace, *more, Reference("result", 0), *((errors,) if checked else ()))
    return Work(((launch, first_references), (combine, second_references)), (Workspace(wide, rows * pieces),))
