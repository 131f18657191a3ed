"""What threads share: things that are built once, locks, teams of helpers, and native work that must not be cut off.

Threads meet two moments that nobody plans for. At a fork, the child has only the thread that forked: what others held
stays held there, so every lock of weft's is made by `lock` and is free again in a child, nobody is inside of an
`Undivided` library, and nobody is importing a module. At the end of the process daemon threads stop wherever they are,
so they are not inside of one then either. And where the system gives no more threads, work is done by fewer, at last by
the one that asks for it.
"""

from __future__ import annotations

import _imp
import atexit
import importlib._bootstrap
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import update_wrapper
from pathlib import Path
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Any, Generic, TypeVar
from weakref import WeakSet, ref

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


def is_pool_worker() -> bool:
    """Whether Python's multiprocessing started this process, or what is made of it: there are several, mostly."""
    process = sys.modules.get("multiprocessing.process")  # which they have all imported
    return process is not None and process.parent_process() is not None


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


_MOMENT = 0.002  # seconds between two looks at whether others have left
_libraries: list[Undivided] = []


class Undivided:
    """Around calls of a native library with locks and threads of its own (`with`).

    A fork waits until no other thread is inside, since in the child nobody would ever finish what they are at. The end
    of the process waits for those inside, and of the threads that are there lets none in again: they would run on while
    the library's own end has begun.
    """

    def __init__(self) -> None:
        self._renew()
        _libraries.append(self)
        atexit.register(self._end)

    def _renew(self) -> None:
        self._lock = threading.Lock()
        self._inside: dict[int, int] = {}  # by thread, how often
        self._closed: set[int] = set()  # threads that are about to fork
        self._barred: frozenset[int] | None = None  # once the process ends, threads that must not come in

    def __enter__(self) -> None:
        own = threading.get_ident()
        while True:
            with self._lock:
                before = self._inside.get(own, 0)
                if before or not (self._closed or self._is_barred(own)):
                    self._inside[own] = before + 1
                    return
            time.sleep(_MOMENT)

    def __exit__(self, *_: object) -> None:
        own = threading.get_ident()
        with self._lock:
            depth = self._inside.pop(own, 1)
            if depth > 1:
                self._inside[own] = depth - 1

    def _is_barred(self, thread: int) -> bool:
        return self._barred is not None and (thread in self._barred or threading.current_thread().daemon)

    def _await_others(self) -> None:
        own = threading.get_ident()
        while True:
            with self._lock:
                if all(thread == own for thread in self._inside):
                    return
            time.sleep(_MOMENT)

    def _close(self) -> None:
        with self._lock:
            self._closed.add(threading.get_ident())
        self._await_others()

    def _open(self) -> None:
        with self._lock:
            self._closed.discard(threading.get_ident())

    def _end(self) -> None:
        with self._lock:
            own = threading.get_ident()
            self._barred = frozenset(thread.ident or 0 for thread in threading.enumerate()) - {own}
        while True:
            try:
                return self._await_others()
            except KeyboardInterrupt:  # it is about to end
                continue


# -- imports ---------------------------------------------------------------------------------------------------------

IMPORT_SECONDS = 5.0  # that a fork waits for other threads' imports; longer ones may themselves wait for this thread


def _await_imports() -> None:
    """Hold Python's import lock at a moment when no other thread is about to import something.

    Python frees that lock in a forked child, but not those of single modules: there nobody would ever finish with them.
    """
    locks, own, end = getattr(importlib._bootstrap, "_module_locks", {}), threading.get_ident(), None
    while True:
        _imp.acquire_lock()
        owners = {getattr(found(), "owner", None) for found in list(locks.values())}
        if owners <= {None, own}:
            return
        now = time.monotonic()
        end = now + IMPORT_SECONDS if end is None else end
        if now > end:
            return
        _imp.release_lock()
        time.sleep(0.001)


# -- helpers ---------------------------------------------------------------------------------------------------------


class PendingTask(Generic[Made]):
    """A piece of work that another thread does.

    All that they share is one lock, without code of Python's around it that Ctrl-C could leave half done.
    """

    def __init__(self, function: Callable[..., Made], arguments: tuple[Any, ...]) -> None:
        self._function = function
        self._arguments = arguments
        self._made: list[Made] = []
        self._failed: BaseException | None = None
        self._undone = threading.Lock()
        self._undone.acquire()

    def work(self) -> None:
        try:
            self._made.append(self._function(*self._arguments))
        except BaseException as error:
            self._failed = error
        finally:
            self._undone.release()

    def give_up(self) -> None:
        """Have nobody wait for it, who would wait for ever."""
        self._failed = RuntimeError("it was given up")
        self._undone.release()

    @property
    def is_done(self) -> bool:
        return bool(self._made) or self._failed is not None

    def result(self) -> Made:
        """What the function returned, once it has; or what it raised."""
        self._undone.acquire()
        self._undone.release()
        if self._failed is not None:
            raise self._failed
        return self._made[0]


class Team:
    """Threads that take pieces of work in order, at most `count` and as many as can be had (`with`).

    The end of the block waits for all pieces. An exception that leaves it, Ctrl-C for one, waits for nothing: pieces
    that nobody has begun are dropped. Helpers of a daemon thread are daemons, others are waited for at exit.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._threads: list[threading.Thread] = []
        self._tasks: SimpleQueue[PendingTask[Any] | None] = SimpleQueue()

    def __enter__(self) -> Team:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if kind is not None:
            with suppress(Empty):
                while True:
                    self._tasks.get_nowait()
        for _ in self._threads:
            self._tasks.put(None)
        if kind is None:
            for thread in self._threads:
                thread.join()

    def end(self) -> None:
        """Let the threads go once all pieces are done; nobody waits for that."""
        for _ in self._threads:
            self._tasks.put(None)

    def gather(self) -> int:
        """Start all threads that can be had; how many, and where it is none, whoever submits a piece does it."""
        while len(self._threads) < self._count:
            self._grow()
        return len(self._threads)

    def submit(self, function: Callable[..., Made], *arguments: Any) -> PendingTask[Made]:
        """Have a function called by one of the team, or here and now where no thread can be had."""
        task = PendingTask(function, arguments)
        self._grow()
        if self._threads:
            self._tasks.put(task)
        else:
            task.work()
        return task

    def map(self, function: Callable[..., Made], *arguments: Iterable[Any]) -> Iterator[Made]:
        """Results of all calls, in order."""
        tasks = [self.submit(function, *each) for each in zip(*arguments)]
        return (task.result() for task in tasks)

    def _grow(self) -> None:
        if len(self._threads) < self._count:
            given = self._tasks, ref(self), threading.current_thread()
            thread = threading.Thread(target=_help, args=given, name="weft-helper")
            try:
                thread.start()
                self._threads.append(thread)
            except RuntimeError:  # no more threads to be had, or the interpreter is about to end
                self._count = len(self._threads)


def _help(tasks: SimpleQueue[PendingTask[Any] | None], team: ref[Team], owner: threading.Thread) -> None:
    """A helper's life, which ends with the team's or the owner's if nobody says so: a signal may come in between."""
    while True:
        try:
            task = tasks.get(timeout=1.0)
        except Empty:
            if team() is None or not owner.is_alive():
                return
            continue
        if task is None:
            return
        task.work()
        del task


# -- forks -----------------------------------------------------------------------------------------------------------

_forking: set[int] = set()  # threads between `_before_fork` and what comes after it


def _before_fork() -> None:
    """Wait until no other thread is inside of a library or imports one, which may be one that nobody knew before."""
    while True:
        known = len(_libraries)
        for library in _libraries[:known]:
            library._close()
        _await_imports()
        if len(_libraries) == known:
            _forking.add(threading.get_ident())
            return
        _imp.release_lock()


def _after_fork(renew: bool) -> None:
    """Undo it, unless this module came in while its thread was about to fork, and did nothing before."""
    own = threading.get_ident()
    if own in _forking:
        _forking.discard(own)
        _imp.release_lock()
    if renew:
        _forking.clear()  # the others are not here
    for library in _libraries:
        library._renew() if renew else library._open()


def _after_in_parent() -> None:
    _after_fork(renew=False)


def _after_in_child() -> None:
    _free_locks()
    _after_fork(renew=True)


if hasattr(os, "register_at_fork"):  # once, here: others' hooks could come to be in the middle of a fork
    os.register_at_fork(before=_before_fork, after_in_parent=_after_in_parent, after_in_child=_after_in_child)


# -- cores -----------------------------------------------------------------------------------------------------------


def usable_cores() -> int:
    """Cores that this process may keep busy: those of its affinity mask, within the quota of its control groups."""
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:  # there is no mask on this system
        cores = os.cpu_count() or 1
    return max(1, min(cores, _quota(Path("/sys/fs/cgroup"), _read(Path("/proc/self/cgroup")))))


def _quota(root: Path, membership: str) -> int:
    """Whole cores that the control groups of this process, and all groups above them, allow."""
    allowed = float(os.cpu_count() or 1)
    for line in membership.splitlines():
        _, controllers, path = line.split(":", 2)
        parts = [part for part in path.split("/") if part]
        groups = [Path(*parts[:count]) for count in range(len(parts) + 1)]
        if not controllers:
            allowed = min(allowed, *(_quota_of(_read(root / group / "cpu.max")) for group in groups))
        elif "cpu" in controllers.split(","):
            for mount in (root / controllers, root / "cpu"):
                for group in groups:
                    limit = _read(mount / group / "cpu.cfs_quota_us")
                    period = _read(mount / group / "cpu.cfs_period_us")
                    allowed = min(allowed, _quota_of(f"{limit} {period}"))
    return int(allowed)


def _quota_of(text: str) -> float:
    """Cores from "quota period" in microseconds; "max" and -1 mean no limit."""
    match text.split():
        case [limit, period] if limit.isdigit() and period.isdigit() and int(period):
            return int(limit) / int(period)
    return float("inf")


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
