"""What each launch has to wait for, by the bytes that launches use: nothing else keeps them from running side by side.

In: launches in order, on places. Out: the same, each with the numbers of the earlier ones that must be done before it
starts: those that wrote what it reads or writes, and those that read what it writes. This holds whatever plan the
places come from, so memory that is used again can never be used too early.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from operator import itemgetter

from weft.ir.work import PlannedLaunch, Repeated

Use = tuple[int, int, int, bool]  # of a region, its bytes from a start to before a stop, and whether they are written


def with_waits(launches: Sequence[PlannedLaunch | Repeated]) -> tuple[PlannedLaunch | Repeated, ...]:
    """The launches, with what they wait for; what is repeated waits for all before it."""
    after = find_waits([list(_uses(entry)) for entry in launches])
    return tuple(
        _after(entry, tuple(sorted(found))) if isinstance(entry, PlannedLaunch) else entry
        for entry, found in zip(launches, after)
    )


def find_waits(uses: Iterable[Sequence[Use]]) -> list[set[int]]:
    """For each of several launches in order, by what they use, the numbers of those that it waits for."""
    regions: dict[int, _Region] = {}
    result: list[set[int]] = []
    for number, own in enumerate(uses):
        found: set[int] = set()
        for use in own:
            region = regions.get(use[0])
            if region is None:
                region = regions[use[0]] = _Region()
            region.find_conflicts(use, found)
        for use in own:
            regions[use[0]].note(use, number)
        found.discard(number)
        result.append(found)
    return result


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


def _uses(entry: PlannedLaunch | Repeated) -> Iterator[Use]:
    """What an entry uses that anyone writes; buffers without a size are of constants."""
    if isinstance(entry, Repeated):
        for launch, shifts in zip(entry.launches, entry.shifts):
            for use, shift in zip(_launch_uses(launch), shifts):
                if use is not None:
                    way = shift * (entry.count - 1)
                    region, start, stop, written = use
                    yield region, start + min(way, 0), stop + max(way, 0), written
        return
    yield from (use for use in _launch_uses(entry) if use is not None)


def _launch_uses(launch: PlannedLaunch) -> list[Use | None]:
    shared = [buffer for buffer in launch.kernel.buffers if buffer.local_size is None]
    return [
        (place.region, place.offset, place.offset + size, buffer.written) if size else None
        for buffer, place, size in zip(shared, launch.buffers, launch.sizes, strict=True)
    ]


class _Region:
    """Stretches of a region without overlap, each with who wrote it last and who has read it since."""

    def __init__(self) -> None:
        self.starts: list[int] = []
        self.stretches: list[tuple[int, int | None, tuple[int, ...]]] = []  # end, writer, readers

    def find_conflicts(self, use: Use, found: set[int]) -> None:
        """Add the launches that must be done before this use."""
        _, start, stop, written = use
        first, last = self._overlapping(start, stop)
        for _, writer, readers in self.stretches[first:last]:
            if writer is not None:
                found.add(writer)
            if written and readers:
                found.update(readers)

    def note(self, use: Use, number: int) -> None:
        """Remember a use."""
        _, start, stop, written = use
        first, last = self._overlapping(start, stop)
        starts, stretches = self.starts, self.stretches
        if last == first + 1 and starts[first] == start and stretches[first][0] == stop:
            _, writer, readers = stretches[first]
            if written:
                stretches[first] = (stop, number, ())
            elif number not in readers:
                stretches[first] = (stop, writer, (*readers, number))
            return
        pieces: list[tuple[int, int, int | None, tuple[int, ...]]] = []
        at = start
        for index in range(first, last):
            low, (high, writer, readers) = starts[index], stretches[index]
            if low < start:
                pieces.append((low, start, writer, readers))
            if not written:
                inner, end = max(low, start), min(high, stop)
                if at < inner:
                    pieces.append((at, inner, None, (number,)))
                pieces.append((inner, end, writer, readers if number in readers else (*readers, number)))
                at = end
            if high > stop:
                pieces.append((stop, high, writer, readers))
        if written:
            pieces.append((start, stop, number, ()))
        elif at < stop:
            pieces.append((at, stop, None, (number,)))
        pieces.sort(key=_start)
        starts[first:last] = [piece[0] for piece in pieces]
        stretches[first:last] = [piece[1:] for piece in pieces]

    def _overlapping(self, start: int, stop: int) -> tuple[int, int]:
        """From which index on, and before which, stretches share bytes with others."""
        starts = self.starts
        first = max(bisect_right(starts, start) - 1, 0)
        if first < len(starts) and self.stretches[first][0] <= start:
            first += 1
        return first, bisect_left(starts, stop, first)


_start = itemgetter(0)
