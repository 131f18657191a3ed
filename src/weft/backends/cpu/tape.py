"""A tape: the launches of a model in order, run by one native call.

A launch's buffers are places, (region, byte offset). A call passes the regions' addresses (arena, constants, inputs,
outputs), so one tape serves any number of calls at the same time, each with an arena of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Any

import numpy as np

from weft.backends.cpu.pool import runner, shared_pool
from weft.errors import InternalError
from weft.ir.work import Place

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Launch:
    """Blocks 0..blocks-1 of a kernel.

    A `parallel` one is spread over threads, `grain` blocks or more at a time.
    """

    function: int  # the kernel's address
    blocks: int
    buffers: tuple[Place, ...]
    parameters: tuple[int, ...] = ()
    parallel: bool = True
    grain: int = 1


@dataclass(frozen=True, slots=True)
class Repeat:
    """Launches in order, `count` times; each time, buffers lie `shifts` bytes further (per launch and buffer)."""

    launches: tuple[Launch, ...]
    shifts: tuple[tuple[int, ...], ...]
    count: int


class Tape:
    """Launches in the form that the native runner reads; `keep` is whatever must live as long (the code)."""

    def __init__(self, launches: Sequence[Launch | Repeat], keep: object = None) -> None:
        listed = [launch for entry in launches for launch in _once(entry)]
        self._parameters = np.array([number for launch in listed for number in launch.parameters], np.int64)
        rows, places = _rows(listed, self._parameters.ctypes.data)
        self._launches, self._places = _repeated(launches, rows, places)
        self.count = len(self._launches)
        self.regions = 1 + int(places[:, 0].max()) if len(places) else 0
        most = max((len(launch.buffers) for launch in listed), default=0)
        self._head = np.array([self._launches.ctypes.data, self.count, self._places.ctypes.data, most], np.int64)
        self._keep = keep
        self._pack = Struct(f"{self.regions}Q").pack
        self._address = self._head.ctypes.data
        self._run = runner().run

    def run(self, addresses: Sequence[int], threads: int = 1) -> None:
        """Run all launches; `addresses` are those of the regions."""
        self._call(addresses, threads, 0)

    def run_timed(self, addresses: Sequence[int], threads: int = 1) -> Array:
        """The same, and when: int64 [launch, thread, (start, end)] in nanoseconds, 0 for a thread without work."""
        times = np.zeros((self.count, threads, 2), np.int64)
        self._call(addresses, threads, times.ctypes.data)
        return times

    def _call(self, addresses: Sequence[int], threads: int, times: int) -> None:
        if len(addresses) < self.regions:
            raise InternalError(f"a tape over {self.regions} regions was given {len(addresses)}")
        regions = self._pack(*addresses[: self.regions])
        pool = shared_pool(threads).address if threads > 1 else 0
        self._run(self._address, regions, pool, threads, times)


_FIRST_PLACE = 2  # column of a launch's row


def _once(entry: Launch | Repeat) -> tuple[Launch, ...]:
    return entry.launches if isinstance(entry, Repeat) else (entry,)


def _rows(launches: Sequence[Launch], parameters_at: int) -> tuple[Array, Array]:
    """A row for each launch, and one for each of their buffers: region and offset."""
    rows = []
    first_place = 0
    for launch in launches:
        if launch.grain < 1:
            raise InternalError(f"a launch with grains of {launch.grain} blocks")
        parts = launch.blocks // launch.grain if launch.parallel else 1  # into how many it may be divided
        buffers = len(launch.buffers)
        rows.append((launch.function, launch.blocks, first_place, buffers, parameters_at, launch.grain, parts))
        first_place += buffers
        parameters_at += 8 * len(launch.parameters)
    places = [(place.region, place.offset) for launch in launches for place in launch.buffers]
    return np.array(rows, np.int64).reshape(-1, 7), np.array(places, np.int64).reshape(-1, 2)


def _repeated(entries: Sequence[Launch | Repeat], rows: Array, places: Array) -> tuple[Array, Array]:
    """The rows and places of every launch, those of repeats as often as they are run."""
    if not any(isinstance(entry, Repeat) for entry in entries):
        return rows, places
    all_rows, all_places = [], []
    row = place = total = 0  # places listed, and places in all
    for entry in entries:
        launches = _once(entry)
        own = rows[row : row + len(launches)].copy()
        count = sum(len(launch.buffers) for launch in launches)
        spots = places[place : place + count]
        own[:, _FIRST_PLACE] += total - place
        if isinstance(entry, Repeat):
            times = np.arange(entry.count)
            shifts = np.array([(0, shift) for by_buffer in entry.shifts for shift in by_buffer], np.int64).reshape(
                -1, 2
            )
            spots = (spots[None] + times[:, None, None] * shifts[None]).reshape(-1, 2)
            own = np.tile(own, (entry.count, 1))
            own[:, _FIRST_PLACE] += np.repeat(times * count, len(launches))
        all_rows.append(own)
        all_places.append(spots)
        row, place, total = row + len(launches), place + count, total + len(spots)
    return np.concatenate(all_rows), np.ascontiguousarray(np.concatenate(all_places))
