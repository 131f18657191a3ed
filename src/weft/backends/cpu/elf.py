"""ELF object files, as LLVM writes them for kernels: what of them goes into memory, and where it must be completed.

Every number of a file is checked before it is used: whatever the bytes are, the outcome is an object or an exception.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import NamedTuple

from weft.records import dataclass

X86_64, AARCH64 = 62, 183  # as a file's header names machines
LARGEST_ALIGNMENT = 4096

_HEADER = Struct("<4sBBBB8xHHIQQQIHHHHHH")
_SECTION = Struct("<IIQQQQIIQQ")
_SYMBOL = Struct("<IBBHQQ")
_RELOCATION = Struct("<QIIq")
_OBJECT = (b"\x7fELF", 2, 1, 1)  # 64 bits, little-endian, of the only version there is

_CONTENT, _SYMBOLS, _STRINGS, _RELOCATIONS, _UNWINDING, _IMPLICIT = 1, 2, 3, 4, 0x70000001, 9
_LOADED, _EXECUTABLE, _MERGEABLE, _TEXT = 2, 4, 0x10, 0x20
_GLOBAL = 1
_RESERVED = 0xFF00  # section numbers from here on have meanings of their own


class MalformedError(Exception):
    """The bytes are not an object file, or a damaged one."""


class UnsupportedError(Exception):
    """The file may be right, but has something that kernels do not need."""


class ElfSection(NamedTuple):
    """Bytes that go into memory."""

    code: bool
    data: memoryview
    alignment: int


Symbol = tuple[str, int, int]
"""The name, if others may know it; the section, 0 for what others define; the place in it."""

Relocation = tuple[int, int, int, Symbol, int]
"""A place that depends on where a symbol is: section, place in it, kind, symbol, addend."""


@dataclass(frozen=True, slots=True)
class ElfObject:
    machine: int
    sections: dict[int, ElfSection]
    exports: dict[str, Symbol]
    relocations: list[Relocation]


def read_object(content: bytes) -> ElfObject:
    """The parts of an object file; MalformedError or UnsupportedError."""
    data = memoryview(content)
    if len(data) < _HEADER.size:
        raise MalformedError("it is too short")
    *ident, _, kind, machine, _, _, _, start, _, _, _, _, size, count, names = _HEADER.unpack_from(data)
    if tuple(ident) != _OBJECT or kind != 1 or size != _SECTION.size or count >= _RESERVED:
        raise MalformedError("it is not an object file for 64-bit little-endian machines")
    headers = list(_SECTION.iter_unpack(_slice(data, start, count * size)))
    titles = _strings(data, headers, names)
    sections: dict[int, ElfSection] = {}
    symbols: list[Symbol] = []
    exports: dict[str, Symbol] = {}
    tables: list[tuple[int, int, memoryview]] = []  # the section, its symbols', the relocations
    table = -1
    for number, (name, kind, flags, _, at, length, link, info, alignment, _) in enumerate(headers):
        if kind == _RELOCATIONS:
            tables.append((info, link, _slice(data, at, length)))
        elif kind == _IMPLICIT:
            raise UnsupportedError("relocations without addends")
        elif kind == _SYMBOLS:
            if table >= 0:
                raise UnsupportedError("several tables of symbols")
            table = number
            symbols = _symbols(_slice(data, at, length), _strings(data, headers, link))
        elif flags & _LOADED and kind != _UNWINDING and _name(titles, name) != ".eh_frame":
            sections[number] = _section(kind, flags, alignment, _slice(data, at, length))
    for symbol in symbols:
        title, section, value = symbol
        if section in sections:
            if value > len(sections[section].data):
                raise MalformedError("a symbol is outside of its section")
            if title:
                exports[title] = symbol
    relocations: list[Relocation] = []
    for section, link, entries in tables:
        if section in sections:
            if link != table:
                raise MalformedError("relocations without symbols")
            relocations += _relocations(section, len(sections[section].data), entries, symbols)
    return ElfObject(machine, sections, exports, relocations)


def _section(kind: int, flags: int, alignment: int, data: memoryview) -> ElfSection:
    if kind != _CONTENT or flags & ~(_LOADED | _EXECUTABLE | _MERGEABLE | _TEXT):
        raise UnsupportedError(f"a section of type {kind:#x} with flags {flags:#x}")
    if alignment > LARGEST_ALIGNMENT or alignment & (alignment - 1):
        raise MalformedError(f"a section is aligned to {alignment} bytes")
    return ElfSection(bool(flags & _EXECUTABLE), data, max(1, alignment))


def _slice(data: memoryview, start: int, length: int) -> memoryview:
    if start + length > len(data):
        raise MalformedError("it ends too early")
    return data[start : start + length]


def _strings(data: memoryview, headers: Sequence[tuple[int, ...]], number: int) -> bytes:
    if number >= len(headers) or headers[number][1] != _STRINGS:
        raise MalformedError("it has no names")
    return bytes(_slice(data, *headers[number][4:6]))


def _name(strings: bytes, start: int) -> str:
    end = strings.find(b"\0", start)
    if end < 0:
        raise MalformedError("a name has no end")
    try:
        return strings[start:end].decode("ascii")
    except UnicodeDecodeError:
        raise MalformedError("a name is no text") from None


def _symbols(entries: memoryview, strings: bytes) -> list[Symbol]:
    if len(entries) % _SYMBOL.size:
        raise MalformedError("the table of symbols is cut")
    found: list[Symbol] = []
    for name, info, _, section, value, _ in _SYMBOL.iter_unpack(entries):
        if info >> 4 > _GLOBAL:
            raise UnsupportedError("weak symbols")
        found.append((_name(strings, name) if info >> 4 == _GLOBAL else "", section, value))
    return found


def _relocations(section: int, size: int, entries: memoryview, symbols: Sequence[Symbol]) -> list[Relocation]:
    if len(entries) % _RELOCATION.size:
        raise MalformedError("a table of relocations is cut")
    found: list[Relocation] = []
    for offset, kind, symbol, addend in _RELOCATION.iter_unpack(entries):
        if symbol >= len(symbols) or offset + 4 > size:
            raise MalformedError("a relocation is outside of its section")
        found.append((section, offset, kind, symbols[symbol], addend))
    return found
