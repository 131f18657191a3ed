"""Reductions and row groups by threads: which rows are cut into pieces, and the kernels that pass over them."""

from __future__ import annotations

from weft.ir import dims
from weft.ir.target import ThreadTarget
from weft.kernels.build.row_passes import Sweep
from weft.kernels.common.reduce import is_lone, pieces_work
from weft.kernels.common.row_split import can_split, split_work
from weft.kernels.lower.tensors import Work
from weft.kernels.threads.maps import region_launch
from weft.kernels.threads.row_passes import Pieces, sweep_launch
from weft.kernels.threads.row_pieces import are_few_and_long, piece_length


def sweep_work(sweep: Sweep, target: ThreadTarget) -> Work:
    """The kernels of a sweep; a lone reduction may be cut into pieces, several of long rows may be kernels each."""
    if are_few_and_long(sweep, target) and can_split(sweep):
        return split_work(
            sweep,
            lambda lone: sweep_work(lone, target),
            lambda value, operands, result: region_launch(value, operands, result, target),
        )
    length = piece_length(sweep, target) if is_lone(sweep) else None
    if length is None:
        return Work((sweep_launch(sweep, target),))
    row = dims.product(sweep.domain[axis] for axis in sweep.reduced)
    rows = dims.product(size for axis, size in enumerate(sweep.domain) if axis not in sweep.reduced)
    return pieces_work(
        sweep,
        dims.ceildiv(row, length),
        lambda first: sweep_launch(first, target, Pieces(length, rows)),
        lambda second: sweep_launch(second, target),
    )
