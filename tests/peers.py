"""Run models in onnxruntime, and trace them without passes."""

from __future__ import annotations

from typing import Any

import onnx
import onnxruntime

from weft.backends.reference.interpret import Interpreter
from weft.frontend import read_model
from weft.ir.program import TensorProgram
from weft.ir.verify import verify
from weft.opset.lower import lower
from weft.runtime.model_files import is_defined


def onnxruntime_run(built: onnx.ModelProto, feeds: dict[str, Any]) -> list[Any]:
    """Run a model in onnxruntime without optimisations and logs, and return all outputs."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(built.SerializeToString(), options, ["CPUExecutionProvider"])
    return session.run(None, feeds)


def trace_model(built: onnx.ModelProto) -> TensorProgram:
    """Trace a model into the program before any pass."""
    program = lower(read_model(built, is_defined=is_defined).graph, Interpreter())
    verify(program)
    return program
