"""Worker threads, shared by all models of the process.

The native side (native/runner.ll) publishes kernels, joins them and sleeps; here are the pool's memory and its
threads. A forked child begins with a pool of its own, and the interpreter ends the threads when it exits.

Who owns native memory, and until when: the runner's code belongs to `NativeRunner.code`, and all that calls it holds
the `NativeRunner` (prepared sections, tapes, sliced runs, pools; workers run a method of their pool). The pool's
memory belongs to the `WorkerPool`, which the process keeps; a call reads it again each time. A tape owns its tables,
and keeps the code and the constants that they point to. What a call works on is held by the thread inside of it.
Workers touch any of this only between a caller's announcement and its return, which waits for them: also when it gives
a run up.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import platform
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np

from weft.backends.cpu.codegen import LoadedCode, compile_modules, load_code
from weft.backends.cpu.machine import CACHE_LINE, host
from weft.cache.code import shared_cache
from weft.cache.digests import key_of
from weft.errors import DeviceError
from weft.records import dataclass
from weft.threads import lock, once

MOST_THREADS = 64  # that one call can use; the seats of a slot in runner.ll

_PATIENCE = 50e-6  # seconds that a thread without work stays awake
_FUNCTIONS = ("weft_call", "weft_go", "weft_leave", "weft_worker", "weft_stop", "weft_pool_bytes", "weft_pause_times")
_WORKERS_AT = 72  # byte offsets in runner.ll's %Pool
_PAUSES_AT = 88


@dataclass(frozen=True, slots=True)
class NativeRunner:
    """The native functions; ctypes releases the GIL around each."""

    call: Callable[[int], int]  # tape, pool, threads, times and regions in memory; whether the data is at fault
    go: Callable[[int, int], int]  # a sliced run in memory, nanoseconds; whether there is more to do
    leave: Callable[[int], None]  # a sliced run
    worker: Callable[[int, int], None]  # pool, number
    stop: Callable[[int], None]
    pool_bytes: Callable[[], int]
    pause: Callable[[int], None]
    code: LoadedCode


_offered: dict[str, Callable[[], bytes]] = {}  # the runner's code from elsewhere, by the name of its text


def offer_runner(code: Mapping[str, Callable[[], bytes]]) -> None:
    """Have the runner taken from where it was compiled before, unless it is in use already."""
    _offered.update(code)


def _runner_code() -> bytes:
    text = runner_text(sys.platform)
    offered = _offered.get(key_of(text))
    return compile_modules([text], host(), shared_cache())[0] if offered is None else offered()


@once
def runner() -> NativeRunner:
    """The native side of pools and tapes, compiled for this machine or for such as it."""
    code = load_code([_runner_code()], _FUNCTIONS)
    _offered.clear()
    word, pointer = ctypes.c_int64, ctypes.c_void_p

    def function(name: str, result: Any, *arguments: Any) -> Any:
        return ctypes.CFUNCTYPE(result, *arguments)(code.addresses[name])

    return NativeRunner(
        call=function("weft_call", ctypes.c_int32, pointer),
        go=function("weft_go", ctypes.c_int32, pointer, word),
        leave=function("weft_leave", None, pointer),
        worker=function("weft_worker", None, pointer, word),
        stop=function("weft_stop", None, pointer),
        pool_bytes=function("weft_pool_bytes", word),
        pause=function("weft_pause_times", None, word),
        code=code,
    )


def runner_text(system: str, arm: bool | None = None) -> str:
    """The runner's LLVM IR for an operating system (by Python's name) and this or another kind of processor."""
    if arm is None:
        here = platform.machine().lower()
        arm = here in ("aarch64", "arm64")
        if not arm and here not in ("x86_64", "amd64"):
            raise DeviceError(f"native code is made for x86-64 and 64-bit ARM, not for {platform.machine()}")
    systems = {"darwin": "macos", "win32": "windows"}
    names = (systems.get(system, "linux"), "aarch64" if arm else "x86_64", "walk", "runner")
    folder = Path(__file__).parent / "native"
    return "\n".join((folder / f"{name}.ll").read_text(encoding="utf-8") for name in names)


class WorkerPool:
    """Memory that callers and workers meet in, and the workers' threads."""

    def __init__(self) -> None:
        native = runner()
        size = native.pool_bytes()
        self._memory = np.zeros(size + CACHE_LINE, np.uint8)  # the system gives it page by page, as it is used
        self.address = -(-self._memory.ctypes.data // CACHE_LINE) * CACHE_LINE
        ctypes.c_int64.from_address(self.address + _PAUSES_AT).value = _pauses()
        self._native = native
        self._threads: list[Thread] = []
        self._lock = lock()
        self._stopped = False

    @property
    def workers(self) -> int:
        return len(self._threads)

    def grow(self, workers: int) -> None:
        """See that there are at least so many workers, if the system allows it."""
        if len(self._threads) >= workers:
            return
        with self._lock:
            while len(self._threads) < min(workers, MOST_THREADS - 1) and not self._stopped:
                number = len(self._threads) + 1
                thread = Thread(target=self._work, args=(number,), name=f"weft-{number}", daemon=True)
                try:
                    thread.start()
                except RuntimeError:  # no more threads to be had, or the interpreter is about to end
                    return
                self._threads.append(thread)
                ctypes.c_int32.from_address(self.address + _WORKERS_AT).value = number

    def _work(self, number: int) -> None:
        self._native.worker(self.address, number)

    def stop(self) -> None:
        """End the workers; callers go on alone."""
        with self._lock:
            self._stopped = True
            self._native.stop(self.address)
            for thread in self._threads:
                thread.join()


def _pauses() -> int:
    """How many pauses of this processor make up the time that a thread stays awake."""
    pause = runner().pause
    count = 500
    best = float("inf")
    for _ in range(3):
        start = time.perf_counter()
        pause(count)
        best = min(best, time.perf_counter() - start)
    return max(50, int(_PATIENCE / best * count))


# -- the process' pool -----------------------------------------------------------------------------------------------

_shared: WorkerPool | None = None
_guard = lock()


def shared_pool(threads: int) -> WorkerPool:
    """The process' pool, with workers for calls of so many threads."""
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


def _forget() -> None:
    """In a forked child, where no worker lives on: the next call makes a new pool."""
    global _shared
    if _shared is not None:
        atexit.unregister(_shared.stop)
    _shared = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
