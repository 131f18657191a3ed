"""Exit codes of all commands, and the page that documents them."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from weft.cli import COMMANDS, main
from weft.cli.parsing import EXIT_CODES

Capture = pytest.CaptureFixture[str]
PAGE = Path(__file__).parents[2] / "docs" / "reference" / "exit-codes.md"
WITHOUT_MODEL = ("demo", "devices", "ops", "cache", "conformance", "completion")
REQUIRED = {
    "optimize": ["out.onnx"],
    "quantize": ["out.onnx", "--to", "fp16"],
    "export": ["-o", "out"],
    "generate": ["text"],
}


@pytest.mark.parametrize("command", COMMANDS)
def test_success(command: str, capsys: Capture) -> None:
    """Help exits with 0, fits 80 columns and ends with examples."""
    assert main([command, "--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert "examples:" in lines
    examples = lines[lines.index("examples:") + 1 :]
    commands = [line.strip() for line in examples if not line.strip().startswith("#")]
    assert 2 <= len(commands) <= 4
    assert any(f"weft {command}" in line for line in commands)


@pytest.mark.parametrize("command", [name for name in COMMANDS if name not in WITHOUT_MODEL])
def test_failure(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([command, "missing.onnx", *REQUIRED.get(command, [])]) == 1
    assert "missing.onnx" in capsys.readouterr().err


@pytest.mark.parametrize("command", COMMANDS)
def test_wrong_usage(command: str, capsys: Capture) -> None:
    assert main([command, "--not-an-option"]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("error: ")


@pytest.mark.skipif(sys.platform == "win32", reason="Ctrl-C goes to groups of processes there")
def test_interrupt() -> None:
    """Ctrl-C ends a command without output."""
    code = (
        "import signal, weft.cli.demo as demo\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs of a shell ignore it\n"
        "demo.recognize_digits = lambda **_: signal.raise_signal(signal.SIGINT)\n"
    )
    code += "from weft.cli import main; raise SystemExit(main(['demo']))"
    completed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert (completed.returncode, completed.stdout, completed.stderr) == (130, "", "")
    assert signal.SIGINT + 128 in EXIT_CODES


@pytest.mark.skipif(os.name == "nt", reason="pipes close differently there")
def test_closed_pipe() -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "weft", "ops"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        child.stdout.close()
        errors = child.stderr.read()
    assert (child.returncode, errors) == (141, "")


def test_page_and_help_list_codes(capsys: Capture) -> None:
    rows = dict(re.findall(r"^\| (\d+) \| (.*) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE))
    assert {int(code) for code in rows} == set(EXIT_CODES)
    assert main(["--help"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    for code, meaning in EXIT_CODES.items():
        assert rows[str(code)].startswith(meaning)
        assert f"{code} {meaning}" in text
