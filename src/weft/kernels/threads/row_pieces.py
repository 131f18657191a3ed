"""How long pieces of rows are, where a reduction has too few rows to keep a device busy."""

from __future__ import annotations

from itertools import takewhile

from weft.cost.occupancy import enough_blocks
from weft.cost.sizes import estimate
from weft.ir import dims
from weft.ir.target import ThreadTarget
from weft.kernels.build.row_passes import Sweep
from weft.kernels.threads.lane_groups import power_of_two, shares
from weft.kernels.threads.points import at_least
from weft.kernels.threads.row_passes import SIDE_BY_SIDE, most_members

WANTED_BLOCKS = 8  # for each unit
FEWEST_ELEMENTS = 16  # for each thread
FEWEST_ACROSS = 64  # of a piece, where its neighbours in memory belong to other rows
MOST_PIECES = 256  # of a row there
LONGEST_UNCUT = 32  # elements there that a lane may well do one after the other
UNKNOWN_LENGTH = 8192  # of a piece, where only a run will tell how many there are
SOFTWARE_LENGTH = 16384


def piece_length(sweep: Sweep, target: ThreadTarget) -> int | None:
    """The elements of a row that one group of lanes is to take; None where rows are short, or enough of them."""
    kept = dims.product(size for axis, size in enumerate(sweep.domain) if axis not in sweep.reduced)
    rows = max(at_least(kept) if shares(target) else estimate(kept), 1)
    row = dims.product(sweep.domain[axis] for axis in sweep.reduced)
    along_row = _is_along(sweep)
    if not shares(target):
        length = _software_length(rows, along_row, target)
    elif along_row:
        length = _length_along(rows, row if isinstance(row, int) else None, target)
    else:
        length = _length_across(_inner(sweep), row if isinstance(row, int) else None, target)
    return None if length is None or (isinstance(row, int) and row < 2 * length) else length


def are_few_and_long(sweep: Sweep, target: ThreadTarget) -> bool:
    """Whether passes over rows, each by a block alone, take longer than kernels that share them."""
    row = dims.product(sweep.domain[axis] for axis in sweep.reduced)
    if not shares(target) or not isinstance(row, int) or piece_length(sweep, target) is None:
        return False
    lanes = target.most_block_threads if _is_along(sweep) else most_members(target)
    return row > 2 * LONGEST_UNCUT * lanes


def _order(sweep: Sweep) -> list[int]:
    return [axis for axis in sweep.order if sweep.domain[axis] != 1]


def _is_along(sweep: Sweep) -> bool:
    """Whether the elements of a row are neighbours in memory."""
    order = _order(sweep)
    return not order or order[-1] in sweep.reduced


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
    if row is not None and row <= LONGEST_UNCUT * target.most_block_threads:
        return None
    if row is None:
        return max(UNKNOWN_LENGTH, fewest)
    return max(power_of_two(rows * row // (WANTED_BLOCKS * enough_blocks(target.rates))), fewest)


def _length_across(inner: int, row: int | None, target: ThreadTarget) -> int | None:
    """Short enough for few steps of a lane, and few enough for the lanes that share the pieces of a row.

    It follows from the shape of what lies together alone: with more such, a row's bits stay the same.
    """
    if inner >= SIDE_BY_SIDE * WANTED_BLOCKS * enough_blocks(target.rates):
        return None
    if row is None:
        return max(UNKNOWN_LENGTH // inner, 4 * FEWEST_ACROSS)
    if row <= LONGEST_UNCUT * most_members(target):
        return None
    return max(power_of_two(-(-row // MOST_PIECES)), FEWEST_ACROSS)


def _inner(sweep: Sweep) -> int:
    """How many rows are neighbours in memory."""
    inside = list(takewhile(lambda axis: axis not in sweep.reduced, reversed(_order(sweep))))
    return max(estimate(dims.product(sweep.domain[axis] for axis in inside)), 1)
