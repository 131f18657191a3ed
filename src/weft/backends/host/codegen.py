"""LLVM IR text -> object code, from the cache or compiled -> functions in memory."""

from __future__ import annotations

import ctypes
import itertools
import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from weft.backends.host.elf import MalformedError, UnsupportedError
from weft.backends.host.image import load_image
from weft.backends.host.machine import Machine, host
from weft.backends.llvm.pass_pipeline import PIPELINE
from weft.cache.code import CodeCache
from weft.cache.digests import key_of
from weft.cache.sources import library_version
from weft.errors import InternalError
from weft.records import dataclass
from weft.threads import Once, once
from weft.version import __version__


@dataclass(frozen=True, slots=True)
class LoadedCode:
    """Functions in memory, for as long as this object lives.

    An address does not keep its code mapped, so every object that may call one refers to this: sections and tapes to
    the code of their model; plans and pools to the runner, which refers to its own. A thread inside a call holds such
    an object, so the code is unmapped only when no call is running and none can follow.
    """

    addresses: dict[str, int]
    owner: Any  # the code is unmapped with it


def compile_cached(text: str, machine: Machine, cache: CodeCache) -> bytes:
    """Compile a module to object code, unless the cache has it."""
    key = code_key(text, machine)
    code = cache.get(key)
    if code is None:
        from weft.backends.llvm.compilation import compile_module

        code = compile_module(text, machine)
        cache.put(key, code)
    return code


def code_key(text: str, machine: Machine) -> str:
    """Digest everything that the object code of a module depends on."""
    return key_of(text, code_identity(machine))


def code_identity(machine: Machine | None = None) -> str:
    """Digest everything that all code for a machine depends on."""
    machine = machine or host()
    target = repr(replace(machine.target, features=frozenset()))  # a set has no order; `machine.features` has them
    compiler = library_version("llvmlite"), PIPELINE
    return key_of(machine.triple, machine.processor, machine.features, target, __version__, *compiler)


# -- loading ---------------------------------------------------------------------------------------------------------


class PendingCode:
    """Code that may still be compiling: reading `addresses` waits for all of it."""

    def __init__(self, objects: Sequence[bytes], names: Sequence[str]) -> None:
        self._loaded = Once(lambda: load_code(objects, names))

    @property
    def addresses(self) -> dict[str, int]:
        return self._loaded().addresses


def load_program_code(objects: Sequence[bytes], names: Sequence[str]) -> LoadedCode | PendingCode:
    """Load a program's code and find these functions, now if it is compiled and on first use otherwise."""
    if not names:
        return LoadedCode({}, None)
    return load_code(objects, names) if isinstance(objects, tuple) else PendingCode(objects, names)


def load_code(objects: Sequence[bytes], names: Iterable[str]) -> LoadedCode:
    """Map object code into memory and find the functions of these names."""
    names = list(names)
    try:
        image = load_image(objects, names)
    except MalformedError as error:
        raise InternalError(f"compiled code cannot be loaded: {error}") from error
    except UnsupportedError:
        return link_code(objects, names)
    return LoadedCode(image.addresses, image)


def link_code(objects: Sequence[bytes], names: Sequence[str]) -> LoadedCode:
    """Load code by LLVM's linker, which supports every system but takes several megabytes."""
    from weft.backends.llvm.compilation import LLVM

    with LLVM:
        return _link_code(objects, names)


def _link_code(objects: Sequence[bytes], names: Sequence[str]) -> LoadedCode:
    import llvmlite.binding as llvm

    linker = _linker()
    library = llvm.JITLibraryBuilder().add_current_process()
    for code in objects:
        library.add_object_img(code)
    for name, address in _system_functions().items():
        library.import_symbol(name, address)
    for name in names:
        library.export_symbol(name)
    try:
        tracker = library.link(linker, f"weft.{next(_library_numbers)}")
    except RuntimeError as error:
        raise InternalError(f"compiled code cannot be loaded: {error}") from error
    return LoadedCode({name: tracker[name] for name in names}, (tracker, linker))


_library_numbers = itertools.count()


@once
def _linker() -> Any:
    import llvmlite.binding as llvm

    from weft.backends.llvm.compilation import target_machine

    return llvm.create_lljit_compiler(target_machine(host()), use_jit_link=os.name != "nt")


@cache
def _system_functions() -> dict[str, int]:
    """Find the system functions that LLVM's linker does not find by itself."""
    if os.name != "nt":
        return {}
    libraries: Any = ctypes
    synchronization = libraries.WinDLL("api-ms-win-core-synch-l1-2-0")
    kernel = libraries.WinDLL("kernel32")
    functions = {name: synchronization[name] for name in ("WaitOnAddress", "WakeByAddressAll")}
    functions |= {name: kernel[name] for name in ("QueryPerformanceCounter", "QueryPerformanceFrequency")}
    return {name: ctypes.cast(function, ctypes.c_void_p).value or 0 for name, function in functions.items()}
