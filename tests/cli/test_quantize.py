"""`weft quantize` through `main`: the table, JSON, data from a folder, and errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from cli.test_cli import run_error
from frontend.samples import model, node, tensor, value

from weft.cli import main

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def linear(tmp_path: Path) -> Path:
    random = np.random.default_rng(7)
    weights = {"w": random.standard_normal((32, 16)), "v": random.standard_normal((16, 8))}
    nodes = [
        node("MatMul", ["x", "w"], ["h"], name="first"),
        node("Relu", ["h"], ["r"]),
        node("MatMul", ["r", "v"], ["y"], name="second"),
    ]
    initializers = [tensor(name, array.astype(np.float32)) for name, array in weights.items()]
    path = tmp_path / "linear.onnx"
    onnx.save(model(nodes, [value("x", ("rows", 32))], [value("y", ("rows", 8))], initializers), path)
    return path


def quantize_json(capsys: Capture, *arguments: object) -> tuple[int, Any]:
    code = main(["quantize", *map(str, arguments), "--device", "cpu", "--json"])
    printed = capsys.readouterr()
    assert printed.err == ""
    return code, json.loads(printed.out)


def test_table(linear: Path, tmp_path: Path, capsys: Capture) -> None:
    out = tmp_path / "out.onnx"
    assert main(["quantize", str(linear), str(out), "--to", "int8", "--device", "cpu"]) == 0
    printed = capsys.readouterr().out
    assert "Without --data" in printed
    for text in ("2 of 2 layers in int8", "size", "time", "error of y", "first", "second", "smaller"):
        assert text in printed
    assert out.is_file()


def test_json_with_data(linear: Path, tmp_path: Path, capsys: Capture) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    for number in range(3):
        array = np.random.default_rng(number).standard_normal((5, 32)).astype(np.float32)
        np.save(folder / f"{number}.npy", array)
    out = tmp_path / "out.onnx"
    code, record = quantize_json(capsys, linear, out, "--to", "int8", "--data", folder, "--keep", "sec*")
    assert code == 0
    assert not record["made_up"]
    assert record["samples"] == 3
    assert [(layer["node"], layer["narrowed"]) for layer in record["layers"]] == [("first", True), ("second", False)]
    assert record["layers"][0]["alone"]["noise"] < 0.05
    assert record["outputs"][0]["name"] == "y"
    assert record["sizes"]["before"] == linear.stat().st_size


def test_budget_is_exceeded(linear: Path, tmp_path: Path, capsys: Capture) -> None:
    """In float16 all layers are converted, except those that --keep names."""
    options = ("--to", "fp16", "--budget", "1e-9", "--shape", "rows=3")
    code, record = quantize_json(capsys, linear, tmp_path / "out.onnx", *options)
    assert code == 1
    assert record["error"] > 1e-9


def test_wrong_usage(linear: Path, tmp_path: Path, capsys: Capture) -> None:
    out = tmp_path / "out.onnx"
    common = ("--to", "int8", "--device", "cpu")
    assert "is the model itself" in run_error(capsys, "quantize", linear, linear, *common)
    assert "no such folder" in run_error(capsys, "quantize", linear, out, *common, "--data", tmp_path / "missing")
    assert "no dynamic dim columns" in run_error(capsys, "quantize", linear, out, *common, "--shape", "columns=3")
    assert "no layer matches" in run_error(capsys, "quantize", linear, out, *common, "--keep", "third")
    assert main(["quantize", str(linear), str(out), *common, "--std", "0,1,1"]) == 2
    assert "form for int8" in run_error(capsys, "quantize", linear, out, *common, "--form", "full")
    assert not out.exists()
    assert main(["quantize", str(linear), str(out), "--to", "int9"]) == 2
