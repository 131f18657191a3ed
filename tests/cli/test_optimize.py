"""`weft optimize` on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest
from frontend.samples import model, node, value

from weft.cli import main


@pytest.fixture
def path(tmp_path: Path) -> Path:
    nodes = [node("Identity", ["x"], ["a"]), node("Relu", ["a"], ["b"]), node("Relu", ["b"], ["y"])]
    onnx.save(model(nodes, [value("x", ["n", 3])], [value("y", ["n", 3])]), tmp_path / "in.onnx")
    return tmp_path / "in.onnx"


def test_table(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["optimize", str(path), str(path.with_name("out.onnx"))]) == 0
    printed = capsys.readouterr().out
    assert "Identity" in printed
    assert main(["optimize", str(path), "-o", str(path.with_name("other.onnx")), "--no-verify"]) == 0
    assert path.with_name("other.onnx").read_bytes() == path.with_name("out.onnx").read_bytes()


def test_json(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = path.with_name("out.onnx")
    assert main(["optimize", str(path), str(out), "--json", "--shape", "n=2", "--growth", "64K", "--exact"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["nodes"] == {"before": 3, "after": 2}
    assert record["ops"]["Identity"] == {"before": 1, "after": 0}
    assert onnx.load(out).graph.input[0].type.tensor_type.shape.dim[0].dim_value == 2


@pytest.mark.parametrize(
    "wrong", [["--growth", "much"], ["--shape", "n"], ["--shape", "m=2"], ["--opset", "3"], ["-o", "x.onnx"]]
)
def test_wrong_usage(path: Path, wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["optimize", str(path), str(path.with_name("out.onnx")), *wrong]) == 1
    assert "hint:" in capsys.readouterr().err
