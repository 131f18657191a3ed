"""Helpers of the GPU scripts, and their checks run on the CPU."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def support(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    import gpu_support

    return gpu_support


def test_missing_weights_are_drawn(support: Any, tmp_path: Path) -> None:
    model = support.build_product_model(2, 3, 4, np.float32, np.zeros((3, 4), np.float32))
    weight = model.graph.initializer[0]
    weight.raw_data, weight.doc_string = b"", "normal 1.0 0.5 7"
    onnx.save(model, tmp_path / "skeleton.onnx")
    filled = support.load_with_weights(tmp_path / "skeleton.onnx")
    actual = onnx.numpy_helper.to_array(filled.graph.initializer[0])
    drawn = np.random.default_rng(7).standard_normal((3, 4), dtype=np.float32)
    np.testing.assert_array_equal(actual, drawn * np.float32(0.5) + np.float32(1))


def test_float16_copy_is_valid_and_close(support: Any) -> None:
    weights = np.random.default_rng(1).standard_normal((8, 5)).astype(np.float32)
    model = support.build_product_model(3, 8, 5, np.float32, weights)
    model.graph.node.append(helper.make_node("Cast", ["n"], ["m"], to=onnx.TensorProto.FLOAT))
    model.graph.node.append(helper.make_node("Add", ["y", "m"], ["z"]))
    model.graph.input.append(helper.make_tensor_value_info("n", onnx.TensorProto.INT64, [5]))
    model.graph.output[0].name = "z"
    half = support.convert_to_float16(model)
    onnx.checker.check_model(half, full_check=True)
    x, n = np.random.default_rng(2).standard_normal((3, 8)).astype(np.float16), np.arange(5)
    session = onnxruntime.InferenceSession(half.SerializeToString(), providers=["CPUExecutionProvider"])
    (actual,) = session.run(None, {"x": x, "n": n})
    assert actual.dtype == np.float16
    np.testing.assert_allclose(actual, x.astype(np.float64) @ weights + n, atol=2e-2)


def test_errors_are_relative_to_the_largest_value(support: Any) -> None:
    expected = {"y": np.array([1.0, -4.0])}
    assert support.relative_error({"y": np.array([1.0, -3.0])}, expected) == 0.25
    assert support.relative_error({"y": np.array([1.0, np.nan])}, expected) == np.inf
    assert support.relative_error({"y": np.array([1.0])}, expected) == np.inf


def test_overdue_process_is_killed(support: Any) -> None:
    result = support.run_limited([sys.executable, "-c", "import time; print('here', flush=True); time.sleep(60)"], 5)
    assert result.code is None
    assert "here" in result.output


@pytest.mark.parametrize("stage", ["runs", "faults", "interop"])
def test_stages_on_the_cpu(stage: str, tmp_path: Path) -> None:
    out = tmp_path / "checks.json"
    command = [str(ROOT / "scripts" / "test-cuda"), str(tmp_path), "--device", "cpu", "--stage", stage]
    process = subprocess.run(
        [sys.executable, *command, "--json", str(out)], capture_output=True, text=True, check=False
    )
    assert process.returncode == 0, process.stdout + process.stderr
    checks = json.loads(out.read_text())["stages"][stage]
    assert checks
    assert not [check for check in checks if check[1] == "FAILED"]


def test_bench_on_the_cpu(tmp_path: Path) -> None:
    out = tmp_path / "bench.json"
    command = [str(ROOT / "scripts" / "bench-gpu"), str(tmp_path), "--device", "cpu", "--peers", "none", "--quick"]
    options = ["--products", "--models", "none", "--precisions", "float32", "--only", "128x768", "--json", str(out)]
    process = subprocess.run([sys.executable, *command, *options], capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stdout + process.stderr
    (case,) = json.loads(out.read_text())["cases"].values()
    assert {"weft strict", "weft float32", "weft float32 constant"} <= case["times"].keys()
