"""Reductions and row groups on vectors: split long rows into chunks, and build the kernels that sweep over them."""

from __future__ import annotations

from weft.cost.blocks import BLOCK_ELEMENTS
from weft.cost.sizes import estimate
from weft.ir import dims
from weft.ir.dims import Dim
from weft.ir.target import VectorTarget
from weft.kernels.build.row_passes import MAX_COLUMNS, RowChunks, Sweep
from weft.kernels.common.reduce import build_chunked_work, finds_position, is_single_reduction, memory_order
from weft.kernels.common.row_split import build_split_work, can_split
from weft.kernels.lower.tensors import Work
from weft.kernels.vector.maps import build_map_launch
from weft.kernels.vector.row_passes import build_sweep_launch

CHUNK_LENGTH = 2 * BLOCK_ELEMENTS  # elements of a row per block
MIN_BLOCKS = 8
LONG_STRIDED_ROW = 256  # elements on separate cache lines, which do not stay in the cache from one pass to the next


def build_sweep(sweep: Sweep, target: VectorTarget) -> Work:
    """Build the kernels of a sweep; a single reduction may be split into chunks, strided ones into a kernel each."""
    if _has_strided_rows(sweep) and can_split(sweep):
        return build_split_work(
            sweep,
            lambda single: build_sweep(single, target),
            lambda value, operands, result: build_map_launch(value, operands, result, target),
        )
    chunks = _choose_chunks(sweep)
    if chunks is None:
        return Work((build_sweep_launch(sweep, target),))
    axis, length = chunks
    rows = dims.product(size for other, size in enumerate(sweep.domain) if other not in sweep.reduced)
    return build_chunked_work(
        sweep,
        dims.ceildiv(sweep.domain[axis], length),
        lambda first: build_sweep_launch(first, target, RowChunks(axis, length, rows)),
        lambda second: build_sweep_launch(second, target),
    )


def _has_strided_rows(sweep: Sweep) -> bool:
    """Return whether the first reduction is over elements that are not contiguous: of long rows, or vector by vector.

    Vectors lie along rows if the results do.
    """
    folds = [fold for part in sweep.passes for fold in part.folds]
    if len(folds) < 2 and not any(part.writes for part in sweep.passes):
        return False
    order = [axis for axis in memory_order(folds[0].element, sweep.domain, sweep.operands) if sweep.domain[axis] != 1]
    if not order or order[-1] in sweep.reduced:
        return False
    length = estimate(dims.product(sweep.domain[axis] for axis in sweep.reduced))
    rows = estimate(dims.product(sweep.domain[axis] for axis in order if axis not in sweep.reduced))
    if [axis for axis in sweep.order if axis in order][-1] in sweep.reduced:
        return length * rows >= BLOCK_ELEMENTS
    return length >= LONG_STRIDED_ROW and length * rows >= 2 * CHUNK_LENGTH


def _choose_chunks(sweep: Sweep) -> tuple[int, int] | None:
    """Return (axis, elements along it) of the chunks of rows; None if there are enough blocks, or rows are short."""
    domain, reduced, order = sweep.domain, sweep.reduced, sweep.order
    if not is_single_reduction(sweep) or finds_position(sweep):
        return None
    rows = estimate(dims.product(size for axis, size in enumerate(domain) if axis not in reduced))
    row = dims.product(domain[axis] for axis in reduced)
    if isinstance(row, int) and rows * row < 2 * CHUNK_LENGTH:
        return None
    along_row = order[-1] in reduced
    if (rows if along_row else -(-rows // MAX_COLUMNS)) >= MIN_BLOCKS:
        return None
    axis = max((axis for axis in order if axis in reduced), key=lambda axis: _size_or_infinity(domain[axis]))
    others = estimate(dims.product(domain[other] for other in reduced if other != axis))
    width = 1 if along_row else min(rows, MAX_COLUMNS)
    return axis, max(CHUNK_LENGTH // max(others * width, 1), 1)


def _size_or_infinity(size: Dim) -> float:
    return size if isinstance(size, int) else float("inf")
