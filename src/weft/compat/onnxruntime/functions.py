"""The functions of onnxruntime's module: what the process says and counts, and what weft does not have."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

from weft.compat.onnxruntime.exceptions import refusal
from weft.compat.onnxruntime.naming import API_LEVEL
from weft.compat.onnxruntime.notes import say
from weft.compat.onnxruntime.options import SessionOptions
from weft.compat.onnxruntime.values import OrtValue

_LEVELS = (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR, logging.CRITICAL)


def get_version_string() -> str:
    return API_LEVEL


def get_build_info() -> str:
    import weft

    return f"weft {weft.__version__}, with the interface of onnxruntime {API_LEVEL}"


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


def refused(name: str, reason: str) -> Callable[..., Any]:
    """A function that weft does not have."""

    def call(*_: Any, **__: Any) -> Any:
        raise refusal(name, reason)

    call.__name__ = call.__qualname__ = name
    return call


create_and_register_allocator = refused("create_and_register_allocator", "weft plans memory, and has no allocators")
create_and_register_allocator_v2 = refused(
    "create_and_register_allocator_v2", "weft plans memory, and has no allocators"
)
register_execution_provider_library = refused(
    "register_execution_provider_library", "weft's devices are Python packages, see docs/guides/devices.md"
)
unregister_execution_provider_library = refused(
    "unregister_execution_provider_library", "weft's devices are Python packages, see docs/guides/devices.md"
)
get_all_operator_schema = refused("get_all_operator_schema", "weft's operators are listed by `weft ops`")
get_all_opkernel_def = refused("get_all_opkernel_def", "weft's operators are listed by `weft ops`")
get_registered_ep_kernel_defs = refused("get_registered_ep_kernel_defs", "weft's operators are listed by `weft ops`")
get_hardware_devices = refused("get_hardware_devices", "weft's devices are in weft.devices()")


def copy_tensors(src: Sequence[OrtValue], dst: Sequence[OrtValue], stream: Any = None) -> None:
    """Copy elements of tensors into others, which are of the same shapes and types."""
    for source, target in zip(src, dst, strict=True):
        target.update_inplace(source.numpy())
