"""Runs that end before they are done: by Ctrl-C, after a time, or because another thread says so.

Neither a native call nor a step of numpy can be left in the middle. So whoever must not wait for one has a helper do
the work, and waits for it where signals, clocks and other threads reach him (`apart`, `watched`). When he goes, the
helper hears of it between two pieces of work (`check`), and gives the run up: it holds all that it works on until then.
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
from weft.threads import lock, reentrant_lock

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, Future

Made = TypeVar("Made")
Place = Callable[[], str]  # tells where a run is, for people

LARGE = 1 << 20  # bytes of operands with which a step of numpy may take long
MOST_AWAITED = 8  # runs of event loops at a time; each has memory of its own, and threads to share with others
_GRACE = 0.03  # seconds in which a helper may give a run up by itself, before whoever asked for it goes


class Abandoned(BaseException):
    """Nobody waits for this run any more. Never seen by callers."""


class Cancellation:
    """Ends runs from another thread: `model.run(x, cancel=token)` here, `token.cancel()` there.

    One may be given to any number of runs, at once and in turn. Once it is cancelled it stays so.
    """

    def __init__(self) -> None:
        self._cancelled = False
        self._watches: set[RunWatch] = set()
        self._lock = reentrant_lock()  # a signal's handler may cancel what its own thread is about to run

    @property
    def cancelled(self) -> bool:
        """Whether `cancel` was called."""
        return self._cancelled

    def cancel(self) -> None:
        """End the runs that have it: each raises a RunCancelledError, as will all that are given it later."""
        with self._lock:
            self._cancelled = True
            for watch in self._watches:
                watch.news.put(_CANCELLED)

    def __deepcopy__(self, memo: dict[int, Any]) -> Cancellation:
        """Itself: whoever has it waits for the same."""
        return self

    def __copy__(self) -> Cancellation:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        hint = "pass `timeout` to runs in other processes, or end the process"
        raise InputError("a Cancellation ends runs of its own process alone, and cannot be pickled", hint=hint)

    def _join(self, watch: RunWatch) -> None:
        with self._lock:
            self._watches.add(watch)
            if self._cancelled:
                watch.news.put(_CANCELLED)

    def _leave(self, watch: RunWatch) -> None:
        with self._lock:
            self._watches.discard(watch)

    def __repr__(self) -> str:
        return f"<weft.Cancellation: {'cancelled' if self._cancelled else 'not cancelled'}>"


class News(Protocol):
    """Where whoever waits hears of what happens."""

    def put(self, item: str, /) -> None: ...


class RunWatch:
    """What a helper and whoever waits for it share."""

    __slots__ = ("ended", "news", "place")

    def __init__(self, news: News) -> None:
        self.ended = False  # whether nobody waits any more
        self.place: Place | None = None
        self.news = news

    def where(self) -> str:
        place = self.place
        return "before its first step" if place is None else place()


_DONE, _CANCELLED = "done", "cancelled"


class _Present(threading.local):
    watch: RunWatch | None = None


_present = _Present()


def present() -> RunWatch | None:
    """The watch that this thread works under, if any."""
    return _present.watch


def check() -> None:
    """Give up a run for which nobody waits any more: called between pieces of work."""
    watch = _present.watch
    if watch is not None and watch.ended:
        raise Abandoned


def is_large(operands: Sequence[Any]) -> bool:
    """Whether a step of numpy on these may take so long that it is to be done apart."""
    return max([getattr(operand, "nbytes", 0) for operand in operands], default=0) > LARGE


def apart(function: Callable[..., Made], *arguments: Any) -> Made:
    """What a function returns that may take long without a look at signals: Ctrl-C does not wait for it.

    Where no signal can come (in other threads than the main one), it is simply called.
    """
    if _present.watch is not None or threading.get_ident() != threading.main_thread().ident:
        return function(*arguments)
    news: SimpleQueue[str] = SimpleQueue()
    return _await(RunWatch(news), news, function, arguments, None, None)


def watched(
    function: Callable[..., Made], *arguments: Any, timeout: float | None = None, cancel: Cancellation | None = None
) -> Made:
    """What a function returns, in so many seconds at most, and unless it is cancelled."""
    news: SimpleQueue[str] = SimpleQueue()
    watch = RunWatch(news)
    if cancel is None:
        return _await(watch, news, function, arguments, timeout, None)
    cancel._join(watch)
    try:
        return _await(watch, news, function, arguments, timeout, cancel)
    finally:
        cancel._leave(watch)


def _await(
    watch: RunWatch,
    heard: SimpleQueue[str],
    function: Callable[..., Made],
    arguments: tuple[Any, ...],
    timeout: float | None,
    cancel: Cancellation | None,
) -> Made:
    began = time.monotonic()
    if cancel is not None and cancel.cancelled:
        raise _cancelled(watch, 0.0)
    task = _HelpersTask(watch, function, arguments)
    try:
        _hand_over(task)
        try:
            news = heard.get(timeout=timeout)
        except Empty:
            raise _late(watch, timeout or 0.0) from None
        if news is _CANCELLED and not task.done:
            raise _cancelled(watch, time.monotonic() - began)
    except BaseException:
        watch.ended = True
        _await_end(task, heard)
        raise
    made: Made = task.result()
    return made


def _await_end(task: _HelpersTask, heard: SimpleQueue[str]) -> None:
    end = time.monotonic() + _GRACE
    while not task.done and (left := end - time.monotonic()) > 0:
        try:
            heard.get(timeout=left)
        except Empty:
            return


def _late(watch: RunWatch, timeout: float) -> RunTimeoutError:
    hint = "allow more time with timeout=; `weft profile` tells where it goes"
    return RunTimeoutError(f"the run was not done after {timeout:g} s; it was {watch.where()}", hint=hint)


def _cancelled(watch: RunWatch, taken: float) -> RunCancelledError:
    return RunCancelledError(f"the run was cancelled after {taken:.3g} s; it was {watch.where()}")


# -- event loops -----------------------------------------------------------------------------------------------------


class _LoopsNews:
    """Wakes who waits in an event loop."""

    def __init__(self, loop: AbstractEventLoop) -> None:
        self._loop = loop
        self.first: Future[str] = loop.create_future()

    def put(self, item: str, /) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody waits
            self._loop.call_soon_threadsafe(self._wake, item)

    def _wake(self, item: str) -> None:
        if not self.first.done():
            self.first.set_result(item)


async def awaited(
    function: Callable[..., Made], *arguments: Any, timeout: float | None = None, cancel: Cancellation | None = None
) -> Made:
    """What `watched` gives, for who waits in an event loop, which goes on meanwhile: to cancel his task ends it."""
    import asyncio

    began = time.monotonic()
    news = _LoopsNews(asyncio.get_running_loop())
    watch = RunWatch(news)
    task = _HelpersTask(watch, function, arguments)
    if cancel is not None:
        cancel._join(watch)
    try:
        if cancel is not None and cancel.cancelled:
            raise _cancelled(watch, 0.0)
        _take_turn(task)
        await asyncio.wait({news.first}, timeout=timeout)
        if not news.first.done():
            raise _late(watch, timeout or 0.0)
        if news.first.result() is _CANCELLED and not task.done:
            raise _cancelled(watch, time.monotonic() - began)
    except BaseException:
        watch.ended = True
        raise
    finally:
        if cancel is not None:
            cancel._leave(watch)
    made: Made = task.result()
    return made


async def completed(function: Callable[..., Made], *arguments: Any) -> Made:
    """What a short function returns, done to its end by a helper even where who waits for it is cancelled."""
    import asyncio

    news = _LoopsNews(asyncio.get_running_loop())
    task = _HelpersTask(RunWatch(news), function, arguments)
    _hand_over(task)
    left: asyncio.CancelledError | None = None
    while not news.first.done():
        try:
            await asyncio.wait({news.first})
        except asyncio.CancelledError as error:
            left = error
    if left is not None:
        raise left
    made: Made = task.result()
    return made


# -- helpers ---------------------------------------------------------------------------------------------------------


class _HelpersTask:
    """A call that a helper makes under a watch."""

    __slots__ = ("_arguments", "_failed", "_function", "_made", "done", "watch")

    def __init__(self, watch: RunWatch, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        self.watch = watch
        self._function = function
        self._arguments = arguments
        self._made: Any = None
        self._failed: BaseException | None = None
        self.done = False

    def work(self) -> None:
        before, _present.watch = _present.watch, self.watch
        try:
            self._made = self._function(*self._arguments)
        except BaseException as error:
            self._failed = error
        finally:
            _present.watch = before
            self.done = True
            self.watch.news.put(_DONE)

    def result(self) -> Any:
        failed, self._failed = self._failed, None
        if failed is None:
            return self._made
        try:
            raise failed
        finally:
            del failed  # which holds this frame by its traceback


_idle: list[
    SimpleQueue[_HelpersTask | _Turns]
] = []  # of helpers that wait for work; a list's pop and append are atomic


def _hand_over(task: _HelpersTask | _Turns) -> None:
    """Have a helper do it; where the system gives no more threads, it is done here and now."""
    try:
        tasks = _idle.pop()
    except IndexError:
        tasks = SimpleQueue()
        thread = threading.Thread(target=_help, args=(tasks,), name="weft-apart", daemon=True)
        try:
            thread.start()
        except RuntimeError:
            task.work()
            return
    tasks.put(task)


def _help(tasks: SimpleQueue[_HelpersTask | _Turns]) -> None:
    while True:
        task = tasks.get()
        task.work()
        del task
        _idle.append(tasks)


class _Turns:
    """Tasks of event loops, one after the other, of which a helper does those that somebody waits for."""

    lock = lock()
    helpers = 0  # at work on them
    waiting: ClassVar[deque[_HelpersTask]] = deque()

    def __init__(self, first: _HelpersTask) -> None:
        self._next: _HelpersTask | None = first

    def work(self) -> None:
        while True:
            task, self._next = self._next, None
            if task is None:
                return
            if not task.watch.ended:
                task.work()
            del task
            with _Turns.lock:
                if _Turns.waiting:
                    self._next = _Turns.waiting.popleft()
                else:
                    _Turns.helpers -= 1


def _take_turn(task: _HelpersTask) -> None:
    """Have a helper do it, when few enough others are at work."""
    with _Turns.lock:
        if _Turns.helpers >= MOST_AWAITED:
            _Turns.waiting.append(task)
            return
        _Turns.helpers += 1
    _hand_over(_Turns(task))


def _forget_helpers() -> None:
    """In a forked child, where there are none."""
    _idle.clear()
    _Turns.waiting.clear()
    _Turns.helpers = 0


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_helpers)
