"""Child processes of weft: requests of the parent, exit with the parent, and peak memory."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import SimpleQueue
from threading import Event, Thread
from typing import TypeVar

Request = TypeVar("Request")


def read_requests(read: Callable[[], Request | None]) -> Iterator[Request]:
    """Yield the requests of the parent, until `read` returns None because the pipe is closed.

    A thread reads them from now on, so that this process exits with its parent even during its work.
    """
    queue: SimpleQueue[Request | None] = SimpleQueue()
    busy = Event()
    busy.set()

    def listen() -> None:
        while True:
            request = read()
            if request is None and busy.is_set():
                os._exit(1)
            queue.put(request)
            if request is None:
                return

    try:
        Thread(target=listen, name="weft-requests", daemon=True).start()
    except RuntimeError:  # no thread can be started: the process exits after its work
        return _yield_requests(read, busy)
    return _yield_requests(queue.get, busy)


def _yield_requests(read: Callable[[], Request | None], busy: Event) -> Iterator[Request]:
    while True:
        busy.clear()
        request = read()
        busy.set()
        if request is None:
            return
        yield request


def peak_memory() -> int | None:
    """Return the peak resident memory in bytes; None if the system does not report it."""
    return _peak_in_proc_status() or _peak_in_rusage()


def _peak_in_proc_status() -> int | None:
    """Read the peak on Linux, where getrusage includes the parent before the fork."""
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")), None)


def _peak_in_rusage() -> int | None:
    try:
        import resource
    except ImportError:  # Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
