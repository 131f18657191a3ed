"""Read the ELF object files that LLVM writes for kernels: loaded sections, symbols and relocations.

Every number of a file is checked before it is used: arbitrary bytes give an object or an exception.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import NamedTuple

from weft.records import dataclass

X86_64, AARCH64 = 62, 183  # e_machine of the header
LARGEST_ALIGNMENT = 4096

_HEADER = Struct("<4sBBBB8xHHIQQQIHHHHHH")
_SECTION = Struct("<IIQQQQIIQQ")
_SYMBOL = Struct("<IBBHQQ")
_RELOCATION = Struct("<QIIq")
_OBJECT = (b"\x7fELF", 2, 1, 1)  # 64 bits, little-endian, version 1

_SHT_PROGBITS, _SHT_SYMTAB, _SHT_STRTAB, _SHT_RELA, _SHT_UNWIND, _SHT_REL = 1, 2, 3, 4, 0x70000001, 9
_SHF_ALLOC, _SHF_EXECINSTR, _SHF_MERGE, _SHF_STRINGS = 2, 4, 0x10, 0x20
_GLOBAL = 1
_RESERVED = 0xFF00  # section numbers from here on are special


class MalformedError(Exception):
    """The bytes are not an object file, or a damaged one."""


class UnsupportedError(Exception):
    """The file may be valid, but has a feature that kernels do not need."""


class ElfSection(NamedTuple):
    """The bytes of a section that is loaded into memory."""

    code: bool
    data: memoryview
    alignment: int


Symbol = tuple[str, int, int]
"""The name of a global symbol or "", the section or 0 if undefined, and the offset in it."""

Relocation = tuple[int, int, int, Symbol, int]
"""Section, offset in it, kind, symbol, addend."""


@dataclass(frozen=True, slots=True)
class ElfObject:
    machine: int
    sections: dict[int, ElfSection]
    exports: dict[str, Symbol]
    relocations: list[Relocation]


def read_object(content: bytes) -> ElfObject:
    """Parse an object file; MalformedError or UnsupportedError."""
    data = memoryview(content)
    if len(data) < _HEADER.size:
        raise MalformedError("it is too short")
    *ident, _, kind, machine, _, _, _, start, _, _, _, _, size, count, names = _HEADER.unpack_from(data)
    if tuple(ident) != _OBJECT or kind != 1 or size != _SECTION.size or count >= _RESERVED:
        raise MalformedError("it is not an object file for 64-bit little-endian machines")
    headers = list(_SECTION.iter_unpack(_slice(data, start, count * size)))
    titles = _read_strings(data, headers, names)
    sections: dict[int, ElfSection] = {}
    symbols: list[Symbol] = []
    exports: dict[str, Symbol] = {}
    tables: list[tuple[int, int, memoryview]] = []  # section, symbol table, entries
    table = -1
    for number, (name, kind, flags, _, at, length, link, info, alignment, _) in enumerate(headers):
        if kind == _SHT_RELA:
            tables.append((info, link, _slice(data, at, length)))
        elif kind == _SHT_REL:
            raise UnsupportedError("relocations without addends")
        elif kind == _SHT_SYMTAB:
            if table >= 0:
                raise UnsupportedError("several tables of symbols")
            table = number
            symbols = _read_symbols(_slice(data, at, length), _read_strings(data, headers, link))
        elif flags & _SHF_ALLOC and kind != _SHT_UNWIND and _read_name(titles, name) != ".eh_frame":
            sections[number] = _read_section(kind, flags, alignment, _slice(data, at, length))
    for symbol in symbols:
        title, section, value = symbol
        if section in sections:
            if value > len(sections[section].data):
                raise MalformedError("a symbol is outside its section")
            if title:
                exports[title] = symbol
    relocations: list[Relocation] = []
    for section, link, entries in tables:
        if section in sections:
            if link != table:
                raise MalformedError("relocations without symbols")
            relocations += _read_relocations(section, len(sections[section].data), entries, symbols)
    return ElfObject(machine, sections, exports, relocations)


def _read_section(kind: int, flags: int, alignment: int, data: memoryview) -> ElfSection:
    if kind != _SHT_PROGBITS or flags & ~(_SHF_ALLOC | _SHF_EXECINSTR | _SHF_MERGE | _SHF_STRINGS):
        raise UnsupportedError(f"a section of type {kind:#x} with flags {flags:#x}")
    if alignment > LARGEST_ALIGNMENT or alignment & (alignment - 1):
        raise MalformedError(f"a section is aligned to {alignment} bytes")
    return ElfSection(bool(flags & _SHF_EXECINSTR), data, max(1, alignment))


def _slice(data: memoryview, start: int, length: int) -> memoryview:
    if start + length > len(data):
        raise MalformedError("it ends too early")
    return data[start : start + length]


def _read_strings(data: memoryview, headers: Sequence[tuple[int, ...]], number: int) -> bytes:
    if number >= len(headers) or headers[number][1] != _SHT_STRTAB:
        raise MalformedError("it has no names")
    return bytes(_slice(data, *headers[number][4:6]))


def _read_name(strings: bytes, start: int) -> str:
    end = strings.find(b"\0", start)
    if end < 0:
        raise MalformedError("a name has no end")
    try:
        return strings[start:end].decode("ascii")
    except UnicodeDecodeError:
        raise MalformedError("a name is not ASCII") from None


def _read_symbols(entries: memoryview, strings: bytes) -> list[Symbol]:
    if len(entries) % _SYMBOL.size:
        raise MalformedError("the symbol table is truncated")
    symbols: list[Symbol] = []
    for name, info, _, section, value, _ in _SYMBOL.iter_unpack(entries):
        if info >> 4 > _GLOBAL:
            raise UnsupportedError("weak symbols")
        symbols.append((_read_name(strings, name) if info >> 4 == _GLOBAL else "", section, value))
    return symbols


def _read_relocations(section: int, size: int, entries: memoryview, symbols: Sequence[Symbol]) -> list[Relocation]:
    if len(entries) % _RELOCATION.size:
        raise MalformedError("a relocation table is truncated")
    relocations: list[Relocation] = []
    for offset, kind, symbol, addend in _RELOCATION.iter_unpack(entries):
        if symbol >= len(symbols) or offset + 4 > size:
            raise MalformedError("a relocation is outside its section")
        relocations.append((section, offset, kind, symbols[symbol], addend))
    return relocations
