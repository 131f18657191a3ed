"""onnx's backend interface on top of InferenceSession, as in onnxruntime."""

from __future__ import annotations

import os
import unittest
from typing import Any

import onnx
from onnx.backend.base import Backend

from weft.compat.onnxruntime.backend.backend_rep import OnnxRuntimeBackendRep, set_options
from weft.compat.onnxruntime.options import SessionOptions
from weft.compat.onnxruntime.providers import get_available_providers, get_device
from weft.compat.onnxruntime.session import InferenceSession

_SESSION_OPTIONS = (
    "enable_cpu_mem_arena enable_mem_pattern enable_mem_reuse execution_mode execution_order graph_optimization_level "
    "inter_op_num_threads intra_op_num_threads log_severity_level log_verbosity_level logid use_deterministic_compute "
    "use_per_session_threads"
)


class OnnxRuntimeBackend(Backend):
    """onnx's backend interface on top of InferenceSession."""

    allowReleasedOpsetsOnly = os.environ.get("ALLOW_RELEASED_ONNX_OPSET_ONLY", "1") == "1"  # noqa: N815

    @classmethod
    def is_compatible(cls, model: Any, device: str | None = None, **_: Any) -> bool:
        return cls.supports_device(device or get_device())

    @classmethod
    def is_opset_supported(cls, model: onnx.ModelProto) -> tuple[bool, str]:
        """Return whether onnx has released all opsets that a model imports, and the reason if not."""
        if cls.allowReleasedOpsetsOnly:
            for opset in model.opset_import:
                domain = opset.domain or "ai.onnx"
                if (domain, opset.version) not in onnx.helper.OP_SET_ID_VERSION_MAP:
                    return False, f"onnx has not released opset {opset.version} of {domain!r}"
        return True, ""

    @classmethod
    def supports_device(cls, device: str) -> bool:
        return ("GPU" if device == "CUDA" else device) in get_device().split("-")

    @classmethod
    def prepare(cls, model: Any, device: str | None = None, **kwargs: Any) -> OnnxRuntimeBackendRep:
        """Load a path, bytes or a ModelProto, or wrap a session; `kwargs` are fields of SessionOptions."""
        if isinstance(model, OnnxRuntimeBackendRep):
            return model
        if isinstance(model, InferenceSession):
            return OnnxRuntimeBackendRep(model)
        if not isinstance(model, (str, bytes)):
            content = model.SerializeToString()
            onnx.checker.check_model(content)
            is_supported, reason = cls.is_opset_supported(model)
            if not is_supported:
                raise unittest.SkipTest(reason)
            return cls.prepare(content, device, **kwargs)
        options = SessionOptions()
        set_options(options, kwargs, tuple(_SESSION_OPTIONS.split()))
        excluded = os.environ.get("ORT_ONNX_BACKEND_EXCLUDE_PROVIDERS", "").split(",")
        providers = [name for name in get_available_providers() if name not in excluded]
        session = InferenceSession(model, options, providers)
        if device is not None and not cls.supports_device(device):
            raise RuntimeError(f"device {device!r} is not available: this installation runs on {get_device()}")
        return OnnxRuntimeBackendRep(session)

    @classmethod
    def run_model(cls, model: Any, inputs: Any, device: str | None = None, **kwargs: Any) -> list[Any]:  # type: ignore[override]
        """Load a model and run it once."""
        return cls.prepare(model, device, **kwargs).run(inputs, **kwargs)

    @classmethod
    def run_node(cls, node: Any, inputs: Any, device: Any = None, outputs_info: Any = None, **kwargs: Any) -> Any:
        raise NotImplementedError("run_node is not supported: make a model of the node and use run_model")


is_compatible = OnnxRuntimeBackend.is_compatible
prepare = OnnxRuntimeBackend.prepare
run = OnnxRuntimeBackend.run_model
supports_device = OnnxRuntimeBackend.supports_device
