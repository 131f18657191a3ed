"""Reductions as the tests of both families want them: an expression over a domain, reduced."""

from __future__ import annotations

from collections.abc import Sequence

from weft.ir.program import ArgReduce, Reduce
from weft.ir.scalar import Scalar
from weft.ir.target import ThreadTarget, VectorTarget
from weft.ir.types import Shape
from weft.kernels.common.reduce import reduction_sweep
from weft.kernels.lower.tensors import Epilogue, StoredTensor, Work
from weft.kernels.threads.reduce import sweep_work as thread_sweep_work
from weft.kernels.vector.reduce import sweep_work as vector_sweep_work


def reduce_work(
    primitive: Reduce | ArgReduce,
    element: Scalar,
    domain: Shape,
    operands: Sequence[StoredTensor],
    result: StoredTensor,
    target: VectorTarget | ThreadTarget,
    epilogue: Epilogue | None = None,
) -> Work:
    sweep = reduction_sweep(primitive, element, domain, operands, result, epilogue)
    if isinstance(target, ThreadTarget):
        return thread_sweep_work(sweep, target)
    return vector_sweep_work(sweep, target)
