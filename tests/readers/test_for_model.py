"""`weft.read_inputs`: files for a loaded model in Python, the same as on the command line."""

from __future__ import annotations

import json
import logging
import struct
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import weft
from weft.cli import main

Image: Any = pytest.importorskip("PIL.Image")
value = helper.make_tensor_value_info


def loaded(path: Path, *ports: tuple[str, int, list[int | str]]) -> weft.Model:
    """Every input comes out as it is."""
    nodes = [helper.make_node("Identity", [name], [f"{name}_out"]) for name, _, _ in ports]
    inputs = [value(name, kind, shape) for name, kind, shape in ports]
    outputs = [value(f"{name}_out", kind, shape) for name, kind, shape in ports]
    graph = helper.make_graph(nodes, "g", inputs, outputs)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return weft.load(path, device="reference")


def test_pictures(tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]) -> None:
    pixels = np.random.default_rng(0).integers(0, 255, (40, 60, 3), np.uint8)
    photo = tmp_path / "photo.png"
    Image.fromarray(pixels).save(photo)
    model = loaded(tmp_path / "m.onnx", ("x", TensorProto.FLOAT, ["n", 3, 16, 16]))
    with caplog.at_level(logging.INFO, "weft.inputs"):
        given = weft.read_inputs(model, photo)
    assert "60 × 40" in caplog.text
    arguments = ["run", str(tmp_path / "m.onnx"), str(photo), "--device", "reference", "-o", str(tmp_path / "y.npy")]
    assert main([*arguments, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["outputs"]
    np.testing.assert_array_equal(np.load(tmp_path / "y.npy"), given["x"])
    np.testing.assert_array_equal(model.run(given)["x_out"], given["x"])
    assert weft.read_inputs(model, [str(photo), photo])["x"].shape == (2, 3, 16, 16)
    directed = weft.read_inputs(
        model, {"x": str(photo)}, scale=1, mean=[1, 2, 3], std=2, resize="stretch", colours="bgr"
    )
    plain = np.asarray(Image.fromarray(pixels).resize((16, 16), 2), np.float32)[:, :, ::-1]
    np.testing.assert_allclose(directed["x"][0], ((plain - [1, 2, 3]) / 2).transpose(2, 0, 1), rtol=1e-6)


def test_sound_and_what_follows(tmp_path: Path) -> None:
    form = struct.pack("<4sIHHIIHH", b"fmt ", 16, 1, 1, 48000, 96000, 2, 16)
    body = b"WAVE" + form + struct.pack("<4sI", b"data", 9600) + bytes(9600)
    (tmp_path / "s.wav").write_bytes(b"RIFF" + struct.pack("<I", len(body)) + body)
    whole = TensorProto.INT64
    ports = (("audio", TensorProto.FLOAT, ["n", "t"]), ("sr", whole, []), ("state", TensorProto.FLOAT, [2, "n", 4]))
    model = loaded(tmp_path / "m.onnx", *ports)
    found = weft.read_inputs(model, tmp_path / "s.wav")
    assert {name: array.shape for name, array in found.items()} == {"audio": (1, 1600), "sr": (), "state": (2, 1, 4)}
    assert found["sr"] == 16000
    assert weft.read_inputs(model, {"sr": 8000, "audio": tmp_path / "s.wav"})["audio"].shape == (1, 800)
    again = weft.read_inputs(model, tmp_path / "s.wav", rate=24000)
    assert (again["audio"].shape, again["sr"]) == ((1, 2400), 24000)


def test_values_and_wrong_ones(tmp_path: Path) -> None:
    ports = (("a", TensorProto.FLOAT, ["n", 2]), ("b", TensorProto.STRING, ["n"]))
    model = loaded(tmp_path / "m.onnx", *ports)
    found = weft.read_inputs(model, {"a": [1, 2], "b": "hello"})
    assert found["a"].tolist() == [[1, 2]]
    assert found["b"].tolist() == ["hello"]
    np.savez(tmp_path / "in.npz", a=np.ones((1, 2)), b=np.array(["x"]))
    assert weft.read_inputs(model, tmp_path / "in.npz")["a"].dtype == np.float32
    for source, options, problem in (
        ({"c": 1}, {}, "no input 'c'"),
        ({"a": [1, 2]}, {}, "nothing is given for input 'b'"),
        ({"a": "missing.npy", "b": ""}, {}, "no such file"),
        ("missing.npy", {}, "no such file"),
        (Path("missing.npy"), {}, "no such file"),
        (tmp_path / "m.onnx", {}, "not known which input"),
        ({"a": [1, 2], "b": ""}, {"resize": "shrink"}, "resize must be"),
        ({"a": [1, 2], "b": ""}, {"layout": "ABC"}, "layout must be"),
        ({"a": [1, 2], "b": ""}, {"mean": "grey"}, "mean must be"),
    ):
        with pytest.raises(weft.InputError, match=problem):
            weft.read_inputs(model, source, **options)  # type: ignore[arg-type]
