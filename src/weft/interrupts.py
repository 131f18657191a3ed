"""End runs early: on Ctrl-C, after a timeout, or when another thread cancels them.

A native call or a numpy operation cannot be interrupted. A caller that must stay interruptible hands the work to a
helper thread and waits where signals, timeouts and other threads reach it (`run_interruptibly`, `run_watched`). When
the caller stops waiting, the helper abandons the run between two steps (`raise_if_abandoned`); until then it keeps
references to everything that it works on.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar

from weft.errors import InputError, RunCancelledError, RunTimeoutError
from weft.threads import make_lock, make_reentrant_lock

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, Future

Result = TypeVar("Result")
DescribePosition = Callable[[], str]  # which step a run is at, for messages

LARGE = 1 << 20  # bytes of operands from which a numpy operation may take long
MAX_AWAITED = 8  # concurrent runs awaited by event loops; each has its own arena, threads are shared
_GRACE = 0.03  # seconds that a caller waits for the helper to abandon the run


class RunAbandoned(BaseException):
    """The caller no longer waits for this run. Raised in helper threads only."""


class Cancellation:
    """Ends runs from another thread: `model.run(x, cancel=token)` here, `token.cancel()` there.

    Pass the same token to any number of runs, concurrent or sequential. A cancelled token stays cancelled.
    """

    def __init__(self) -> None:
        self._cancelled = False
        self._watches: set[RunWatch] = set()
        self._lock = make_reentrant_lock()  # a signal handler may cancel the run that its own thread is starting

    @property
    def cancelled(self) -> bool:
        """Whether `cancel` was called."""
        return self._cancelled

    def cancel(self) -> None:
        """End all runs that use this token; each raises RunCancelledError, as do later runs with it."""
        with self._lock:
            self._cancelled = True
            for watch in self._watches:
                watch.notifier.put(_CANCELLED)

    def __deepcopy__(self, memo: dict[int, Any]) -> Cancellation:
        """Return the token itself: copies must share its state."""
        return self

    def __copy__(self) -> Cancellation:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        hint = "pass `timeout` to runs in other processes, or end the process"
        raise InputError("a Cancellation cannot be pickled: it ends runs of its own process only", hint=hint)

    def _join(self, watch: RunWatch) -> None:
        with self._lock:
            self._watches.add(watch)
            if self._cancelled:
                watch.notifier.put(_CANCELLED)

    def _leave(self, watch: RunWatch) -> None:
        with self._lock:
            self._watches.discard(watch)

    def __repr__(self) -> str:
        return f"<weft.Cancellation: {'cancelled' if self._cancelled else 'not cancelled'}>"


class Notifier(Protocol):
    """Wakes the caller that waits for a run."""

    def put(self, item: str, /) -> None: ...


class RunWatch:
    """The state that a helper and the caller that waits for it share."""

    __slots__ = ("abandoned", "describe_position", "notifier")

    def __init__(self, notifier: Notifier) -> None:
        self.abandoned = False  # whether the caller stopped waiting
        self.describe_position: DescribePosition | None = None
        self.notifier = notifier

    def describe(self) -> str:
        describe = self.describe_position
        return "before its first step" if describe is None else describe()


_DONE, _CANCELLED = "done", "cancelled"


class _ThreadState(threading.local):
    watch: RunWatch | None = None


_thread = _ThreadState()


def current_watch() -> RunWatch | None:
    """Return the watch of the run that this thread executes, if any."""
    return _thread.watch


def raise_if_abandoned() -> None:
    """Raise RunAbandoned where the caller no longer waits; call this between steps."""
    watch = _thread.watch
    if watch is not None and watch.abandoned:
        raise RunAbandoned


def is_large(operands: Sequence[Any]) -> bool:
    """Whether a numpy operation on these may take long enough to run in a helper thread."""
    return max([getattr(operand, "nbytes", 0) for operand in operands], default=0) > LARGE


def run_interruptibly(function: Callable[..., Result], *arguments: Any) -> Result:
    """Call a long-running function so that Ctrl-C takes effect before it ends.

    In threads other than the main one, which get no signals, this is a plain call.
    """
    if _thread.watch is not None or threading.get_ident() != threading.main_thread().ident:
        return function(*arguments)
    notifications: SimpleQueue[str] = SimpleQueue()
    return _await_result(RunWatch(notifications), notifications, function, arguments, None, None)


def run_watched(
    function: Callable[..., Result], *arguments: Any, timeout: float | None = None, cancel: Cancellation | None = None
) -> Result:
    """Call a function; raise RunTimeoutError after `timeout` seconds, RunCancelledError when it is cancelled."""
    notifications: SimpleQueue[str] = SimpleQueue()
    watch = RunWatch(notifications)
    if cancel is None:
        return _await_result(watch, notifications, function, arguments, timeout, None)
    cancel._join(watch)
    try:
        return _await_result(watch, notifications, function, arguments, timeout, cancel)
    finally:
        cancel._leave(watch)


def _await_result(
    watch: RunWatch,
    notifications: SimpleQueue[str],
    function: Callable[..., Result],
    arguments: tuple[Any, ...],
    timeout: float | None,
    cancel: Cancellation | None,
) -> Result:
    start = time.monotonic()
    if cancel is not None and cancel.cancelled:
        raise _cancelled_error(watch, 0.0)
    task = _HelperTask(watch, function, arguments)
    try:
        _run_in_helper(task)
        try:
            notification = notifications.get(timeout=timeout)
        except Empty:
            raise _timeout_error(watch, timeout or 0.0) from None
        if notification is _CANCELLED and not task.done:
            raise _cancelled_error(watch, time.monotonic() - start)
    except BaseException:
        watch.abandoned = True
        _await_end(task, notifications)
        raise
    result: Result = task.result()
    return result


def _await_end(task: _HelperTask, notifications: SimpleQueue[str]) -> None:
    end = time.monotonic() + _GRACE
    while not task.done and (remaining := end - time.monotonic()) > 0:
        try:
            notifications.get(timeout=remaining)
        except Empty:
            return


def _timeout_error(watch: RunWatch, timeout: float) -> RunTimeoutError:
    hint = "allow more time with timeout=; `weft profile` shows where the time goes"
    return RunTimeoutError(f"the run was not done after {timeout:g} s; it was {watch.describe()}", hint=hint)


def _cancelled_error(watch: RunWatch, seconds: float) -> RunCancelledError:
    return RunCancelledError(f"the run was cancelled after {seconds:.3g} s; it was {watch.describe()}")


# -- event loops -----------------------------------------------------------------------------------------------------


class _EventLoopNotifier:
    """Wakes a coroutine from another thread."""

    def __init__(self, loop: AbstractEventLoop) -> None:
        self._loop = loop
        self.first: Future[str] = loop.create_future()

    def put(self, item: str, /) -> None:
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._wake, item)

    def _wake(self, item: str) -> None:
        if not self.first.done():
            self.first.set_result(item)


async def await_run(
    function: Callable[..., Result], *arguments: Any, timeout: float | None = None, cancel: Cancellation | None = None
) -> Result:
    """Await a function that runs in a helper thread; cancelling the asyncio task abandons the run."""
    import asyncio  # slow to import; a caller in an event loop has imported it

    start = time.monotonic()
    notifier = _EventLoopNotifier(asyncio.get_running_loop())
    watch = RunWatch(notifier)
    task = _HelperTask(watch, function, arguments)
    if cancel is not None:
        cancel._join(watch)
    try:
        if cancel is not None and cancel.cancelled:
            raise _cancelled_error(watch, 0.0)
        _enqueue(task)
        await asyncio.wait({notifier.first}, timeout=timeout)
        if not notifier.first.done():
            raise _timeout_error(watch, timeout or 0.0)
        if notifier.first.result() is _CANCELLED and not task.done:
            raise _cancelled_error(watch, time.monotonic() - start)
    except BaseException:
        watch.abandoned = True
        raise
    finally:
        if cancel is not None:
            cancel._leave(watch)
    result: Result = task.result()
    return result


async def await_to_completion(function: Callable[..., Result], *arguments: Any) -> Result:
    """Await a short function that a helper runs to its end even if the asyncio task is cancelled."""
    import asyncio

    notifier = _EventLoopNotifier(asyncio.get_running_loop())
    task = _HelperTask(RunWatch(notifier), function, arguments)
    _run_in_helper(task)
    cancellation: asyncio.CancelledError | None = None
    while not notifier.first.done():
        try:
            await asyncio.wait({notifier.first})
        except asyncio.CancelledError as error:
            cancellation = error
    if cancellation is not None:
        raise cancellation
    result: Result = task.result()
    return result


# -- helpers ---------------------------------------------------------------------------------------------------------


class _HelperTask:
    """A function call that a helper thread makes under a watch."""

    __slots__ = ("_arguments", "_error", "_function", "_result", "done", "watch")

    def __init__(self, watch: RunWatch, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        self.watch = watch
        self._function = function
        self._arguments = arguments
        self._result: Any = None
        self._error: BaseException | None = None
        self.done = False

    def work(self) -> None:
        before, _thread.watch = _thread.watch, self.watch
        try:
            self._result = self._function(*self._arguments)
        except BaseException as error:
            self._error = error
        finally:
            _thread.watch = before
            self.done = True
            self.watch.notifier.put(_DONE)

    def result(self) -> Any:
        error, self._error = self._error, None
        if error is None:
            return self._result
        try:
            raise error
        finally:
            del error  # break the cycle: its traceback refers to this frame


_idle: list[SimpleQueue[_HelperTask | _TaskQueue]] = []  # queues of idle helpers; list.pop and list.append are atomic


def _run_in_helper(task: _HelperTask | _TaskQueue) -> None:
    """Run a task in an idle or new helper thread, or in this thread where no more can be started."""
    try:
        tasks = _idle.pop()
    except IndexError:
        tasks = SimpleQueue()
        thread = threading.Thread(target=_serve, args=(tasks,), name="weft-run", daemon=True)
        try:
            thread.start()
        except RuntimeError:
            task.work()
            return
    tasks.put(task)


def _serve(tasks: SimpleQueue[_HelperTask | _TaskQueue]) -> None:
    while True:
        task = tasks.get()
        task.work()
        del task
        _idle.append(tasks)


class _TaskQueue:
    """Awaited tasks that a helper runs in sequence, skipping abandoned ones."""

    lock = make_lock()
    helpers = 0  # that are running tasks
    waiting: ClassVar[deque[_HelperTask]] = deque()

    def __init__(self, first: _HelperTask) -> None:
        self._next: _HelperTask | None = first

    def work(self) -> None:
        while True:
            task, self._next = self._next, None
            if task is None:
                return
            if not task.watch.abandoned:
                task.work()
            del task
            with _TaskQueue.lock:
                if _TaskQueue.waiting:
                    self._next = _TaskQueue.waiting.popleft()
                else:
                    _TaskQueue.helpers -= 1


def _enqueue(task: _HelperTask) -> None:
    """Run a task in a helper as soon as fewer than MAX_AWAITED are running."""
    with _TaskQueue.lock:
        if _TaskQueue.helpers >= MAX_AWAITED:
            _TaskQueue.waiting.append(task)
            return
        _TaskQueue.helpers += 1
    _run_in_helper(_TaskQueue(task))


def _forget_helpers() -> None:
    """Reset the state in a forked child, which has no helper threads."""
    _idle.clear()
    _TaskQueue.waiting.clear()
    _TaskQueue.helpers = 0


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_helpers)
