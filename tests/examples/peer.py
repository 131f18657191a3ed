"""Run onnxruntime behind the part of `weft.Model` that the example programs use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import onnxruntime


class PeerModel:
    def __init__(self, source: Path | onnx.ModelProto) -> None:
        content = source.SerializeToString() if isinstance(source, onnx.ModelProto) else str(source)
        self.session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
        self.inputs = [SimpleNamespace(name=node.name, shape=tuple(node.shape)) for node in self.session.get_inputs()]
        self.outputs = [SimpleNamespace(name=node.name) for node in self.session.get_outputs()]
        self.metadata = SimpleNamespace(properties=self.session.get_modelmeta().custom_metadata_map)

    def run(
        self, inputs: Mapping[str, Any], outputs: Sequence[str] | None = None, keep: bool | Sequence[str] = False
    ) -> dict[str, Any]:
        del keep  # everything is in host memory
        names = list(outputs or [output.name for output in self.outputs])
        return dict(zip(names, self.session.run(names, dict(inputs)), strict=True))

    def __call__(self, array: np.ndarray) -> Any:
        (result,) = self.run({self.inputs[0].name: array}).values()
        return result

    def to_device(self, array: np.ndarray) -> np.ndarray:
        return array
