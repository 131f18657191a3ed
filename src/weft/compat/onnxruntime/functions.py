"""onnxruntime's module-level functions: versions, loggers, seeds, and copies of tensors."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from weft.compat.onnxruntime.ignored_options import log_once
from weft.compat.onnxruntime.naming import API_LEVEL
from weft.compat.onnxruntime.options import SessionOptions
from weft.compat.onnxruntime.providers import get_available_providers
from weft.compat.onnxruntime.values import OrtValue
from weft.version import __version__

_LEVELS = (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR, logging.CRITICAL)


def get_version_string() -> str:
    return API_LEVEL


def get_build_info() -> str:
    return f"Build Info: weft {__version__}, with the interface of onnxruntime {API_LEVEL}"


def get_default_session_options() -> SessionOptions:
    return SessionOptions()


def set_default_logger_severity(severity: int) -> None:
    """Set the level of the logger "weft", from 0 (verbose) to 4 (fatal)."""
    if not 0 <= severity < len(_LEVELS):
        raise RuntimeError("Invalid logging severity. 0:Verbose, 1:Info, 2:Warning, 3:Error, 4:Fatal")
    logging.getLogger("weft").setLevel(_LEVELS[severity])


def set_default_logger_verbosity(verbosity: int) -> None:
    log_once("set_default_logger_verbosity has no effect: use set_default_logger_severity")


def set_seed(seed: int) -> None:
    log_once("set_seed has no effect: random ops without a seed attribute draw new numbers in each run")


def disable_telemetry_events() -> None:
    """Do nothing: weft has no telemetry."""


def enable_telemetry_events() -> None:
    log_once("enable_telemetry_events has no effect: weft has no telemetry")


def set_global_thread_pool_sizes(intra_op: int, inter_op: int) -> None:
    log_once("set_global_thread_pool_sizes has no effect: set SessionOptions.intra_op_num_threads")


def has_collective_ops() -> bool:
    return False


def get_ep_devices() -> list[Any]:
    return []


def preload_dlls(cuda: bool = True, cudnn: bool = True, msvc: bool = True, directory: Any = None) -> None:
    """Do nothing: of CUDA, weft needs only NVIDIA's driver, which it finds by itself."""


def print_debug_info() -> None:
    """Print the version and the available providers."""
    print(get_build_info())
    print("providers:", ", ".join(get_available_providers()))


def copy_tensors(src: Sequence[OrtValue], dst: Sequence[OrtValue], stream: Any = None) -> None:
    """Copy tensors into others of the same shapes and types."""
    for source, target in zip(src, dst, strict=True):
        target.update_inplace(source.numpy())
