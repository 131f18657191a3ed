"""Progress of long work: the stage, the elapsed time, and the time left.

The work reports its stages to `Stages`, which costs almost nothing. On a terminal or in a notebook a thread shows them
after one second, and keeps the clock running during a long step.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import copy_context
from importlib import import_module
from math import ceil
from threading import Event, Thread
from typing import Any

from weft.logs import LOADING
from weft.quantities import escape_unprintable
from weft.runtime.environment import PROGRESS, text_of
from weft.threads import is_pool_worker, make_lock

PATIENCE = 1.0  # seconds before progress is shown
REFRESH_SECONDS = 0.2
STOP_SECONDS = 5.0  # that a terminal may take to clear the line
ESTIMATE_SECONDS = 2.0  # after which the time left is shown
MAX_FRACTION = 0.99  # that is shown before the work is done
MAX_STAGE = 60  # characters of a stage
BAR = 20  # columns
UNICODE_MARKS, ASCII_MARKS = "━─…", "=-~"  # the done and the open part of a bar, and an ellipsis
NODES = 300  # assumed for a model that was not read yet


def expected_seconds(size: int, nodes: int) -> dict[str, float]:
    """Estimate the seconds of each stage of a load; only their ratios matter."""
    return {
        "reading": 0.3 + size * 4e-9,
        "tracing": 0.03 + nodes * 2e-4,
        "simplifying": nodes * 2.5e-4,
        "fusing": 0.1 + nodes * 3e-4,
        "building kernels": 0.3 + nodes * 3e-3,
        "generating code": 0.2,
        "packing weights": 0.2 + size * 5e-9,
        "compiling kernels": 0.2 + nodes * 5e-4,
        "starting": 0.2,
    }


COMPILING = ("loading", "compiling", "exporting")  # titles of work that has the stages of a load
SHARES: Mapping[str, Mapping[str, float]] = {
    "quantizing": {
        "reading": 1.0,
        "calibrating": 4.0,
        "observing values": 2.0,
        "measuring layers": 4.0,
        "measuring the effect of each layer": 4.0,
        "measuring the result": 12.0,
    }
}
"""Relative times of the stages of other work."""


def _expected_stages(title: str) -> Mapping[str, float] | None:
    return expected_seconds(0, NODES) if title in COMPILING else SHARES.get(title)


class Stages:
    """The current stage of some work, and how far it is."""

    def __init__(self, title: str, show: bool, expected: Mapping[str, float] | None = None) -> None:
        """`expected`: seconds of the stages, in order; without them the fraction of each stage is shown."""
        self.subject = title  # of log lines
        self._title = title
        self._expected = expected
        self._spent: dict[str, float] = {}  # seconds of finished stages
        self._started = self._since = self._moved = time.monotonic()
        self._stage = self._detail = ""
        self._fraction = self._most = 0.0
        self._count: Callable[[], int] | None = None
        self._whole = 0
        self._is_over = False
        self._viewer = _Viewer(self) if show else None

    def expect(self, expected: Mapping[str, float]) -> None:
        """Update the expected seconds of stages."""
        if self._expected is not None:
            self._expected = expected

    def stage(self, name: str, fraction: float = 0.0, detail: str = "") -> None:
        """Report the current stage, the fraction of it that is done, and details such as "12 of 87"."""
        if name != self._stage:
            self._end_stage()
            self._stage = name
        self.update(fraction, detail)

    def update(self, fraction: float, detail: str = "") -> None:
        self._count = None
        self._set(fraction, detail)

    def _set(self, fraction: float, detail: str) -> None:
        if fraction != self._fraction:
            self._moved = time.monotonic()
        self._fraction, self._detail = min(max(fraction, 0.0), 1.0), detail

    def follow(self, name: str, count: Callable[[], int], whole: int) -> None:
        """Start a stage that other threads work on; `count` returns how many of `whole` are done."""
        self.stage(name)
        self._count, self._whole = count, whole

    def snapshot(self) -> tuple[str, float, float, float | None]:
        """Return the current stage as text, and the result of `standing`."""
        count = self._count
        if count is not None:
            done = count()
            self._set(done / max(self._whole, 1), f"{done} of {self._whole}")
        return self.text, *self.standing()

    def _end_stage(self) -> None:
        now = time.monotonic()
        if self._stage:
            seconds = now - self._since
            self._spent[self._stage] = self._spent.get(self._stage, 0.0) + seconds
            if self._title:
                LOADING.debug("%s: %s took %.3f s", self.subject, self._stage, seconds)
        self._since = now

    @property
    def elapsed(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._started

    @property
    def is_over(self) -> bool:
        """Whether the work is done and no more progress is shown."""
        return self._is_over

    @property
    def is_seen(self) -> bool:
        """Whether progress is shown now."""
        return self._viewer is not None and self._viewer.is_up

    @property
    def text(self) -> str:
        """The current stage as text."""
        words = f"{self._title}: {self._stage}" if self._stage else self._title
        return escape_unprintable(f"{words} {self._detail}" if self._detail else words)[:MAX_STAGE]

    def standing(self) -> tuple[float, float, float | None]:
        """Return the fraction that is done, which never decreases, the elapsed seconds, and those left, if known."""
        now = time.monotonic()
        elapsed = now - self._started
        if self._expected is None:
            fraction = self._fraction
            is_reliable = fraction > 0.05 and now - self._moved < max(ESTIMATE_SECONDS, elapsed / 4)
            left = elapsed * (1.0 - fraction) / fraction if is_reliable else None
        else:
            left = self._estimate_left(now - self._since)
            fraction = elapsed / (elapsed + left) if elapsed > 0.0 else 0.0
        self._most = max(self._most, min(fraction, MAX_FRACTION))
        return self._most, elapsed, left if elapsed >= ESTIMATE_SECONDS else None

    def _estimate_left(self, within: float) -> float:
        """Estimate the seconds left, at the pace of the finished stages."""
        expected = self._expected or {}
        ahead, later = 0.0, False
        for name, seconds in expected.items():
            ahead += seconds if later else 0.0
            later = later or name == self._stage
        finished = [name for name in self._spent if name in expected]
        past = sum(expected[name] for name in finished)
        pace = max(sum(self._spent[name] for name in finished) / past, 0.1) if past > 0.0 else 1.0
        if not later:  # an unknown stage, before the others
            return pace * sum(seconds for name, seconds in expected.items() if name not in self._spent)
        if self._fraction > 0.05:
            here = within * (1.0 - self._fraction) / self._fraction
        else:
            here = max(pace * expected[self._stage] - within, within * 0.2)
        return here + pace * ahead

    def close(self) -> None:
        """Stop showing progress."""
        viewer, self._viewer, self._is_over = self._viewer, None, True
        if viewer is not None:
            viewer.end()
        self._end_stage()
        self._stage = ""


_display_lock = make_lock()  # held while something is shown: a second line would overwrite the first


class _Viewer:
    """A thread that shows progress once the work takes long."""

    def __init__(self, stages: Stages) -> None:
        self._stages = stages
        self._ended = Event()
        self.is_up = False
        self._thread: Thread | None = None
        try:
            # notebooks find the cell of an output by its context
            self._thread = Thread(target=copy_context().run, args=(self._show,), name="weft-progress", daemon=True)
            self._thread.start()
        except RuntimeError:  # no thread can be started
            self._thread = None

    def _show(self) -> None:
        if self._ended.wait(PATIENCE):
            return
        with suppress(Exception):  # a terminal that was closed, a foreign notebook kernel: the work continues
            display = _make_display()
            try:
                while True:
                    display.update(*self._stages.snapshot())
                    self.is_up = True
                    if self._ended.wait(REFRESH_SECONDS):
                        break
            finally:
                display.stop()

    def end(self) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join(STOP_SECONDS)
        with suppress(RuntimeError):  # free already, in a forked child
            _display_lock.release()


@contextmanager
def stages(title: str) -> Iterator[Stages]:
    """Show progress for the duration of a `with` block; inside another one, only the outer is shown."""
    progress = Stages(
        title, show=_is_watched() and _display_lock.acquire(blocking=False), expected=_expected_stages(title)
    )
    try:
        yield progress
    finally:
        progress.close()


def format_times(elapsed: float, left: float | None) -> str:
    """Format the elapsed time and the time left, if known."""
    return (
        _format_clock(elapsed) if left is None else f"{_format_clock(elapsed)}, about {_format_clock(ceil(left))} left"
    )


def _format_clock(seconds: float) -> str:
    whole = int(seconds)
    hours, minutes = whole // 3600, whole // 60 % 60
    return f"{hours}:{minutes:02}:{whole % 60:02}" if hours else f"{minutes}:{whole % 60:02}"


# -- displays -------------------------------------------------------------------------------------------------------


def _is_watched() -> bool:
    if text_of(PROGRESS) in ("0", "off", "no", "false"):
        return False
    if is_notebook():
        return True
    with suppress(Exception):  # a foreign stream, or one that is closed
        is_redirected = {type(stream).__module__ for stream in (sys.stdout, sys.stderr)} & {"rich.file_proxy"}
        return not is_redirected and not is_pool_worker() and sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
    return False


def is_notebook() -> bool:
    """Whether this process is the kernel of a notebook."""
    get_ipython = getattr(sys.modules.get("IPython"), "get_ipython", None)
    with suppress(Exception):  # any error of a foreign shell
        return get_ipython is not None and "IPKernelApp" in get_ipython().config
    return False


def _make_display() -> NotebookLine | TerminalBar:
    return NotebookLine() if is_notebook() else TerminalBar()


class TerminalBar:
    """A line on standard error, cleared at the end; other output goes above it."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.live import Live

        self._console = Console(stderr=True)
        is_terminal = sys.stdout is not None and sys.stdout.isatty()
        self._live = Live(console=self._console, transient=True, auto_refresh=False, redirect_stdout=is_terminal)
        self._marks = _marks(self._console.encoding)
        self._live.start()

    def update(self, text: str, fraction: float, elapsed: float, left: float | None) -> None:
        from rich.text import Text

        words, done, rest, clock = _fit_line(
            text, fraction, format_times(elapsed, left), self._console.width - 1, self._marks
        )
        line = Text.assemble(words, (done, "green"), (rest, "dim"), clock, no_wrap=True, overflow="crop")
        self._live.update(line, refresh=True)

    def stop(self) -> None:
        self._live.update("")
        self._live.stop()


def _marks(encoding: str) -> str:
    """Return the characters of a bar that the encoding supports."""
    try:
        UNICODE_MARKS.encode(encoding)
    except (UnicodeError, LookupError):
        return ASCII_MARKS
    return UNICODE_MARKS


def _fit_line(text: str, fraction: float, clock: str, width: int, marks: str) -> tuple[str, str, str, str]:
    """Fit words, both parts of a bar and a clock into a line; narrow terminals drop the bar, then the time left."""
    bar = BAR if width >= len(clock) + BAR + 24 else 0
    if width < len(clock) + 24:
        clock = clock.partition(",")[0]
    room = max(width - len(clock) - 1 - (bar and bar + 1), 0)
    words = text if len(text) <= room else f"{text[: max(room - 1, 0)]}{marks[2]}"
    done = int(bar * fraction)
    return f"{words} ", marks[0] * done, f"{marks[1] * (bar - done)}{' ' if bar else ''}", clock


class NotebookLine:
    """A line of text below a notebook's cell, updated in place, without widgets."""

    def __init__(self) -> None:
        self._handle: Any = None
        self._last = ""

    def update(self, text: str, fraction: float, elapsed: float, left: float | None) -> None:
        self._write(f"{text} [{fraction:4.0%}] {format_times(elapsed, left)}")

    def _write(self, text: str) -> None:
        if text == self._last:
            return
        self._last = text
        if self._handle is None:
            self._handle = import_module("IPython").display.display(_as_mime_bundle(text), raw=True, display_id=True)
        else:
            self._handle.update(_as_mime_bundle(text), raw=True)

    def stop(self) -> None:
        self._write("")


def _as_mime_bundle(text: str) -> dict[str, str]:
    return {"text/plain": text}
