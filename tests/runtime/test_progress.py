"""What is told of a long load: stages, a share that only grows, true times; on terminals and in notebooks."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from weft.runtime import progress
from weft.runtime.progress import LOADING, NotebookLine, Stages, TerminalBar, is_notebook, times


class Heard:
    """A place that keeps what is shown."""

    def __init__(self, *_: object) -> None:
        self.said: list[tuple[str, float]] = []
        self.stopped = False

    def update(self, stage: str, fraction: float) -> None:
        self.said.append((stage, fraction))

    def stop(self) -> None:
        self.stopped = True


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> Heard:
    found = Heard()
    monkeypatch.setattr(progress, "PATIENCE", -1.0)
    monkeypatch.setattr(progress, "_shown", lambda *_: found)
    return found


def test_the_share_of_a_load_only_grows_and_ends_below_all(heard: Heard) -> None:
    stages = Stages("loading", show=True, spans=LOADING)
    stages.stage("reading")
    stages.stage("tracing")
    stages.update(0.5)
    stages.stage("tracing", 0.2)
    for name in ("fold constants", "drop", "simplify arithmetic"):
        stages.stage(name)
    for done in range(11):
        stages.stage("building kernels", done / 10)
    stages.stage("generating code", 1.0)
    stages.stage("saving")
    shares = [share for _, share in heard.said]
    assert shares == sorted(shares)
    assert heard.said[-1] == ("saving", pytest.approx(0.93))
    assert LOADING["building kernels"][0] >= max(share for stage, share in heard.said if stage == "drop") > 0.2
    stages.close()
    assert heard.stopped
    stages.stage("more")
    assert heard.said[-1][0] == "saving"


def test_other_work_says_itself_how_far_it_is(heard: Heard) -> None:
    stages = Stages("tuning", show=True)
    stages.stage("product", 0.7)
    stages.stage("another", 0.1)
    assert heard.said == [("product", 0.7), ("another", 0.1)]


def test_nothing_is_shown_before_patience_ends_or_to_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "_shown", lambda *_: pytest.fail("shown"))
    Stages("loading", show=True).stage("reading")
    monkeypatch.setattr(progress, "PATIENCE", -1.0)
    Stages("loading", show=False).stage("reading")


@pytest.mark.parametrize(
    ("elapsed", "fraction", "said"),
    [
        (3.2, 0.0, "0:03"),
        (10.0, 0.5, "0:10, about 0:10 left"),
        (60.0, 0.25, "1:00, about 3:00 left"),
        (3700.0, 1.0, "1:01:40, about 0:00 left"),
    ],
)
def test_times(elapsed: float, fraction: float, said: str) -> None:
    assert times(elapsed, fraction) == said


def test_a_terminals_bar_counts_from_the_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    now = progress.time.monotonic()
    bar = TerminalBar("loading", now - 75.0)
    try:
        bar.update("building kernels", 0.5)
        (task,) = bar._bar.tasks
        assert task.description == "loading: building kernels"
        assert str(bar._bar.columns[-1].render(task)).startswith("1:15, about 1:15")  # type: ignore[union-attr]
    finally:
        bar.stop()


def test_a_notebook_gets_a_line_that_is_written_again(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []
    handle = SimpleNamespace(update=lambda content, **_: shown.append(content["text/plain"]))

    def display(content: dict[str, str], **_: Any) -> Any:
        shown.append(content["text/plain"])
        return handle

    shell = SimpleNamespace(config={"IPKernelApp": {"connection_file": "kernel.json"}})
    fake = SimpleNamespace(get_ipython=lambda: shell, display=SimpleNamespace(display=display))
    monkeypatch.setitem(sys.modules, "IPython", fake)
    monkeypatch.setattr(progress, "EVERY", 0.0)
    assert is_notebook()
    line = NotebookLine("loading", progress.time.monotonic() - 30.0)
    line.update("tracing", 0.25)
    line.stop()
    assert shown == ["loading", "loading: tracing [ 25%] 0:30, about 1:30 left", ""]
    shell.config = {}
    assert not is_notebook()
    monkeypatch.delitem(sys.modules, "IPython")
    assert not is_notebook()
