"""Reductions and row groups on vectors: which rows are cut into pieces, and the kernels that pass over them."""

from __future__ import annotations

from weft.cost.blocks import BLOCK_ELEMENTS
from weft.cost.sizes import estimate
from weft.ir import dims
from weft.ir.dims import Dim
from weft.ir.target import VectorTarget
from weft.kernels.build.row_passes import COLUMNS, RowCut, Sweep
from weft.kernels.common.reduce import is_lone, pieces_work
from weft.kernels.lower.tensors import Work
from weft.kernels.vector.row_passes import sweep_launch

PIECE_LENGTH = 2 * BLOCK_ELEMENTS  # elements of a row that are worth a block
ENOUGH_BLOCKS = 8


def sweep_work(sweep: Sweep, target: VectorTarget) -> Work:
    """The kernels of a sweep; a lone reduction may be cut into pieces."""
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
