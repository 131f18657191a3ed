"""onnxruntime's implementation of onnx's backend interface: load a model, run it on positional inputs."""

from __future__ import annotations

from weft.compat.onnxruntime.backend.backend import OnnxRuntimeBackend

is_compatible = OnnxRuntimeBackend.is_compatible
prepare = OnnxRuntimeBackend.prepare
run = run_model = OnnxRuntimeBackend.run_model
supports_device = OnnxRuntimeBackend.supports_device
