"""What each launch has to wait for, by the bytes that launches use: nothing else keeps them from running side by side.

In: launches in order, on places. Out: the same, each with the numbers of the earlier ones that must be done before it
starts: those that wrote what it reads or writes, and those that read what it writes. This holds whatever plan the
places come from, so memory that is used again can never be used too early.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence

from weft.ir.work import PlannedLaunch, Repeated
from weft.records import dataclass


@dataclass(frozen=True, slots=True)
class ByteRange:
    """Bytes start..stop-1 of a region."""

    region: int
    start: int
    stop: int
    written: bool


def with_waits(launches: Sequence[PlannedLaunch | Repeated]) -> tuple[PlannedLaunch | Repeated, ...]:
    """The launches, with what they wait for; what is repeated waits for all before it."""
    regions: dict[int, _Region] = {}
    result: list[PlannedLaunch | Repeated] = []
    for number, entry in enumerate(launches):
        found: set[int] = set()
        uses = list(_uses(entry))
        for use in uses:
            region = regions.setdefault(use.region, _Region())
            found |= region.conflicts(use)
        for use in uses:
            regions[use.region].note(use, number)
        found.discard(number)
        result.append(_after(entry, tuple(sorted(found))) if isinstance(entry, PlannedLaunch) else entry)
    return tuple(result)


def _after(launch: PlannedLaunch, after: tuple[int, ...]) -> PlannedLaunch:
    """The launch with what it waits for; written out, since `replace` takes thrice as long."""
    return PlannedLaunch(
        launch.kernel,
        launch.blocks,
        launch.buffers,
        launch.parameters,
        launch.origin,
        launch.task,
        launch.flops,
        launch.bytes,
        launch.sizes,
        after,
    )


def _uses(entry: PlannedLaunch | Repeated) -> Iterator[ByteRange]:
    """What an entry uses that anyone writes; buffers without a size are of constants."""
    if isinstance(entry, Repeated):
        for launch, shifts in zip(entry.launches, entry.shifts):
            for use, shift in zip(_launch_uses(launch), shifts):
                if use is not None:
                    way = shift * (entry.count - 1)
                    yield ByteRange(use.region, use.start + min(way, 0), use.stop + max(way, 0), use.written)
        return
    yield from (use for use in _launch_uses(entry) if use is not None)


def _launch_uses(launch: PlannedLaunch) -> list[ByteRange | None]:
    shared = [buffer for buffer in launch.kernel.buffers if buffer.local_size is None]
    return [
        ByteRange(place.region, place.offset, place.offset + size, buffer.written) if size else None
        for buffer, place, size in zip(shared, launch.buffers, launch.sizes, strict=True)
    ]


class _Region:
    """Stretches of a region without overlap, each with who wrote it last and who has read it since."""

    def __init__(self) -> None:
        self.starts: list[int] = []
        self.stretches: list[tuple[int, int | None, tuple[int, ...]]] = []  # end, writer, readers

    def conflicts(self, use: ByteRange) -> set[int]:
        """The launches that must be done before this use."""
        found: set[int] = set()
        for index in self._overlapping(use):
            _, writer, readers = self.stretches[index]
            if writer is not None:
                found.add(writer)
            if use.written:
                found.update(readers)
        return found

    def note(self, use: ByteRange, number: int) -> None:
        """Remember a use."""
        indices = self._overlapping(use)
        pieces: list[tuple[int, int, int | None, tuple[int, ...]]] = []
        at = use.start
        for index in indices:
            start, (stop, writer, readers) = self.starts[index], self.stretches[index]
            if start < use.start:
                pieces.append((start, use.start, writer, readers))
            if not use.written:
                low, high = max(start, use.start), min(stop, use.stop)
                if at < low:
                    pieces.append((at, low, None, (number,)))
                pieces.append((low, high, writer, readers if number in readers else (*readers, number)))
                at = high
            if stop > use.stop:
                pieces.append((use.stop, stop, writer, readers))
        if use.written:
            pieces.append((use.start, use.stop, number, ()))
        elif at < use.stop:
            pieces.append((at, use.stop, None, (number,)))
        pieces.sort(key=lambda piece: piece[0])
        self.starts[indices.start : indices.stop] = [piece[0] for piece in pieces]
        self.stretches[indices.start : indices.stop] = [piece[1:] for piece in pieces]

    def _overlapping(self, use: ByteRange) -> range:
        """The indices of stretches that share bytes with a use."""
        first = max(bisect_right(self.starts, use.start) - 1, 0)
        if first < len(self.starts) and self.stretches[first][0] <= use.start:
            first += 1
        last = first
        while last < len(self.starts) and self.starts[last] < use.stop:
            last += 1
        return range(first, last)
