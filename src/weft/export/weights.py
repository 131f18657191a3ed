"""The weights of an exported model: one stretch of bytes that its code knows the length and the checksum of."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from weft.export.units import CodeUnit
from weft.ir.arrays import Array
from weft.ir.compiled import section_constants
from weft.ir.packing import load_constant
from weft.ir.program import Step, Value
from weft.ir.work import all_works
from weft.records import dataclass

ALIGNMENT = 64
_WORDS = 1 << 20  # that are summed up at a time
_SPREAD = 0x9E3779B97F4A7C15
"""An odd number: multiplied with it, every bit of a word counts in the upper half of the product."""


@dataclass(frozen=True, slots=True, eq=False)
class WeightLayout:
    """Arrays with their offsets: those of the values of each unit, and what works have packed (by their id, number)."""

    arrays: tuple[tuple[int, Array], ...]
    values: Mapping[int, Mapping[Value, int]]
    packed: Mapping[tuple[int, int], int]
    length: int

    def pieces(self) -> Iterable[bytes | memoryview]:
        """All bytes in order."""
        end = 0
        for offset, array in self.arrays:
            yield bytes(offset - end)
            yield array.reshape(-1).view(np.uint8).data
            end = offset + array.nbytes
        yield bytes(self.length - end)

    def write(self, path: Path) -> None:
        with path.open("wb") as file:
            for piece in self.pieces():
                file.write(piece)

    @property
    def checksum(self) -> int:
        return sum(_sum(array, offset // 8) for offset, array in self.arrays) % 2**64


def gather(units: Sequence[CodeUnit]) -> WeightLayout:
    """All that launches read and nobody writes, and constants that others are given."""
    arrays: list[tuple[int, Array]] = []
    known: dict[tuple[int, int], int] = {}
    end = 0

    def add(array: Array) -> int:
        nonlocal end
        array = np.ascontiguousarray(array)
        key = array.ctypes.data, array.nbytes
        if key not in known:
            known[key] = end
            arrays.append((end, array))
            end += -(-array.nbytes // ALIGNMENT) * ALIGNMENT
        return known[key]

    values = {unit.number: {value: add(array) for value, array in _read(unit).items()} for unit in units}
    packed: dict[tuple[int, int], int] = {}
    for work in {id(work): work for unit in units for part in unit.sections for work in all_works(part)}.values():
        for number, constant in enumerate(work.constants):
            packed[id(work), number] = add(load_constant(constant))
    return WeightLayout(tuple(arrays), values, packed, end)


def _read(unit: CodeUnit) -> dict[Value, Array]:
    """The constants of a unit that are read as they are."""
    found: dict[Value, Array] = {}
    for section in unit.sections:
        found |= section_constants(section, unit.constants)
    given = [value for item in unit.items if isinstance(item, Step) for value in item.operands]
    for value in (*unit.outputs, *given):
        if value in unit.constants:
            found[value] = np.asarray(unit.constants[value])
    return found


def _sum(array: Array, start: int) -> int:
    """What an array adds to the checksum: its words, mixed, each by the odd number of its place (the first: `start`).

    Bytes that fill up the last word are 0, and so add nothing.
    """
    content = array.reshape(-1).view(np.uint8)
    whole = len(content) // 8 * 8
    total = np.uint64(0)
    with np.errstate(over="ignore"):
        for first in range(0, whole, 8 * _WORDS):
            total += _sum_words(content[first : min(first + 8 * _WORDS, whole)].view("<u8"), start + first // 8)
        if whole < len(content):
            rest = np.zeros(8, np.uint8)
            rest[: len(content) - whole] = content[whole:]
            total += _sum_words(rest.view("<u8"), start + whole // 8)
    return int(total)


def _sum_words(words: Array, start: int) -> np.uint64:
    mixed = words * np.uint64(_SPREAD)
    mixed ^= mixed >> np.uint64(32)
    places = np.arange(start, start + len(words), dtype=np.uint64) * np.uint64(2) + np.uint64(1)
    total: np.uint64 = (mixed * places).sum(dtype=np.uint64)
    return total


CHECKSUM_CODE = f"""
define internal i64 @"{{name}}.checksum"(ptr %bytes, i64 %length) nounwind {{{{
entry:
  %words = lshr i64 %length, 3
  br label %visit
visit:
  %index = phi i64 [ 0, %entry ], [ %index.next, %add ]
  %total = phi i64 [ 0, %entry ], [ %total.next, %add ]
  %more = icmp ult i64 %index, %words
  br i1 %more, label %add, label %end
add:
  %place = getelementptr i64, ptr %bytes, i64 %index
  %word = load i64, ptr %place, align 8
  %mixed = mul i64 %word, {_SPREAD - 2**64}
  %high = lshr i64 %mixed, 32
  %part = xor i64 %mixed, %high
  %twice = shl i64 %index, 1
  %odd = or i64 %twice, 1
  %term = mul i64 %part, %odd
  %total.next = add i64 %total, %term
  %index.next = add i64 %index, 1
  br label %visit
end:
  ret i64 %total
}}}}
"""
"""The same in LLVM's language; `name` is to be filled in."""
