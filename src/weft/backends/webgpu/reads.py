"""How slices of buffers are read: in parts that staging buffers take."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from weft.records import dataclass

_READ_AT_ONCE = 16 << 20  # bytes read through one staging buffer
Read = tuple[Any, int, int]  # a buffer, an offset, bytes


@dataclass(frozen=True, slots=True)
class ReadPiece:
    """A piece of a read: bytes of a buffer that go to a place in one of the results."""

    result: int
    at: int
    buffer: Any
    offset: int
    size: int

    @property
    def first(self) -> int:
        """Where copying begins: wgpu copies from multiples of 4."""
        return self.offset & ~3

    @property
    def skipped(self) -> int:
        return self.offset - self.first

    @property
    def padded(self) -> int:
        return -(-(self.skipped + self.size) // 4) * 4


def _pieces(buffer: Any, offset: int, size: int) -> list[tuple[int, Any, int, int]]:
    return [
        (start, buffer, offset + start, min(_READ_AT_ONCE, size - start)) for start in range(0, size, _READ_AT_ONCE)
    ]


def batches_of(reads: Sequence[Read]) -> list[list[ReadPiece]]:
    """Reads in parts, in groups that one staging buffer takes."""
    batches: list[list[ReadPiece]] = []
    total = _READ_AT_ONCE
    for part in (ReadPiece(number, *piece) for number, read in enumerate(reads) for piece in _pieces(*read)):
        if total + part.size > _READ_AT_ONCE:
            batches.append([])
            total = 0
        batches[-1].append(part)
        total += part.size
    return batches
