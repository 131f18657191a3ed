"""Find the launches that each launch has to wait for, from the memory that they read and write.

In: launches in order, with their places. Out: the same, each with the numbers of earlier launches that must be done
before it starts: those that wrote bytes it reads or writes, and those that read bytes it writes. This holds for all
sizes of a plan: two ranges count as overlapping unless they are apart for all sizes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from weft.ir import dims
from weft.ir.dims import Dim
from weft.plan.plan import ARENA, SymbolicLaunch, SymbolicLoop, SymbolicPlace

Entry = SymbolicLaunch | SymbolicLoop


class Use(NamedTuple):
    """A range of bytes that a launch uses, as offsets in its region."""

    place: SymbolicPlace
    start: Dim
    stop: Dim
    is_written: bool


class _Access(NamedTuple):
    start: Dim
    stop: Dim
    is_written: bool
    entry: int


def with_waits(launches: Sequence[Entry], apart: Sequence[int]) -> tuple[Entry, ...]:
    """Add the waits to launches; loops wait for all before them, and all after them wait for them.

    `apart` has for each block of the arena a mask of the blocks that it never overlaps.
    """
    memory = _Memory(apart)
    result: list[Entry] = []
    for number, entry in enumerate(launches):
        if isinstance(entry, SymbolicLoop):
            memory.record_barrier(number)
            result.append(entry)
        else:
            result.append(replace(entry, after=memory.record(list(_find_uses(entry)), number)))
    return tuple(result)


def _find_uses(launch: SymbolicLaunch) -> Iterator[Use]:
    """Yield the uses of memory that is ever written; buffers of size 0 are constants."""
    shared = [buffer for buffer in launch.kernel.buffers if buffer.local_size is None]
    for buffer, place, size in zip(shared, launch.buffers, launch.sizes, strict=True):
        if size != 0:
            yield Use(place, place.offset, place.offset + size, buffer.written)


class _Memory:
    """The accesses to each block of the arena, or to a region, that later ones may have to wait for."""

    def __init__(self, apart: Sequence[int]) -> None:
        self.apart = apart
        self.accesses: dict[tuple[int, int], list[_Access]] = {}
        self.users = [0] * len(apart)  # by block of the arena: a mask of the entries that use it
        self.used = 0  # a mask of the blocks with users
        self.first: dict[int, int] = {}  # by block of the arena: the first entry that uses it
        self.done: list[int] = []  # by entry: a mask of the entries that are done before it starts
        self.barrier = -1  # the last entry that waited for all before it

    def record(self, uses: Sequence[Use], number: int) -> tuple[int, ...]:
        """Record the uses of a launch and return the entries that it waits for."""
        waits = {self.barrier} if self.barrier >= 0 else set()
        for use in uses:
            for access in self.accesses.get(_key(use), ()):
                if (use.is_written or access.is_written) and not _are_apart(use, access):
                    waits.add(access.entry)
        waits.discard(number)
        done = 0
        for entry in waits:
            done |= self.done[entry] | 1 << entry
        for block in {use.place.block for use in uses if use.place.region == ARENA}:
            done = self._wait_for_dead(block, waits, done)
        self.done.append(done)
        self._note(uses, number)
        return tuple(sorted(waits))

    def record_barrier(self, number: int) -> None:
        """Record an entry that waits for all before it, and that all after it wait for."""
        self.barrier = number
        self.accesses.clear()
        self.users, self.used = [0] * len(self.users), 0
        self.done.append((1 << number) - 1)

    def _wait_for_dead(self, block: int, waits: set[int], done: int) -> int:
        """Wait for the users of blocks whose memory this block may reuse, unless its first user is done."""
        if done >> self.first.get(block, len(self.done)) & 1:
            return done
        others = self.used & ~self.apart[block] & ~(1 << block)
        while others:
            other = others.bit_length() - 1
            others ^= 1 << other
            left = self.users[other] & ~done
            while left:
                entry = left.bit_length() - 1
                waits.add(entry)
                done |= self.done[entry] | 1 << entry
                left &= ~done
        return done

    def _note(self, uses: Sequence[Use], number: int) -> None:
        for use in uses:
            accesses = self.accesses.setdefault(_key(use), [])
            if use.is_written:
                accesses[:] = [access for access in accesses if not _contains(use, access)]
            accesses.append(_Access(use.start, use.stop, use.is_written, number))
            if use.place.region == ARENA:
                self.first.setdefault(use.place.block, number)
                self.users[use.place.block] |= 1 << number
                self.used |= 1 << use.place.block


def _key(use: Use) -> tuple[int, int]:
    return use.place.region, use.place.block


def _are_apart(use: Use, access: _Access) -> bool:
    """Whether two ranges of a block never overlap."""
    if use.start == access.start:
        return False
    return dims.is_at_least(use.start, access.stop) or dims.is_at_least(access.start, use.stop)


def _contains(use: Use, access: _Access) -> bool:
    if use.start == access.start and use.stop == access.stop:
        return True
    return dims.is_at_least(access.start, use.start) and dims.is_at_least(use.stop, access.stop)
