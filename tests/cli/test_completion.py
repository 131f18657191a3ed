"""Completions that real shells offer for the beginning of a line."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from threading import Thread

import onnx
import pytest
from onnx import TensorProto, helper

from weft.cli import COMMANDS, main
from weft.cli.completion import SHELLS, make_script

LINES: dict[str, tuple[str, set[str]]] = {
    "a command": ("weft inf", {"info"}),
    "an option": ("weft run --dev", {"--device"}),
    "a choice": ("weft run model.onnx --precision t", {"tf32"}),
    "a subcommand": ("weft cache v", {"verify"}),
    "a model": ("weft info mod", {"model.onnx"}),
    "a model in a folder": ("weft info folder/", {"folder/other.onnx"}),
    "an input": ("weft run model.onnx --input pix", {"pixels="}),
    "a dim": ("weft plan model.onnx --shape ba", {"batch="}),
    "a device": ("weft run model.onnx --device cp", {"cpu"}),
}
ZSH = """
autoload -U compinit; compinit -u -D
eval "$(<{script})"
report() {{ print -rl -- '-- line' ${{=BUFFER}} >> {answers}; BUFFER= }}
zle -N report
bindkey '^I' complete-word
bindkey '^X' report
print ready > {answers}
"""
"""Ctrl-X writes the words of the line, which Tab has completed, to a file."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with models, a `weft` that runs these sources, and the completion scripts."""
    pytest.importorskip("shtab")
    folder = tmp_path_factory.mktemp("completion")
    value = helper.make_tensor_value_info
    node = helper.make_node("Relu", ["pixels"], ["y"])
    inputs = [value("pixels", TensorProto.FLOAT, ["batch", 2])]
    graph = helper.make_graph([node], "g", inputs, [value("y", TensorProto.FLOAT, ["batch", 2])])
    (folder / "folder").mkdir()
    for name in ("model.onnx", "folder/other.onnx"):
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), folder / name)
    (folder / "notes.txt").touch()
    (folder / "bin").mkdir()
    program = folder / "bin" / "weft"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m weft "$@"\n', encoding="utf-8")
    program.chmod(0o755)
    for shell in SHELLS:
        (folder / shell).write_text(make_script(shell), encoding="utf-8")
    return folder


def complete_lines(shell: str, folder: Path) -> dict[str, set[str]]:
    """Return the words that a shell offers for each of the lines."""
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    environment = {**os.environ, "PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"}
    if shell == "zsh":
        text = _run_zsh(folder, environment)
    else:
        script = _bash(folder / shell) if shell == "bash" else _fish(folder / shell)
        command = [shell, "--norc" if shell == "bash" else "--no-config", "-c", script]
        completed = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)
        assert completed.stderr == ""
        text = completed.stdout
    parts = text.split("-- line\n")[1:]
    return {name: {word.split("\t")[0].strip() for word in part.splitlines()} for name, part in zip(LINES, parts)}


def _bash(script: Path) -> str:
    ask = (
        'ask() { COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); echo "-- line"; _weft; printf "%s\\n" "${COMPREPLY[@]}"; }'
    )
    return "\n".join([f"source {script}", ask, *(f"ask {line}" for line, _ in LINES.values())])


def _run_zsh(folder: Path, environment: dict[str, str]) -> str:
    """Type the lines into an interactive zsh, which completes only in a terminal."""
    import pty

    answers = folder / "answers"
    master, terminal = pty.openpty()
    with subprocess.Popen(
        ["zsh", "-f", "-i"], cwd=folder, env=environment, stdin=terminal, stdout=terminal, stderr=terminal
    ) as process:
        Thread(target=_drain, args=(master,), daemon=True).start()
        try:
            os.write(master, ZSH.format(script=folder / "zsh", answers=answers).encode())
            _wait_for(answers, "ready")
            for number, (line, _) in enumerate(LINES.values(), 1):
                os.write(master, f"{line}\t\x18".encode())
                _wait_for(answers, "-- line\n", number)
        finally:
            process.kill()
    return answers.read_text()


def _drain(terminal: int) -> None:
    with contextlib.suppress(OSError):
        while os.read(terminal, 4096):
            pass


def _wait_for(path: Path, text: str, count: int = 1) -> None:
    deadline = time.monotonic() + 60
    while not path.exists() or path.read_text().count(text) < count:
        assert time.monotonic() < deadline, f"{path} has no {count} × {text!r}"
        time.sleep(0.02)
    time.sleep(0.05)  # the rest of the answer


def _fish(script: Path) -> str:
    return "\n".join([f"source {script}", *(f"echo '-- line'; complete -C '{line}'" for line, _ in LINES.values())])


@pytest.mark.parametrize("shell", SHELLS)
def test_shells_complete(shell: str, folder: Path) -> None:
    offers = complete_lines(shell, folder)
    assert len(offers) == len(LINES)
    for name, (line, words) in LINES.items():
        assert words <= offers[name], f"{line!r}: {offers[name]}"
        assert "notes.txt" not in offers[name], line


def test_every_command_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert set(record) == set(COMMANDS)
    kinds = {option: each["kind"] for each in record["run"]["arguments"] for option in each["options"]}
    assert kinds["--device"] == "devices"
    assert kinds["--input"] == "inputs"
    assert kinds["--json"] == ""


def test_default_shell(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("shtab")
    monkeypatch.setenv("SHELL", "/usr/bin/fish")
    assert main(["completion"]) == 0
    assert "complete -c weft" in capsys.readouterr().out
    monkeypatch.setenv("SHELL", "/bin/tcsh")
    assert main(["completion"]) == 1
    assert "weft completion bash" in capsys.readouterr().err


def test_missing_library(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert main(["completion", "bash"]) == 1
    assert "pip install 'weft-onnx[completion]'" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["nothing"], ["inputs"], ["inputs", "missing.onnx"]])
def test_errors_are_silent(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """While the user types, an error prints nothing."""
    assert main(["completion", "--words", *words]) == 1
    assert capsys.readouterr() == ("", "")
