"""Object files -> functions in memory, without a linker: one mapping for all code and constants of a program.

Kernels refer to their own constants and to a few system functions, always relative to the instruction, so relocations
are applied before the image's address is known. Memory is written first and made executable after, never both at once.
Features that kernels do not need raise UnsupportedError; LLVM's linker then loads the code.
"""

from __future__ import annotations

import ctypes
import mmap
import platform
import struct
import sys
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

from weft.backends.host.elf import AARCH64, X86_64, ElfObject, MalformedError, UnsupportedError, read_object
from weft.records import dataclass

_MACHINES = {"x86_64": X86_64, "aarch64": AARCH64}
_STUB_BYTES = 16
_STUBS = {
    X86_64: b"\xff\x25\x02\x00\x00\x00\x90\x90",  # jmp [rip + 2]: to the address that follows
    AARCH64: struct.pack("<II", 0x58000050, 0xD61F0200),  # ldr x16, the address that follows; br x16
}
Find = Callable[[str], int]


@dataclass(frozen=True, slots=True)
class Image:
    """Position-independent bytes, code first, and the offsets of the functions in them."""

    data: bytearray
    code_bytes: int
    places: dict[str, int]


@dataclass(frozen=True, eq=False)
class LoadedImage:
    """Functions in memory, for as long as this object lives; it has no slots because a finalizer needs a weakref."""

    addresses: dict[str, int]


def load_image(objects: Sequence[bytes], names: Sequence[str]) -> LoadedImage:
    """Map objects into memory and find the functions of these names; MalformedError or UnsupportedError."""
    if sys.platform != "linux":
        raise UnsupportedError("images are built for Linux only")
    machine = _host_machine()
    flush = _cache_flush(machine)
    image = build_image(objects, machine, find_function)
    missing = [name for name in names if image.places.get(name, image.code_bytes) >= image.code_bytes]
    if missing:
        raise MalformedError(f"there is no function {missing[0]}")
    system, size = _system(), len(image.data)
    start = system.mmap(None, size, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
    if start == _FAILED:
        raise UnsupportedError("no memory for code")
    loaded = LoadedImage({name: start + image.places[name] for name in names})
    # Not when the interpreter exits: daemon threads may still run the code.
    weakref.finalize(loaded, system.munmap, start, size).atexit = False
    ctypes.memmove(start, ctypes.addressof(ctypes.c_char.from_buffer(image.data)), size)
    constants = size - image.code_bytes
    if system.mprotect(start, image.code_bytes, mmap.PROT_READ | mmap.PROT_EXEC) or (
        constants and system.mprotect(start + image.code_bytes, constants, mmap.PROT_READ)  # qemu rejects a length of 0
    ):
        raise UnsupportedError("the system does not allow executable memory")
    flush(start, start + image.code_bytes)
    return loaded


# -- building --------------------------------------------------------------------------------------------------------


def build_image(objects: Sequence[bytes], machine: int, find: Find) -> Image:
    """Link all objects into one position-independent image; `find` returns the address of a system function."""
    files = [read_object(content) for content in objects]
    if any(file.machine != machine for file in files):
        raise UnsupportedError("code for another machine")
    defined = [name for file in files for name in file.exports]
    if len(set(defined)) != len(defined):
        raise MalformedError("two functions have the same name")
    used = {name for file in files for _, _, _, (name, section, _), _ in file.relocations if not section}
    outside = sorted(used.difference(defined))
    starts: list[dict[int, int]] = [{} for _ in files]  # of each file's sections
    stubs = _round_up(_place_sections(files, starts, True, 0), _STUB_BYTES)
    code_bytes = max(mmap.PAGESIZE, _round_up(stubs + len(outside) * _STUB_BYTES, mmap.PAGESIZE))
    data = bytearray(_round_up(_place_sections(files, starts, False, code_bytes), mmap.PAGESIZE))
    places: dict[str, int] = {}
    for file, start in zip(files, starts, strict=True):
        for number, section in file.sections.items():
            data[start[number] : start[number] + len(section.data)] = section.data
        places.update((name, start[home] + value) for name, home, value in file.exports.values())
    calls = {name: stubs + number * _STUB_BYTES for number, name in enumerate(outside)}
    for name, place in calls.items():
        data[place : place + _STUB_BYTES] = _STUBS[machine] + struct.pack("<Q", find(name))
    for file, start in zip(files, starts, strict=True):
        _relocate(data, file, start, places, calls)
    return Image(data, code_bytes, places)


def _round_up(number: int, unit: int) -> int:
    return -(-number // unit) * unit


def _place_sections(files: Sequence[ElfObject], starts: Sequence[dict[int, int]], code: bool, end: int) -> int:
    """Place the sections with or without code from `end` on; return the new end."""
    for file, start in zip(files, starts, strict=True):
        for number, section in file.sections.items():
            if section.code == code:
                start[number] = _round_up(end, section.alignment)
                end = start[number] + len(section.data)
    return end


def _relocate(
    data: bytearray, file: ElfObject, start: Mapping[int, int], places: Mapping[str, int], calls: Mapping[str, int]
) -> None:
    """Apply the relocations of a file."""
    kinds = _RELOCATIONS[file.machine]
    for section, offset, kind, (name, home, value), addend in file.relocations:
        target = start[home] + value if home in start else places.get(name, calls.get(name))
        if target is None or kind not in kinds or (kind not in _CALLS and name in calls):
            raise UnsupportedError(f"a relocation of type {kind} for {name or 'a local symbol'}")
        place = start[section] + offset
        (word,) = _WORD.unpack_from(data, place)
        _WORD.pack_into(data, place, kinds[kind](word, place, target + addend))


# -- relocations -----------------------------------------------------------------------------------------------------


def _encode_signed(value: int, bits: int) -> int:
    """Encode a signed number in this many bits; MalformedError if it does not fit."""
    if not -1 << bits - 1 <= value < 1 << bits - 1:
        raise MalformedError("a relocation target is out of range")
    return value & (1 << bits) - 1


def _distance(word: int, place: int, target: int) -> int:  # noqa: ARG001
    return _encode_signed(target - place, 32)


def _branch(word: int, place: int, target: int) -> int:
    if (target - place) & 3:
        raise MalformedError("a jump target is not aligned to an instruction")
    return word & 0xFC000000 | _encode_signed(target - place >> 2, 26)


def _page(word: int, place: int, target: int) -> int:
    pages = _encode_signed((target >> 12) - (place >> 12), 21)
    return word & 0x9F00001F | (pages & 3) << 29 | pages >> 2 << 5


def _within_page(unit: int) -> Callable[[int, int, int], int]:
    """Return the relocation of the offset in a page for an instruction that accesses `unit` bytes."""

    def complete(word: int, place: int, target: int) -> int:  # noqa: ARG001
        if target % unit:
            raise MalformedError("data is not aligned")
        return word & 0xFFC003FF | (target & 0xFFF) // unit << 10

    return complete


_WORD = struct.Struct("<I")
_RELOCATIONS: dict[int, dict[int, Callable[[int, int, int], int]]] = {
    X86_64: {2: _distance, 4: _distance},  # PC32, PLT32
    AARCH64: {
        261: _distance,  # PREL32
        275: _page,  # ADR_PREL_PG_HI21
        277: _within_page(1),  # ADD_ABS_LO12_NC, and LDSTn_ABS_LO12_NC:
        278: _within_page(1),
        284: _within_page(2),
        285: _within_page(4),
        286: _within_page(8),
        299: _within_page(16),
        282: _branch,  # JUMP26
        283: _branch,  # CALL26
    },
}
_CALLS = {4, 282, 283}  # relocations that may go through a stub


# -- the system ------------------------------------------------------------------------------------------------------


def _host_machine() -> int:
    name = platform.machine()
    if struct.calcsize("P") != 8 or name not in _MACHINES:
        raise UnsupportedError(f"images are not built for {name}")
    return _MACHINES[name]


@cache
def find_function(name: str) -> int:
    """Find the address of a system function."""
    for library in (None, "libm.so.6"):
        try:
            return ctypes.cast(ctypes.CDLL(library)[name], ctypes.c_void_p).value or 0
        except (OSError, AttributeError):
            continue
    raise UnsupportedError(f"no function {name}")


@cache
def _cache_flush(machine: int) -> Callable[[int, int], Any]:
    """Return the function that flushes the instruction cache between two addresses; x86-64 needs none."""
    if machine == X86_64:
        return lambda _start, _end: None
    try:
        flush = ctypes.CDLL("libgcc_s.so.1")["__clear_cache"]
    except (OSError, AttributeError):
        raise UnsupportedError("no way to flush the instruction cache") from None
    flush.argtypes, flush.restype = (ctypes.c_void_p, ctypes.c_void_p), None
    return flush


@cache
def _system() -> Any:
    system = ctypes.CDLL(None)
    address, size, number = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    system.mmap.argtypes, system.mmap.restype = (address, size, number, number, number, ctypes.c_long), address
    system.mprotect.argtypes = (address, size, number)
    system.munmap.argtypes = (address, size)
    return system


_FAILED = ctypes.c_void_p(-1).value
