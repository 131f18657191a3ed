"""How long pieces of rows are, where a reduction has too few rows to keep a device busy."""

from __future__ import annotations

from weft.cost.occupancy import enough_blocks, enough_threads
from weft.cost.sizes import estimate
from weft.ir import dims
from weft.ir.target import ThreadTarget
from weft.kernels.build.row_passes import Sweep
from weft.kernels.threads.lane_groups import power_of_two, shares

WANTED_BLOCKS = 8  # for each unit
WANTED_THREADS = 512
FEWEST_ELEMENTS = 16  # for each thread
UNKNOWN_LENGTH = 8192  # of a piece, where only a run will tell how many there are
SOFTWARE_LENGTH = 16384


def piece_length(sweep: Sweep, target: ThreadTarget) -> int | None:
    """The elements of a row that one group of lanes is to take; None where rows are short, or enough of them."""
    kept = dims.product(size for axis, size in enumerate(sweep.domain) if axis not in sweep.reduced)
    rows = max(estimate(kept), 1)
    row = dims.product(sweep.domain[axis] for axis in sweep.reduced)
    order = [axis for axis in sweep.order if sweep.domain[axis] != 1]
    along_row = not order or order[-1] in sweep.reduced
    if not shares(target):
        length = _software_length(rows, along_row, target)
    elif along_row:
        length = _length_along(rows, row if isinstance(row, int) else None, target)
    else:
        length = _length_across(rows, row if isinstance(row, int) else None, target)
    return None if length is None or (isinstance(row, int) and row < 2 * length) else length


def _software_length(rows: int, along_row: bool, target: ThreadTarget) -> int | None:
    blocks = -(-rows // target.block_threads) if not along_row or rows >= target.block_threads else rows
    if blocks >= enough_blocks(target.rates):
        return None
    return SOFTWARE_LENGTH if along_row else max(SOFTWARE_LENGTH // min(rows, target.block_threads), FEWEST_ELEMENTS)


def _length_along(rows: int, row: int | None, target: ThreadTarget) -> int | None:
    """A block for each piece."""
    if rows >= enough_blocks(target.rates):
        return None
    fewest = FEWEST_ELEMENTS * target.block_threads
    if row is None:
        return max(UNKNOWN_LENGTH, fewest)
    return max(power_of_two(rows * row // (WANTED_BLOCKS * enough_blocks(target.rates))), fewest)


def _length_across(rows: int, row: int | None, target: ThreadTarget) -> int | None:
    """A thread for each piece, or a few."""
    wanted = enough_threads(target.rates, WANTED_THREADS)
    if rows >= wanted // 4:
        return None
    if row is None:
        return max(UNKNOWN_LENGTH // rows, 4 * FEWEST_ELEMENTS)
    return max(power_of_two(rows * row // wanted), 4 * FEWEST_ELEMENTS)
