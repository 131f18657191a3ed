"""Kernel -> LLVM IR -> object code. Only programs with new kernels import this, and with it LLVM."""

from __future__ import annotations

from weft.backends.host.machine import Machine
from weft.backends.llvm.compilation import compile_module as compile_module
from weft.backends.llvm.emit import llvm_text
from weft.backends.llvm.vector_lanes import choose_lanes
from weft.ir.kernel import Kernel


def emit_kernel(kernel: Kernel, machine: Machine) -> str:
    """Emit a kernel as a module of LLVM IR."""
    return llvm_text([kernel], choose_lanes(machine.target.features))
