"""This process: numbers about it, and its end with that of the one that started it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import SimpleQueue
from threading import Event, Thread
from typing import TypeVar

Order = TypeVar("Order")


def orders(read: Callable[[], Order | None]) -> Iterator[Order]:
    """What a parent asks for, until `read` gives None: it has closed its pipe, or is gone.

    They are read beside the work, from this call on, so that this process ends with its parent, whatever it is at.
    """
    given: SimpleQueue[Order | None] = SimpleQueue()
    busy = Event()
    busy.set()

    def listen() -> None:
        while True:
            order = read()
            if order is None and busy.is_set():
                os._exit(1)
            given.put(order)
            if order is None:
                return

    try:
        Thread(target=listen, name="weft-orders", daemon=True).start()
    except RuntimeError:  # no thread to be had: the end comes after the work
        return _each(read, busy)
    return _each(given.get, busy)


def _each(take: Callable[[], Order | None], busy: Event) -> Iterator[Order]:
    while True:
        busy.clear()
        order = take()
        busy.set()
        if order is None:
            return
        yield order


def peak_memory() -> int | None:
    """The most bytes that were ever resident; None where the system does not tell."""
    return _peak_of_status() or _peak_of_usage()


def _peak_of_status() -> int | None:
    """Linux: unlike getrusage, this leaves out the process that started this one."""
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")), None)


def _peak_of_usage() -> int | None:
    try:
        import resource
    except ImportError:  # Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
