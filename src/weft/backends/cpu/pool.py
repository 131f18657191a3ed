"""Worker threads, shared by all models of the process.

The native side (host/native/runner.ll) publishes kernels, joins them and sleeps; this module has the pool's memory and
threads. A forked child starts its own pool, and the interpreter ends the threads when it exits.

Ownership of native memory: `NativeRunner.code` owns the runner's code, and everything that calls it refers to the
`NativeRunner` (plans, sliced runs, pools; workers run a method of their pool). The `WorkerPool`, which lives as long as
the process, owns the pool's memory. A tape owns its tables, and refers to the code and constants that they point to.
The thread inside a call holds the arrays that the call works on. Workers touch any of this only between the start of a
call and its return, which waits for them, also when a run is abandoned.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import time
from threading import Thread

import numpy as np

from weft.backends.host.machine import CACHE_LINE
from weft.backends.host.runner import runner
from weft.threads import make_lock

MOST_THREADS = 64  # that one call can use; the seats of a slot in runner.ll

_SPIN_SECONDS = 50e-6  # that a thread without work stays awake
_WORKERS_AT = 72  # byte offsets in runner.ll's %Pool
_PAUSES_AT = 88


class WorkerPool:
    """The memory shared by callers and workers, and the workers' threads."""

    def __init__(self) -> None:
        native = runner()
        size = native.pool_bytes()
        self._memory = np.zeros(size + CACHE_LINE, np.uint8)  # the system allocates pages on first use
        self.address = -(-self._memory.ctypes.data // CACHE_LINE) * CACHE_LINE
        ctypes.c_int64.from_address(self.address + _PAUSES_AT).value = _count_pauses()
        self._native = native
        self._threads: list[Thread] = []
        self._lock = make_lock()
        self._stopped = False

    @property
    def workers(self) -> int:
        return len(self._threads)

    def grow(self, workers: int) -> None:
        """Start threads until there are at least this many workers, if the system allows it."""
        if len(self._threads) >= workers:
            return
        with self._lock:
            while len(self._threads) < min(workers, MOST_THREADS - 1) and not self._stopped:
                number = len(self._threads) + 1
                thread = Thread(target=self._work, args=(number,), name=f"weft-{number}", daemon=True)
                try:
                    thread.start()
                except RuntimeError:  # no more threads available, or the interpreter is exiting
                    return
                self._threads.append(thread)
                ctypes.c_int32.from_address(self.address + _WORKERS_AT).value = number

    def _work(self, number: int) -> None:
        self._native.worker(self.address, number)

    def stop(self) -> None:
        """End the workers; callers continue alone."""
        with self._lock:
            self._stopped = True
            self._native.stop(self.address)
            for thread in self._threads:
                thread.join()


def _count_pauses() -> int:
    """Measure how many pause instructions take the spin time."""
    pause = runner().pause
    count = 500
    best = float("inf")
    for _ in range(3):
        start = time.perf_counter()
        pause(count)
        best = min(best, time.perf_counter() - start)
    return max(50, int(_SPIN_SECONDS / best * count))


# -- the process-wide pool --------------------------------------------------------------------------------------------

_shared: WorkerPool | None = None
_guard = make_lock()


def shared_pool(threads: int) -> WorkerPool:
    """Return the process's pool, with workers for calls of this many threads."""
    global _shared
    pool = _shared
    if pool is None:
        with _guard:
            if _shared is None:
                _shared = WorkerPool()
                atexit.register(_shared.stop)
            pool = _shared
    pool.grow(threads - 1)
    return pool


def _drop_pool() -> None:
    """Drop the pool in a forked child, where its workers do not exist; the next call makes a new one."""
    global _shared
    if _shared is not None:
        atexit.unregister(_shared.stop)
    _shared = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_drop_pool)
