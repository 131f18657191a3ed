"""Sections -> WGSL: every kernel under a name of its own, with its shader as text."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from weft.backends.naming import named_kernels, named_sections
from weft.backends.webgpu.bindings import module_text
from weft.backends.webgpu.emit import emit
from weft.backends.webgpu.library import Abilities
from weft.ir.compiled import CompiledProgram, compiled
from weft.ir.kernel import Kernel
from weft.ir.program import TensorProgram
from weft.ir.work import Section

Progress = Callable[[float], None]


def wgsl_text(kernel: Kernel, abilities: Abilities, subgroup: int = 0) -> str:
    """A kernel's whole shader, with each buffer in a binding of its own: for people."""
    return module_text(kernel, emit(kernel, abilities, subgroup), {}, abilities)


def compile_program(
    program: TensorProgram,
    sections: Sequence[Section],
    abilities: Abilities,
    subgroup: int = 0,
    progress: Progress | None = None,
) -> CompiledProgram:
    """The program with the shaders of all its kernels: objects, in the order of `naming.kernel_names`."""
    kernels = named_kernels(sections)
    distinct = list({kernel.name: kernel for kernel in kernels.values()}.values())
    objects = []
    for number, kernel in enumerate(distinct):
        objects.append(emit(kernel, abilities, subgroup).encode())
        if progress is not None:
            progress((number + 1) / len(distinct))
    return compiled(program, named_sections(sections, kernels), tuple(objects))
