"""The Tab key in real shells: what their scripts offer for a line that was begun."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from weft.cli import COMMANDS, main
from weft.cli.completion import all_commands
from weft.cli.completion_scripts import SCRIPTS

LINES: dict[str, tuple[str, set[str]]] = {
    "a command": ("weft inf", {"info"}),
    "an option": ("weft run --dev", {"--device"}),
    "a choice": ("weft run model.onnx --precision t", {"tf32"}),
    "what a command takes": ("weft cache v", {"verify"}),
    "a model": ("weft info mod", {"model.onnx"}),
    "a model in a folder": ("weft info folder/", {"folder/other.onnx"}),
    "an input": ("weft run model.onnx --input pix", {"pixels="}),
    "a dim": ("weft plan model.onnx --shape ba", {"batch="}),
    "a device": ("weft run model.onnx --device cp", {"cpu"}),
}
ZSH = """
source {script}
compadd() {{ while [[ $1 == -* && $1 != -- ]]; do [[ $1 == -S ]] && shift; shift; done; shift; print -l -- $@ }}
_describe() {{ while [[ $1 == -* ]]; do shift; done; local -a all; all=(${{(P)@[-1]}}); print -l -- ${{all%%:*}} }}
_files() {{ print -l -- ${{words[CURRENT]}}*(N) }}
_message() {{ }}
compset() {{ }}
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with models, and a `weft` that runs these sources."""
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
    for shell, script in SCRIPTS.items():
        (folder / "bin" / shell).write_text(script(all_commands()), encoding="utf-8")
    return folder


def offers(shell: str, place: Path) -> dict[str, set[str]]:
    """What a shell offers for each of the lines, asked in one process."""
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    script = {"bash": _bash, "zsh": _zsh, "fish": _fish}[shell](place / "bin" / shell)
    environment = {**os.environ, "PATH": f"{place / 'bin'}{os.pathsep}{os.environ['PATH']}"}
    command = {"bash": ["bash", "--norc"], "zsh": ["zsh", "-f"], "fish": ["fish", "--no-config"]}[shell]
    done = subprocess.run(
        [*command, "-c", script], cwd=place, env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.stderr == ""
    parts = done.stdout.split("-- line\n")[1:]
    return {name: {word.split("\t")[0].strip() for word in part.splitlines()} for name, part in zip(LINES, parts)}


def _bash(script: Path) -> str:
    ask = (
        'ask() { COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); echo "-- line"; _weft; printf "%s\\n" "${COMPREPLY[@]}"; }'
    )
    return "\n".join([f"source {script}", ask, *(f"ask {line}" for line, _ in LINES.values())])


def _zsh(script: Path) -> str:
    asked = [f"words=({line}); CURRENT=$#words; echo '-- line'; _weft" for line, _ in LINES.values()]
    return "\n".join([ZSH.format(script=script), *asked])


def _fish(script: Path) -> str:
    return "\n".join([f"source {script}", *(f"echo '-- line'; complete -C '{line}'" for line, _ in LINES.values())])


@pytest.mark.parametrize("shell", SCRIPTS)
def test_shells_complete(shell: str, place: Path) -> None:
    found = offers(shell, place)
    for name, (line, wanted) in LINES.items():
        assert wanted <= found[name], f"{line!r}: {found[name]}"
        assert "notes.txt" not in found[name], line


def test_every_command_is_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert set(record) == set(COMMANDS)
    kinds = {option: each["kind"] for each in record["run"]["arguments"] for option in each["options"]}
    assert kinds["--device"] == "devices"
    assert kinds["--input"] == "inputs"
    assert kinds["--json"] == ""


def test_the_shell_is_found(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("SHELL", "/usr/bin/fish")
    assert main(["completion"]) == 0
    assert capsys.readouterr().out.startswith("# fish")
    monkeypatch.setenv("SHELL", "/bin/tcsh")
    assert main(["completion"]) == 1
    assert "weft completion bash" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["nothing"], ["inputs"], ["inputs", "not-there.onnx"]])
def test_words_that_cannot_be_told(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Between two keys nobody reads an error."""
    assert main(["completion", "--words", *words]) == 1
    assert capsys.readouterr() == ("", "")
