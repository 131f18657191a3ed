"""Find the launches that each launch has to wait for, from the bytes that they read and write.

In: launches in order, with their places. Out: the same, each with the numbers of earlier launches that must be done
before it starts: those that wrote bytes it reads or writes, and those that read bytes it writes. This does not depend
on how places were chosen, so reused memory can never be used too early.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from operator import itemgetter

from weft.ir.work import PlannedLaunch, Repeated

Use = tuple[int, int, int, bool]  # region, start, stop (exclusive), and whether the bytes are written


def with_waits(launches: Sequence[PlannedLaunch | Repeated]) -> tuple[PlannedLaunch | Repeated, ...]:
    """Add the waits to launches; repeated ones wait for all before them."""
    after = find_waits([list(_uses(entry)) for entry in launches])
    return tuple(
        _with_after(entry, tuple(sorted(waits))) if isinstance(entry, PlannedLaunch) else entry
        for entry, waits in zip(launches, after)
    )


def find_waits(uses: Iterable[Sequence[Use]]) -> list[set[int]]:
    """Return, for each launch in order, the numbers of the launches that it waits for, given the uses of all."""
    regions: dict[int, _Region] = {}
    result: list[set[int]] = []
    for number, launch_uses in enumerate(uses):
        waits: set[int] = set()
        for use in launch_uses:
            region = regions.get(use[0])
            if region is None:
                region = regions[use[0]] = _Region()
            region.find_conflicts(use, waits)
        for use in launch_uses:
            regions[use[0]].record(use, number)
        waits.discard(number)
        result.append(waits)
    return result


def _with_after(launch: PlannedLaunch, after: tuple[int, ...]) -> PlannedLaunch:
    """Return the launch with its waits; faster than `replace` by a factor of three."""
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
    """Yield the uses of memory that is ever written; buffers of size 0 are constants."""
    if isinstance(entry, Repeated):
        for launch, shifts in zip(entry.launches, entry.shifts):
            for use, shift in zip(_launch_uses(launch), shifts):
                if use is not None:
                    distance = shift * (entry.count - 1)
                    region, start, stop, written = use
                    yield region, start + min(distance, 0), stop + max(distance, 0), written
        return
    yield from (use for use in _launch_uses(entry) if use is not None)


def _launch_uses(launch: PlannedLaunch) -> list[Use | None]:
    shared = [buffer for buffer in launch.kernel.buffers if buffer.local_size is None]
    return [
        (place.region, place.offset, place.offset + size, buffer.written) if size else None
        for buffer, place, size in zip(shared, launch.buffers, launch.sizes, strict=True)
    ]


class _Region:
    """Disjoint ranges of a region, each with the launch that wrote it last and those that have read it since."""

    def __init__(self) -> None:
        self.starts: list[int] = []
        self.ranges: list[tuple[int, int | None, tuple[int, ...]]] = []  # end, writer, readers

    def find_conflicts(self, use: Use, waits: set[int]) -> None:
        """Add the launches that must be done before this use."""
        _, start, stop, written = use
        first, last = self._overlapping(start, stop)
        for _, writer, readers in self.ranges[first:last]:
            if writer is not None:
                waits.add(writer)
            if written and readers:
                waits.update(readers)

    def record(self, use: Use, number: int) -> None:
        _, start, stop, written = use
        first, last = self._overlapping(start, stop)
        starts, ranges = self.starts, self.ranges
        if last == first + 1 and starts[first] == start and ranges[first][0] == stop:
            _, writer, readers = ranges[first]
            if written:
                ranges[first] = (stop, number, ())
            elif number not in readers:
                ranges[first] = (stop, writer, (*readers, number))
            return
        parts: list[tuple[int, int, int | None, tuple[int, ...]]] = []
        at = start
        for index in range(first, last):
            low, (high, writer, readers) = starts[index], ranges[index]
            if low < start:
                parts.append((low, start, writer, readers))
            if not written:
                inner, end = max(low, start), min(high, stop)
                if at < inner:
                    parts.append((at, inner, None, (number,)))
                parts.append((inner, end, writer, readers if number in readers else (*readers, number)))
                at = end
            if high > stop:
                parts.append((stop, high, writer, readers))
        if written:
            parts.append((start, stop, number, ()))
        elif at < stop:
            parts.append((at, stop, None, (number,)))
        parts.sort(key=_start)
        starts[first:last] = [part[0] for part in parts]
        ranges[first:last] = [part[1:] for part in parts]

    def _overlapping(self, start: int, stop: int) -> tuple[int, int]:
        """Return the first index, and the one after the last, of the ranges that overlap these bytes."""
        starts = self.starts
        first = max(bisect_right(starts, start) - 1, 0)
        if first < len(starts) and self.ranges[first][0] <= start:
            first += 1
        return first, bisect_left(starts, stop, first)


_start = itemgetter(0)
