"""The list of devices: which are available, what a name selects, and what "auto" takes.

The list is data: modules that are imported when one of their devices is used. Installed packages add theirs by the
entry point group `weft.devices`, under the device's name; these are used only if they are named, and a broken one shows
as a device that is not available.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING

from weft.backends.device import Backend, CompilingDriver, Device, Driver, device_table
from weft.errors import DeviceError, WeftError, short_repr
from weft.runtime.available_memory import check_memory_to_import

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "weft.devices"
_BUILT_IN = {  # the module with the DEVICE of each backend, best first
    "cuda": "weft.backends.cuda.device",
    "webgpu": "weft.backends.webgpu.device",
    "cpu": "weft.backends.cpu.device",
    "reference": "weft.backends.reference.device",
}
KINDS = tuple(_BUILT_IN)  # names that need no number
HOST = "cpu"  # the processor that this process runs on
REFERENCE = "reference"  # computes each op as ONNX defines it, in numpy
_OTHER_NAMES = {
    "nvidia": "cuda",
    "tensorrt": "cuda",
    "vulkan": "webgpu",
    "metal": "webgpu",
    "mps": "webgpu",
    "rocm": "webgpu",
    "directml": "webgpu",
    "dml": "webgpu",
    "numpy": "reference",
}


class DeviceList(list[Device]):
    """A list of devices that prints as a table."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"[{f',{chr(10)} '.join(map(repr, self))}]"

    def __str__(self) -> str:
        return device_table(self).text()

    def _repr_html_(self) -> str:
        return device_table(self).html()


def devices() -> list[Device]:
    """List every device, best first; those of other packages last."""
    built_in = [(backend.standing(device), device) for backend in _built_in() for device in backend.devices()]
    ordered = [device for _, device in sorted(built_in, key=lambda entry: entry[0])]
    return DeviceList([*ordered, *(device for entry in _entries() for device in _foreign_devices(entry))])


def choose(name: str) -> Device:
    """Return the device that a name selects, or the best one for "auto"; DeviceError if it is not available.

    "webgpu" is the best GPU, "webgpu:1" a GPU by number, "webgpu:geforce" one by part of its name.
    """
    if not isinstance(name, str):
        hint = 'a device is chosen by its name, for instance device="cpu"; see weft.devices()'
        raise DeviceError(f"there is no device {short_repr(name)}", hint=hint)
    if name == "auto":
        return next(automatic())
    device = _find_device(name)
    if device is None:
        names = ", ".join(dict.fromkeys(entry.name for entry in devices()))
        kind = _similar_kind(name.lower())
        suggestion = f"did you mean {kind!r}? " if kind else ""
        hint = f"{suggestion}weft knows {names}, and auto for the best one here"
        raise DeviceError(f"there is no device {name!r}", hint=hint)
    if not device.available:
        raise DeviceError(f"device {name!r} is not available: {device.description}", hint="see weft.devices()")
    return device


def _similar_kind(name: str) -> str | None:
    """Return the kind of device that a wrong name may stand for."""
    from difflib import get_close_matches

    named = next((kind for kind in KINDS if kind in name or (name in kind and name[2:])), None)
    makers = next((kind for maker, kind in _OTHER_NAMES.items() if maker in name), None)
    return named or makers or next(iter(get_close_matches(name, KINDS, 1, cutoff=0.5)), None)


def driver(name: str) -> Driver:
    """Return the driver of an available device."""
    kind = name.partition(":")[0]
    if kind in _BUILT_IN:
        return _load_built_in(kind).driver(name)
    (backend,) = (_foreign_backend(entry) for entry in _entries() if entry.name == kind)
    assert isinstance(backend, Backend)
    return backend.driver(name)


def compiling(name: str) -> CompilingDriver:
    """Return the driver of a device that kernels are compiled for; DeviceError for others."""
    device_driver = driver(name)
    if not isinstance(device_driver, CompilingDriver):
        raise DeviceError(f"no kernels are compiled for device {name!r}", hint="choose a device that has kernels")
    return device_driver


def automatic() -> Iterator[Device]:
    """List the devices that "auto" may choose, best first."""
    for kind in _BUILT_IN:
        with _library_errors(kind):
            candidates = list(_load_built_in(kind).automatic())
        yield from candidates


def _find_device(name: str) -> Device | None:
    """Return the device that a name selects, available or not."""
    kind, colon, selector = name.partition(":")
    if colon and not selector:
        return None
    if kind in _BUILT_IN:
        with _library_errors(kind):
            return _load_built_in(kind).find(selector)
    entry = next((entry for entry in _entries() if entry.name == kind), None)
    return None if entry is None else _find_foreign(entry, selector)


def _built_in() -> Iterator[Backend]:
    return map(_load_built_in, _BUILT_IN)


@cache
def _load_built_in(kind: str) -> Backend:
    with _library_errors(kind):
        backend: Backend = import_module(_BUILT_IN[kind]).DEVICE
    return backend


@contextmanager
def _library_errors(kind: str) -> Iterator[None]:
    """Turn a failed import of a device's libraries into a DeviceError."""
    try:
        yield
    except WeftError:
        raise
    except (ImportError, OSError, MemoryError) as error:
        check_memory_to_import()
        raise DeviceError(f"device {kind!r} is not available: {error}", hint="see weft.devices()") from error


# -- devices of other packages ---------------------------------------------------------------------------------------


def _entries() -> list[EntryPoint]:
    """List the entry points of installed packages by name; the first of each name."""
    from importlib.metadata import entry_points

    entries: dict[str, EntryPoint] = {}
    for entry in entry_points(group=GROUP):
        entries.setdefault(entry.name, entry)
    return [entries[name] for name in sorted(entries)]


def _foreign_backend(entry: EntryPoint) -> Backend | Device:
    """Return the backend that a package exports, or an unavailable device that says why."""
    try:
        backend = entry.load()
    except Exception as error:  # any error of a foreign package
        return _broken_device(entry, error)
    if not isinstance(backend, Backend):
        return _broken_device(entry, TypeError(f"it is a {type(backend).__name__}, not a weft.backends.device.Backend"))
    if backend.name != entry.name or ":" in entry.name or entry.name in (*_BUILT_IN, "auto"):
        return _broken_device(entry, ValueError(f"a backend {backend.name!r} cannot be listed under this name"))
    return backend


def _foreign_devices(entry: EntryPoint) -> list[Device]:
    backend = _foreign_backend(entry)
    try:
        return [backend] if isinstance(backend, Device) else list(backend.devices())
    except Exception as error:
        return [_broken_device(entry, error)]


def _find_foreign(entry: EntryPoint, selector: str) -> Device | None:
    backend = _foreign_backend(entry)
    try:
        return backend if isinstance(backend, Device) else backend.find(selector)
    except WeftError:
        raise
    except Exception as error:
        return _broken_device(entry, error)


def _broken_device(entry: EntryPoint, error: Exception) -> Device:
    return Device(entry.name, False, f"{entry.value}, of an installed package: {type(error).__name__}: {error}")
