"""`weft view`: the file of the page, and when a browser opens."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from report import view_models

from weft.cli import main
from weft.cli import view as command
from weft.report.view import page_path


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "my model.onnx"
    path.write_bytes(view_models.blocks(1))
    return path


def test_the_page_is_named_after_the_model(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["view", str(model), "--device", "cpu"]) == 0
    assert (model.parent / "my model.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    assert "my model.html" in capsys.readouterr().out
    assert page_path(b"bytes") == Path("model.html")


def test_the_page_goes_to_stdout(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["view", str(model), "-o", "-", "--device", "cpu", "--shape", "batch=3"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("<!doctype html>")
    assert '"sizes":{"batch":3}' in shown


def test_json_has_the_data_of_the_page(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["view", str(model), "--json", "--device", "cpu"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert len(data["nodes"]) == 8
    assert data["weights"][0]["shape"] == [16, 16]
    assert not list(model.parent.glob("*.html"))


def test_errors_are_explained(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["view", str(model), "--profile", "none.json"]) == 1
    assert "none.json cannot be read" in capsys.readouterr().err
    assert main(["view", str(model), "--device", "cpu", "--shape", "depth=3"]) == 1
    assert "no dynamic dim 'depth'" in capsys.readouterr().err
    assert main(["view", "gone.onnx"]) == 1
    assert "gone.onnx" in capsys.readouterr().err
    assert main(["view", str(model), "-o", str(model / "page.html"), "--device", "cpu"]) == 1
    assert "cannot write the file" in capsys.readouterr().err


def test_a_browser_opens_only_with_a_display(
    model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", lambda address: bool(opened.append(address)) or True)
    for name in (*command.REMOTE, *command.DISPLAYS):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setenv("DISPLAY", ":0")
    assert not command.has_browser()  # a pipe
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert command.has_browser()
    for name in command.REMOTE:
        with monkeypatch.context() as remote:
            remote.setenv(name, "1")
            assert not command.has_browser()
    assert main(["view", str(model), "--device", "cpu", "--no-open"]) == 0
    assert opened == []
    assert main(["view", str(model), "--device", "cpu"]) == 0
    assert opened == [(model.parent / "my model.html").as_uri()]
    assert "opened in a browser" in capsys.readouterr().out
