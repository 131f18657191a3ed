"""What threads share: things that are built once, locks, teams of helpers, and native work that must not be cut off.

Threads meet two moments that nobody plans for. At a fork, the child has only the thread that forked: what others held
stays held there, so every lock of weft's is made by `lock` and is free again in a child, and nobody is inside of an
`Undivided` library. At the end of the process daemon threads stop wherever they are, so they are not inside of one
then either. And where the system gives no more threads, work is done by fewer, at last by the one that asks for it.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from functools import update_wrapper
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Any, Generic, TypeVar
from weakref import WeakSet

Made = TypeVar("Made")

# -- locks -----------------------------------------------------------------------------------------------------------

_locks: WeakSet[Any] = WeakSet()


def lock() -> threading.Lock:
    """A lock that is free in a forked child, whoever held it.

    What it protects must make sense whenever another thread may stop for good: it is changed by one operation of
    Python's, after all that can take time.
    """
    made = threading.Lock()
    _locks.add(made)
    return made


def reentrant_lock() -> Any:
    """The same, for a thread that may hold it already."""
    made = threading.RLock()
    _locks.add(made)
    return made


def free_in_children(held: Any) -> None:
    """See that a lock of somebody else's library is free in forked children too."""
    _locks.add(held)


def _free_locks() -> None:
    for held in _locks:
        held._at_fork_reinit()


# -- built once ------------------------------------------------------------------------------------------------------


class Once(Generic[Made]):
    """A function that is called when its result is first wanted, by one thread while others wait; later calls get it.

    The arguments of later calls do not matter. Who uses native memory that a result owns holds the result itself:
    `cache_clear`, or another owner's end, then takes nothing from under him.
    """

    def __init__(self, make: Callable[..., Made]) -> None:
        self._make = make
        self._made: tuple[Made] | None = None
        self._lock = reentrant_lock()  # a signal's handler may ask for what its own thread is about to build
        update_wrapper(self, make)

    def __call__(self, *arguments: Any) -> Made:
        made = self._made
        if made is None:
            with self._lock:
                made = self._made
                if made is None:
                    made = self._made = (self._make(*arguments),)
        return made[0]

    def cache_clear(self) -> None:
        """Let go of the result; the next call builds another."""
        self._made = None


def once(make: Callable[..., Made]) -> Once[Made]:
    """Have a function called once, however many threads want its result."""
    return Once(make)


# -- libraries that are not to be left in the middle -----------------------------------------------------------------


class Undivided:
    """Around calls of a native library with locks and threads of its own (`with`).

    A fork waits until no other thread is inside, since in the child nobody would ever finish what they are at. The end
    of the process waits for daemon threads inside, and lets no others in: they would run on while the library's own
    end has begun.
    """

    def __init__(self) -> None:
        self._renew()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(before=self._close, after_in_parent=self._open, after_in_child=self._renew)
        atexit.register(self._end)

    def _renew(self) -> None:
        self._changed = threading.Condition()
        self._inside: dict[int, tuple[int, bool]] = {}  # by thread: how often it is inside, whether it is a daemon
        self._closed = 0
        self._ends = False

    def __enter__(self) -> None:
        own, daemon = threading.get_ident(), threading.current_thread().daemon
        before = self._inside.get(own)
        try:
            with self._changed:
                while before is None and (self._closed or (self._ends and daemon)):
                    self._changed.wait()
                self._inside[own] = (1 if before is None else before[0] + 1), daemon
        except BaseException:  # Ctrl-C: whoever is not inside must not be listed
            if before is None:
                self._inside.pop(own, None)
            else:
                self._inside[own] = before
            raise

    def __exit__(self, *_: object) -> None:
        own = threading.get_ident()
        with self._changed:
            depth, daemon = self._inside.pop(own, (1, False))
            if depth > 1:
                self._inside[own] = depth - 1, daemon
            self._changed.notify_all()

    def _close(self) -> None:
        own = threading.get_ident()
        with self._changed:
            self._closed += 1
            while any(thread != own for thread in self._inside):
                self._changed.wait()

    def _open(self) -> None:
        with self._changed:
            self._closed -= 1
            self._changed.notify_all()

    def _end(self) -> None:
        own = threading.get_ident()
        with self._changed:
            self._ends = True
            while any(daemon and thread != own for thread, (_, daemon) in self._inside.items()):
                self._changed.wait()


# -- helpers ---------------------------------------------------------------------------------------------------------


class Team:
    """Threads that take pieces of work in order, at most `count` and as many as can be had (`with`).

    The end of the block waits for all pieces. An exception that leaves it, Ctrl-C for one, waits for nothing: pieces
    that nobody has begun are dropped. Helpers of a daemon thread are daemons, others are waited for at exit.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._threads: list[threading.Thread] = []
        self._pieces: SimpleQueue[Callable[[], None] | None] = SimpleQueue()

    def __enter__(self) -> Team:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if kind is not None:
            with suppress(Empty):
                while True:
                    self._pieces.get_nowait()
        for _ in self._threads:
            self._pieces.put(None)
        if kind is None:
            for thread in self._threads:
                thread.join()

    def gather(self) -> int:
        """Start all threads that can be had; how many, and where it is none, whoever submits a piece does it."""
        while len(self._threads) < self._count:
            self._grow()
        return len(self._threads)

    def _grow(self) -> None:
        if len(self._threads) < self._count:
            thread = threading.Thread(target=self._work, name="weft-helper")
            try:
                thread.start()
                self._threads.append(thread)
            except RuntimeError:  # no more threads to be had, or the interpreter is about to end
                self._count = len(self._threads)

    def submit(self, function: Callable[..., Made], *arguments: Any) -> Future[Made]:
        """Have a function called by one of the team, or here and now where no thread can be had."""
        future: Future[Made] = Future()

        def piece() -> None:
            try:
                future.set_result(function(*arguments))
            except BaseException as error:
                future.set_exception(error)

        self._grow()
        if self._threads:
            self._pieces.put(piece)
        else:
            future.set_result(function(*arguments))
        return future

    def map(self, function: Callable[..., Made], *arguments: Iterable[Any]) -> Iterator[Made]:
        """Results of all calls, in order."""
        futures = [self.submit(function, *each) for each in zip(*arguments)]
        return (future.result() for future in futures)

    def _work(self) -> None:
        while True:
            piece = self._pieces.get()
            if piece is None:
                return
            piece()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_free_locks)
