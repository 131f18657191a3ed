"""The GPUs that wgpu reaches, what they can do, and which of them a name means; wgpu itself comes in with first use.

Drivers have threads and locks that a forked child does not get, or gets in the middle of something. So GPUs belong to
the process that first asked for them: in a child of it they are known, but whoever would use one gets a DeviceError,
and what was made on one is forgotten there without a call of the driver.
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

from weft.backends.webgpu.type_names import quicken
from weft.backends.webgpu.wgsl_types import Abilities
from weft.errors import DeviceError
from weft.records import dataclass
from weft.threads import once

INSTALL = "pip install 'wgpu>=0.32'"
SOFTWARE = "software"
_KINDS = {"DiscreteGPU": "discrete", "IntegratedGPU": "integrated", "CPU": SOFTWARE}
_BEST_FIRST = ("discrete", "integrated", "other", SOFTWARE)
_BACKENDS = ("Vulkan", "Metal", "D3D12", "OpenGL")  # best first, where several drive the same device

FEATURES = (  # that weft uses where an adapter has them
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
    """What an adapter allows. Sizes of subgroups are 0 where it does not tell."""

    max_buffer_bytes: int
    max_binding_bytes: int  # of a buffer, that a shader sees at once
    max_bindings: int  # storage buffers of a shader
    max_groups: int  # in each dimension of a dispatch
    max_lanes: int  # invocations of a group
    max_lanes_along: tuple[int, int, int]
    shared_bytes: int
    offset_alignment: int  # of what is bound
    max_immediate_bytes: int
    subgroups: bool
    min_subgroup: int
    max_subgroup: int
    timestamps: bool
    is_software: bool


@dataclass(frozen=True, slots=True)
class Adapter:
    """A GPU behind one driver. `number` is its place in `adapters()`."""

    number: int
    name: str
    kind: str  # discrete, integrated, software, other
    backend: str
    driver: str
    features: frozenset[str]
    limits: Limits
    abilities: Abilities
    handle: Any = field(compare=False, repr=False)  # wgpu's

    @property
    def device(self) -> str:
        """weft's name for it."""
        return f"webgpu:{self.number}"

    @property
    def is_software(self) -> bool:
        return self.kind == SOFTWARE

    def __str__(self) -> str:
        return f"{self.name} ({self.kind}, {self.backend})"


def is_installed() -> bool:
    """Whether the package that reaches GPUs is here."""
    return find_spec("wgpu") is not None


_owner: int | None = None  # the process that uses wgpu


@once
def adapters() -> tuple[Adapter, ...]:
    """All adapters, best first; one for each GPU. DeviceError where wgpu is not installed, or does not load."""
    global _owner
    check_process()
    _owner = os.getpid()
    try:
        with _runtime_folder():
            import wgpu
            from wgpu.backends.wgpu_native import ffi

            quicken(ffi)
            found = wgpu.gpu.enumerate_adapters_sync()
    except ImportError as error:
        raise DeviceError(f"the package wgpu is not there: {error}", hint=INSTALL) from error
    except Exception as error:  # wgpu's library says in many ways that it cannot start
        raise DeviceError(f"wgpu does not start: {error}", hint=f"{INSTALL} --upgrade") from error
    kept = _without_duplicates([(dict(handle.info), handle) for handle in found])
    kept.sort(key=lambda entry: _BEST_FIRST.index(_kind(entry[0])))
    return tuple(_adapter(number, info, handle) for number, (info, handle) in enumerate(kept))


def check_process() -> None:
    """Raise DeviceError in a child of the process that uses GPUs."""
    if _owner is not None and _owner != os.getpid():
        hint = "start processes with 'spawn' or 'forkserver', or let only the children use webgpu"
        raise DeviceError("a GPU cannot be used in a process that was forked from one that uses it", hint=hint)


def _forget() -> None:
    """In a forked child: nothing that is let go of there may reach a driver, whose locks others may have held."""
    if _owner is None:
        return
    interface: Any = sys.modules.get("wgpu.backends.wgpu_native._api")
    if hasattr(interface, "libf"):
        interface.libf = None  # which wgpu takes for the end of the process
    system = ctypes.CDLL(None)
    if sys.platform == "linux" and hasattr(system, "on_exit") and hasattr(system, "fcloseall"):
        # Mesa waits at exit for threads that are not here. The last to be registered is the first to be called: files
        # are written, and that is the end, with the status that this is called with.
        system.on_exit(system._exit, None)
        system.on_exit(system.fcloseall, None)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


def find_adapter(wanted: str = "") -> Adapter:
    """The best GPU for "", or that of a number, or the first whose name has a text in it; DeviceError if none is.

    A program that only plays a GPU is found by its number or name alone.
    """
    known = adapters()
    listed = "; ".join(f"{adapter.device} is {adapter}" for adapter in known) or "wgpu finds no adapter here"
    if not wanted:
        if not known or known[0].is_software:
            hint = f"use {known[0].device}, {known[0]}: a program that plays a GPU, slow but exact" if known else listed
            raise DeviceError("there is no GPU that WebGPU can use here", hint=hint)
        return known[0]
    if wanted.isdecimal():
        matching = [adapter for adapter in known if adapter.number == int(wanted)]
    else:
        matching = [adapter for adapter in known if wanted.casefold() in adapter.name.casefold()]
    if not matching:
        raise DeviceError(f"there is no WebGPU adapter {wanted!r}", hint=listed)
    return matching[0]


@contextmanager
def _runtime_folder() -> Iterator[None]:
    """Keeps Mesa's drivers, which look for a display, from printing that XDG_RUNTIME_DIR is not set.

    It is set for libraries alone: other threads, which may read `os.environ` or hand it on, do not see it there.
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


def _without_duplicates(found: Sequence[tuple[dict[str, Any], Any]]) -> list[tuple[dict[str, Any], Any]]:
    """Adapters without those that drive a GPU which a better interface drives as well."""
    return [
        (info, handle)
        for info, handle in found
        if not any(_is_same(info, other) and _rank(other) < _rank(info) for other, _ in found)
    ]


def _is_same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    if one["vendor_id"] != other["vendor_id"]:
        return False
    known = one["device_id"] and other["device_id"]  # OpenGL does not tell
    return not known or one["device_id"] == other["device_id"]


def _rank(info: Mapping[str, Any]) -> int:
    backend = info["backend_type"]
    return _BACKENDS.index(backend) if backend in _BACKENDS else len(_BACKENDS)


def _kind(info: Mapping[str, Any]) -> str:
    return _KINDS.get(info["adapter_type"], "other")


def _adapter(number: int, info: Mapping[str, Any], handle: Any) -> Adapter:
    features = frozenset(FEATURES) & set(handle.features)
    allowed = {name.replace("_", "-"): value for name, value in handle.limits.items()}
    smallest, largest = _subgroup_sizes(handle)
    limits = Limits(
        max_buffer_bytes=allowed["max-buffer-size"] & ~3,
        max_binding_bytes=min(allowed["max-storage-buffer-binding-size"], allowed["max-buffer-size"]) & ~3,
        max_bindings=allowed["max-storage-buffers-per-shader-stage"],
        max_groups=allowed["max-compute-workgroups-per-dimension"],
        max_lanes=allowed["max-compute-invocations-per-workgroup"],
        max_lanes_along=(
            allowed["max-compute-workgroup-size-x"],
            allowed["max-compute-workgroup-size-y"],
            allowed["max-compute-workgroup-size-z"],
        ),
        shared_bytes=allowed["max-compute-workgroup-storage-size"],
        offset_alignment=allowed["min-storage-buffer-offset-alignment"],
        max_immediate_bytes=allowed.get("max-immediate-size", 0) if "immediates" in features else 0,
        subgroups="subgroup" in features,
        min_subgroup=smallest,
        max_subgroup=largest,
        timestamps={"timestamp-query", "timestamp-query-inside-passes"} <= features,
        is_software=_kind(info) == SOFTWARE,
    )
    driver = info["description"] or info["vendor"]
    abilities = Abilities(
        "shader-int64" in features,
        "shader-f64" in features,
        "shader-f16" in features,
        exact_division=_kind(info) == SOFTWARE,  # drivers of GPUs do what Vulkan asks for: 2.5 units
        widens=_kind(info) != SOFTWARE,
    )
    return Adapter(
        number, info["device"], _kind(info), info["backend_type"], driver, features, limits, abilities, handle
    )


def _subgroup_sizes(handle: Any) -> tuple[int, int]:
    """Smallest and largest, which wgpu's Python API leaves out; 0 where they are not told."""
    try:
        from wgpu.backends.wgpu_native import ffi, lib

        info = ffi.new("WGPUAdapterInfo *")
        if lib.wgpuAdapterGetInfo(handle._internal, info) != lib.WGPUStatus_Success:
            return 0, 0
        sizes = int(info.subgroupMinSize), int(info.subgroupMaxSize)
        lib.wgpuAdapterInfoFreeMembers(info[0])
        return sizes
    except (ImportError, AttributeError):
        return 0, 0
