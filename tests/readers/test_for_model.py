"""`weft.read_inputs` reads files as `weft run` does."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import soundfile
from onnx import TensorProto, helper

import weft
from weft.cli import main

Image: Any = pytest.importorskip("PIL.Image")
value = helper.make_tensor_value_info


def loaded(path: Path, *ports: tuple[str, int, list[int | str]]) -> weft.Model:
    """Return a model that copies its inputs to its outputs."""
    nodes = [helper.make_node("Identity", [name], [f"{name}_out"]) for name, _, _ in ports]
    inputs = [value(name, kind, shape) for name, kind, shape in ports]
    outputs = [value(f"{name}_out", kind, shape) for name, kind, shape in ports]
    graph = helper.make_graph(nodes, "g", inputs, outputs)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return weft.load(path, device="reference")


def test_images(tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]) -> None:
    pixels = np.random.default_rng(0).integers(0, 255, (40, 60, 3), np.uint8)
    photo = tmp_path / "photo.png"
    Image.fromarray(pixels).save(photo)
    model = loaded(tmp_path / "m.onnx", ("x", TensorProto.FLOAT, ["n", 3, 16, 16]))
    with caplog.at_level(logging.INFO, "weft.inputs"):
        inputs = weft.read_inputs(model, photo)
    assert "60 × 40" in caplog.text
    arguments = ["run", str(tmp_path / "m.onnx"), str(photo), "--device", "reference", "-o", str(tmp_path / "y.npy")]
    assert main([*arguments, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["outputs"]
    np.testing.assert_array_equal(np.load(tmp_path / "y.npy"), inputs["x"])
    np.testing.assert_array_equal(model.run(inputs)["x_out"], inputs["x"])
    assert weft.read_inputs(model, [str(photo), photo])["x"].shape == (2, 3, 16, 16)
    converted = weft.read_inputs(
        model, {"x": str(photo)}, scale=1, mean=[1, 2, 3], std=2, resize="stretch", colours="bgr"
    )
    plain = np.asarray(Image.fromarray(pixels).resize((16, 16), 2), np.float32)[:, :, ::-1]
    np.testing.assert_allclose(converted["x"][0], ((plain - [1, 2, 3]) / 2).transpose(2, 0, 1), rtol=1e-6)


def test_audio_and_derived_inputs(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "s.wav", np.zeros(4800), 48000)
    whole = TensorProto.INT64
    ports = (("audio", TensorProto.FLOAT, ["n", "t"]), ("sr", whole, []), ("state", TensorProto.FLOAT, [2, "n", 4]))
    model = loaded(tmp_path / "m.onnx", *ports)
    inputs = weft.read_inputs(model, tmp_path / "s.wav")
    assert {name: array.shape for name, array in inputs.items()} == {"audio": (1, 1600), "sr": (), "state": (2, 1, 4)}
    assert inputs["sr"] == 16000
    assert weft.read_inputs(model, {"sr": 8000, "audio": tmp_path / "s.wav"})["audio"].shape == (1, 800)
    again = weft.read_inputs(model, tmp_path / "s.wav", rate=24000)
    assert (again["audio"].shape, again["sr"]) == ((1, 2400), 24000)


def test_values_and_wrong_ones(tmp_path: Path) -> None:
    ports = (("a", TensorProto.FLOAT, ["n", 2]), ("b", TensorProto.STRING, ["n"]))
    model = loaded(tmp_path / "m.onnx", *ports)
    inputs = weft.read_inputs(model, {"a": [1, 2], "b": "hello"})
    assert inputs["a"].tolist() == [[1, 2]]
    assert inputs["b"].tolist() == ["hello"]
    np.savez(tmp_path / "in.npz", a=np.ones((1, 2)), b=np.array(["x"]))
    assert weft.read_inputs(model, tmp_path / "in.npz")["a"].dtype == np.float32
    for source, options, problem in (
        ({"c": 1}, {}, "no input 'c'"),
        ({"a": [1, 2]}, {}, "input 'b', .* is missing"),
        ({"a": "missing.npy", "b": ""}, {}, "no such file"),
        ("missing.npy", {}, "no such file"),
        (Path("missing.npy"), {}, "no such file"),
        (tmp_path / "m.onnx", {}, "several inputs could take"),
        ({"a": [1, 2], "b": ""}, {"resize": "shrink"}, "resize must be"),
        ({"a": [1, 2], "b": ""}, {"layout": "ABC"}, "layout must be"),
        ({"a": [1, 2], "b": ""}, {"mean": "grey"}, "mean must be"),
    ):
        with pytest.raises(weft.InputError, match=problem):
            weft.read_inputs(model, source, **options)  # type: ignore[arg-type]
