"""`model.kernels` and `weft.compare`: what the commands `weft kernels` and `weft compare` show, in Python."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import weft
from weft.cli import main


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file of y = relu(x @ w)."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"], name="product"),
        helper.make_node("Relu", ["h"], ["y"], name="activation"),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 8])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 4])
    w = numpy_helper.from_array(np.random.default_rng(0).standard_normal((8, 4), np.float32), "w")
    model = helper.make_model(
        helper.make_graph(nodes, "g", [x], [y], [w]), ir_version=8, opset_imports=[helper.make_opsetid("", 17)]
    )
    file = tmp_path / "model.onnx"
    onnx.save(model, file)
    return file


def test_kernels_are_those_of_the_command(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kernels = weft.load(path, device="cpu").kernels
    assert main(["kernels", str(path), "--device", "cpu", "-k", "", "--json"]) == 0
    records = json.loads(capsys.readouterr().out)
    assert [kernel.name for kernel in kernels] == [record["name"] for record in records]
    assert [kernel.code for kernel in kernels] == [record["code"] for record in records]
    assert [kernel.ir for kernel in kernels] == [record["ir"] for record in records]
    assert kernels[0].nodes
    assert kernels.sizes == {"batch": 1}
    assert repr(kernels).startswith(f"<{len(kernels)} kernel")
    assert kernels[0].template in str(kernels)
    assert "\n" not in repr(kernels[0])


def test_a_device_without_kernels(path: Path) -> None:
    with pytest.raises(weft.DeviceError, match="builds no kernels"):
        _ = weft.load(path, device="reference").kernels


def test_a_comparison_is_that_of_the_command(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    x = np.linspace(-1, 1, 24, dtype=np.float32).reshape(3, 8)
    comparison = weft.compare(path, {"x": x}, devices=["reference", "cpu"])
    assert comparison.agrees
    assert comparison.base == "reference"
    assert "\n" not in repr(comparison)
    assert "cpu" in str(comparison)
    np.save(path.parent / "x.npy", x)
    main(["compare", str(path), "-i", f"x={path.parent / 'x.npy'}", "--devices", "reference,cpu", "--json"])
    record = json.loads(capsys.readouterr().out)
    (findings,) = comparison.findings
    assert [layer["value"] for layer in record["layers"]] == [layer.value for layer in comparison.layers]
    assert [layer["on"]["cpu"]["error"] for layer in record["layers"]] == [d.error for d in findings.deviations]


def test_a_changed_model_departs(path: Path) -> None:
    changed = weft.load(path, device="cpu")
    changed.set_weight("w", changed.weights["w"] * 2)
    comparison = weft.compare(path, against=b"".join(changed.pool.files.whole() or ()), devices="cpu")
    assert not comparison.agrees
    (findings,) = comparison.findings
    assert comparison.layers[findings.first or 0].value == "h"
    assert weft.compare(changed, devices=("reference", "cpu")).agrees


def test_random_inputs_complete_those_that_are_passed(path: Path) -> None:
    assert weft.compare(path, shapes={"batch": 2}, truth=True, devices=["cpu"], quick=True).agrees
    assert weft.compare(path, devices=["onnxruntime", "cpu"]).agrees


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"devices": "cpu"}, "nothing to compare"),
        ({"devices": ["cpu", "cpu"]}, "named twice"),
        ({"inputs": {"z": 1}}, "no input 'z'"),
        ({"inputs": [1]}, "dict of arrays"),
    ],
)
def test_wrong_arguments(path: Path, options: dict[str, object], problem: str) -> None:
    with pytest.raises(weft.InputError, match=problem):
        weft.compare(path, **options)  # type: ignore[arg-type]


def test_a_missing_file_is_a_file_not_found_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        weft.load(tmp_path / "missing.onnx")
    assert isinstance(caught.value, weft.MissingFileError)
    assert "missing.onnx cannot be read" in str(caught.value)
