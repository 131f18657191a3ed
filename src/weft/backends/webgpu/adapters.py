"""List the adapters of wgpu with their limits, and find one by number or name. wgpu is imported on first use.

Drivers have threads and locks that do not survive a fork. So GPUs belong to the process that first listed them: in a
forked child they are listed, but using one raises DeviceError, and objects created before the fork are dropped without
calling the driver.
"""

from __future__ import annotations

import ctypes
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import field
from importlib.util import find_spec
from typing import Any

from weft.backends.webgpu.cffi_types import speed_up_type_lookup
from weft.backends.webgpu.wgsl_types import Abilities
from weft.errors import DeviceError
from weft.records import dataclass
from weft.threads import once

INSTALL = "pip install 'wgpu>=0.32'"
SOFTWARE = "software"
_KINDS = {"DiscreteGPU": "discrete", "IntegratedGPU": "integrated", "CPU": SOFTWARE}
_BEST_FIRST = ("discrete", "integrated", "other", SOFTWARE)
_BACKENDS = ("Vulkan", "Metal", "D3D12", "OpenGL")  # best first, if several drive the same GPU

FEATURES = (  # enabled if an adapter has them
    "immediates",
    "shader-f16",
    "shader-f64",
    "shader-i16",
    "shader-int64",
    "shader-int64-atomic-all-ops",
    "shader-int64-atomic-min-max",
    "shader-float32-atomic",
    "subgroup",
    "subgroup-barrier",
    "timestamp-query",
    "timestamp-query-inside-encoders",
    "timestamp-query-inside-passes",
)


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of an adapter."""

    max_buffer_bytes: int
    max_binding_bytes: int
    max_bindings: int  # storage buffers per shader
    max_groups: int  # workgroups per dimension of a dispatch
    max_lanes: int  # invocations per workgroup
    shared_bytes: int  # workgroup memory
    offset_alignment: int  # of bindings
    timestamps: bool
    is_software: bool


@dataclass(frozen=True, slots=True)
class Adapter:
    """A GPU behind one driver."""

    number: int  # in `adapters()`
    name: str
    kind: str  # discrete, integrated, software, other
    backend: str
    driver: str
    features: frozenset[str]
    limits: Limits
    abilities: Abilities
    handle: Any = field(compare=False, repr=False)  # wgpu's adapter

    @property
    def device(self) -> str:
        """The device's name in weft."""
        return f"webgpu:{self.number}"

    @property
    def is_software(self) -> bool:
        return self.kind == SOFTWARE

    def __str__(self) -> str:
        return f"{self.name} ({self.kind}, {self.backend})"


def is_installed() -> bool:
    """Tell whether the package wgpu is installed."""
    return find_spec("wgpu") is not None


_owner: int | None = None  # the process that uses wgpu


@once
def adapters() -> tuple[Adapter, ...]:
    """List the adapters, one per GPU, best first; DeviceError if wgpu is not installed or does not load."""
    global _owner
    check_process()
    _owner = os.getpid()
    try:
        with _runtime_folder():
            import wgpu
            from wgpu.backends.wgpu_native import ffi

            speed_up_type_lookup(ffi)
            handles = wgpu.gpu.enumerate_adapters_sync()
    except ImportError as error:
        raise DeviceError(f"the package wgpu cannot be imported: {error}", hint=INSTALL) from error
    except Exception as error:  # wgpu raises many types
        raise DeviceError(f"wgpu does not start: {error}", hint=f"{INSTALL} --upgrade") from error
    distinct = _remove_duplicates([(dict(handle.info), handle) for handle in handles])
    distinct.sort(key=lambda entry: _BEST_FIRST.index(_kind(entry[0])))
    return tuple(_build_adapter(number, info, handle) for number, (info, handle) in enumerate(distinct))


def check_process() -> None:
    """Raise DeviceError in a process forked from the one that uses GPUs."""
    if _owner is not None and _owner != os.getpid():
        hint = "start processes with 'spawn' or 'forkserver', or let only the children use webgpu"
        raise DeviceError("a GPU cannot be used in a process that was forked from one that uses it", hint=hint)


def _disable_wgpu() -> None:
    """Keep destructors in a forked child from calling the driver, whose locks other threads may have held."""
    if _owner is None:
        return
    interface: Any = sys.modules.get("wgpu.backends.wgpu_native._api")
    if hasattr(interface, "libf"):
        interface.libf = None  # wgpu then behaves as at interpreter exit
    system = ctypes.CDLL(None)
    if sys.platform == "linux" and hasattr(system, "on_exit") and hasattr(system, "fcloseall"):
        # Mesa waits at exit for threads that do not exist in the child. Handlers run in reverse order: files are
        # flushed, then the process exits with the status that on_exit passes to _exit.
        system.on_exit(system._exit, None)
        system.on_exit(system.fcloseall, None)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_disable_wgpu)


def find_adapter(selector: str = "") -> Adapter:
    """Find an adapter by number or part of its name, or the best GPU for ""; DeviceError if there is none.

    A software rasteriser is found only by its number or name.
    """
    candidates = adapters()
    listing = "; ".join(f"{adapter.device} is {adapter}" for adapter in candidates) or "wgpu finds no adapter"
    if not selector:
        if not candidates or candidates[0].is_software:
            first = candidates[0] if candidates else None
            hint = f"use {first.device}, {first}: a software rasteriser, slow but exact" if first else listing
            raise DeviceError("there is no GPU that WebGPU can use here", hint=hint)
        return candidates[0]
    if selector.isdecimal():
        matching = [adapter for adapter in candidates if adapter.number == int(selector)]
    else:
        matching = [adapter for adapter in candidates if selector.casefold() in adapter.name.casefold()]
    if not matching:
        raise DeviceError(f"there is no WebGPU adapter {selector!r}", hint=listing)
    return matching[0]


@contextmanager
def _runtime_folder() -> Iterator[None]:
    """Set XDG_RUNTIME_DIR, so that Mesa's drivers do not print that it is missing.

    It is set in the C environment only: `os.environ`, which other threads may read or pass on, does not change.
    """
    if "XDG_RUNTIME_DIR" in os.environ or sys.platform != "linux":
        yield
        return
    system = ctypes.CDLL(None)
    system.setenv(b"XDG_RUNTIME_DIR", os.fsencode(tempfile.gettempdir()), 0)
    try:
        yield
    finally:
        system.unsetenv(b"XDG_RUNTIME_DIR")


def _remove_duplicates(entries: Sequence[tuple[dict[str, Any], Any]]) -> list[tuple[dict[str, Any], Any]]:
    """Remove adapters of GPUs that a better backend drives as well."""
    return [
        (info, handle)
        for info, handle in entries
        if not any(_is_same_gpu(info, other) and _rank(other) < _rank(info) for other, _ in entries)
    ]


def _is_same_gpu(info: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    if info["vendor_id"] != other["vendor_id"]:
        return False
    has_ids = info["device_id"] and other["device_id"]  # OpenGL has none
    return not has_ids or info["device_id"] == other["device_id"]


def _rank(info: Mapping[str, Any]) -> int:
    backend = info["backend_type"]
    return _BACKENDS.index(backend) if backend in _BACKENDS else len(_BACKENDS)


def _kind(info: Mapping[str, Any]) -> str:
    return _KINDS.get(info["adapter_type"], "other")


def _build_adapter(number: int, info: Mapping[str, Any], handle: Any) -> Adapter:
    features = frozenset(FEATURES) & set(handle.features)
    allowed = {name.replace("_", "-"): value for name, value in handle.limits.items()}
    limits = Limits(
        max_buffer_bytes=allowed["max-buffer-size"] & ~3,
        max_binding_bytes=min(allowed["max-storage-buffer-binding-size"], allowed["max-buffer-size"]) & ~3,
        max_bindings=allowed["max-storage-buffers-per-shader-stage"],
        max_groups=allowed["max-compute-workgroups-per-dimension"],
        max_lanes=allowed["max-compute-invocations-per-workgroup"],
        shared_bytes=allowed["max-compute-workgroup-storage-size"],
        offset_alignment=allowed["min-storage-buffer-offset-alignment"],
        timestamps={"timestamp-query", "timestamp-query-inside-passes"} <= features,
        is_software=_kind(info) == SOFTWARE,
    )
    driver = info["description"] or info["vendor"]
    abilities = Abilities(
        "shader-int64" in features,
        "shader-f64" in features,
        "shader-f16" in features,
        subgroups="subgroup" in features,
        exact_division=_kind(info) == SOFTWARE,  # GPU drivers divide as Vulkan requires, to 2.5 ULP
        widens=_kind(info) != SOFTWARE,
    )
    return Adapter(
        number, info["device"], _kind(info), info["backend_type"], driver, features, limits, abilities, handle
    )
