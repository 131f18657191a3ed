"""Choose the length of chunks of rows, where a reduction has too few rows to keep a device busy."""

from __future__ import annotations

from itertools import takewhile

from weft.cost.occupancy import enough_blocks
from weft.cost.sizes import estimate
from weft.ir import dims
from weft.ir.target import ThreadTarget
from weft.kernels.build.row_passes import Sweep
from weft.kernels.threads.lane_groups import power_of_two, shares
from weft.kernels.threads.points import minimum_size
from weft.kernels.threads.row_passes import SIDE_BY_SIDE, max_members

BLOCKS_PER_UNIT = 8
MIN_LANE_ELEMENTS = 16
MIN_STRIDED_CHUNK = 64  # elements of a chunk of a row whose elements are strided
MAX_CHUNKS = 256  # of a row whose elements are strided
MAX_UNSPLIT = 16  # elements per lane of a row that is not split
DYNAMIC_CHUNK = 8192  # elements of a chunk of a row of dynamic length
SOFTWARE_CHUNK = 16384  # elements of a chunk on software rasterisers


def choose_chunk_length(sweep: Sweep, target: ThreadTarget) -> int | None:
    """Choose the elements of a row for one lane group; None where rows are not split: short, or enough of them.

    Where bits must not depend on other rows, the choice does not depend on their number.
    """
    row_count = dims.product(size for axis, size in enumerate(sweep.domain) if axis not in sweep.reduced)
    rows = max(minimum_size(row_count) if shares(target) else estimate(row_count), 1)
    rows = 1 if target.fixed_order else rows
    row = dims.product(sweep.domain[axis] for axis in sweep.reduced)
    is_along_row = _is_contiguous(sweep)
    if not shares(target):
        length = _software_chunk_length(rows, is_along_row, target)
    elif is_along_row:
        length = _contiguous_chunk_length(rows, row if isinstance(row, int) else None, target)
    else:
        length = _strided_chunk_length(_count_inner_rows(sweep), row if isinstance(row, int) else None, target)
    return None if length is None or (isinstance(row, int) and row < 2 * length) else length


def has_few_long_rows(sweep: Sweep, target: ThreadTarget) -> bool:
    """Whether a block per row takes longer than several kernels over chunks of rows."""
    row = dims.product(sweep.domain[axis] for axis in sweep.reduced)
    if not shares(target) or not isinstance(row, int) or choose_chunk_length(sweep, target) is None:
        return False
    lanes = target.most_block_threads if _is_contiguous(sweep) else max_members(target)
    return row > 2 * MAX_UNSPLIT * lanes


def _order(sweep: Sweep) -> list[int]:
    return [axis for axis in sweep.order if sweep.domain[axis] != 1]


def _is_contiguous(sweep: Sweep) -> bool:
    """Whether the elements of a row are contiguous."""
    order = _order(sweep)
    return not order or order[-1] in sweep.reduced


def _software_chunk_length(rows: int, is_along_row: bool, target: ThreadTarget) -> int | None:
    blocks = -(-rows // target.block_threads) if not is_along_row or rows >= target.block_threads else rows
    if blocks >= enough_blocks(target.rates):
        return None
    return SOFTWARE_CHUNK if is_along_row else max(SOFTWARE_CHUNK // min(rows, target.block_threads), MIN_LANE_ELEMENTS)


def _contiguous_chunk_length(rows: int, row: int | None, target: ThreadTarget) -> int | None:
    """Choose the length of chunks of contiguous rows, with a block for each chunk."""
    if rows >= enough_blocks(target.rates):
        return None
    min_length = MIN_LANE_ELEMENTS * target.block_threads
    if row is not None and row <= MAX_UNSPLIT * target.most_block_threads:
        return None
    if row is None:
        return max(DYNAMIC_CHUNK, min_length)
    return max(power_of_two(rows * row // (BLOCKS_PER_UNIT * enough_blocks(target.rates))), min_length)


def _strided_chunk_length(inner: int, row: int | None, target: ThreadTarget) -> int | None:
    """Choose the length of chunks of strided rows: few steps per lane, and no more chunks than a row's lanes can add.

    It depends only on the shape of neighbouring rows (`inner`), so that outer sizes do not change a row's bits.
    """
    if inner >= SIDE_BY_SIDE * BLOCKS_PER_UNIT * enough_blocks(target.rates):
        return None
    if row is None:
        return max(DYNAMIC_CHUNK // inner, 4 * MIN_STRIDED_CHUNK)
    if row <= MAX_UNSPLIT * max_members(target):
        return None
    return max(power_of_two(-(-row // MAX_CHUNKS)), MIN_STRIDED_CHUNK)


def _count_inner_rows(sweep: Sweep) -> int:
    """Return the number of rows that are neighbours in memory."""
    inside = list(takewhile(lambda axis: axis not in sweep.reduced, reversed(_order(sweep))))
    return max(estimate(dims.product(sweep.domain[axis] for axis in inside)), 1)
