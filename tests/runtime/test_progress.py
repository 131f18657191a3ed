"""Progress of a long load: stages, a fraction that only grows, times; on terminals and in notebooks."""

from __future__ import annotations

import io
import multiprocessing.process
import os
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from rich.console import Console
from rich.file_proxy import FileProxy

import weft
from weft.runtime import progress
from weft.runtime.progress import NotebookLine, Stages, expected_seconds, format_times, is_notebook, stages

Update = tuple[str, float, float, "float | None"]


class RecordingDisplay:
    """A display that records its updates."""

    def __init__(self) -> None:
        self.updates: list[Update] = []
        self.stopped = 0

    def update(self, *fields: Any) -> None:
        self.updates.append(fields)

    def stop(self) -> None:
        self.stopped += 1

    def await_text(self, text: str) -> None:
        while not any(text in update[0] for update in self.updates):
            time.sleep(0.001)


@pytest.fixture
def recording(monkeypatch: pytest.MonkeyPatch) -> RecordingDisplay:
    recording = RecordingDisplay()
    monkeypatch.setattr(progress, "PATIENCE", 0.0)
    monkeypatch.setattr(progress, "REFRESH_SECONDS", 0.001)
    monkeypatch.setattr(progress, "_make_display", lambda: recording)
    monkeypatch.setattr(progress, "_is_watched", lambda: True)
    return recording


def small(folder: Path) -> Path:
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 4]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [x], [y])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), folder / "m.onnx")
    return folder / "m.onnx"


def test_display_refreshes_during_a_step_and_stops_at_the_end(recording: RecordingDisplay) -> None:
    with stages("loading") as tracker:
        tracker.stage("reading")
        recording.await_text("loading: reading")
        many = len(recording.updates)
        while len(recording.updates) < many + 3:  # without another call of `stage`
            time.sleep(0.001)
        elapsed = [update[2] for update in recording.updates]
        assert elapsed == sorted(elapsed)
        assert elapsed[-1] > elapsed[0]
        tracker.stage("building kernels", 0.5, "4 of 8")
        recording.await_text("loading: building kernels 4 of 8")
        assert tracker.is_seen
    assert recording.stopped == 1
    assert not tracker.is_seen
    many = len(recording.updates)
    tracker.stage("more")
    assert len(recording.updates) == many


def test_fraction_only_grows_and_stays_below_one(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    tracker = Stages("loading", show=False, expected=expected_seconds(10**8, 300))
    shares = []
    steps = [("reading", 0.0), ("tracing", 0.5), ("tracing", 0.2), ("timing it on devices", 0.0), ("tracing", 0.0)]
    steps += [("simplifying", 0.9), ("building kernels", 1.0), ("packing weights", 1.0), ("compiling kernels", 1.0)]
    for name, fraction in [*steps, ("reading", 0.0), ("unheard of", 1.0), ("starting", 1.0)]:
        tracker.stage(name, fraction)
        for _ in range(5):
            now[0] += 0.7
            share, elapsed, left = tracker.standing()
            assert elapsed == pytest.approx(now[0])
            assert left is None or left >= 0.0
            shares.append(share)
    assert shares == sorted(shares)
    assert 0.0 < shares[0] < shares[-1] <= progress.MAX_FRACTION


def test_remaining_time_follows_the_measured_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    tracker = Stages("loading", show=False, expected={"reading": 1.0, "tracing": 1.0, "packing weights": 2.0})
    tracker.stage("reading")
    now[0] = 10.0  # ten times as long as expected
    tracker.stage("tracing")
    assert tracker.standing() == (pytest.approx(0.25), 10.0, pytest.approx(30.0))
    now[0] = 15.0
    tracker.update(0.25)  # slower still
    assert tracker.standing() == (pytest.approx(0.3), 15.0, pytest.approx(15.0 + 20.0))


def test_overdue_stage_still_has_remaining_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    tracker = Stages("loading", show=False, expected={"reading": 1.0, "packing weights": 0.0})
    tracker.stage("reading")
    now[0] = 100.0
    assert tracker.standing()[2] == pytest.approx(20.0)


def test_other_work_reports_its_own_fraction(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    tracker = Stages("tuning", show=False)
    now[0] = 4.0
    tracker.stage("product", 0.5)
    assert tracker.standing() == (0.5, 4.0, 4.0)
    assert tracker.text == "tuning: product"
    tracker.stage("another", 0.1)
    assert tracker.standing()[0] == 0.5
    tracker.update(0.5)
    now[0] = 100.0
    assert tracker.standing() == (0.5, 100.0, None)  # no progress: the remaining time is unknown


def test_display_needs_patience_an_audience_and_no_outer_display(
    recording: RecordingDisplay, monkeypatch: pytest.MonkeyPatch
) -> None:
    with stages("tuning") as outer:
        outer.stage("products", 0.1)
        with stages("loading") as inner:
            inner.stage("reading")
            recording.await_text("tuning: products")
            assert not inner.is_seen
    assert all(update[0] != "loading: reading" for update in recording.updates)
    assert recording.stopped == 1
    monkeypatch.setattr(progress, "_make_display", lambda: pytest.fail("shown"))
    monkeypatch.setattr(progress, "PATIENCE", 1000.0)
    with stages("loading") as quick:
        quick.stage("reading")
    monkeypatch.setattr(progress, "PATIENCE", 0.0)
    monkeypatch.setattr(progress, "_is_watched", lambda: False)
    with stages("loading") as unseen:
        unseen.stage("reading")
        assert not unseen.is_seen


def test_followed_work_is_polled() -> None:
    tracker, done = Stages("loading", show=False), [0]
    tracker.follow("compiling kernels", lambda: done[0], 8)
    assert tracker.snapshot()[:2] == ("loading: compiling kernels 0 of 8", 0.0)
    done[0] = 4
    assert tracker.snapshot()[:2] == ("loading: compiling kernels 4 of 8", 0.5)
    tracker.stage("starting")
    assert tracker.snapshot()[0] == "loading: starting"


def test_names_are_escaped_and_shortened() -> None:
    tracker = Stages("comparing", show=False)
    tracker.stage("\x1b[2Jlayer\nof [red]many[/red] " + "x" * 1000)
    assert tracker.text.startswith(r"comparing: \x1b[2Jlayer\nof [red]many")
    assert len(tracker.text) <= progress.MAX_STAGE


@pytest.mark.parametrize(
    ("elapsed", "left", "expected"),
    [(3.2, None, "0:03"), (10.0, 10.0, "0:10, about 0:10 left"), (3700.0, 0.0, "1:01:40, about 0:00 left")],
)
def test_format_times(elapsed: float, left: float | None, expected: str) -> None:
    assert format_times(elapsed, left) == expected


@pytest.mark.parametrize(
    ("terminal", "variables", "watched"),
    [
        (True, {}, True),
        (False, {}, False),
        (None, {}, False),
        (True, {"WEFT_PROGRESS": "0"}, False),
        (True, {"WEFT_PROGRESS": "1"}, True),
        (True, {"TERM": "dumb"}, False),
    ],
)
def test_progress_is_shown_on_terminals_only(
    terminal: bool | None, variables: dict[str, str], watched: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    stream = None if terminal is None else SimpleNamespace(isatty=lambda: terminal)
    monkeypatch.setattr(sys, "stdout", None)
    monkeypatch.setattr(sys, "stderr", stream)
    assert progress._is_watched() is watched


def test_progress_is_hidden_beside_a_rich_display(monkeypatch: pytest.MonkeyPatch) -> None:
    console = Console(file=io.StringIO())
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", SimpleNamespace(isatty=lambda: True))
    assert progress._is_watched()
    monkeypatch.setattr(sys, "stdout", FileProxy(console, io.StringIO()))
    assert not progress._is_watched()


def test_progress_is_hidden_in_worker_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", SimpleNamespace(isatty=lambda: True))
    assert progress._is_watched()
    monkeypatch.setattr(multiprocessing.process, "parent_process", lambda: "a process")
    assert not progress._is_watched()


def test_later_devices_show_progress_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[Stages] = []

    class Look:
        is_up = False

        def __init__(self, tracker: Stages) -> None:
            looks.append(tracker)

        def end(self) -> None:
            progress._display_lock.release()

    monkeypatch.setattr(progress, "_Viewer", Look)
    monkeypatch.setattr(progress, "_is_watched", lambda: True)
    model = weft.load(small(tmp_path), device="reference")
    assert [tracker.is_over for tracker in looks] == [True]
    model.on("cpu").run({"x": np.ones((1, 4), np.float32)})
    assert [tracker.is_over for tracker in looks] == [True, True]


def _read_terminal(master: int) -> bytes:
    """Read all output of a closed terminal: the kernel hands it over in pieces, and then reports an error."""
    output = bytearray()
    with suppress(OSError):
        while piece := os.read(master, 1 << 16):
            output += piece
    os.close(master)
    return bytes(output)


@pytest.mark.skipif(not hasattr(os, "openpty"), reason="no pseudo-terminals here")
def test_terminal_bar_is_erased_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    master, slave = os.openpty()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    with open(slave, "w", encoding="utf-8") as terminal:  # noqa: PTH123 (a descriptor)
        monkeypatch.setattr(sys, "stderr", terminal)
        bar = progress.TerminalBar()
        bar.update("loading: building kernels 4 of 8", 0.5, 75.0, 75.0)
        bar.stop()
        assert sys.stderr is terminal
    screen = _read_terminal(master).decode()
    assert "loading: building kernels 4 of 8" in screen
    assert "1:15, about 1:15 left" in screen
    assert screen.rpartition("left")[2].count("\x1b[2K") >= 1  # the line is empty again


@pytest.mark.parametrize("width", [10, 20, 30, 39, 50, 79, 200])
@pytest.mark.parametrize("encoding", ["utf-8", "ascii", "cp437", "nonsense"])
def test_line_fits_its_terminal(width: int, encoding: str) -> None:
    marks = progress._marks(encoding)
    words, done, rest, clock = progress._fit_line("loading: " + "x" * 60, 0.5, "1:15, about 1:15 left", width, marks)
    line = words + done + rest + clock
    assert len(line) <= width
    assert clock.startswith("1:15")
    assert len(done) == len(rest.rstrip())
    if encoding in ("ascii", "cp437"):
        assert line.encode(encoding)


def test_notebook_line_is_updated_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []
    handle = SimpleNamespace(update=lambda content, **_: shown.append(content["text/plain"]))

    def display(content: dict[str, str], **_: Any) -> Any:
        shown.append(content["text/plain"])
        return handle

    shell = SimpleNamespace(config={"IPKernelApp": {"connection_file": "kernel.json"}})
    fake = SimpleNamespace(get_ipython=lambda: shell, display=SimpleNamespace(display=display))
    monkeypatch.setitem(sys.modules, "IPython", fake)
    assert is_notebook()
    line = NotebookLine()
    line.update("loading: tracing", 0.25, 30.0, 90.0)
    line.update("loading: tracing", 0.25, 30.0, 90.0)
    line.stop()
    assert shown == ["loading: tracing [ 25%] 0:30, about 1:30 left", ""]
    shell.config = {}
    assert not is_notebook()
    monkeypatch.delitem(sys.modules, "IPython")
    assert not is_notebook()
