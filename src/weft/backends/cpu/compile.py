"""Sections -> machine code: every kernel under a name of its own, compiled or taken from the cache."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from weft.backends.cpu.codegen import code_identity
from weft.backends.cpu.machine import Machine, host
from weft.backends.llvm.compilation import compile_module
from weft.backends.llvm.emit import llvm_text
from weft.backends.llvm.vector_lanes import VECTOR_LANES
from weft.backends.naming import named_kernels, named_sections
from weft.cache.code import CodeCache, shared_cache
from weft.cache.digests import key_of
from weft.cache.sources import package_digest
from weft.ir.compiled import CompiledProgram, compiled
from weft.ir.kernel import Kernel
from weft.ir.program import TensorProgram
from weft.ir.work import Section
from weft.threads import PendingTask, Team, usable_cores

Progress = Callable[[float], None]


def compile_program(
    program: TensorProgram,
    sections: Sequence[Section],
    cache: bool = True,
    progress: Progress | None = None,
    machine: Machine | None = None,
) -> CompiledProgram:
    """The program with the code of all its kernels."""
    kernels = named_kernels(sections)
    distinct = {kernel.name: kernel for kernel in kernels.values()}
    objects = compile_kernels(tuple(distinct.values()), machine or host(), shared_cache() if cache else None, progress)
    return compiled(program, named_sections(sections, kernels), objects)


def compile_kernels(
    kernels: Sequence[Kernel], machine: Machine, cache: CodeCache | None, progress: Progress | None = None
) -> tuple[bytes, ...]:
    """Object code of each kernel. While LLVM compiles one, the next is written; what the cache has is neither."""
    emitter = package_digest("backends", "ir")
    keys = [key_of(kernel.name, code_identity(machine), emitter or "") for kernel in kernels]
    found = [cache.get(key) if cache is not None and emitter is not None else None for key in keys]
    missing = [number for number, code in enumerate(found) if code is None]
    if not missing:
        return tuple(code for code in found if code is not None)
    with Team(min(usable_cores(), len(missing))) as workers:
        pending: dict[int, PendingTask[bytes]] = {}
        for done, number in enumerate(missing):
            text = llvm_text([kernels[number]], VECTOR_LANES)
            pending[number] = workers.submit(compile_module, text, machine)
            if progress is not None:
                progress((done + 1) / len(missing))
        made = {number: future.result() for number, future in pending.items()}
    if cache is not None and emitter is not None:
        for number, code in made.items():
            cache.put(keys[number], code)
    return tuple(made[number] if code is None else code for number, code in enumerate(found))
