"""What a long piece of work is at, for people: a bar on a terminal, a line in a notebook, after a second's patience.

It shows the stage, the time since the work began, and how much is left if all goes on as it went. Work that has the
usual stages of a load knows how far it is by them; other work says it itself.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from rich.text import Text

PATIENCE = 1.0  # seconds
EVERY = 0.1  # seconds between two looks of a notebook's line
SURE = 0.05  # of the work, after which it can be said how long the rest takes
LOADING: Mapping[str, tuple[float, float]] = {  # from where to where a stage of a load goes, of all its time
    "reading": (0.0, 0.08),
    "tracing": (0.08, 0.2),
    "building kernels": (0.3, 0.9),
    "generating code": (0.9, 0.93),
    "saving": (0.93, 1.0),
}
PASSES = (0.2, 0.3)  # what lies between those, each a step of what is left


class Shown(Protocol):
    """Where progress is seen."""

    def update(self, stage: str, fraction: float) -> None: ...

    def stop(self) -> None: ...


class Stages:
    """Tells of the stage that runs and how far it is."""

    def __init__(self, title: str, show: bool, spans: Mapping[str, tuple[float, float]] | None = None) -> None:
        """`spans`: from where to where each stage goes; without them, what stages say of themselves counts."""
        self._title = title
        self._show = show
        self._spans = spans
        self._started = time.monotonic()
        self._bar: Shown | None = None
        self._stage = ""
        self._done = 0.0

    def stage(self, name: str, fraction: float = 0.0) -> None:
        self._stage = name
        self.update(fraction)

    def update(self, fraction: float) -> None:
        if not self._show:
            return
        self._done = self._whole(fraction)
        if self._bar is None and time.monotonic() - self._started > PATIENCE:
            try:
                self._bar = _shown(self._title, self._started)
            except RuntimeError:  # no thread to be had for it
                self._show = False
        if self._bar is not None:
            self._bar.update(self._stage, self._done)

    def _whole(self, fraction: float) -> float:
        """How much of all the work is done; it never goes back."""
        fraction = min(max(fraction, 0.0), 1.0)
        if self._spans is None:
            return fraction
        first, last = self._spans.get(self._stage, PASSES)
        if self._stage not in self._spans:
            first, fraction = max(first, self._done), 0.1
        return max(self._done, first + max(last - first, 0.0) * fraction)

    def close(self) -> None:
        """Take the bar away; what is told from now on is not shown."""
        bar, self._bar, self._show = self._bar, None, False
        if bar is not None:
            bar.stop()


@contextmanager
def stages(title: str) -> Iterator[Stages]:
    """Progress for the duration of a `with` block."""
    seen = is_notebook() or (sys.stderr is not None and sys.stderr.isatty())
    progress = Stages(title, show=seen, spans=LOADING if title == "loading" else None)
    try:
        yield progress
    finally:
        progress.close()


def times(elapsed: float, fraction: float) -> str:
    """How long it took so far, and how long the rest will take, where that can be said."""
    said = _clock(elapsed)
    if fraction < SURE:
        return said
    return f"{said}, about {_clock(elapsed * (1.0 - fraction) / fraction)} left"


def _clock(seconds: float) -> str:
    whole = round(seconds)
    hours, minutes = whole // 3600, whole // 60 % 60
    return f"{hours}:{minutes:02}:{whole % 60:02}" if hours else f"{minutes}:{whole % 60:02}"


# -- where it is seen ------------------------------------------------------------------------------------------------


def is_notebook() -> bool:
    """Whether this process is the kernel of a notebook, whose output is no terminal."""
    found = getattr(sys.modules.get("IPython"), "get_ipython", None)
    with suppress(Exception):  # whatever a shell of someone else's raises
        return found is not None and "IPKernelApp" in found().config
    return False


def _shown(title: str, started: float) -> Shown:
    return NotebookLine(title, started) if is_notebook() else TerminalBar(title, started)


class TerminalBar:
    """A bar that a thread keeps up to date, gone when the work is done."""

    def __init__(self, title: str, started: float) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn
        from rich.text import Text

        class Clock(ProgressColumn):
            """Times as they are now, whenever the work was heard of last."""

            max_refresh = 0.5

            def render(self, task: Any) -> Text:
                return Text(times(time.monotonic() - started, task.completed))

        self._title = title
        columns = TextColumn("{task.description}"), BarColumn(), Clock()
        self._bar = Progress(*columns, console=Console(stderr=True), transient=True)
        self._task = self._bar.add_task(title, total=1.0)
        self._bar.start()

    def update(self, stage: str, fraction: float) -> None:
        self._bar.update(self._task, description=f"{self._title}: {stage}", completed=fraction)

    def stop(self) -> None:
        self._bar.stop()


class NotebookLine:
    """A line of text below a notebook's cell, written again in its place; it needs no widgets."""

    def __init__(self, title: str, started: float) -> None:
        self._title = title
        self._started = started
        self._last = 0.0
        self._handle: Any = sys.modules["IPython"].display.display(_plain(title), raw=True, display_id=True)

    def update(self, stage: str, fraction: float) -> None:
        now = time.monotonic()
        if now - self._last < EVERY:
            return
        self._last = now
        self._write(f"{self._title}: {stage} [{fraction:4.0%}] {times(now - self._started, fraction)}")

    def _write(self, text: str) -> None:
        if self._handle is not None:
            self._handle.update(_plain(text), raw=True)

    def stop(self) -> None:
        self._write("")


def _plain(text: str) -> dict[str, str]:
    return {"text/plain": text}
