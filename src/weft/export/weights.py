"""The weights of an exported model: one file, whose length and checksum are part of the code."""

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
_WORDS = 1 << 20  # summed at once
_SPREAD = 0x9E3779B97F4A7C15
"""An odd multiplier that spreads every bit of a word into the upper half of the product."""


@dataclass(frozen=True, slots=True, eq=False)
class WeightLayout:
    """Arrays with their offsets; `values` by unit, `packed` by the id of the work and the number of the constant."""

    arrays: tuple[tuple[int, Array], ...]
    values: Mapping[int, Mapping[Value, int]]
    packed: Mapping[tuple[int, int], int]
    length: int

    def pieces(self) -> Iterable[bytes | memoryview]:
        """Yield all bytes in order."""
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
        return sum(_checksum(array, offset // 8) for offset, array in self.arrays) % 2**64


def lay_out_weights(units: Sequence[CodeUnit]) -> WeightLayout:
    """Lay out the constants and packed weights of units, each array once."""
    arrays: list[tuple[int, Array]] = []
    offsets: dict[tuple[int, int], int] = {}
    end = 0

    def add(array: Array) -> int:
        nonlocal end
        array = np.ascontiguousarray(array)
        key = array.ctypes.data, array.nbytes
        if key not in offsets:
            offsets[key] = end
            arrays.append((end, array))
            end += -(-array.nbytes // ALIGNMENT) * ALIGNMENT
        return offsets[key]

    values = {unit.number: {value: add(array) for value, array in _find_constants(unit).items()} for unit in units}
    packed: dict[tuple[int, int], int] = {}
    for work in {id(work): work for unit in units for part in unit.sections for work in all_works(part)}.values():
        for number, constant in enumerate(work.constants):
            packed[id(work), number] = add(load_constant(constant))
    return WeightLayout(tuple(arrays), values, packed, end)


def _find_constants(unit: CodeUnit) -> dict[Value, Array]:
    """Return the constants of a unit that are read without packing."""
    constants: dict[Value, Array] = {}
    for section in unit.sections:
        constants |= section_constants(section, unit.constants)
    operands = [value for item in unit.items if isinstance(item, Step) for value in item.operands]
    for value in (*unit.outputs, *operands):
        if value in unit.constants:
            constants[value] = np.asarray(unit.constants[value])
    return constants


def _checksum(array: Array, start: int) -> int:
    """Return the contribution of an array to the checksum: each word, mixed, times an odd number of its position.

    `start` is the position of the first word. Padding of the last word is 0 and adds nothing.
    """
    content = array.reshape(-1).view(np.uint8)
    aligned_bytes = len(content) // 8 * 8
    total = np.uint64(0)
    with np.errstate(over="ignore"):
        for first in range(0, aligned_bytes, 8 * _WORDS):
            total += _sum_words(content[first : min(first + 8 * _WORDS, aligned_bytes)].view("<u8"), start + first // 8)
        if aligned_bytes < len(content):
            last = np.zeros(8, np.uint8)
            last[: len(content) - aligned_bytes] = content[aligned_bytes:]
            total += _sum_words(last.view("<u8"), start + aligned_bytes // 8)
    return int(total)


def _sum_words(words: Array, start: int) -> np.uint64:
    mixed = words * np.uint64(_SPREAD)
    mixed ^= mixed >> np.uint64(32)
    positions = np.arange(start, start + len(words), dtype=np.uint64) * np.uint64(2) + np.uint64(1)
    total: np.uint64 = (mixed * positions).sum(dtype=np.uint64)
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
"""The checksum in LLVM IR; `name` is the model's."""
