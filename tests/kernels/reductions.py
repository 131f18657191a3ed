"""Build the reduction of an expression over a domain, for the tests of both families."""

from __future__ import annotations

from collections.abc import Sequence

from weft.ir.program import ArgReduce, Reduce
from weft.ir.scalar import Scalar
from weft.ir.target import ThreadTarget, VectorTarget
from weft.ir.types import Shape
from weft.kernels.common.reduce import plan_reduction
from weft.kernels.lower.tensors import Epilogue, StoredTensor, Work
from weft.kernels.threads.reduce import build_sweep as build_thread_sweep
from weft.kernels.vector.reduce import build_sweep as build_vector_sweep


def build_reduction(
    primitive: Reduce | ArgReduce,
    element: Scalar,
    domain: Shape,
    operands: Sequence[StoredTensor],
    result: StoredTensor,
    target: VectorTarget | ThreadTarget,
    epilogue: Epilogue | None = None,
) -> Work:
    sweep = plan_reduction(primitive, element, domain, operands, result, epilogue)
    if isinstance(target, ThreadTarget):
        return build_thread_sweep(sweep, target)
    return build_vector_sweep(sweep, target)
