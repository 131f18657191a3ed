"""`weft tune` through `main`, with a driver that only records."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from backends.cuda.conftest import attach, driver  # noqa: F401
from frontend.samples import model, node, tensor, value

import weft
from weft.cli import main
from weft.runtime import tuning

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    weights = np.random.default_rng(0).standard_normal((512, 512)).astype(np.float32)
    path = tmp_path / "product.onnx"
    onnx.save(
        model(
            [node("MatMul", ["x", "w"], ["p"]), node("Relu", ["p"], ["y"])],
            [value("x", ["batch", 512])],
            [value("y", ["batch", 512])],
            [tensor("w", weights)],
        ),
        path,
    )
    return path


@pytest.fixture
def falling_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every candidate is faster than the one before."""
    times = iter(range(1_000_000, 0, -10_000))
    monkeypatch.setattr(tuning, "recorded_seconds", lambda *_: next(times) * 1e-9)


@pytest.mark.usefixtures("driver", "falling_times")
def test_tune(path: Path, tmp_path: Path, capsys: Capture) -> None:
    written = tmp_path / "tuned.json"
    arguments = ["tune", str(path), "--device", "cuda", "--shape", "batch=256", "--seconds", "600"]
    assert main([*arguments, "-o", str(written), "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["sizes"] == {"batch": 256}
    assert record["hardware"].startswith("NVIDIA H200")
    (product,) = record["products"]
    assert product["best_seconds"] < product["before_seconds"]
    assert " 1x256x512x512 " in product["product"]
    choices = json.loads(written.read_text())["choices"]
    assert choices == {product["product"]: product["best"]}
    assert json.loads(Path(record["kept"]).read_text())["choices"] == choices
    tuned = weft.load(path, device="cuda", tune=written, cache=False).session().whole.program
    before = weft.load(path, device="cuda", cache=False).session().whole.program
    assert str(tuned) != str(before)

    assert main([*arguments, "-o", str(written)]) == 0
    assert "0 products measured, 1 measured before, 0 left" in capsys.readouterr().out
    assert json.loads(written.read_text())["choices"] == choices
    assert main([*arguments, "--again"]) == 0
    printed = capsys.readouterr().out
    assert "1x256x512x512" in printed
    assert "1 products measured, 0 measured before" in printed


@pytest.mark.usefixtures("driver", "falling_times")
def test_choices_depend_on_the_precision(path: Path, capsys: Capture) -> None:
    for precision in ("float32", "tf32", "fast"):
        arguments = ["tune", str(path), "--device", "cuda", "--shape", "batch=256", "--precision", precision]
        assert main([*arguments, "--json"]) == 0
        record = json.loads(capsys.readouterr().out)
        assert (len(record["products"]), record["known"]) == (1, 0)


def test_cpu_cannot_be_tuned(path: Path, capsys: Capture) -> None:
    for device in ("cpu", "reference"):
        assert main(["tune", str(path), "--device", device]) == 1
        assert "nothing to tune" in capsys.readouterr().err


@pytest.mark.usefixtures("driver", "falling_times")
def test_wrong_usage(path: Path, tmp_path: Path, capsys: Capture) -> None:
    assert main(["tune", str(path), "--device", "cuda", "--shape", "rows=4"]) == 1
    assert "rows" in capsys.readouterr().err
    assert main(["tune", str(path), "--device", "cuda", "--seconds", "0"]) == 2
    assert main(["tune", str(path), "--device", "cuda", "-o", str(path / "file")]) == 1
    assert "cannot write" in capsys.readouterr().err
