"""Memory whose bytes carry labels of their content, for the replay of a plan."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Any

from weft.records import dataclass

Label = Any  # identifies a content


@dataclass(frozen=True, slots=True)
class Content:
    """A range of bytes of the content with this label."""

    label: Label
    start: int
    size: int


class LabelledBytes:
    """The labels of one region's bytes, as disjoint ranges."""

    def __init__(self) -> None:
        self.starts: list[int] = []
        self.ranges: list[tuple[int, Content]] = []  # end and content

    def write(self, start: int, content: Content) -> None:
        end = start + content.size
        if not content.size:
            return
        first = max(bisect_right(self.starts, start) - 1, 0)
        parts: list[tuple[int, int, Content]] = []
        last = first
        while last < len(self.starts) and self.starts[last] < end:
            at, (stop, old) = self.starts[last], self.ranges[last]
            if at < start:
                parts.append((at, min(stop, start), Content(old.label, old.start, min(stop, start) - at)))
            if stop > end:
                parts.append((end, stop, Content(old.label, old.start + end - at, stop - end)))
            last += 1
        if last == first and first < len(self.starts) and self.starts[first] < start:
            first = last = first + 1
        parts.append((start, end, content))
        parts.sort(key=lambda entry: entry[0])
        self.starts[first:last] = [at for at, _, _ in parts]
        self.ranges[first:last] = [(stop, content) for _, stop, content in parts]

    def find(self, start: int, size: int) -> Iterator[tuple[int, Content | None]]:
        """Yield the contents of a range of memory in order, each with its number of bytes; None: never written."""
        end = start + size
        number = max(bisect_right(self.starts, start) - 1, 0)
        while start < end:
            if number >= len(self.starts) or self.starts[number] >= end:
                yield end - start, None
                return
            at, (stop, content) = self.starts[number], self.ranges[number]
            if at > start:
                yield at - start, None
                start = at
            if stop > start:
                length = min(stop, end) - start
                yield length, Content(content.label, content.start + start - at, length)
                start += length
            number += 1


def slice_content(content: Sequence[Content], start: int, size: int) -> Iterator[Content]:
    """Yield a range of bytes of a content."""
    end = start + size
    at = 0
    for part in content:
        low, high = max(start, at), min(end, at + part.size)
        if low < high:
            yield Content(part.label, part.start + low - at, high - low)
        at += part.size
