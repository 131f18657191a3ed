"""Run a graph of the builder with onnxruntime and with weft, which must agree."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import onnxruntime

import weft


def with_onnxruntime(model: onnx.ModelProto, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the outputs by name."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return dict(zip([output.name for output in session.get_outputs()], session.run(None, dict(inputs))))


def run(graph: weft.Graph, inputs: Mapping[str, Any], devices: tuple[str, ...] = ("reference",)) -> dict[str, Any]:
    """Return onnxruntime's outputs for the graph; weft's must be the same on these devices."""
    model = graph.to_onnx()
    onnx.checker.check_model(model, full_check=True)
    expected = with_onnxruntime(model, inputs)
    for device in devices:
        results = graph.compile(device=device).run(dict(inputs))
        assert list(results) == list(expected)
        for name, array in expected.items():
            assert results[name].dtype == array.dtype, name
            np.testing.assert_allclose(results[name], array, rtol=1e-5, atol=1e-6, err_msg=f"{name} on {device}")
    return expected
