"""A progress bar that appears only when work on a terminal takes more than a second."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress

PATIENCE = 1.0  # seconds


class Stages:
    """Tells of the stage that runs and how far it is."""

    def __init__(self, title: str, show: bool) -> None:
        self._title = title
        self._show = show
        self._started = time.monotonic()
        self._bar: Progress | None = None
        self._stage = ""

    def stage(self, name: str, fraction: float = 0.0) -> None:
        self._stage = name
        self.update(fraction)

    def update(self, fraction: float) -> None:
        if not self._show:
            return
        if self._bar is None and time.monotonic() - self._started > PATIENCE:
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

            columns = TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn()
            self._bar = Progress(*columns, console=Console(stderr=True), transient=True)
            self._bar.add_task(self._title, total=1.0)
            try:
                self._bar.start()
            except RuntimeError:  # no thread to be had for it
                self._bar, self._show = None, False
        if self._bar is not None:
            task = self._bar.task_ids[0]
            self._bar.update(task, description=f"{self._title}: {self._stage}", completed=fraction)

    def close(self) -> None:
        """Take the bar away; what is told from now on is not shown."""
        bar, self._bar, self._show = self._bar, None, False
        if bar is not None:
            bar.stop()


@contextmanager
def stages(title: str) -> Iterator[Stages]:
    """Progress for the duration of a `with` block."""
    progress = Stages(title, show=sys.stderr is not None and sys.stderr.isatty())
    try:
        yield progress
    finally:
        progress.close()
