"""onnxruntime's backend of onnx: functions that load a model and run it on inputs by position."""

from __future__ import annotations

from weft.compat.onnxruntime.backend.backend import OnnxRuntimeBackend

is_compatible = OnnxRuntimeBackend.is_compatible
prepare = OnnxRuntimeBackend.prepare
run = run_model = OnnxRuntimeBackend.run_model
supports_device = OnnxRuntimeBackend.supports_device
