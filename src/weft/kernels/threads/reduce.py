"""Reductions and row groups by threads: which rows are cut into pieces, and the kernels that pass over them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft.ir import dims
from weft.ir.program import ArgReduce, Reduce, Step, Value
from weft.ir.scalar import Scalar
from weft.ir.target import Target
from weft.ir.types import Shape
from weft.kernels.build.row_passes import Sweep
from weft.kernels.common.reduce import is_lone, pieces_work, reduce_sweep, sweep_references
from weft.kernels.common.rows import rows_sweep
from weft.kernels.lower.tensors import Epilogue, Tensor, Work
from weft.kernels.threads.row_passes import Pieces, sweep_launch
from weft.kernels.threads.row_pieces import piece_length


def reduce_work(
    primitive: Reduce | ArgReduce,
    element: Scalar,
    domain: Shape,
    operands: Sequence[Tensor],
    result: Tensor,
    target: Target,
    epilogue: Epilogue | None = None,
) -> Work:
    """References count the operands given, then the epilogue's."""
    return sweep_work(reduce_sweep(primitive, element, domain, operands, result, epilogue), target)


def rows_work(
    steps: Sequence[Step], operands: Mapping[Value, Tensor], results: Mapping[Value, Tensor], target: Target
) -> Work | None:
    """The steps as one work, whose references count `operands` and `results` in their order; None if it cannot be.

    Threads keep what they need in registers, or compute it again.
    """
    sweep = rows_sweep(steps, operands, results, keeps=False)
    return None if sweep is None else sweep_work(sweep, target)


def sweep_work(sweep: Sweep, target: Target) -> Work:
    """The kernels of a sweep; a lone reduction may be cut into pieces."""
    length = piece_length(sweep, target) if is_lone(sweep) else None
    if length is None:
        return Work(((sweep_launch(sweep, target), sweep_references(sweep)),))
    row = dims.product(sweep.domain[axis] for axis in sweep.reduced)
    rows = dims.product(size for axis, size in enumerate(sweep.domain) if axis not in sweep.reduced)
    return pieces_work(
        sweep,
        dims.ceildiv(row, length),
        lambda first: sweep_launch(first, target, Pieces(length, rows)),
        lambda second: sweep_launch(second, target),
    )
