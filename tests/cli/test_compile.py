"""`weft compile`, and other commands on compiled files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from saved.saved_models import write_model

from weft.cli import main


@pytest.fixture(autouse=True)
def _separate_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("WEFT_KEYS", str(tmp_path / "keys"))
    monkeypatch.chdir(tmp_path)
    write_model(tmp_path / "m.onnx")


def test_compile(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["compile", "m.onnx", "--target", "x86-64-v2", "--target", "native", "--shape", "n=3", "--no-graph"]
    assert main([*arguments, "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["file"] == "m.weft"
    assert record["bytes"] == Path("m.weft").stat().st_size
    assert record["own"] is True
    assert record["graph_bytes"] == 0
    assert [program["target"] for program in record["programs"]] == ["x86-64-v2", "native"]
    assert record["programs"][0]["sizes"] == {"n": 3}
    assert record["programs"][0]["needs"]["cpu"]["architecture"] == "x86_64"
    assert main(["compile", "m.onnx", "-o", "n.weft"]) == 0
    assert "with the model" in capsys.readouterr().out


@pytest.mark.parametrize(
    "command",
    [
        ["run", "m.weft"],
        ["info", "m.weft"],
        ["plan", "m.weft"],
        ["kernels", "m.weft"],
        ["report", "m.weft"],
        ["profile", "m.weft"],
        ["ops", "--missing", "m.weft"],
        ["optimize", "m.weft", "o.onnx"],
        ["compile", "m.weft", "-o", "again.weft"],
    ],
)
def test_other_commands_accept_compiled_files(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compile", "m.onnx"]) == 0
    assert main(command) == 0, capsys.readouterr().err


def test_wrong_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, words in (
        (["m.onnx", "-o", "m.onnx"], "is the model itself"),
        (["m.onnx", "--target", "z80"], "unknown processor 'z80'"),
        (["m.onnx", "--shape", "k=3"], "no dynamic dim 'k'"),
        (["nothing.onnx"], "cannot be read"),
        (["m.onnx", "-o", "nowhere/m.weft"], "cannot be written"),
        (["m.onnx", "--device", "reference"], "nothing to save"),
    ):
        assert main(["compile", *arguments]) == 1
        assert words in " ".join(capsys.readouterr().err.split())
