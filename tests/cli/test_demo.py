"""`weft demo`: the model in the package classifies its samples."""

from __future__ import annotations

import json
from importlib.resources import files

import numpy as np
import onnx
import pytest
from rich.console import Console

from weft.cli import main
from weft.cli.demo_gallery import GRAY, WARM, draw_blocks, draw_characters, format_gallery

FOLDER = files("weft.cli") / "demo_data"


def labels() -> list[int]:
    with (FOLDER / "digits.npz").open("rb") as file:
        return np.load(file)["labels"].tolist()


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--json"]) == 0
    printed = capsys.readouterr()
    record = json.loads(printed.out)
    assert record["predictions"] == record["truth"] == labels()
    assert record["correct"] == len(labels())
    assert all(0.5 < confidence <= 1 for confidence in record["confidences"])
    assert record["latency_ms"] > 0
    assert record["peak_memory_bytes"] is None or record["peak_memory_bytes"] > 2**20
    model = onnx.load_model_from_string((FOLDER / "digits.onnx").read_bytes())
    assert record["parameters"] == sum(int(np.prod(tensor.dims)) for tensor in model.graph.initializer)
    assert record["weight_bytes"] == 4 * record["parameters"]
    assert isinstance(record["device"], str)


def test_predictions_agree_with_onnxruntime(capsys: pytest.CaptureFixture[str]) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    assert main(["demo", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    with (FOLDER / "digits.npz").open("rb") as file:
        images = (np.load(file)["pixels"][:, None] / 16).astype(np.float32)
    session = onnxruntime.InferenceSession((FOLDER / "digits.onnx").read_bytes(), providers=["CPUExecutionProvider"])
    expected = session.run(None, {"image": images})[0].max(axis=1)
    np.testing.assert_allclose(record["confidences"], expected, rtol=1e-4)


def test_output_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo"]) == 0
    text = capsys.readouterr().out
    assert "\x1b" not in text
    assert f"{len(labels())} of {len(labels())} recognised" in text
    assert text.count("correct\n") + text.count("correct ") >= 2
    for word in ("device", "latency", "memory"):
        assert word in text
    images = text[: text.index("result")]
    assert images.isascii()


def test_demo_data_is_small() -> None:
    assert sum(len((FOLDER / name).read_bytes()) for name in ("digits.onnx", "digits.npz")) < 200_000


def test_unknown_device_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--device", "abacus"]) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("error: ")
    assert "abacus" in printed.err


def test_blocks() -> None:
    image = np.array([[0, 16], [16, 0]], np.uint8)
    (line,) = draw_blocks(image, GRAY)
    assert line.plain == "▀▀"
    colours = [(span.style.color.name, span.style.bgcolor.name) for span in line.spans]
    assert colours == [("#000000", "#ffffff"), ("#ffffff", "#000000")]


def test_characters() -> None:
    (line,) = draw_characters(np.array([[0, 8, 16]], np.uint8))
    assert line.plain[:2] == "  "
    assert line.plain[4:] == "@@"


@pytest.mark.parametrize(("width", "rows"), [(80, 1), (41, 2), (9, 8)])
def test_gallery_wraps_to_the_terminal(width: int, rows: int) -> None:
    console = Console(force_terminal=True, color_system="truecolor", width=width, no_color=False)
    sample = (np.zeros((8, 8), np.uint8), 3, 5, 0.75)
    lines = format_gallery([sample] * 8, console)
    assert sum("5 ✗ (3)" in line.plain for line in lines) == rows
    assert all(line.cell_len <= width for line in lines)


def test_palettes_span_all_levels() -> None:
    levels = np.arange(17, dtype=np.uint8).reshape(1, 17).repeat(2, axis=0)
    for palette in (WARM, GRAY):
        colours = [span.style.color.name for span in draw_blocks(levels, palette)[0].spans]
        assert len(set(colours)) == 17
