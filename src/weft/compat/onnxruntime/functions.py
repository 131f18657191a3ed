"""The functions of onnxruntime's module: versions, loggers, seeds, and copies of tensors."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from weft.compat.onnxruntime.naming import API_LEVEL
from weft.compat.onnxruntime.notes import say
from weft.compat.onnxruntime.options import SessionOptions
from weft.compat.onnxruntime.values import OrtValue

_LEVELS = (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR, logging.CRITICAL)


def get_version_string() -> str:
    return API_LEVEL


def get_build_info() -> str:
    import weft

    return f"Build Info: weft {weft.__version__}, with the interface of onnxruntime {API_LEVEL}"


def get_default_session_options() -> SessionOptions:
    return SessionOptions()


def set_default_logger_severity(severity: int) -> None:
    """From 0, all, to 4, the least: the level of the logger "weft"."""
    if not 0 <= severity < len(_LEVELS):
        raise RuntimeError("Invalid logging severity. 0:Verbose, 1:Info, 2:Warning, 3:Error, 4:Fatal")
    logging.getLogger("weft").setLevel(_LEVELS[severity])


def set_default_logger_verbosity(verbosity: int) -> None:
    say("set_default_logger_verbosity changes nothing: weft's loggers have levels alone")


def set_seed(seed: int) -> None:
    say("set_seed changes nothing: random ops without a seed of their own draw anew in each run")


def disable_telemetry_events() -> None:
    """There is nothing to disable: weft tells nobody anything."""


def enable_telemetry_events() -> None:
    say("enable_telemetry_events changes nothing: weft tells nobody anything")


def set_global_thread_pool_sizes(intra_op: int, inter_op: int) -> None:
    say("set_global_thread_pool_sizes changes nothing: say SessionOptions.intra_op_num_threads")


def has_collective_ops() -> bool:
    return False


def get_ep_devices() -> list[Any]:
    return []


def preload_dlls(cuda: bool = True, cudnn: bool = True, msvc: bool = True, directory: Any = None) -> None:
    """There is nothing to load: weft needs NVIDIA's driver alone, and finds it."""


def print_debug_info() -> None:
    """Print what serves here."""
    from weft.compat.onnxruntime.providers import get_available_providers

    print(get_build_info())
    print("providers:", ", ".join(get_available_providers()))


def copy_tensors(src: Sequence[OrtValue], dst: Sequence[OrtValue], stream: Any = None) -> None:
    """Copy elements of tensors into others, which are of the same shapes and types."""
    for source, target in zip(src, dst, strict=True):
        target.update_inplace(source.numpy())
