"""Sections -> machine code: every kernel under a name of its own, compiled or taken from the cache."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from hashlib import sha256

from weft.backends.cpu.code_cache import CodeCache, key_of, package_digest, shared_cache
from weft.backends.cpu.codegen import code_identity, compile_module
from weft.backends.cpu.machine import Machine, host, usable_cores
from weft.backends.cpu.modules import modules_of
from weft.ir.compiled import CompiledProgram, compiled
from weft.ir.kernel import Kernel, fingerprint, used_symbols
from weft.ir.program import TensorProgram
from weft.ir.work import Launch, NativeSection, ScanTask, Section, Task, Work, all_works

Progress = Callable[[float], None]


def compile_program(
    program: TensorProgram,
    sections: Sequence[Section],
    cache: bool = True,
    progress: Progress | None = None,
    machine: Machine | None = None,
) -> CompiledProgram:
    """The program with the code of all its kernels."""
    kernels = _named_kernels(sections)
    distinct = {kernel.name: kernel for kernel in kernels.values()}
    objects = compile_kernels(tuple(distinct.values()), machine or host(), shared_cache() if cache else None, progress)
    return compiled(program, _named_sections(sections, kernels), objects)


def compile_kernels(
    kernels: Sequence[Kernel], machine: Machine, cache: CodeCache | None, progress: Progress | None = None
) -> tuple[bytes, ...]:
    """Object code of each kernel. While LLVM compiles one, the next is written; what the cache has is neither."""
    emitter = package_digest("backends/cpu", "ir")
    keys = [key_of(kernel.name, code_identity(machine), emitter or "") for kernel in kernels]
    found = [cache.get(key) if cache is not None and emitter is not None else None for key in keys]
    missing = [number for number, code in enumerate(found) if code is None]
    if not missing:
        return tuple(code for code in found if code is not None)
    with ThreadPoolExecutor(min(usable_cores(), len(missing))) as workers:
        pending: dict[int, Future[bytes]] = {}
        for done, number in enumerate(missing):
            (text,) = modules_of([kernels[number]])
            pending[number] = workers.submit(compile_module, text, machine)
            if progress is not None:
                progress((done + 1) / len(missing))
        made = {number: future.result() for number, future in pending.items()}
    if cache is not None and emitter is not None:
        for number, code in made.items():
            cache.put(keys[number], code)
    return tuple(made[number] if code is None else code for number, code in enumerate(found))


def kernel_names(sections: Sequence[Section]) -> list[str]:
    """The kernels that sections launch, each once."""
    return list(dict.fromkeys(launch.kernel.name for launch in _launches(sections)))


def _launches(sections: Sequence[Section]) -> list[Launch]:
    found: list[Launch] = []
    for section in sections:
        if isinstance(section, NativeSection):
            found += [launch for work in all_works(section) for launch, _ in work.launches]
        else:
            found += [launch for body in section.bodies for launch in _launches(body)]
    return found


def _named_kernels(sections: Sequence[Section]) -> dict[int, Kernel]:
    """By identity, each kernel under a name that only kernels of the same code share; without idle parameters."""
    named: dict[Kernel, Kernel] = {}
    found: dict[int, Kernel] = {}
    for launch in _launches(sections):
        kernel = launch.kernel
        if id(kernel) in found:
            continue
        if kernel not in named:
            used = {symbol.name for symbol in used_symbols(kernel)}
            lean = replace(kernel, parameters=tuple(name for name in kernel.parameters if name in used))
            digest = sha256(fingerprint(lean).encode()).hexdigest()
            named[kernel] = replace(lean, name=f"{kernel.name}_{digest[:16]}")
        found[id(kernel)] = named[kernel]
    return found


def _renamed(launch: Launch, kernel: Kernel) -> Launch:
    given = dict(zip(launch.kernel.parameters, launch.parameters, strict=True))
    return replace(launch, kernel=kernel, parameters=tuple(given[name] for name in kernel.parameters))


def _named_sections(sections: Sequence[Section], kernels: Mapping[int, Kernel]) -> tuple[Section, ...]:
    return tuple(
        _with_kernels(section, kernels)
        if isinstance(section, NativeSection)
        else replace(section, bodies=tuple(_named_sections(body, kernels) for body in section.bodies))
        for section in sections
    )


def _with_kernels(section: NativeSection, kernels: Mapping[int, Kernel]) -> NativeSection:
    works: dict[int, Work] = {}

    def named(work: Work) -> Work:
        if id(work) not in works:
            launches = tuple((_renamed(launch, kernels[id(launch.kernel)]), refs) for launch, refs in work.launches)
            works[id(work)] = replace(work, launches=launches)
        return works[id(work)]

    def renamed(task: Task | ScanTask) -> Task | ScanTask:
        if isinstance(task, ScanTask):
            body = _with_kernels(task.body, kernels)
            return replace(task, body=body, copies=tuple(map(named, task.copies)))
        return replace(task, work=named(task.work))

    return replace(section, tasks=tuple(map(renamed, section.tasks)))
