"""LLVM IR text -> object code -> functions in memory.

The IR is vector code already, so few passes are run: registers out of stack slots, instructions combined. What else
there is to gain, common subexpressions and invariants of loops, LLVM's emission finds by itself. Object code is loaded
without any work for the compiler.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import llvmlite
import llvmlite.binding as llvm
from llvmlite.binding import ffi

from weft.backends.cpu.elf import MalformedError, UnsupportedError
from weft.backends.cpu.image import load_image
from weft.backends.cpu.machine import Machine, host, initialize_compiler
from weft.cache.code import CodeCache
from weft.cache.digests import key_of
from weft.errors import InternalError
from weft.threads import Team, Undivided, free_in_children, once, usable_cores

LLVM = Undivided()
free_in_children(ffi.lib._lock._lock)  # llvmlite's, which it takes for a moment wherever it lets something go

PIPELINE = "always-inline,sroa,instcombine,simplifycfg"  # part of the name of cached code


@dataclass(frozen=True, slots=True)
class LoadedCode:
    """Functions in memory, for as long as this object lives.

    Addresses own nothing. So whoever may call one holds this: an executable that of its model (its sections and their
    tapes refer to it), the runner its own, and a prepared section, a tape and a pool the runner. A thread inside of a
    call is there for an object that it holds, so code goes when no call is left and none can come.
    """

    addresses: dict[str, int]
    owner: Any  # the code is unmapped with it


def compile_modules(
    texts: Sequence[str],
    machine: Machine,
    cache: CodeCache | None = None,
    threads: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> list[bytes]:
    """Object code of each module, from the cache where it has it; `progress` hears of (done, all)."""
    keys = [code_key(text, machine) for text in texts]
    objects = [None if cache is None else cache.get(key) for key in keys]
    missing = [index for index, code in enumerate(objects) if code is None]
    missing.sort(key=lambda index: -len(texts[index]))  # the largest first, so that none is left over at the end

    def build(index: int) -> tuple[int, bytes]:
        code = compile_module(texts[index], machine)
        if cache is not None:
            cache.put(keys[index], code)
        return index, code

    if missing:
        with Team(min(threads or usable_cores(), len(missing))) as workers:
            for done, (index, code) in enumerate(workers.map(build, missing), start=1):
                objects[index] = code
                if progress is not None:
                    progress(done, len(missing))
    return [code for code in objects if code is not None]


def code_key(text: str, machine: Machine) -> str:
    """What the object code of a module depends on, as one name."""
    return key_of(text, code_identity(machine))


def code_identity(machine: Machine | None = None) -> str:
    """What all code made for a machine depends on."""
    machine = machine or host()
    version = sys.modules["weft"].__version__  # the root package is above this layer: loaded, but not to be imported
    target = repr(replace(machine.target, features=frozenset()))  # which have no order, and are in `features` too
    return key_of(machine.triple, machine.processor, machine.features, target, version, llvmlite.__version__, PIPELINE)


def compile_module(text: str, machine: Machine) -> bytes:
    """Object code of one module."""
    with LLVM:
        return _compile_module(text, machine)


def _compile_module(text: str, machine: Machine) -> bytes:
    context = llvm.create_context()
    module, builder = _optimized(text, machine, context)
    with ffi.OutputString() as error:
        buffer = _concurrent("LLVMPY_TargetMachineEmitToMemory")(builder, module, 1, error)
        if not buffer:
            raise InternalError(f"LLVM cannot emit object code: {error}")
    try:
        return ctypes.string_at(ffi.lib.LLVMPY_GetBufferStart(buffer), ffi.lib.LLVMPY_GetBufferSize(buffer))
    finally:
        ffi.lib.LLVMPY_DisposeMemoryBuffer(buffer)


def assembly_of(text: str, machine: Machine) -> str:
    """The module as assembly text, for people."""
    with LLVM:
        context = llvm.create_context()
        module, builder = _optimized(text, machine, context)
        assembly: str = builder.emit_assembly(module)
        return assembly


def _optimized(text: str, machine: Machine, context: Any) -> tuple[Any, Any]:
    """The module after its passes, and the target machine to emit it with."""
    try:
        module = llvm.parse_assembly(text, context)
    except RuntimeError as error:
        raise InternalError(f"LLVM rejects weft's code: {error}") from error
    builder = _target_machine(machine)
    module.triple = machine.triple
    module.data_layout = str(builder.target_data)
    passes = llvm.create_pass_builder(builder, llvm.create_pipeline_tuning_options(speed_level=1))
    _concurrent("LLVMPY_RunNewModulePassManager")(_pipeline(), module, passes)
    return module, builder


def _pipeline() -> Any:
    pipeline = llvm.create_new_module_pass_manager()
    pipeline.add_always_inliner_pass()
    pipeline.add_sroa_pass()
    pipeline.add_instruction_combine_pass()
    pipeline.add_simplify_cfg_pass()
    return pipeline


def _target_machine(machine: Machine) -> Any:
    initialize_compiler()
    return llvm.Target.from_triple(machine.triple).create_target_machine(
        cpu=machine.processor, features=machine.features, opt=2, reloc="pic", codemodel="small"
    )


@cache
def _concurrent(name: str) -> Any:
    """A function of llvmlite's library without the lock around it.

    The lock would serialize all compiling in the process. LLVM itself is safe as long as each thread has a context
    and a target machine of its own.
    """
    locked = getattr(ffi.lib, name)
    free = getattr(ctypes.CDLL(ffi.lib._name), name)
    free.argtypes, free.restype = locked.argtypes, locked.restype
    return free


# -- loading ---------------------------------------------------------------------------------------------------------


def load_code(objects: Sequence[bytes], names: Iterable[str]) -> LoadedCode:
    """Bring object code into memory and find the functions of these names."""
    wanted = list(names)
    try:
        image = load_image(objects, wanted)
    except MalformedError as error:
        raise InternalError(f"compiled code cannot be loaded: {error}") from error
    except UnsupportedError:
        return link_code(objects, wanted)
    return LoadedCode(image.addresses, image)


def link_code(objects: Sequence[bytes], names: Sequence[str]) -> LoadedCode:
    """The same by LLVM's linker, which knows every system and takes some megabytes for itself."""
    with LLVM:
        return _link_code(objects, names)


def _link_code(objects: Sequence[bytes], names: Sequence[str]) -> LoadedCode:
    linker = _linker()
    library = llvm.JITLibraryBuilder().add_current_process()
    for code in objects:
        library.add_object_img(code)
    for name, address in _system_functions().items():
        library.import_symbol(name, address)
    for name in names:
        library.export_symbol(name)
    try:
        tracker = library.link(linker, f"weft.{next(_numbers)}")
    except RuntimeError as error:
        raise InternalError(f"compiled code cannot be loaded: {error}") from error
    return LoadedCode({name: tracker[name] for name in names}, (tracker, linker))


_numbers = itertools.count()


@once
def _linker() -> Any:
    return llvm.create_lljit_compiler(_target_machine(host()), use_jit_link=os.name != "nt")


@cache
def _system_functions() -> dict[str, int]:
    """Functions of the system that its loader does not find by itself."""
    if os.name != "nt":
        return {}
    libraries: Any = ctypes
    synchronization = libraries.WinDLL("api-ms-win-core-synch-l1-2-0")
    kernel = libraries.WinDLL("kernel32")
    found = {name: synchronization[name] for name in ("WaitOnAddress", "WakeByAddressAll")}
    found |= {name: kernel[name] for name in ("QueryPerformanceCounter", "QueryPerformanceFrequency")}
    return {name: ctypes.cast(function, ctypes.c_void_p).value or 0 for name, function in found.items()}
