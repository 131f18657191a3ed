"""A tape: the launches of a model, run by one native call.

A launch's buffers are places: (region, byte offset). A call passes the addresses of the regions (arena, constants,
inputs, outputs), so one tape serves any number of calls at the same time, each with its own arena.

Threads walk along the tape in order (host/native/walk.ll). A launch waits only for the launches that it names, so that
one thread may continue while others finish earlier ones.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from threading import get_ident, main_thread

import numpy as np

from weft.backends.cpu.pool import MOST_THREADS, WorkerPool, shared_pool
from weft.backends.host.addresses import address
from weft.backends.host.runner import runner
from weft.errors import InternalError
from weft.interrupts import current_watch, raise_if_abandoned
from weft.ir.arrays import Array

LAUNCHES, ARENA_BYTES, FLAGS, HEAD_WORDS = (
    7,
    8,
    9,
    10,
)  # words of a table after those of %Tape, and where its rows begin
SHARED, LONG, MAY_BLOCK = 1, 2, 4  # flags
_STEPS_AT, _REGIONS = 0, 5  # words of %Tape


class Tape:
    """Launches as tables for the native runner, in one array of words (%Filled in tapes.ll).

    `origins` has the nodes of each entry's launches, those of a loop once. `keep` are objects that must live as long,
    such as the code.
    """

    def __init__(self, table: Array, origins: Sequence[Sequence[str]], keep: object) -> None:
        self._table, self._origins, self._keep = table, origins, keep
        self.address = address(table)
        self.count: int = table.item(LAUNCHES)
        self.regions: int = table.item(_REGIONS)
        flags = table.item(FLAGS)
        self.parallel = bool(flags & SHARED)  # whether threads share its steps
        self.is_long = bool(flags & (LONG | MAY_BLOCK))  # whether Ctrl-C should interrupt a run
        self.may_block = bool(flags & MAY_BLOCK)  # whether a block may take so long that a helper thread has to run it

    def describe_step(self, step: int) -> str:
        """Describe the first launch of a step."""
        steps = (self._table.item(_STEPS_AT) - self.address) // 8
        count = self._table.item(1)
        if not count:
            return "at its end"
        launch = self._table.item(steps + 6 * min(step, count - 1))
        firsts = self._table[HEAD_WORDS : HEAD_WORDS + len(self._origins)]  # the first launch of each entry
        entry = int(firsts.searchsorted(launch, "right")) - 1
        names = self._origins[entry]
        origin = names[(launch - firsts.item(entry)) % len(names)] if names else ""
        return f"at launch {launch + 1} of {self.count}{f' ({origin})' if origin else ''}"

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
