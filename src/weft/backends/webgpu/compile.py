"""Compile the kernels of sections to WGSL shaders."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from weft.backends.naming import name_kernels, replace_kernels
from weft.backends.webgpu.bindings import write_module
from weft.backends.webgpu.emit import emit
from weft.backends.webgpu.library import Abilities
from weft.ir.compiled import CompiledProgram, build_compiled_program
from weft.ir.kernel import Kernel
from weft.ir.program import TensorProgram
from weft.ir.work import Section

Progress = Callable[[float], None]


def wgsl_text(kernel: Kernel, abilities: Abilities) -> str:
    """Write a kernel's whole shader, with one binding per buffer, for display."""
    return write_module(kernel, emit(kernel, abilities), {}, abilities)


def compile_program(
    program: TensorProgram,
    sections: Sequence[Section],
    abilities: Abilities,
    progress: Progress | None = None,
) -> CompiledProgram:
    """Compile all kernels of a program; shaders are its objects, in the order of `naming.kernel_names`."""
    kernels = name_kernels(sections)
    distinct = list({kernel.name: kernel for kernel in kernels.values()}.values())
    objects = []
    for number, kernel in enumerate(distinct):
        objects.append(emit(kernel, abilities).encode())
        if progress is not None:
            progress((number + 1) / len(distinct))
    return build_compiled_program(program, replace_kernels(sections, kernels), tuple(objects))
