"""Reductions and row groups by threads: one kernel, or several where long rows are split."""

from __future__ import annotations

from weft.ir import dims
from weft.ir.target import ThreadTarget
from weft.kernels.build.row_passes import Sweep
from weft.kernels.common.reduce import build_chunked_work, finds_position, is_single_reduction
from weft.kernels.common.row_split import build_split_work, can_split
from weft.kernels.lower.tensors import Work
from weft.kernels.threads.maps import build_map_launch
from weft.kernels.threads.row_chunks import choose_chunk_length, has_few_long_rows
from weft.kernels.threads.row_passes import RowChunks, build_sweep_launch


def build_sweep(sweep: Sweep, target: ThreadTarget) -> Work:
    """Build the kernels of a sweep: a single reduction may be split into chunks, several into a kernel each.

    An empty row has no position, and the second kernel would look one up.
    """
    if has_few_long_rows(sweep, target) and can_split(sweep):
        return build_split_work(
            sweep,
            lambda single: build_sweep(single, target),
            lambda value, operands, result: build_map_launch(value, operands, result, target),
        )
    length = choose_chunk_length(sweep, target) if is_single_reduction(sweep) else None
    row = dims.product(sweep.domain[axis] for axis in sweep.reduced)
    may_be_empty = finds_position(sweep) and not isinstance(row, int)
    if length is None or may_be_empty:
        return Work((build_sweep_launch(sweep, target),))
    rows = dims.product(size for axis, size in enumerate(sweep.domain) if axis not in sweep.reduced)
    return build_chunked_work(
        sweep,
        dims.ceildiv(row, length),
        lambda first: build_sweep_launch(first, target, RowChunks(length, rows)),
        lambda second: build_sweep_launch(second, target),
    )
