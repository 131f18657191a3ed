"""Reductions and row groups on vectors: which rows are cut into pieces, and the kernels that pass over them."""

from __future__ import annotations

from weft.cost.blocks import BLOCK_ELEMENTS
from weft.cost.sizes import estimate
from weft.ir import dims
from weft.ir.dims import Dim
from weft.ir.target import VectorTarget
from weft.kernels.build.row_passes import COLUMNS, RowCut, Sweep
from weft.kernels.common.reduce import is_lone, memory_order, pieces_work
from weft.kernels.common.row_split import can_split, split_work
from weft.kernels.lower.tensors import Work
from weft.kernels.vector.maps import region_launch
from weft.kernels.vector.row_passes import sweep_launch

PIECE_LENGTH = 2 * BLOCK_ELEMENTS  # elements of a row that are worth a block
ENOUGH_BLOCKS = 8
LONG_ACROSS = 256  # elements of a row, each on a line of its own, that do not stay near from one pass to the next


def sweep_work(sweep: Sweep, target: VectorTarget) -> Work:
    """The kernels of a sweep; a lone reduction may be cut into pieces, and several across memory be kernels each."""
    if _goes_across(sweep) and can_split(sweep):
        return split_work(
            sweep,
            lambda lone: sweep_work(lone, target),
            lambda value, operands, result: region_launch(value, operands, result, target),
        )
    place = _where_to_cut(sweep)
    if place is None:
        return Work((sweep_launch(sweep, target),))
    axis, length = place
    rows = dims.product(size for other, size in enumerate(sweep.domain) if other not in sweep.reduced)
    return pieces_work(
        sweep,
        dims.ceildiv(sweep.domain[axis], length),
        lambda first: sweep_launch(first, target, RowCut(axis, length, rows)),
        lambda second: sweep_launch(second, target),
    )


def _goes_across(sweep: Sweep) -> bool:
    """Whether what is reduced first are long rows whose elements are not neighbours in memory."""
    folds = [fold for part in sweep.passes for fold in part.folds]
    if len(folds) < 2 and not any(part.writes for part in sweep.passes):
        return False
    order = [axis for axis in memory_order(folds[0].element, sweep.domain, sweep.operands) if sweep.domain[axis] != 1]
    if not order or order[-1] in sweep.reduced:
        return False
    row = estimate(dims.product(sweep.domain[axis] for axis in sweep.reduced))
    return (
        row >= LONG_ACROSS
        and row * estimate(dims.product(sweep.domain[axis] for axis in order if axis not in sweep.reduced))
        >= 2 * PIECE_LENGTH
    )


def _where_to_cut(sweep: Sweep) -> tuple[int, int] | None:
    """(axis, elements along it) to cut rows at; None where there are blocks enough, or rows are short."""
    domain, reduced, order = sweep.domain, sweep.reduced, sweep.order
    if not is_lone(sweep):
        return None
    rows = estimate(dims.product(size for axis, size in enumerate(domain) if axis not in reduced))
    row = dims.product(domain[axis] for axis in reduced)
    if isinstance(row, int) and rows * row < 2 * PIECE_LENGTH:
        return None
    along_row = order[-1] in reduced
    if (rows if along_row else -(-rows // COLUMNS)) >= ENOUGH_BLOCKS:
        return None
    axis = max((axis for axis in order if axis in reduced), key=lambda axis: _length(domain[axis]))
    others = estimate(dims.product(domain[other] for other in reduced if other != axis))
    width = 1 if along_row else min(rows, COLUMNS)
    return axis, max(PIECE_LENGTH // max(others * width, 1), 1)


def _length(size: Dim) -> float:
    return size if isinstance(size, int) else float("inf")
