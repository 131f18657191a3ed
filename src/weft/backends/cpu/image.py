"""Object files -> functions in memory, without a linker: one mapping for all code and constants of a program.

Kernels refer to their own constants and to few functions of the system, always relative to the place of the
instruction. So an image is completed before its address is known; memory is written first and made executable after,
never both at once. What is not needed for kernels is left to LLVM's linker: UnsupportedError.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import struct
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from weft.backends.cpu.elf import AARCH64, X86_64, ElfObject, MalformedError, Symbol, UnsupportedError, read_object

_STUB_BYTES = 16
_STUBS = {
    X86_64: b"\xff\x25\x02\x00\x00\x00\x90\x90",  # jmp [rip + 2]: to the address behind
    AARCH64: struct.pack("<II", 0x58000050, 0xD61F0200),  # ldr x16, the address behind; br x16
}
Find = Callable[[str], int]


@dataclass(frozen=True, slots=True)
class Image:
    """Bytes that may lie at any page, the first `code_bytes` of them to be run, with the places of functions in them."""

    data: bytearray
    code_bytes: int
    places: dict[str, int]


@dataclass(frozen=True, slots=True)
class Mapping:
    """Functions in memory, for as long as this object lives."""

    addresses: dict[str, int]
    memory: mmap.mmap


def load_image(objects: Sequence[bytes], names: Iterable[str]) -> Mapping:
    """Bring objects into memory and find the functions of these names."""
    machine = host_machine()
    flush = _cache_flush(machine)
    image = build_image(objects, machine, find_function)
    missing = [name for name in names if name not in image.places]
    if missing:
        raise MalformedError(f"it has no function {missing[0]}")
    memory = mmap.mmap(-1, len(image.data), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)  # type: ignore[attr-defined,unused-ignore]
    memory[:] = image.data
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    _protect(start, image.code_bytes, mmap.PROT_READ | mmap.PROT_EXEC)
    _protect(start + image.code_bytes, len(image.data) - image.code_bytes, mmap.PROT_READ)
    flush(start, start + image.code_bytes)
    return Mapping({name: start + image.places[name] for name in names}, memory)


# -- building --------------------------------------------------------------------------------------------------------


def build_image(objects: Sequence[bytes], machine: int, find: Find, page: int = mmap.PAGESIZE) -> Image:
    """All objects in one image, complete but for its address. `find` gives the addresses of the system's functions."""
    files = [read_object(content) for content in objects]
    if any(file.machine != machine for file in files):
        raise UnsupportedError("code for another machine")
    offsets: dict[tuple[int, int], int] = {}  # by the numbers of file and section
    code_end = _place(files, True, 0, offsets)
    stubs = -(-code_end // _STUB_BYTES) * _STUB_BYTES
    exports = _exports(files, offsets)
    unknown = {r.symbol.name: 0 for file in files for r in file.relocations if not r.symbol.section}
    outside = [name for name in unknown if name not in exports]
    code_bytes = max(1, -(-(stubs + len(outside) * _STUB_BYTES) // page)) * page
    end = _place(files, False, code_bytes, offsets)
    exports = _exports(files, offsets)
    data = bytearray(-(-end // page) * page)
    for number, file in enumerate(files):
        for index, section in file.sections.items():
            start = offsets[number, index]
            data[start : start + len(section.data)] = section.data
    calls = {name: stubs + number * _STUB_BYTES for number, name in enumerate(outside)}
    for name, place in calls.items():
        data[place : place + _STUB_BYTES] = _STUBS[machine] + struct.pack("<Q", find(name))
    for number, file in enumerate(files):
        _relocate(data, file, number, offsets, exports, calls)
    return Image(data, code_bytes, exports)


def _place(files: Sequence[ElfObject], code: bool, end: int, offsets: dict[tuple[int, int], int]) -> int:
    """Give the sections of one sort their places from `end` on; the new end."""
    for number, file in enumerate(files):
        for index, section in file.sections.items():
            if section.code == code:
                start = -(-end // section.alignment) * section.alignment
                offsets[number, index] = start
                end = start + len(section.data)
    return end
