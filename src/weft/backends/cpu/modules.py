"""Kernels -> LLVM modules as text, a few kernels in each: modules can be compiled at the same time, and apart."""

from __future__ import annotations

from collections.abc import Sequence

from weft.backends.llvm import assembly as ir
from weft.backends.llvm.emit import emit
from weft.ir.kernel import Kernel

KERNELS_PER_MODULE = 8


def modules_of(kernels: Sequence[Kernel], per_module: int = KERNELS_PER_MODULE) -> list[str]:
    """IR text of all kernels; their names must differ."""
    texts = []
    for start in range(0, len(kernels), per_module):
        module = ir.Module(name="weft")
        for kernel in kernels[start : start + per_module]:
            emit(kernel, module)
        texts.append(str(module))
    return texts
