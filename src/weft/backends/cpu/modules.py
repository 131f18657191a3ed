"""Kernels -> LLVM modules as text, a few kernels in each: modules can be compiled at the same time, and apart."""

from __future__ import annotations

from collections.abc import Sequence

from weft.backends.llvm.emit import llvm_text
from weft.backends.llvm.vector_lanes import VECTOR_LANES
from weft.ir.kernel import Kernel

KERNELS_PER_MODULE = 8


def modules_of(kernels: Sequence[Kernel], per_module: int = KERNELS_PER_MODULE) -> list[str]:
    """IR text of all kernels; their names must differ."""
    starts = range(0, len(kernels), per_module)
    return [llvm_text(kernels[start : start + per_module], VECTOR_LANES) for start in starts]
