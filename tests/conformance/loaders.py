"""Loaders for tests of the conformance workers: onnx's reference evaluator with weft's API, and failing ones."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator


class EvaluatorModel:
    """A model that runs on onnx's reference evaluator."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self._evaluator = ReferenceEvaluator(model)
        self._outputs = [output.name for output in model.graph.output]

    def run(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        return dict(zip(self._outputs, self._evaluator.run(None, dict(inputs)), strict=True))


def hostile(source: Path, device: str) -> Any:
    """Crash, hang, exit, print, raise or return a model with wrong results, depending on the case."""
    match source.parent.name:
        case "test_expand_shape_model1":
            os.kill(os.getpid(), signal.SIGSEGV)
        case "test_expand_shape_model2":
            time.sleep(3600)
        case "test_expand_shape_model3":
            os._exit(3)
        case "test_expand_shape_model4":
            print('{"status": "passed"}', flush=True)
            os.write(1, b"noise\n")
        case "test_shrink":
            raise ValueError("first line\nsecond line " + "long " * 200)
        case "test_sign_model":
            return WrongModel(onnx.load(source))
    return EvaluatorModel(onnx.load(source))


class WrongModel(EvaluatorModel):
    def run(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        return {name: np.asarray(value) + 1 for name, value in super().run(inputs).items()}
