"""Thread primitives that work across forks and at exit: locks, lazy values, helper pools, guards of native libraries.

A forked child has only the thread that forked. Locks of other threads would stay locked there, so weft creates its
locks with `make_lock`, which resets them in children, and a fork waits until no other thread is inside a guarded native
library or imports a module. At exit, daemon threads stop anywhere, so the end of the process waits for guarded
libraries too. Where the system refuses to start threads, work runs on fewer of them, in the end on the caller's.
"""

from __future__ import annotations

import _imp
import atexit
import functools
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
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from weakref import WeakSet, ref

Result = TypeVar("Result")

# -- locks -----------------------------------------------------------------------------------------------------------

_locks: WeakSet[Any] = WeakSet()


def make_lock() -> threading.Lock:
    """Create a lock that is released in forked children.

    A child may find the protected state as another thread left it, so change that state in one atomic operation, after
    everything that can take time.
    """
    new_lock = threading.Lock()
    _locks.add(new_lock)
    return new_lock


def make_reentrant_lock() -> Any:
    """Create a reentrant lock that is released in forked children."""
    new_lock = threading.RLock()
    _locks.add(new_lock)
    return new_lock


def is_pool_worker() -> bool:
    """Whether `multiprocessing` or a library on top of it started this process."""
    process = sys.modules.get("multiprocessing.process")  # imported in every such process
    return process is not None and process.parent_process() is not None


def reset_in_children(foreign_lock: Any) -> None:
    """Release a lock of another library in forked children, too."""
    _locks.add(foreign_lock)


def _free_locks() -> None:
    for each in _locks:
        each._at_fork_reinit()  # the standard library's own locks use it; no public method resets a held lock


if TYPE_CHECKING:
    from functools import cached_property as cached_property
else:

    class cached_property(functools.cached_property):  # noqa: N801 - the name of what it replaces
        """A cached property whose lock, which it has before Python 3.12, is released in forked children."""

        def __init__(self, function: Callable[[Any], Any]) -> None:
            super().__init__(function)
            if hasattr(self, "lock"):
                reset_in_children(self.lock)


# -- built once ------------------------------------------------------------------------------------------------------


class Once(Generic[Result]):
    """A function that runs once; concurrent callers wait, and later calls return the first result.

    Arguments of later calls are ignored. Code that uses native memory owned by the result must keep a reference to the
    result: `cache_clear` drops this one.
    """

    def __init__(self, make: Callable[..., Result]) -> None:
        self._make = make
        self._result: tuple[Result] | None = None
        self._lock = make_reentrant_lock()  # a signal handler may call this while its own thread is inside
        update_wrapper(self, make)

    def __call__(self, *arguments: Any) -> Result:
        result = self._result
        if result is None:
            with self._lock:
                result = self._result
                if result is None:
                    result = self._result = (self._make(*arguments),)
        return result[0]

    def cache_clear(self) -> None:
        """Drop the result; the next call computes it again."""
        self._result = None


def once(make: Callable[..., Result]) -> Once[Result]:
    """Decorate a function so that it runs once, even if several threads call it."""
    return Once(make)


# -- native libraries ------------------------------------------------------------------------------------------------


_POLL_SECONDS = 0.002  # between checks whether other threads have left a library
_libraries: list[NativeLibraryGuard] = []


class NativeLibraryGuard:
    """Guard calls into a native library that has its own locks and threads (use with `with`).

    A fork waits until no other thread is inside, since the child would inherit the library's locks locked. The end of
    the process waits for the threads inside and lets no other thread in, since the library is about to be torn down.
    """

    def __init__(self) -> None:
        self._renew()
        _libraries.append(self)
        atexit.register(self._end)

    def _renew(self) -> None:
        self._lock = threading.Lock()
        self._inside: dict[int, int] = {}  # nesting depth by thread
        self._forking: set[int] = set()  # threads that are about to fork
        self._barred: frozenset[int] | None = None  # at exit, the threads that may not enter any more

    def __enter__(self) -> None:
        thread = threading.get_ident()
        while True:
            with self._lock:
                depth = self._inside.get(thread, 0)
                if depth or not (self._forking or self._is_barred(thread)):
                    self._inside[thread] = depth + 1
                    return
            time.sleep(_POLL_SECONDS)

    def __exit__(self, *_: object) -> None:
        thread = threading.get_ident()
        with self._lock:
            depth = self._inside.pop(thread, 1)
            if depth > 1:
                self._inside[thread] = depth - 1

    def _is_barred(self, thread: int) -> bool:
        return self._barred is not None and (thread in self._barred or threading.current_thread().daemon)

    def _await_others(self) -> None:
        this_thread = threading.get_ident()
        while True:
            with self._lock:
                if all(thread == this_thread for thread in self._inside):
                    return
            time.sleep(_POLL_SECONDS)

    def _close(self) -> None:
        with self._lock:
            self._forking.add(threading.get_ident())
        self._await_others()

    def _open(self) -> None:
        with self._lock:
            self._forking.discard(threading.get_ident())

    def _end(self) -> None:
        with self._lock:
            others = frozenset(thread.ident or 0 for thread in threading.enumerate())
            self._barred = others - {threading.get_ident()}
        while True:
            try:
                return self._await_others()
            except KeyboardInterrupt:  # the process is ending anyway
                continue


# -- imports ---------------------------------------------------------------------------------------------------------

IMPORT_SECONDS = 5.0  # without progress, after which a fork stops waiting for imports: one may wait for this thread


def _await_imports() -> None:
    """Take Python's import lock when no other thread is importing a module.

    Python releases that lock in a forked child, but not the locks of single modules, on which the child would hang.
    Neither is public, hence `_imp` and `importlib._bootstrap`.
    """
    locks, this_thread = getattr(importlib._bootstrap, "_module_locks", {}), threading.get_ident()
    last_progress: object = None
    end = 0.0
    while True:
        _imp.acquire_lock()
        entries = [(name, getattr(module_lock(), "owner", None)) for name, module_lock in list(locks.items())]
        if all(owner in (None, this_thread) for _, owner in entries):
            return
        progress, now = (len(sys.modules), entries), time.monotonic()
        if progress != last_progress:
            last_progress, end = progress, now + IMPORT_SECONDS
        if now > end:
            return
        _imp.release_lock()
        time.sleep(0.001)


# -- helpers ---------------------------------------------------------------------------------------------------------


class PendingTask(Generic[Result]):
    """A function call that another thread makes.

    The threads share one bare lock: Python code around it could be interrupted halfway by Ctrl-C.
    """

    def __init__(self, function: Callable[..., Result], arguments: tuple[Any, ...]) -> None:
        self._function = function
        self._arguments = arguments
        self._results: list[Result] = []
        self._error: BaseException | None = None
        self._pending = threading.Lock()
        self._pending.acquire()

    def work(self) -> None:
        try:
            self._results.append(self._function(*self._arguments))
        except BaseException as error:
            self._error = error
        finally:
            self._pending.release()

    def abandon(self) -> None:
        """Mark the task failed so that waiters wake up."""
        self._error = RuntimeError("the task was abandoned")
        self._pending.release()

    @property
    def is_done(self) -> bool:
        return bool(self._results) or self._error is not None

    def result(self) -> Result:
        """Wait for the call, and return its result or raise its exception."""
        self._pending.acquire()
        self._pending.release()
        if self._error is not None:
            raise self._error
        return self._results[0]


class HelperPool:
    """A pool of at most `count` threads that run tasks in order (use with `with`).

    The end of the block waits for all tasks. When an exception such as KeyboardInterrupt leaves the block, tasks that
    have not started are dropped and nothing is waited for. Threads of a daemon thread's pool are daemons.
    """

    def __init__(self, count: int, *, is_shared: bool = False) -> None:
        """Create a pool whose helpers end with the thread that submits the first task.

        is_shared: other threads may submit tasks later, so helpers end when only daemons are left.
        """
        self._count = count
        self._is_shared = is_shared
        self._threads: list[threading.Thread] = []
        self._tasks: SimpleQueue[PendingTask[Any] | None] = SimpleQueue()

    def __enter__(self) -> HelperPool:
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
        """Let the threads end after all tasks, without waiting for them."""
        for _ in self._threads:
            self._tasks.put(None)

    def start_all(self) -> int:
        """Start as many of the threads as the system allows, and return their number; 0: `submit` runs tasks itself."""
        while len(self._threads) < self._count:
            self._grow()
        return len(self._threads)

    def submit(self, function: Callable[..., Result], *arguments: Any) -> PendingTask[Result]:
        """Run a function on a thread of the pool, or on this one where no thread can be started."""
        task = PendingTask(function, arguments)
        self._grow()
        if self._threads:
            self._tasks.put(task)
        else:
            task.work()
        return task

    def map(self, function: Callable[..., Result], *arguments: Iterable[Any]) -> Iterator[Result]:
        """Yield the results of all calls, in order."""
        tasks = [self.submit(function, *each) for each in zip(*arguments)]
        return (task.result() for task in tasks)

    def _grow(self) -> None:
        if len(self._threads) < self._count:
            args = self._tasks, ref(self), None if self._is_shared else threading.current_thread()
            thread = _Helper(target=_run_helper, args=args, name="weft-helper")
            try:
                thread.start()
                self._threads.append(thread)
            except RuntimeError:  # the system allows no more threads, or the interpreter is ending
                self._count = len(self._threads)


class _Helper(threading.Thread):
    """A thread of a pool."""


def _run_helper(
    tasks: SimpleQueue[PendingTask[Any] | None], pool: ref[HelperPool], owner: threading.Thread | None
) -> None:
    """Run tasks until None arrives, or until the pool or its owner is gone: a signal may keep None from being sent."""
    while True:
        try:
            task = tasks.get(timeout=1.0)
        except Empty:
            if pool() is None or not (_has_callers() if owner is None else owner.is_alive()):
                return
            continue
        if task is None or (owner is None and not _has_callers()):  # a daemon could submit tasks without end
            return
        task.work()
        del task


def _has_callers() -> bool:
    """Whether a thread is left, other than helpers and daemons, for which the process continues."""
    return any(
        thread.is_alive() and not thread.daemon and not isinstance(thread, _Helper) for thread in threading.enumerate()
    )


# -- forks -----------------------------------------------------------------------------------------------------------

_forking: set[int] = set()  # threads between `_before_fork` and `_after_fork`


def _before_fork() -> None:
    """Wait until no other thread is inside a guarded library or importing; an import may add a library."""
    while True:
        count = len(_libraries)
        for library in _libraries[:count]:
            library._close()
        _await_imports()
        if len(_libraries) == count:
            _forking.add(threading.get_ident())
            return
        _imp.release_lock()


def _after_fork(renew: bool) -> None:
    """Undo `_before_fork`, which did not run if this module was imported between the hooks of a fork."""
    thread = threading.get_ident()
    if thread in _forking:
        _forking.discard(thread)
        _imp.release_lock()
    if renew:
        _forking.clear()  # the other threads do not exist here
    for library in _libraries:
        library._renew() if renew else library._open()


def _after_in_parent() -> None:
    _after_fork(renew=False)


def _after_in_child() -> None:
    _free_locks()
    _after_fork(renew=True)


if hasattr(os, "register_at_fork"):  # once, here: hooks registered later could be added in the middle of a fork
    os.register_at_fork(before=_before_fork, after_in_parent=_after_in_parent, after_in_child=_after_in_child)


# -- cores -----------------------------------------------------------------------------------------------------------


def usable_cores() -> int:
    """Count the cores that this process may use: its affinity mask, the quota of its control groups, OMP_NUM_THREADS.

    Ray, Spark and Dask set that variable to the cores that a worker was assigned.
    """
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:  # this system has no affinity masks
        cores = os.cpu_count() or 1
    quota = _read_quota(Path("/sys/fs/cgroup"), _read_text(Path("/proc/self/cgroup")))
    return max(1, min(cores, quota, _read_openmp_limit(os.environ.get("OMP_NUM_THREADS", "")) or cores))


def _read_openmp_limit(text: str) -> int:
    """Parse OMP_NUM_THREADS, which may list a number for each level of nesting; 0: not set, or not a number."""
    first = text.partition(",")[0].strip()
    return int(first) if first.isascii() and first.isdigit() else 0


def _read_quota(root: Path, membership: str) -> int:
    """Return the whole cores that the control groups of this process and their parents allow."""
    allowed = float(os.cpu_count() or 1)
    for line in membership.splitlines():
        _, controllers, path = line.split(":", 2)
        parts = [part for part in path.split("/") if part]
        groups = [Path(*parts[:count]) for count in range(len(parts) + 1)]
        if not controllers:
            allowed = min(allowed, *(_parse_quota(_read_text(root / group / "cpu.max")) for group in groups))
        elif "cpu" in controllers.split(","):
            for mount in (root / controllers, root / "cpu"):
                for group in groups:
                    limit = _read_text(mount / group / "cpu.cfs_quota_us")
                    period = _read_text(mount / group / "cpu.cfs_period_us")
                    allowed = min(allowed, _parse_quota(f"{limit} {period}"))
    return int(allowed)


def _parse_quota(text: str) -> float:
    """Parse "quota period" in microseconds as a number of cores; "max" and -1 mean no limit."""
    fields = text.split()
    if len(fields) != 2 or not all(field.isdigit() for field in fields) or not int(fields[1]):
        return float("inf")
    return int(fields[0]) / int(fields[1])


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
