"""A tape: the launches of a model, run by one native call.

A launch's buffers are places: (region, byte offset). A call passes the addresses of the regions (arena, constants,
inputs, outputs), so one tape serves any number of calls at the same time, each with its own arena.

Threads walk along the tape in order (native/walk.ll). A launch waits only for the launches that it names, so that one
thread may continue while others finish earlier ones.
"""

from __future__ import annotations

import ctypes
from collections.abc import Collection, Sequence
from threading import get_ident, main_thread
from typing import NamedTuple

import numpy as np

from weft.backends.cpu.memory import DATA_AT, address
from weft.backends.cpu.pool import MOST_THREADS, WorkerPool, runner, shared_pool
from weft.errors import InternalError
from weft.interrupts import current_watch, raise_if_abandoned
from weft.ir.arrays import Array
from weft.ir.work import Place
from weft.records import dataclass

IndexedValues = tuple[Array, Sequence[int]]  # indices into a table, and the new value at each


@dataclass(frozen=True, slots=True)
class TapeLaunch:
    """Blocks 0..blocks-1 of a kernel.

    A `parallel` launch is spread over threads, `grain` blocks or more at a time. `after` are the indices of the tape's
    entries that must be done before it starts; None: all before it. A `joined` launch is run by the same thread as the
    one before it, right after it, and neither is spread.
    """

    function: int  # the kernel's address
    blocks: int
    buffers: tuple[Place, ...]
    parameters: tuple[int, ...] = ()
    parallel: bool = True
    grain: int = 1
    after: tuple[int, ...] | None = None
    joined: bool = False
    most: int | None = None  # blocks between two points where a run can be interrupted; None: all
    origin: str = ""  # the node that it computes

    @property
    def parts(self) -> int:
        """The number of parts that threads can share."""
        return max(self.blocks // self.grain, 1) if self.parallel else 1


class SpreadLaunch(NamedTuple):
    """How threads share a launch; the fields are as in TapeLaunch."""

    blocks: int
    parts: int
    after: Collection[int]
    joined: bool
    grain: int = 1


@dataclass(frozen=True, slots=True)
class TapeLoop:
    """Launches in order, `count` times; each time, buffers move by `shifts` bytes (per launch and buffer)."""

    launches: tuple[TapeLaunch, ...]
    shifts: tuple[tuple[int, ...], ...]
    count: int


class Tape:
    """Launches as tables for the native runner; `keep` are objects that must live as long, such as the code."""

    def __init__(self, launches: Sequence[TapeLaunch | TapeLoop], keep: object = None) -> None:
        flat = [launch for entry in launches for launch in _entry_launches(entry)]
        for launch in flat:
            if launch.grain < 1 or launch.blocks >= MOST_BLOCKS:
                raise InternalError(f"invalid launch: {launch.blocks} blocks in grains of {launch.grain}")
        self._parameters = np.array([number for launch in flat for number in launch.parameters], np.int64)
        rows, places = _build_rows(flat, self._parameters.ctypes.data)
        self._launches, self._places = _unroll(launches, rows, places)
        self._steps = _build_steps(launches)
        self.count = len(self._launches)
        self.regions = 1 + int(places[:, 0].max()) if len(places) else 0
        max_buffers = max((len(launch.buffers) for launch in flat), default=0)
        tables = (self._steps.ctypes.data, len(self._steps), self._launches.ctypes.data, self._places.ctypes.data)
        self._head = np.array([*tables, max_buffers, self.regions, DATA_AT], np.int64)
        self._keep = keep
        self.address = self._head.ctypes.data
        self.parallel = any(launch.parts > 1 for launch in flat)
        self._origins = [
            (
                tuple([launch.origin for launch in _entry_launches(entry)]),
                entry.count if isinstance(entry, TapeLoop) else 1,
            )
            for entry in launches
        ]

    def renewed(self, blocks: IndexedValues, parameters: IndexedValues, places: IndexedValues) -> Tape:
        """Return the same launches with some block counts, parameters and buffer offsets replaced.

        If buffers move, every step waits for all steps before it.
        """
        other = Tape.__new__(Tape)
        other._parameters, other._launches = self._parameters.copy(), self._launches.copy()
        other._places, other._steps = self._places, self._steps
        moved = address(other._parameters) - address(self._parameters)
        other._launches[:, _PARAMETERS_AT] += moved
        if len(parameters[0]):
            other._parameters[parameters[0]] = parameters[1]
        if len(places[0]):
            other._places = self._places.copy()
            other._places[places[0], 1] = places[1]
        if len(blocks[0]):
            other._launches[blocks[0], _BLOCKS] = other._launches[blocks[0], _MOST] = blocks[1]
        if len(places[0]) or (len(blocks[0]) and self.parallel):
            other._steps = _replace_steps(self._steps, blocks, wait=len(places[0]) > 0)
        self._copy_other_fields(other)
        return other

    def filled(
        self, blocks: Array, parameters: Array, offsets: Array, most: Array, spread: Sequence[SpreadLaunch]
    ) -> Tape:
        """Return the same launches with all block counts, parameters, buffer offsets and `most` replaced.

        `spread` says how threads share each launch; if it is empty, one thread runs all.
        """
        other = Tape.__new__(Tape)
        other._parameters = parameters
        other._launches, other._places = self._launches.copy(), self._places.copy()
        other._launches[:, _PARAMETERS_AT] += address(parameters) - address(self._parameters)
        other._launches[:, _BLOCKS] = blocks
        other._launches[:, _MOST] = most
        other._places[:, 1] = offsets
        other._steps = _build_steps(spread) if spread else _serial_steps(len(blocks))
        self._copy_other_fields(other)
        other._head[1] = len(other._steps)
        other.parallel = any(launch.parts > 1 for launch in spread)
        return other

    def _copy_other_fields(self, other: Tape) -> None:
        """Copy everything but the tables to another tape."""
        other._head = self._head.copy()
        steps, launches, spots = address(other._steps), address(other._launches), address(other._places)
        other._head[0], other._head[2], other._head[3] = steps, launches, spots
        other.count, other.regions, other._keep, other.parallel = self.count, self.regions, self._keep, self.parallel
        other.address = address(other._head)
        other._origins = self._origins

    def does_the_same(self, other: Tape) -> bool:
        """Whether both run the same launches on the same places; constants may be copies."""
        busy = self._launches[:, _BLOCKS] > 0
        buffers = np.repeat(busy, self._launches[:, _BUFFERS]) & (self._places[:, 0] > 0)
        return (
            np.array_equal(self._launches[:, :4], other._launches[:, :4])
            and np.array_equal(self._parameters, other._parameters)
            and np.array_equal(self._places[:, 0], other._places[:, 0])
            and np.array_equal(self._places[buffers], other._places[buffers])
            and (not self.parallel or np.array_equal(self._steps, other._steps))
        )

    def describe_step(self, step: int) -> str:
        """Describe the first launch of a step."""
        if not len(self._steps):
            return "at its end"
        first = int(self._steps[min(step, len(self._steps) - 1)][0])
        origin = ""
        number = first
        for names, count in self._origins:
            if number < count * len(names):
                origin = names[number % len(names)]
                break
            number -= count * len(names)
        return f"at launch {first + 1} of {self.count}{f' ({origin})' if origin else ''}"

    def run(self, addresses: Sequence[int], threads: int = 1, keep: object = None) -> None:
        """Run all launches; `addresses` are those of the regions, `keep` owns their memory."""
        self._call(addresses, threads, 0, keep)

    def run_timed(self, addresses: Sequence[int], threads: int = 1) -> Array:
        """Run all launches and time them: int64 [launch, thread, (start, end)] in nanoseconds, 0 without work."""
        threads = min(threads, MOST_THREADS)
        times = np.zeros((self.count, threads, 2), np.int64)
        self._call(addresses, threads, times.ctypes.data, times)
        return times

    def _call(self, addresses: Sequence[int], threads: int, times: int, keep: object) -> None:
        if len(addresses) < self.regions:
            raise InternalError(f"a tape with {self.regions} regions got {len(addresses)} addresses")
        pool = shared_pool(threads) if threads > 1 else None
        SlicedRun(self, addresses[: self.regions], pool, threads, times, keep).finish()


SLICE = 20_000_000  # nanoseconds after which a sliced run returns to Python to handle signals
_SLICED_WORDS = 11  # of %SlicedRun in runner.ll
_STATE, _SLOT, _STEP = 5, 6, 8  # indices of its words; _STEP belongs to the caller
_ALONE, _PUBLISHED = 1, 2  # states
_PROGRESS_AT = 64  # bytes into a slot


class SlicedRun:
    """One run of a tape in time slices, between which Ctrl-C may end it.

    It refers to everything that it works on. However it ends, no thread uses any of that afterwards.
    """

    __slots__ = ("_at", "_native", "_references", "_words")

    def __init__(
        self,
        tape: Tape,
        addresses: Sequence[int],
        pool: WorkerPool | None,
        threads: int,
        times: int,
        keep: object,
    ) -> None:
        regions = (ctypes.c_uint64 * len(addresses))(*addresses)
        pool_at = 0 if pool is None else pool.address
        self._words = (ctypes.c_uint64 * _SLICED_WORDS)(
            tape.address, ctypes.addressof(regions), pool_at, threads, times
        )
        self._at = ctypes.addressof(self._words)
        self._references = tape, regions, pool, keep
        self._native = runner()

    def finish(self) -> None:
        """Run to the end; an exception raised by a signal handler stops the workers and leaves the run unfinished."""
        go, leave, at = self._native.go, self._native.leave, self._at
        watch = current_watch()
        is_interruptible = watch is not None or get_ident() == main_thread().ident  # other threads get no signals
        span = SLICE if is_interruptible else _NO_END
        before = None
        if watch is not None:
            before, watch.describe_position = watch.describe_position, self.describe_progress
        try:
            while go(at, span):
                if watch is not None:
                    raise_if_abandoned()
            if watch is not None:
                watch.describe_position = before  # so that nothing refers to the arrays of this run
        except BaseException:
            while True:
                try:
                    leave(at)
                    break
                except BaseException:  # another Ctrl-C must not leave workers in memory that is about to be freed
                    continue
            raise

    def describe_progress(self) -> str:
        """Describe roughly how far the run is; any thread may call this."""
        tape, _, pool, _ = self._references
        state, slot, step = self._words[_STATE], self._words[_SLOT], self._words[_STEP]
        if state == _PUBLISHED and pool is not None:
            step = ctypes.c_uint64.from_address(slot + _PROGRESS_AT).value >> 32
        return tape.describe_step(step if state in (_ALONE, _PUBLISHED) else 0)

    def __del__(self) -> None:
        if hasattr(self, "_native"):  # unset if Ctrl-C came during __init__
            self._native.leave(self._at)


_NO_END = 1 << 62


VISIBLE = 32  # the window of steps that threads look at; a step can wait only for steps in it
MOST_BLOCKS = 1 << 32
_BLOCKS, _FIRST_PLACE, _BUFFERS, _PARAMETERS_AT, _MOST = 1, 2, 3, 4, 5  # columns of a launch's row
_ALL = (1 << VISIBLE) - 1


def _replace_steps(steps: Array, blocks: IndexedValues, *, wait: bool) -> Array:
    """Copy steps with new block counts for some launches; with `wait`, each step waits for all before it."""
    steps = steps.copy()
    if wait:
        steps[:, 5] = _ALL
    first = {int(row[0]): row for row in steps if row[4] > 1}
    for launch, count in zip(blocks[0], blocks[1]):
        row = first.get(int(launch))
        if row is not None:
            parts = max(count // int(row[3]), 1)
            row[2:5] = (count, row[3], parts) if parts > 1 else (1, 1, 1)
    return steps


def _entry_launches(entry: TapeLaunch | TapeLoop) -> tuple[TapeLaunch, ...]:
    return entry.launches if isinstance(entry, TapeLoop) else (entry,)


def _build_rows(launches: Sequence[TapeLaunch], parameters_at: int) -> tuple[Array, Array]:
    """Build a row for each launch, and a (region, offset) row for each buffer."""
    rows = []
    first_place = 0
    for launch in launches:
        buffers = len(launch.buffers)
        most = max(launch.blocks if launch.most is None else launch.most, 1)
        rows.append((launch.function, launch.blocks, first_place, buffers, parameters_at, most))
        first_place += buffers
        parameters_at += 8 * len(launch.parameters)
    places = [(place.region, place.offset) for launch in launches for place in launch.buffers]
    return np.array(rows, np.int64).reshape(-1, 6), np.array(places, np.int64).reshape(-1, 2)


def _unroll(entries: Sequence[TapeLaunch | TapeLoop], rows: Array, places: Array) -> tuple[Array, Array]:
    """Repeat the rows and places of loops as often as they run."""
    if not any(isinstance(entry, TapeLoop) for entry in entries):
        return rows, places
    all_rows, all_places = [], []
    row = place = total = 0  # total: places after unrolling
    for entry in entries:
        launches = _entry_launches(entry)
        entry_rows = rows[row : row + len(launches)].copy()
        count = sum(len(launch.buffers) for launch in launches)
        spots = places[place : place + count]
        entry_rows[:, _FIRST_PLACE] += total - place
        if isinstance(entry, TapeLoop):
            times = np.arange(entry.count)
            shifts = np.array([(0, shift) for by_buffer in entry.shifts for shift in by_buffer], np.int64).reshape(
                -1, 2
            )
            spots = (spots[None] + times[:, None, None] * shifts[None]).reshape(-1, 2)
            entry_rows = np.tile(entry_rows, (entry.count, 1))
            entry_rows[:, _FIRST_PLACE] += np.repeat(times * count, len(launches))
        all_rows.append(entry_rows)
        all_places.append(spots)
        row, place, total = row + len(launches), place + count, total + len(spots)
    return np.concatenate(all_rows), np.ascontiguousarray(np.concatenate(all_places))


def _build_steps(entries: Sequence[TapeLaunch | TapeLoop | SpreadLaunch]) -> Array:
    """Build a row for each step: first launch, number of launches, blocks, grain, parts, wait mask."""
    steps: list[list[int]] = []
    step_of: list[int] = []  # the step that each entry ends with
    launches = 0
    for entry in entries:
        match entry:
            case TapeLaunch() | SpreadLaunch() if entry.joined and steps and steps[-1][4] == entry.parts == 1:
                steps[-1][1] += 1
                steps[-1][5] |= _wait_mask(entry, len(steps) - 1, step_of)
                launches += 1
            case TapeLaunch() | SpreadLaunch():
                steps.append(_step(entry, launches, _wait_mask(entry, len(steps), step_of)))
                launches += 1
            case TapeLoop():
                steps += _loop_steps(entry, launches)
                launches += entry.count * len(entry.launches)
        step_of.append(len(steps) - 1)
    return np.array(steps, np.int64).reshape(-1, 6)


def _serial_steps(launches: int) -> Array:
    steps = np.ones((launches, 6), np.int64)
    steps[:, 0] = np.arange(launches)
    steps[:, 5] = _ALL
    return steps


def _step(launch: TapeLaunch | SpreadLaunch, number: int, waits: int) -> list[int]:
    if launch.parts == 1:
        return [number, 1, 1, 1, 1, waits]
    return [number, 1, launch.blocks, launch.grain, launch.parts, waits]


def _wait_mask(launch: TapeLaunch | SpreadLaunch, step: int, step_of: Sequence[int]) -> int:
    """Return the bits of the earlier steps that a launch waits for; the highest bit is the step before it."""
    if launch.after is None:
        return _ALL
    before = {step - step_of[number] for number in launch.after}
    return sum(1 << (VISIBLE - distance) for distance in before if 0 < distance <= VISIBLE)


def _loop_steps(loop: TapeLoop, number: int) -> list[list[int]]:
    """Build the steps of a loop: each waits for the one before it; launches that are not spread are joined."""
    if all(launch.parts == 1 for launch in loop.launches):
        return [[number, loop.count * len(loop.launches), 1, 1, 1, _ALL]]
    once: list[list[int]] = []
    for index, launch in enumerate(loop.launches):
        if once and once[-1][4] == launch.parts == 1:
            once[-1][1] += 1
        else:
            once.append(_step(launch, index, _ALL))
    length = len(loop.launches)
    return [[number + time * length + first, *rest] for time in range(loop.count) for first, *rest in once]
