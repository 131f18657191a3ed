"""A tape: the launches of a model, run by one native call.

A launch's buffers are places: (region, byte offset). A call passes the addresses of the regions (arena, constants,
inputs, outputs), so one tape serves any number of calls at the same time, each with its own arena.

Threads walk along the tape in order (host/native/walk.ll). A launch waits only for the launches that it names, so that
one thread may continue while others finish earlier ones.
"""

from __future__ import annotations

import ctypes
from collections.abc import Collection, Sequence
from threading import get_ident, main_thread
from typing import NamedTuple

import numpy as np

from weft.backends.cpu.memory import DATA_AT, address
from weft.backends.cpu.pool import MOST_THREADS, WorkerPool, shared_pool
from weft.backends.host.runner import runner
from weft.errors import InternalError
from weft.interrupts import current_watch, raise_if_abandoned
from weft.ir.arrays import Array
from weft.ir.work import Place
from weft.records import dataclass


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
    after: Collection[int] | None
    joined: bool
    grain: int = 1


@dataclass(frozen=True, slots=True)
class SpreadLoop:
    """How threads share the launches of a loop."""

    launches: Sequence[SpreadLaunch]
    count: int


@dataclass(frozen=True, slots=True)
class TapeLoop:
    """Launches in order, `count` times; each time, buffers move by `shifts` bytes (per launch and buffer)."""

    launches: tuple[TapeLaunch, ...]
    shifts: tuple[tuple[int, ...], ...]
    count: int


Origins = Sequence[tuple[Sequence[str], int]]
"""For each entry of a tape, the nodes of its launches, and how often these are repeated."""


class Tape:
    """Launches as tables for the native runner; `keep` are objects that must live as long, such as the code."""

    def __init__(self, launches: Sequence[TapeLaunch | TapeLoop], keep: object = None) -> None:
        flat = [launch for entry in launches for launch in _entry_launches(entry)]
        for launch in flat:
            if launch.grain < 1 or launch.blocks >= MOST_BLOCKS:
                raise InternalError(f"invalid launch: {launch.blocks} blocks in grains of {launch.grain}")
        parameters = np.array([number for launch in flat for number in launch.parameters], np.int64)
        rows, places = _build_rows(flat, parameters.ctypes.data)
        origins = [
            ([launch.origin for launch in _entry_launches(entry)], entry.count if isinstance(entry, TapeLoop) else 1)
            for entry in launches
        ]
        loops = [(n, entry) for n, entry in enumerate(launches) if isinstance(entry, TapeLoop)]
        for number, loop in reversed(loops):
            first = sum(len(_entry_launches(entry)) for entry in launches[:number])
            shifts = np.array([shift for by_buffer in loop.shifts for shift in by_buffer], np.int64)
            rows, places = unroll_loop(rows, places, first, len(loop.launches), shifts, loop.count)
        self._set_tables(rows, places, parameters, build_steps(launches), origins, keep)

    @classmethod
    def from_tables(
        cls, rows: Array, places: Array, parameters: Array, steps: Array, origins: Origins, keep: object
    ) -> Tape:
        """Return the tape of these rows, to whose memory the launches refer."""
        tape = cls.__new__(cls)
        tape._set_tables(rows, places, parameters, steps, origins, keep)
        return tape

    def _set_tables(
        self, rows: Array, places: Array, parameters: Array, steps: Array, origins: Origins, keep: object
    ) -> None:
        self._launches, self._places, self._parameters, self._steps = rows, places, parameters, steps
        self.count = len(rows)
        self.regions = 1 + int(places[:, 0].max()) if len(places) else 0
        most_buffers = int(rows[:, BUFFERS].max()) if len(rows) else 0
        tables = (address(steps), len(steps), address(rows), address(places))
        self._head = np.array([*tables, most_buffers, self.regions, DATA_AT], np.int64)
        self._keep = keep
        self.address = address(self._head)
        self.parallel = bool((steps[:, _PARTS] > 1).any())
        self._origins = origins

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
FUNCTION, BLOCKS, FIRST_PLACE, BUFFERS, PARAMETERS_AT, MOST = range(6)  # columns of a launch's row
_PARTS = 4  # column of a step's row
_ALL = (1 << VISIBLE) - 1


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


def unroll_loop(
    rows: Array, places: Array, first: int, launches: int, shifts: Array, count: int
) -> tuple[Array, Array]:
    """Repeat the rows of launches, and their places, `count` times; each time, buffers move by `shifts` bytes.

    Loops are unrolled from the last to the first, so that the launches before them keep their numbers.
    """
    stop = first + launches
    start = int(rows[first, FIRST_PLACE]) if launches else 0
    end = start + int(rows[first:stop, BUFFERS].sum())
    times = np.arange(count)
    loop_rows = np.tile(rows[first:stop], (count, 1))
    loop_rows[:, FIRST_PLACE] += np.repeat(times * (end - start), launches)
    loop_places = np.tile(places[start:end], (count, 1))
    loop_places[:, 1] += (times[:, None] * shifts[None]).reshape(-1)
    rest = rows[stop:].copy()
    rest[:, FIRST_PLACE] += (count - 1) * (end - start)
    return np.concatenate([rows[:first], loop_rows, rest]), np.concatenate([places[:start], loop_places, places[end:]])


def build_steps(entries: Sequence[TapeLaunch | TapeLoop | SpreadLaunch | SpreadLoop]) -> Array:
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
            case TapeLoop() | SpreadLoop():
                steps += _loop_steps(entry, launches)
                launches += entry.count * len(entry.launches)
        step_of.append(len(steps) - 1)
    return np.array(steps, np.int64).reshape(-1, 6)


def serial_steps(launches: int) -> Array:
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


def _loop_steps(loop: TapeLoop | SpreadLoop, number: int) -> list[list[int]]:
    """Build the steps of a loop: each waits for the one before it; launches that are not spread are joined."""
    launches: Sequence[TapeLaunch | SpreadLaunch] = loop.launches
    if all(launch.parts == 1 for launch in launches):
        return [[number, loop.count * len(loop.launches), 1, 1, 1, _ALL]]
    once: list[list[int]] = []
    for index, launch in enumerate(launches):
        if once and once[-1][4] == launch.parts == 1:
            once[-1][1] += 1
        else:
            once.append(_step(launch, index, _ALL))
    length = len(loop.launches)
    return [[number + time * length + first, *rest] for time in range(loop.count) for first, *rest in once]
