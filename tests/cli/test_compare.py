"""`weft compare` through `main`: planted errors, a wrong peer, and values that cannot be compared."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from cli.test_cli import call, run_error
from frontend.samples import model, node, tensor, value
from models.catalog import CatalogModel, load_catalog, random_inputs
from onnx import TensorProto, numpy_helper

from weft.cli import main

Capture = pytest.CaptureFixture[str]
CATALOG = {entry.name: entry for entry in load_catalog()}


def compare_json(capsys: Capture, *arguments: object) -> tuple[int, Any]:
    code = main(["compare", *map(str, arguments), "--json"])
    printed = capsys.readouterr()
    assert printed.err == ""
    return code, json.loads(printed.out)


def change_weight(entry: CatalogModel, path: Path) -> onnx.NodeProto:
    """Write a copy with one changed weight, and return the node that reads it."""
    proto = onnx.load(entry.file)
    readers: dict[str, list[onnx.NodeProto]] = {}
    for reader in proto.graph.node:
        for name in reader.input:
            readers.setdefault(name, []).append(reader)
    weights = [
        weight
        for weight in proto.graph.initializer
        if weight.data_type == TensorProto.FLOAT
        and np.prod(weight.dims) >= 64
        and len(readers.get(weight.name, ())) == 1
    ]
    weight = weights[len(weights) * 2 // 3]
    content = numpy_helper.to_array(weight).copy()
    content.flat[np.abs(content).argmax()] *= -2
    weight.CopyFrom(numpy_helper.from_array(content, weight.name))
    onnx.save(proto, path)
    return readers[weight.name][0]


@pytest.mark.parametrize(
    "name",
    [
        "reachy-mini__fknetwork",
        "g2p-id__bert_pron",
        *(
            pytest.param(name, marks=pytest.mark.slow(reason="a larger model"))
            for name in ("magika__standard_v3_3_model", "openwakeword__embedding_model", "mobilenet_v3_large")
        ),
    ],
)
def test_changed_weight_is_located(name: str, tmp_path: Path, capsys: Capture, record_property: Any) -> None:
    entry = CATALOG[name]
    if entry.missing:
        record_property("left out", entry.missing)
        pytest.skip(entry.missing)
    culprit = change_weight(entry, tmp_path / "changed.onnx")
    np.savez(tmp_path / "inputs.npz", **random_inputs(entry))
    inputs = ("--input", tmp_path / "inputs.npz", "--devices", "cpu")
    code, record = compare_json(capsys, entry.file, "--against", tmp_path / "changed.onnx", *inputs)
    assert code == 1
    (contender,) = record["contenders"]
    assert contender["first"]["value"] == culprit.output[0]
    assert contender["first"]["op"] == culprit.op_type
    assert [layer["value"] for layer in contender["wrong_alone"]] == [culprit.output[0]]
    assert not contender["agrees"]
    code, record = compare_json(capsys, entry.file, "--against", entry.file, *inputs, "--quick")
    assert code == 0
    assert all(layer["on"]["cpu of " + entry.file.name]["error"] == 0 for layer in record["layers"])


@pytest.fixture
def logistic(tmp_path: Path) -> tuple[Path, Path]:
    """A sigmoid of numbers around -14, and its inputs."""
    built = model(
        [node("Neg", ["x"], ["negative"], "negate"), node("Sigmoid", ["negative"], ["y"], "squash")],
        [value("x", [1, 64])],
        [value("y", [1, 64])],
    )
    onnx.save(built, tmp_path / "logistic.onnx")
    np.save(tmp_path / "x.npy", np.linspace(11, 17, 64, dtype=np.float32)[None])
    return tmp_path / "logistic.onnx", tmp_path / "x.npy"


def test_float64_baseline(logistic: tuple[Path, Path], capsys: Capture) -> None:
    """Near 0, the Sigmoid of onnxruntime is an approximation with errors far above rounding."""
    path, inputs = logistic
    code, record = compare_json(capsys, path, "--devices", "cpu,onnxruntime", "--truth", "--input", inputs)
    assert code == 1
    assert record["base"] == "float64"
    ours, theirs = record["contenders"]
    assert ours["agrees"]
    assert not theirs["agrees"]
    assert theirs["first"]["node"] == "squash"
    assert theirs["first"]["alone"]["departs"]
    assert theirs["first"]["error"] > 1e-4 > 1e-6 > ours["outputs"]["y"]["error"]
    element = theirs["first"]["worst"]
    exact = 1 / (1 + np.exp(np.float64(np.load(inputs)[tuple(element["index"])])))
    assert element["expected"] == pytest.approx(exact, rel=1e-12)


def test_comparison_as_text(logistic: tuple[Path, Path], capsys: Capture) -> None:
    path, inputs = logistic
    code = main(["compare", str(path), "--devices", "reference,cpu,onnxruntime", "--input", str(inputs)])
    printed = capsys.readouterr().out
    assert code == 1
    assert "error against reference" in printed
    assert "cpu agrees with reference in all 2 common layers" in printed
    assert "onnxruntime differs from reference first in layer 1: Sigmoid squash (y)" in printed
    assert "wrong on its own, from equal inputs: layer 1" in printed
    assert "outputs of the unchanged model: y" in printed
    assert "█" in printed


def test_hidden_layers_are_marked(tmp_path: Path, capsys: Capture) -> None:
    nodes = [node("Tanh", [f"v{number}"], [f"v{number + 1}"], f"layer{number}") for number in range(60)]
    path = tmp_path / "chain.onnx"
    onnx.save(model(nodes, [value("v0", [8])], [value("v60", [8])]), path)
    assert main(["compare", str(path), "--quick"]) == 0
    printed = capsys.readouterr().out
    assert "layer59" in printed
    assert "…" in [line.strip() for line in printed.splitlines()]


def test_missing_values_are_listed(logistic: tuple[Path, Path], tmp_path: Path, capsys: Capture) -> None:
    path, inputs = logistic
    other = onnx.load(path)
    other.graph.node[0].output[0] = other.graph.node[1].input[0] = "renamed"
    onnx.save(other, tmp_path / "other.onnx")
    arguments = ["compare", str(path), "--against", str(tmp_path / "other.onnx"), "--devices", "reference"]
    assert main([*arguments, "--input", str(inputs)]) == 0
    printed = capsys.readouterr().out
    assert "1 layers are not compared: the model has no such value" in printed


def test_strings_sequences_and_dynamic_sizes(tmp_path: Path, capsys: Capture) -> None:
    built = model(
        [
            node("NonZero", ["x"], ["places"]),
            node("SplitToSequence", ["x"], ["parts"], axis=0),
            node("Cast", ["x"], ["words"], to=TensorProto.STRING),
            node("ConcatFromSequence", ["parts"], ["again"], axis=0),
        ],
        [value("x", ["n", 3])],
        [value("again", None), value("words", None, TensorProto.STRING), value("places", None, TensorProto.INT64)],
    )
    onnx.save(built, tmp_path / "kinds.onnx")
    code, record = compare_json(capsys, tmp_path / "kinds.onnx", "--devices", "reference,cpu", "--shape", "n=2")
    assert code == 0
    assert [layer["on"]["cpu"]["error"] for layer in record["layers"]] == [0, 0, 0, 0]
    assert record["sizes"] == {"n": 2}


def test_errors(logistic: tuple[Path, Path], capsys: Capture, monkeypatch: Any) -> None:
    path, _ = logistic
    assert "nothing to compare" in run_error(capsys, "compare", path, "--devices", "cpu")
    assert "named twice" in run_error(capsys, "compare", path, "--devices", "cpu,cpu")
    assert "no device" in run_error(capsys, "compare", path, "--devices", "cpu,toaster").lower()
    monkeypatch.setattr("weft.compat.onnxruntime.contender.find_spec", lambda _: None)
    assert "onnxruntime is not installed" in run_error(capsys, "compare", path, "--devices", "cpu,onnxruntime")


def test_onnxruntime_is_not_imported() -> None:
    """It is optional, and slow to import."""
    program = "import sys, weft.cli.compare; assert 'onnxruntime' not in sys.modules"
    assert call("-c", program).returncode == 0


def test_external_weights(tmp_path: Path, capsys: Capture) -> None:
    random = np.random.default_rng(1)
    weights = [tensor(name, random.standard_normal((64, 64)).astype(np.float32)) for name in "ab"]
    built = model(
        [node("MatMul", ["x", "a"], ["h"]), node("MatMul", ["h", "b"], ["y"])],
        [value("x", [2, 64])],
        [value("y", [2, 64])],
        weights,
    )
    onnx.save(built, tmp_path / "outside.onnx", save_as_external_data=True, location="weights.bin", size_threshold=0)
    code, record = compare_json(capsys, tmp_path / "outside.onnx", "--devices", "cpu,onnxruntime")
    assert code == 0
    assert all(layer["on"]["onnxruntime"]["alone"] is not None for layer in record["layers"])
