"""LLVM IR text -> object code, compiled by several threads or taken from the cache -> functions in memory.

Object code is loaded without any work for the compiler.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from weft.backends.cpu.elf import MalformedError, UnsupportedError
from weft.backends.cpu.image import load_image
from weft.backends.cpu.machine import Machine, host
from weft.backends.llvm.pipeline import PIPELINE
from weft.cache.code import CodeCache
from weft.cache.digests import key_of
from weft.cache.sources import library_version
from weft.errors import InternalError
from weft.records import dataclass
from weft.threads import Once, Team, once, usable_cores


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

    if missing:
        from weft.backends.llvm.compilation import compile_module

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
    compiler = library_version("llvmlite"), PIPELINE
    return key_of(machine.triple, machine.processor, machine.features, target, version, *compiler)


# -- loading ---------------------------------------------------------------------------------------------------------


class AwaitedCode:
    """The same for code that may still be compiled: who asks for addresses waits for all of it."""

    def __init__(self, objects: Sequence[bytes], names: Sequence[str]) -> None:
        self._loaded = Once(lambda: load_code(objects, names))

    @property
    def addresses(self) -> dict[str, int]:
        return self._loaded().addresses


def code_of(objects: Sequence[bytes], names: Sequence[str]) -> LoadedCode | AwaitedCode:
    """The functions of these names in a program's code: in memory now if it is compiled."""
    if not names:
        return LoadedCode({}, None)
    return load_code(objects, names) if isinstance(objects, tuple) else AwaitedCode(objects, names)


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
        tracker = library.link(linker, f"weft.{next(_numbers)}")
    except RuntimeError as error:
        raise InternalError(f"compiled code cannot be loaded: {error}") from error
    return LoadedCode({name: tracker[name] for name in names}, (tracker, linker))


_numbers = itertools.count()


@once
def _linker() -> Any:
    import llvmlite.binding as llvm

    from weft.backends.llvm.compilation import target_machine

    return llvm.create_lljit_compiler(target_machine(host()), use_jit_link=os.name != "nt")


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
