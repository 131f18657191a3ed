"""Test the sample programs: valid files, and the same results from onnxruntime, the CPU and the reference."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
SAMPLES = ("resnet_block", "transformer_layer", "lstm", "greedy_decoding")


def load(name: str) -> dict[str, Any]:
    return runpy.run_path(str(EXAMPLES / f"{name}.py"))


def run_onnxruntime(model: onnx.ModelProto, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return dict(zip([output.name for output in session.get_outputs()], session.run(None, inputs)))


@pytest.mark.parametrize("name", SAMPLES)
def test_a_sample_agrees_with_onnxruntime(name: str) -> None:
    program = load(name)
    graph, inputs = program["build"](), program["sample"]()
    model = graph.to_onnx()
    onnx.checker.check_model(model, full_check=True)
    expected = run_onnxruntime(model, inputs)
    for device in ("reference", "cpu"):
        results = graph.compile(device=device).run(inputs)
        assert set(results) == set(expected)
        for key, array in expected.items():
            assert results[key].dtype == array.dtype
            np.testing.assert_allclose(results[key], array, rtol=2e-5, atol=2e-5, err_msg=f"{key} on {device}")


def test_the_decoding_ends_by_a_condition_on_data() -> None:
    program = load("greedy_decoding")
    model = program["build"]().compile(device="cpu")
    lengths = {len(model.run({"start": np.array(start)})["text"]) for start in ([1, 2], [7], [30, 4, 9, 11], [5, 5, 5])}
    assert len(lengths) > 1
