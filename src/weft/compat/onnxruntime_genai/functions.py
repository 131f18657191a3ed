"""Functions of the module: logging, and what devices there are."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from weft.compat.onnxruntime_genai.errors import unsupported_error
from weft.runtime.devices import devices

_log = logging.getLogger("weft.compat")
_LOG_OPTIONS = frozenset(
    "enabled ansi_tags warning generate_next_token append_next_tokens hit_eos hit_max_length logits ort_lib "
    "model_input_values model_output_shapes model_output_values model_logits value_stats filename".split()
)


def _has_device(kind: str) -> bool:
    return any(device.name.partition(":")[0] == kind and device.available for device in devices())


def is_cuda_available() -> bool:
    """Whether weft can run on an NVIDIA GPU here."""
    return _has_device("cuda")


def is_webgpu_available() -> bool:
    """Whether weft can run on WebGPU here."""
    return _has_device("webgpu")


def is_dml_available() -> bool:
    """Whether DirectML is available: weft runs such models on WebGPU."""
    return False


def is_openvino_available() -> bool:
    return False


def is_qnn_available() -> bool:
    return False


def get_current_gpu_device_id() -> int:
    return 0


def set_current_gpu_device_id(device_id: int) -> None:
    """Accept the first GPU; another is chosen by the option `device_id` of its provider."""
    if device_id:
        raise unsupported_error(
            "set_current_gpu_device_id", 'call config.set_provider_option("cuda", "device_id", "1")'
        )


def set_log_options(**options: Any) -> None:
    """Accept options of the log, which have no effect: weft logs through `logging`, as "weft"."""
    unknown = [name for name in options if name not in _LOG_OPTIONS]
    if unknown:
        raise RuntimeError(f'Unknown value "{unknown[0]}"')
    if options.get("enabled"):
        _log.info("set_log_options has no effect: weft logs through logging.getLogger('weft')")


def set_log_callback(callback: Callable[[str], object] | None) -> None:
    """Accept a function for messages of onnxruntime-genai, of which there are none."""
    if callback is not None and not callable(callback):
        raise TypeError(f"set_log_callback(): incompatible function arguments: {type(callback).__name__}")


def enable_telemetry_events() -> None:
    """Do nothing: weft sends nothing."""


def disable_telemetry_events() -> None:
    """Do nothing: weft sends nothing."""
