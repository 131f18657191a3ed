"""The driver's library (libcuda) by ctypes: its functions, its errors as weft's, and who may call it.

Nothing of NVIDIA's toolkit is needed. A process that was forked from one that uses the driver cannot use it: there
whoever would gets a DeviceError, and what was made before the fork is forgotten without a call.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from ctypes import byref, c_char_p, c_int
from typing import Any

from weft.errors import DeviceError
from weft.threads import lock, once

LEAST_VERSION = 12000  # of CUDA, that the driver must know
OUT_OF_MEMORY = 2
NO_DEVICE = 100
NO_JIT_COMPILER = 221
_UNSUPPORTED_PTX = 222
_OPERATING_SYSTEM = 304  # a call of the system failed
_FATAL = frozenset(  # faults after which nothing on the device works in this process any more
    {4, 46, 214, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 720, 999}
)
_HINTS = {
    3: "the driver did not start: is it installed, and do the kernel's modules match it? `nvidia-smi` tells",
    34: "only the driver's stub is here, as in images without a GPU: run the container with its GPUs",
    46: "another process uses the GPU alone: choose another device",
    NO_DEVICE: "the driver sees no GPU: is one allowed by CUDA_VISIBLE_DEVICES, and given to this container?",
    NO_JIT_COMPILER: "the driver's compiler (libnvidia-ptxjitcompiler) is missing: install the driver whole; in a "
    "container, allow the driver capability 'compute'",
    _UNSUPPORTED_PTX: "the driver is older than the code for it: update the driver",
    802: "the GPUs of this machine are not ready yet: is the fabric manager running?",
    803: "the driver's library and the kernel's module are of different versions: restart the machine",
    804: "a compatibility package of CUDA is in the way of the driver: remove it from the library path",
}


def address_space_limit() -> int | None:
    """Return the limit on this process's address space in bytes (`ulimit -v`); None where there is none."""
    with suppress(ImportError, OSError, ValueError):
        import resource  # which Windows lacks

        limit, _ = resource.getrlimit(resource.RLIMIT_AS)
        return None if limit == resource.RLIM_INFINITY else limit
    return None


def limit_error(what: str, reason: object) -> DeviceError | None:
    """Return an error that names the limit on the address space, where there is one that the driver may have met."""
    limit = address_space_limit()
    if limit is None:
        return None
    problem = f"{what}: {reason}; the address space of this process is limited to {limit:,} bytes (RLIMIT_AS)"
    hint = "the driver reserves address space for all memory of the GPUs: lift the limit (`ulimit -v unlimited`)"
    return DeviceError(problem, hint=f"{hint}, or choose another device")


class DriverError(Exception):
    """What the driver answered other than that all is well."""

    def __init__(self, function: str, code: int, name: str) -> None:
        super().__init__(f"{function}: {name}")
        self.code = code
        self.name = name

    @property
    def is_fatal(self) -> bool:
        return self.code in _FATAL

    @property
    def is_for_want_of_memory(self) -> bool:
        """Whether memory or address space of the host or the GPU was refused to the driver."""
        return self.code in (OUT_OF_MEMORY, _OPERATING_SYSTEM)

    @property
    def hint(self) -> str | None:
        return _HINTS.get(self.code)


class DriverLibrary:
    """The loaded library; `library("cuInit", 0)` calls a function, and raises DriverError where that fails.

    Arguments are ctypes values, or numbers that a C int holds.
    """

    def __init__(self, handle: Any) -> None:
        self._handle = handle
        self._functions: dict[str, Any] = {}

    def __call__(self, name: str, *arguments: Any) -> None:
        code = self.function(name)(*arguments)
        if code:
            raise self.fault(name, code)

    def function(self, name: str) -> Any:
        """One of its functions, which returns a code; DriverError where this driver has none of that name."""
        found = self._functions.get(name)
        if found is None:
            try:
                found = getattr(self._handle, name)
            except AttributeError:
                raise DriverError(name, _UNSUPPORTED_PTX, "the driver has no such function") from None
            self._functions[name] = found
        return found

    def fault(self, name: str, code: int) -> DriverError:
        text = c_char_p()
        self._handle.cuGetErrorString(c_int(code), byref(text))
        return DriverError(name, code, f"{(text.value or b'unknown').decode()} (error {code})")


_owner: int | None = None  # the process that uses the driver
_loading = lock()


def check_process() -> None:
    """Raise DeviceError in a child of the process that uses the driver."""
    if _owner is not None and _owner != os.getpid():
        hint = "start processes with 'spawn' or 'forkserver', or let only the children use the GPU"
        raise DeviceError("a GPU cannot be used in a process that was forked from one that uses it", hint=hint)


def is_own_process(own: Callable[[], int] = os.getpid) -> bool:
    """Whether calls of the driver are allowed here: what is let go of in a forked child must not reach it.

    Asked at the very end of a process too, when modules have lost their names: then they are not.
    """
    return _owner == own()


@once
def library() -> DriverLibrary:
    """The driver, started; DeviceError that says what to do where there is none, or where it is too old."""
    global _owner
    check_process()
    name = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
    try:
        found = DriverLibrary(ctypes.CDLL(os.environ.get("WEFT_CUDA_LIBRARY") or name))
    except OSError as error:
        if "map" in str(error) and (limited := limit_error("NVIDIA's driver does not load", error)):
            raise limited from error
        hint = "install NVIDIA's driver; in a container, start it with its GPUs"
        raise DeviceError(f"there is no driver of an NVIDIA GPU: {error}", hint=hint) from error
    with _loading:
        _owner = os.getpid()
        version = c_int()
        try:
            found("cuInit", 0)
            found("cuDriverGetVersion", byref(version))
        except DriverError as fault:
            what = "NVIDIA's driver does not start"
            limited = limit_error(what, fault) if fault.is_for_want_of_memory else None
            raise limited or DeviceError(f"{what}: {fault}", hint=fault.hint) from fault
    if version.value < LEAST_VERSION:
        has, needs = (f"{number // 1000}.{number % 1000 // 10}" for number in (version.value, LEAST_VERSION))
        problem = f"NVIDIA's driver is too old: it knows CUDA {has}, weft needs {needs}"
        raise DeviceError(problem, hint="update the driver; nothing else of CUDA is needed")
    return found
