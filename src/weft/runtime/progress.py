"""What a long piece of work is at, for people: the stage, the time since it began, and how much is left.

Whoever works says where it is (`Stages`), which costs next to nothing. Where somebody looks, on a terminal or in a
notebook, a thread shows it after a second's patience, and goes on to show how time passes while one step takes long.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from math import ceil
from threading import Event, Thread
from typing import Any, Protocol

from weft.logs import LOADING
from weft.quantities import printable
from weft.runtime.environment import PROGRESS, text_of
from weft.threads import is_pool_worker, lock

PATIENCE = 1.0  # seconds
EVERY = 0.2  # seconds between two looks
LAST_LOOK = 5.0  # seconds that a terminal may take for it
SURE = 2.0  # seconds after which it can be said how long the rest takes
MOST = 0.99  # of the work that is shown as done before all of it is
LONGEST = 60  # characters of a stage
BAR = 20  # columns
WIDE, PLAIN = "━─…", "=-~"  # the done part of a bar, the other one, and the rest of a text
NODES = 300  # that a model has, as long as nobody knows


def expected_seconds(size: int, nodes: int) -> dict[str, float]:
    """About how long the stages of a load take, for so many bytes and nodes: what counts is how they compare."""
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


COMPILING = ("loading", "compiling", "exporting")  # work that has the stages of a load
SHARES: Mapping[str, Mapping[str, float]] = {
    "quantizing": {
        "reading": 1.0,
        "calibrating": 4.0,
        "looking at values": 2.0,
        "measuring layers": 4.0,
        "what each layer does to the outputs": 4.0,
        "measuring the result": 12.0,
    }
}
"""How stages of other work compare."""


def _expected(title: str) -> Mapping[str, float] | None:
    return expected_seconds(0, NODES) if title in COMPILING else SHARES.get(title)


class Shown(Protocol):
    """Where progress is seen."""

    def update(self, text: str, fraction: float, elapsed: float, left: float | None) -> None: ...

    def stop(self) -> None: ...


class Stages:
    """Tells of the stage that runs and how far it is."""

    def __init__(self, title: str, show: bool, expected: Mapping[str, float] | None = None) -> None:
        """`expected`: how long stages take, in order; without that, what stages say of themselves counts."""
        self.subject = title  # what log lines are about
        self._title = title
        self._expected = expected
        self._spent: dict[str, float] = {}  # seconds in stages that are over
        self._started = self._since = self._moved = time.monotonic()
        self._stage = self._detail = ""
        self._fraction = self._most = 0.0
        self._count: Callable[[], int] | None = None
        self._whole = 0
        self._is_over = False
        self._look = _Look(self) if show else None

    def expect(self, expected: Mapping[str, float]) -> None:
        """Say anew how long stages take, once more is known."""
        if self._expected is not None:
            self._expected = expected

    def stage(self, name: str, fraction: float = 0.0, detail: str = "") -> None:
        """What is done now, which part of it is done, and in words: "12 of 87"."""
        if name != self._stage:
            self._leave()
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
        """A stage that others work at: `count` is asked how many of all are done, whenever somebody looks."""
        self.stage(name)
        self._count, self._whole = count, whole

    def look(self) -> tuple[str, float, float, float | None]:
        """What is done, in words, and what `standing` gives."""
        count = self._count
        if count is not None:
            done = count()
            self._set(done / max(self._whole, 1), f"{done} of {self._whole}")
        return self.text, *self.standing()

    def _leave(self) -> None:
        now = time.monotonic()
        if self._stage:
            seconds = now - self._since
            self._spent[self._stage] = self._spent.get(self._stage, 0.0) + seconds
            if self._title:
                LOADING.debug("%s: %s took %.3f s", self.subject, self._stage, seconds)
        self._since = now

    @property
    def elapsed(self) -> float:
        """Seconds since the work began."""
        return time.monotonic() - self._started

    @property
    def is_over(self) -> bool:
        """Whether the work is done, and nothing more will be shown."""
        return self._is_over

    @property
    def is_seen(self) -> bool:
        """Whether somebody is being shown it."""
        return self._look is not None and self._look.is_up

    @property
    def text(self) -> str:
        """What is done, in words."""
        words = f"{self._title}: {self._stage}" if self._stage else self._title
        return printable(f"{words} {self._detail}" if self._detail else words)[:LONGEST]

    def standing(self) -> tuple[float, float, float | None]:
        """Which part of all is done, which never shrinks; the seconds since the beginning; those left, if known."""
        now = time.monotonic()
        elapsed = now - self._started
        if self._expected is None:
            fraction = self._fraction
            is_known = fraction > 0.05 and now - self._moved < max(SURE, elapsed / 4)
            left = elapsed * (1.0 - fraction) / fraction if is_known else None
        else:
            left = self._left(now - self._since)
            fraction = elapsed / (elapsed + left) if elapsed > 0.0 else 0.0
        self._most = max(self._most, min(fraction, MOST))
        return self._most, elapsed, left if elapsed >= SURE else None

    def _left(self, within: float) -> float:
        """Seconds that are left, if the rest goes as the past did beside what was expected of it."""
        expected = self._expected or {}
        ahead, later = 0.0, False
        for name, seconds in expected.items():
            ahead += seconds if later else 0.0
            later = later or name == self._stage
        known = [name for name in self._spent if name in expected]
        past = sum(expected[name] for name in known)
        pace = max(sum(self._spent[name] for name in known) / past, 0.1) if past > 0.0 else 1.0
        if not later:  # a stage that nothing is known of, before the others
            return pace * sum(seconds for name, seconds in expected.items() if name not in self._spent)
        if self._fraction > 0.05:
            here = within * (1.0 - self._fraction) / self._fraction
        else:
            here = max(pace * expected[self._stage] - within, within * 0.2)
        return here + pace * ahead

    def close(self) -> None:
        """Take away what is shown; what is told from now on is not."""
        look, self._look, self._is_over = self._look, None, True
        if look is not None:
            look.end()
        self._leave()
        self._stage = ""


_only = lock()  # held by whoever shows something: a second line would be written over the first


class _Look:
    """A thread that shows how work stands, once that takes long."""

    def __init__(self, stages: Stages) -> None:
        self._stages = stages
        self._ended = Event()
        self.is_up = False
        self._thread: Thread | None = None
        try:
            from contextvars import copy_context  # a notebook knows by them which cell an output belongs to

            self._thread = Thread(target=copy_context().run, args=(self._work,), name="weft-progress", daemon=True)
            self._thread.start()
        except RuntimeError:  # no thread to be had for it
            self._thread = None

    def _work(self) -> None:
        if self._ended.wait(PATIENCE):
            return
        with suppress(Exception):  # a terminal that went away, a kernel of someone else's: the work goes on
            shown = _shown()
            if shown is None:
                return
            try:
                while True:
                    shown.update(*self._stages.look())
                    self.is_up = True
                    if self._ended.wait(EVERY):
                        break
            finally:
                shown.stop()

    def end(self) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join(LAST_LOOK)
        with suppress(RuntimeError):  # free already, in a forked child
            _only.release()


@contextmanager
def stages(title: str) -> Iterator[Stages]:
    """Progress for the duration of a `with` block. Inside of another one, that is what is seen."""
    progress = Stages(title, show=_is_watched() and _only.acquire(blocking=False), expected=_expected(title))
    try:
        yield progress
    finally:
        progress.close()


def times(elapsed: float, left: float | None) -> str:
    """How long it took so far, and how long the rest will take, where that can be said."""
    return _clock(elapsed) if left is None else f"{_clock(elapsed)}, about {_clock(ceil(left))} left"


def _clock(seconds: float) -> str:
    whole = int(seconds)
    hours, minutes = whole // 3600, whole // 60 % 60
    return f"{hours}:{minutes:02}:{whole % 60:02}" if hours else f"{minutes}:{whole % 60:02}"


# -- where it is seen ------------------------------------------------------------------------------------------------


def _is_watched() -> bool:
    if text_of(PROGRESS) in ("0", "off", "no", "false"):
        return False
    if is_notebook():
        return True
    with suppress(Exception):  # a stream of someone else's, or one that is closed
        taken = {type(stream).__module__ for stream in (sys.stdout, sys.stderr)} & {"rich.file_proxy"}
        return not taken and not is_pool_worker() and sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
    return False


def is_notebook() -> bool:
    """Whether this process is the kernel of a notebook, whose output is no terminal."""
    found = getattr(sys.modules.get("IPython"), "get_ipython", None)
    with suppress(Exception):  # whatever a shell of someone else's raises
        return found is not None and "IPKernelApp" in found().config
    return False


def _shown() -> Shown | None:
    return NotebookLine() if is_notebook() else TerminalBar()


class TerminalBar:
    """A line on standard error, gone when the work is done; what others write meanwhile goes above it."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.live import Live

        self._console = Console(stderr=True)
        is_terminal = sys.stdout is not None and sys.stdout.isatty()
        live = {"transient": True, "auto_refresh": False, "redirect_stdout": is_terminal}
        self._live = Live(console=self._console, **live)  # type: ignore[arg-type]
        self._marks = _marks(self._console.encoding)
        self._live.start()

    def update(self, text: str, fraction: float, elapsed: float, left: float | None) -> None:
        from rich.text import Text

        words, done, rest, clock = _fitted(text, fraction, times(elapsed, left), self._console.width - 1, self._marks)
        line = Text.assemble(words, (done, "green"), (rest, "dim"), clock, no_wrap=True, overflow="crop")
        self._live.update(line, refresh=True)

    def stop(self) -> None:
        self._live.update("")
        self._live.stop()


def _marks(encoding: str) -> str:
    """What the done part of a bar is made of, what the other, and what stands for the rest of a text."""
    try:
        WIDE.encode(encoding)
    except (UnicodeError, LookupError):
        return PLAIN
    return WIDE


def _fitted(text: str, fraction: float, clock: str, width: int, marks: str) -> tuple[str, str, str, str]:
    """A line of words, both parts of a bar and a clock; a narrow terminal has no bar, then no time that is left."""
    bar = BAR if width >= len(clock) + BAR + 24 else 0
    if width < len(clock) + 24:
        clock = clock.partition(",")[0]
    room = max(width - len(clock) - 1 - (bar and bar + 1), 0)
    words = text if len(text) <= room else f"{text[: max(room - 1, 0)]}{marks[2]}"
    done = int(bar * fraction)
    return f"{words} ", marks[0] * done, f"{marks[1] * (bar - done)}{' ' if bar else ''}", clock


class NotebookLine:
    """A line of text below a notebook's cell, written again in its place; it needs no widgets."""

    def __init__(self) -> None:
        self._handle: Any = None
        self._last = ""

    def update(self, text: str, fraction: float, elapsed: float, left: float | None) -> None:
        self._write(f"{text} [{fraction:4.0%}] {times(elapsed, left)}")

    def _write(self, text: str) -> None:
        if text == self._last:
            return
        self._last = text
        if self._handle is None:
            self._handle = sys.modules["IPython"].display.display(_plain(text), raw=True, display_id=True)
        else:
            self._handle.update(_plain(text), raw=True)

    def stop(self) -> None:
        self._write("")


def _plain(text: str) -> dict[str, str]:
    return {"text/plain": text}
