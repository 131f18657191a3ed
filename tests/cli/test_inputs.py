"""`weft run` on files: which input each is for, derived inputs, batches of images, and written outputs."""

from __future__ import annotations

import io
import json
import struct
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from weft.cli import main, run
from weft.cli.describe_outputs import ClassNames, describe_output
from weft.cli.labels import labels_of_model, read_labels
from weft.cli.save_outputs import find_image, png_bytes
from weft.errors import InputError
from weft.readers import content

Image: Any = pytest.importorskip("PIL.Image")
Capture = pytest.CaptureFixture[str]
PIXELS = (np.arange(48 * 64 * 3).reshape(48, 64, 3) * 5 % 253).astype(np.uint8)
value = helper.make_tensor_value_info


def model(path: Path, nodes: list[Any], inputs: list[Any], outputs: list[Any], **weights: Any) -> Path:
    graph = helper.make_graph(
        nodes, "g", inputs, outputs, [numpy_helper.from_array(array, name) for name, array in weights.items()]
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
    return path


@pytest.fixture
def classifier(tmp_path: Path) -> Path:
    """A classifier of 32 × 32 images with five classes."""
    weights = np.random.default_rng(0).standard_normal((3 * 64, 5)).astype(np.float32)
    nodes = [
        helper.make_node("AveragePool", ["x"], ["p"], kernel_shape=[4, 4], strides=[4, 4]),
        helper.make_node("Flatten", ["p"], ["f"]),
        helper.make_node("MatMul", ["f", "w"], ["logits"]),
    ]
    shapes = value("x", TensorProto.FLOAT, ["n", 3, 32, 32]), value("logits", TensorProto.FLOAT, ["n", 5])
    return model(tmp_path / "classifier.onnx", nodes, [shapes[0]], [shapes[1]], w=weights)


@pytest.fixture
def speech(tmp_path: Path) -> Path:
    """A model that returns its audio, sampling rate, length and state."""
    nodes = [
        helper.make_node("Identity", ["audio"], ["sound"]),
        helper.make_node("Identity", ["sr"], ["rate"]),
        helper.make_node("Identity", ["audio_len"], ["length"]),
        helper.make_node("Identity", ["state"], ["next"]),
    ]
    whole = TensorProto.INT64
    inputs = [
        value("audio", TensorProto.FLOAT, ["n", "t"]),
        value("sr", whole, []),
        value("audio_len", whole, ["n"]),
        value("state", TensorProto.FLOAT, [2, "n", 4]),
    ]
    outputs = [
        value("sound", TensorProto.FLOAT, ["n", "t"]),
        value("rate", whole, []),
        value("length", whole, ["n"]),
        value("next", TensorProto.FLOAT, [2, "n", 4]),
    ]
    return model(tmp_path / "speech.onnx", nodes, inputs, outputs)


@pytest.fixture
def doubled(tmp_path: Path) -> Path:
    """y = 2 x, for images of any size."""
    shape = ["n", 3, "h", "w"]
    node = helper.make_node("Mul", ["x", "two"], ["y"])
    ports = value("x", TensorProto.FLOAT, shape), value("y", TensorProto.FLOAT, shape)
    return model(tmp_path / "doubled.onnx", [node], [ports[0]], [ports[1]], two=np.array(2, np.float32))


@pytest.fixture
def photo(tmp_path: Path) -> Path:
    Image.fromarray(PIXELS).save(tmp_path / "photo.png")
    return tmp_path / "photo.png"


@pytest.fixture
def tone(tmp_path: Path) -> Path:
    data = (np.sin(np.arange(4410) / 20) * 20000).astype("<i2").tobytes()
    form = struct.pack("<4sIHHIIHH", b"fmt ", 16, 1, 1, 44100, 88200, 2, 16)
    body = b"WAVE" + form + struct.pack("<4sI", b"data", len(data)) + data
    (tmp_path / "tone").write_bytes(b"RIFF" + struct.pack("<I", len(body)) + body)
    return tmp_path / "tone"


def record(capsys: Capture, *arguments: object) -> dict[str, Any]:
    code = main(["run", *map(str, arguments), "--device", "cpu", "--json"])
    captured = capsys.readouterr()
    assert code == 0, captured.err
    return {**json.loads(captured.out), "stderr": captured.err}


def error(capsys: Capture, *arguments: object) -> str:
    assert main(["run", *map(str, arguments), "--device", "cpu"]) == 1
    text = capsys.readouterr().err
    assert "error: " in text
    return text


def test_image_classification(classifier: Path, photo: Path, tmp_path: Path, capsys: Capture) -> None:
    """Scores equal those of onnxruntime on an image that Pillow and numpy convert."""
    labels = tmp_path / "labels.txt"
    labels.write_text("n00000001 cat\nn00000002 dog\nn00000003 owl\nn00000004 fox\nn00000005 bee\n")
    result = record(capsys, classifier, photo, "--labels", labels, "--top", 2)
    cut = Image.fromarray(PIXELS).resize((32, 32), Image.Resampling.BILINEAR, box=(8, 0, 56, 48))
    mean, std = np.float32([0.485, 0.456, 0.406]), np.float32([0.229, 0.224, 0.225])
    array = ((np.asarray(cut, np.float32) / 255 - mean) / std).transpose(2, 0, 1)[None]
    (expected,) = onnxruntime.InferenceSession(classifier).run(None, {"x": array.astype(np.float32)})
    (best, second) = result["outputs"][0]["classes"][0]
    order = np.argsort(-expected[0])
    assert [best["label"], second["label"]] == [("cat", "dog", "owl", "fox", "bee")[place] for place in order[:2]]
    shares = np.exp(expected[0] - expected[0].max())
    assert best["probability"] == pytest.approx(shares[order[0]] / shares.sum(), rel=1e-3)
    labels.write_text("cat\ndog\n")
    assert "no output has 2 scores" in record(capsys, classifier, photo, "--labels", labels)["stderr"]
    assert "ImageNet" in result["stderr"]
    assert result["inputs"][0]["how"] in result["stderr"]


def test_files_after_options_and_several_images(classifier: Path, photo: Path, capsys: Capture) -> None:
    assert main(["run", str(classifier), str(photo), "--device", "cpu", str(photo)]) == 0
    text = capsys.readouterr().out
    assert "[2, 3, 32, 32]" in text
    assert "softmax" in text
    assert record(capsys, classifier, photo.parent, "--batch", 1)["inputs"][0]["shape"] == [1, 3, 32, 32]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Seventy images of several sizes."""
    folder = tmp_path / "images"
    folder.mkdir()
    for number in range(70):
        pixels = np.roll(PIXELS, number, axis=1)[: 40 + number % 8]
        Image.fromarray(pixels).save(folder / f"{number:03}.png")
    return folder


def test_folder_runs_in_batches(classifier: Path, folder: Path, tmp_path: Path, capsys: Capture) -> None:
    """A folder gives the rows that single images give, and the table, CSV and JSON name the file of each row."""
    scores = tmp_path / "scores.csv"
    result = record(capsys, classifier, folder, "-o", scores, "--top", 1)
    assert result["batches"] == 3
    assert result["inputs"][0]["shape"] == [32, 3, 32, 32]
    assert result["outputs"][0]["shape"] == [70, 5]
    files = [str(path) for path in sorted(folder.iterdir())]
    assert result["files"] == files
    assert [row[0]["file"] for row in result["outputs"][0]["classes"]] == files
    rows = [line.split(",") for line in scores.read_text().splitlines()]
    assert [row[0] for row in rows] == files
    for number in (0, 31, 32, 69):
        single = record(capsys, classifier, files[number])["outputs"][0]["values"][0]
        assert [float(cell) for cell in rows[number][1:]] == pytest.approx(single, abs=1e-6)
    assert main(["run", str(classifier), str(folder), "--device", "cpu", "-o", str(tmp_path / "scores.json")]) == 0
    text = capsys.readouterr().out
    assert "70 images in 3 batches" in text
    assert "000.png" in text
    assert "62 more samples are not shown" in text
    written = json.loads((tmp_path / "scores.json").read_text())
    assert (written["files"], len(written["logits"])) == (files, 70)


def test_batches_share_the_size_of_the_first_image(
    doubled: Path, folder: Path, tmp_path: Path, capsys: Capture
) -> None:
    """The first image decides an open size for all batches, as it does within one batch."""
    images = sorted(folder.iterdir())
    for options in ((), ("--shape", "h=24")):
        record(capsys, doubled, folder, "-o", tmp_path / "all.npy", *options)
        record(capsys, doubled, images[0], *images[60:70], "-o", tmp_path / "some.npy", *options)
        everything, some = np.load(tmp_path / "all.npy"), np.load(tmp_path / "some.npy")
        np.testing.assert_array_equal(everything[60:], some[1:])


def test_fixed_batches_are_filled(tmp_path: Path, folder: Path, capsys: Capture) -> None:
    ports = [value(name, TensorProto.FLOAT, [8, 3, 32, 32]) for name in ("x", "y")]
    path = model(tmp_path / "fixed.onnx", [helper.make_node("Neg", ["x"], ["y"])], ports[:1], ports[1:])
    result = record(capsys, path, folder)
    assert (result["batches"], result["outputs"][0]["shape"]) == (9, [70, 3, 32, 32])
    three = [f"x={file}" for file in sorted(folder.iterdir())[:3]]
    result = record(capsys, path, "-i", three[0], "-i", three[1], "-i", three[2])
    assert (result["batches"], result["outputs"][0]["shape"]) == (1, [3, 3, 32, 32])


def test_first_run_is_labelled(classifier: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    assert main(["run", str(classifier), "--device", "cpu"]) == 0
    assert "(one run, after a first one)" in capsys.readouterr().out
    monkeypatch.setattr(run, "LONG_RUN", -1.0)
    assert main(["run", str(classifier), "--device", "cpu"]) == 0
    assert "(first run; --repeat N times later ones)" in capsys.readouterr().out
    assert main(["run", str(classifier), "--device", "cpu", "--repeat", "3"]) == 0
    assert "(median of 3 runs, after a first one)" in capsys.readouterr().out


def test_audio_and_derived_inputs(speech: Path, tone: Path, capsys: Capture) -> None:
    result = record(capsys, speech, tone)
    outputs = {item["name"]: item for item in result["outputs"]}
    assert outputs["rate"]["values"] == 16000
    assert outputs["sound"]["shape"] == [1, 1600]
    assert outputs["length"]["values"] == [1600]
    assert outputs["next"]["max"] == 0
    assert "resampled to 16000 Hz" in result["stderr"]
    resampled = record(capsys, speech, "-i", "sr=8000", "-i", f"audio={tone}")
    assert {item["name"]: item["first"] for item in resampled["outputs"]}["length"] == [800]
    state = record(capsys, speech, tone, "-i", "state=@ones", "--rate", 44100)
    outputs = {item["name"]: item for item in state["outputs"]}
    assert (outputs["next"]["min"], outputs["sound"]["shape"]) == (1, [1, 4410])


def test_rate_option_sets_the_rate_input(speech: Path, tone: Path, capsys: Capture) -> None:
    outputs = record(capsys, speech, tone, "--rate", 8000)["outputs"]
    assert {item["name"]: item["first"] for item in outputs}["rate"] == [8000]


def test_wrong_names_and_missing_inputs(speech: Path, classifier: Path, tone: Path, capsys: Capture) -> None:
    assert "did you mean audio=" in error(capsys, speech, "-i", f"adio={tone}")
    assert "no such file" in error(capsys, classifier, "missing.jpg")
    assert "takes float32[n, 3, 32, 32]" in error(capsys, classifier, "-i", "x=missing.jpg")
    assert "unknown kind of generated data" in error(capsys, classifier, "-i", "x=@noise")
    assert "x=3: has the shape []" in error(capsys, classifier, "-i", "x=3")


def test_files_for_several_inputs(tmp_path: Path, capsys: Capture) -> None:
    ports = [value(name, TensorProto.FLOAT, ["n"]) for name in ("a", "b")]
    node = helper.make_node("Add", ["a", "b"], ["y"])
    path = model(tmp_path / "m.onnx", [node], ports, [value("y", TensorProto.FLOAT, ["n"])])
    (tmp_path / "x.json").write_text("[1, 2]")
    (tmp_path / "both.json").write_text('{"a": [1, 2], "b": [3, 4], "more": 5}')
    (tmp_path / "table.csv").write_text("b,a\n3,1\n4,2\n")
    np.savez(tmp_path / "both.npz", a=[1, 2], b=[3, 4])
    folder = tmp_path / "test_data_set_0"
    folder.mkdir()
    for number, (name, array) in enumerate({"a": [1, 2], "b": [3, 4]}.items()):
        tensor = numpy_helper.from_array(np.array(array, np.float32), name)
        (folder / f"input_{number}.pb").write_bytes(tensor.SerializeToString())
    text = error(capsys, path, tmp_path / "x.json")
    assert "several inputs" in text
    assert "a, b" in text
    text = error(capsys, path, "-i", "a=[1,2]")
    assert "input 'b' has no data" in text
    assert "float32[n]" in text
    assert "b=@zeros" in text
    for source in ("both.json", "both.npz", "test_data_set_0"):
        assert record(capsys, path, tmp_path / source)["outputs"][0]["values"] == [4, 6], source
    assert record(capsys, path, "-i", "a=[1,2]", "-i", "b=[3,4]")["outputs"][0]["values"] == [4, 6]
    assert record(capsys, path, tmp_path / "both.npz", "-i", "@random")["inputs"][1]["source"].endswith("both.npz")


def test_standard_input_and_output(
    doubled: Path, photo: Path, capsysbinary: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = SimpleNamespace(buffer=io.BytesIO(photo.read_bytes()), isatty=lambda: False)
    monkeypatch.setattr("sys.stdin", stream)
    content._read_stdin.cache_clear()
    assert main(["run", str(doubled), "-", "--device", "cpu", "-o", "-", "--scale", "1"]) == 0
    captured = capsysbinary.readouterr()
    array = np.load(io.BytesIO(captured.out))
    np.testing.assert_array_equal(
        array[0], np.asarray(Image.fromarray(PIXELS).resize((64, 64), 2)).transpose(2, 0, 1) * 2.0
    )
    assert b"outputs" in captured.err
    content._read_stdin.cache_clear()


def test_outputs_as_files(doubled: Path, photo: Path, tmp_path: Path, capsys: Capture) -> None:
    for name in ("out.npz", "out.npy", "out.json", "out.png", "folder"):
        saved = record(capsys, doubled, photo, "-o", tmp_path / name)["saved"]
        assert Path(saved["y"]).exists()
    whole = np.load(tmp_path / "out.npy")
    np.testing.assert_array_equal(np.load(tmp_path / "out.npz")["y"], whole)
    np.testing.assert_allclose(json.loads((tmp_path / "out.json").read_text())["y"], whole)
    assert sorted(path.name for path in (tmp_path / "folder").iterdir()) == ["y.npy", "y.png"]
    assert Image.open(tmp_path / "out.png").size == (64, 64)
    assert "cannot write .txt files" in error(capsys, doubled, photo, "-o", tmp_path / "out.txt")
    assert "two dims" in error(capsys, doubled, photo, "-o", tmp_path / "out.csv")
    assert "waveform" in error(capsys, doubled, photo, "-o", tmp_path / "out.wav")


def test_bench_profile_and_compare_take_images(classifier: Path, photo: Path, capsys: Capture) -> None:
    source = f"x={photo}"
    assert main(["bench", str(classifier), "--input", source, "--against", "none", "--seconds", "0.1", "--json"]) == 0
    assert "[1, 3, 32, 32]" in capsys.readouterr().out
    assert main(["profile", str(classifier), str(photo), "--device", "cpu", "--repeat", "1", "--json"]) == 0
    assert "ImageNet" in capsys.readouterr().err
    assert main(["compare", str(classifier), str(photo), "--devices", "reference,cpu", "--quick", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["inputs"][0]["source"] == str(photo)


def test_heavy_modules_are_not_imported() -> None:
    names = ("onnx", "llvmlite", "PIL", "weft.opset")
    code = f"import sys, weft.cli.run; print([name for name in {names} if name in sys.modules])"
    completed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert completed.stdout.strip() == "[]"


# -- class names and outputs ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "cat\ndog\n\n",
        "n01440764 cat\nn01443537 dog",
        "0: cat\n1: dog",
        "1 cat\n2 dog",
        '["cat", "dog"]',
        '{"1": "dog", "0": "cat"}',
        '{"cat": 0, "dog": 1}',
        '{"0": ["n01440764", "cat"], "1": ["n01443537", "dog"]}',
        "{0: 'cat', 1: 'dog'}",
    ],
)
def test_labels(text: str, tmp_path: Path) -> None:
    (tmp_path / "labels").write_text(text)
    assert read_labels(str(tmp_path / "labels")) == ("cat", "dog")


def test_labels_of_models(tmp_path: Path) -> None:
    file = str(tmp_path / "m.onnx")
    assert labels_of_model({"names": "{0: 'cat', 1: 'dog'}"}, file)[0] == ("cat", "dog")
    assert labels_of_model({"classes": '["cat", "dog"]'}, file)[0] == ("cat", "dog")
    assert labels_of_model({"labels": "cat,dog"}, file)[0] == ("cat", "dog")
    assert labels_of_model({"names": "{" * 5000}, file)[0] == ()
    assert labels_of_model({"names": "__import__('os')"}, file)[0] == ()
    (tmp_path / "config.json").write_text('{"id2label": {"0": "cat", "1": "dog"}}')
    assert labels_of_model({}, file) == (("cat", "dog"), "config.json next to the model")
    with pytest.raises(InputError, match="no such file"):
        read_labels(str(tmp_path / "none"))
    (tmp_path / "empty").write_text("\n")
    with pytest.raises(InputError, match="no class names"):
        read_labels(str(tmp_path / "empty"))


def test_describe_output() -> None:
    names = ClassNames(("cat", "dog", "owl"), "here")
    scores = np.array([[1.0, 3.0, 2.0]], np.float32)
    result = describe_output("y", scores, names, 2)
    assert [each["label"] for each in result["classes"][0]] == ["dog", "owl"]
    assert result["softmax"]
    probabilities = describe_output("y", np.array([[0.2, 0.5, 0.3]]), names)
    assert not probabilities["softmax"]
    assert probabilities["classes"][0][0]["probability"] == 0.5
    background = describe_output("y", np.array([[5.0, 1.0, 2.0, 3.0]]), names)
    assert background["classes"][0][0]["label"] == "background"
    assert "classes" not in describe_output("embedding", np.ones((1, 512), np.float32)), (
        "no class names, no probabilities, no telling name"
    )
    assert "classes" not in describe_output("y", np.full((1, 3), np.nan), names)
    assert "classes" not in describe_output("speech_probs", np.linspace(0, 0.5, 56)), "one score per sample"
    mixed = describe_output("y", np.array([1.0, np.nan, np.inf, 3.0]))
    assert (mixed["nan"], mixed["infinite"], mixed["min"], mixed["max"]) == (1, 1, 1, 3)
    dicts = describe_output("proba", [{"a": 0.25, "b": 0.75}])
    assert dicts["classes"][0][0]["label"] == "b"
    assert describe_output("y", np.arange(70))["first"] == [0, 1, 2, 3, 4]
    assert "values" not in describe_output("y", np.arange(70))


def test_find_image() -> None:
    random = np.random.default_rng(0)
    depth = random.random((1, 20, 30)) * 40
    assert find_image(depth).shape == (20, 30)  # type: ignore[union-attr]
    assert find_image(random.random((1, 3, 20, 30))).shape == (20, 30, 3)  # type: ignore[union-attr]
    assert find_image(random.random((1, 20, 30, 4))).shape == (20, 30, 4)  # type: ignore[union-attr]
    segments = find_image(random.standard_normal((1, 21, 20, 30)))
    assert segments is not None
    assert segments.shape == (20, 30, 3)
    for shape in ((1, 1000), (1, 84, 8400), (2, 5), (1, 32, 8, 8), (4,), (1, 6, 62)):
        assert find_image(random.random(shape)) is None, shape
    back = np.asarray(Image.open(io.BytesIO(png_bytes(PIXELS))))
    np.testing.assert_array_equal(back, PIXELS)
