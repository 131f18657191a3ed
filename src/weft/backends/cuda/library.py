"""NVIDIA's driver library (libcuda) through ctypes. The CUDA toolkit is not needed.

A process forked from one that uses the driver cannot use it: calls raise DeviceError there, and objects created before
the fork are dropped without calling the driver.
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
from weft.threads import make_lock, once

LEAST_VERSION = 12000  # CUDA 12.0
OUT_OF_MEMORY = 2
NO_DEVICE = 100
NO_JIT_COMPILER = 221
_UNSUPPORTED_PTX = 222
_OPERATING_SYSTEM = 304  # a system call failed
_FATAL = frozenset(  # errors after which the device no longer works in this process
    {4, 46, 214, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 720, 999}
)
_HINTS = {
    3: "the driver did not start: run `nvidia-smi` to check that it is installed and matches its kernel module",
    34: "only a stub of the driver is installed, as in container images: start the container with GPUs",
    46: "another process uses the GPU exclusively: choose another device",
    NO_DEVICE: "the driver sees no GPU: check CUDA_VISIBLE_DEVICES, and that this container was started with GPUs",
    NO_JIT_COMPILER: "the driver's PTX compiler (libnvidia-ptxjitcompiler) is missing: install the complete driver; in "
    "a container, enable the driver capability 'compute'",
    _UNSUPPORTED_PTX: "the driver is too old for the generated code: update the driver",
    802: "the GPUs are not ready yet: check that the fabric manager is running",
    803: "the driver library and the kernel module have different versions: restart the machine",
    804: "a CUDA compatibility package shadows the driver: remove it from the library path",
}


def address_space_limit() -> int | None:
    """Return the limit on this process's address space in bytes (`ulimit -v`); None if there is none."""
    with suppress(ImportError, OSError, ValueError):
        import resource  # not on Windows

        limit, _ = resource.getrlimit(resource.RLIMIT_AS)
        return None if limit == resource.RLIM_INFINITY else limit
    return None


def address_space_error(problem: str, reason: object) -> DeviceError | None:
    """Return an error that names the limit on the address space as a possible cause; None if there is no limit."""
    limit = address_space_limit()
    if limit is None:
        return None
    problem = f"{problem}: {reason}; the address space of this process is limited to {limit:,} bytes (RLIMIT_AS)"
    hint = "the driver reserves address space for all GPU memory: lift the limit (`ulimit -v unlimited`)"
    return DeviceError(problem, hint=f"{hint}, or choose another device")


class DriverError(Exception):
    """An error code returned by the driver."""

    def __init__(self, function: str, code: int, name: str) -> None:
        super().__init__(f"{function}: {name}")
        self.code = code
        self.name = name

    @property
    def is_fatal(self) -> bool:
        return self.code in _FATAL

    @property
    def is_out_of_memory(self) -> bool:
        """Whether the driver could not get memory or address space, on the host or the GPU."""
        return self.code in (OUT_OF_MEMORY, _OPERATING_SYSTEM)

    @property
    def hint(self) -> str | None:
        return _HINTS.get(self.code)


class DriverLibrary:
    """The loaded library: `library("cuInit", 0)` calls a function, and raises DriverError if it fails.

    Arguments are ctypes values, or numbers that fit a C int.
    """

    def __init__(self, handle: Any) -> None:
        self._handle = handle
        self._functions: dict[str, Any] = {}

    def __call__(self, name: str, *arguments: Any) -> None:
        code = self.function(name)(*arguments)
        if code:
            raise self.fault(name, code)

    def function(self, name: str) -> Any:
        """Return a function that returns an error code; DriverError if this driver does not have it."""
        function = self._functions.get(name)
        if function is None:
            try:
                function = getattr(self._handle, name)
            except AttributeError:
                raise DriverError(name, _UNSUPPORTED_PTX, "the driver has no such function") from None
            self._functions[name] = function
        return function

    def address(self, name: str) -> int:
        """Return the address of a function, for native code."""
        return ctypes.cast(self.function(name), ctypes.c_void_p).value or 0

    def fault(self, name: str, code: int) -> DriverError:
        text = c_char_p()
        self._handle.cuGetErrorString(c_int(code), byref(text))
        return DriverError(name, code, f"{(text.value or b'unknown').decode()} (error {code})")


_owner: int | None = None  # the process that uses the driver
_loading = make_lock()


def check_process() -> None:
    """Raise DeviceError in a process forked from the one that uses the driver."""
    if _owner is not None and _owner != os.getpid():
        hint = "start processes with 'spawn' or 'forkserver', or let only the children use the GPU"
        raise DeviceError("a GPU cannot be used in a process that was forked from one that uses it", hint=hint)


def is_own_process(get_process: Callable[[], int] = os.getpid) -> bool:
    """Tell whether the driver may be called: destructors in a forked child must not.

    The default argument keeps this working in destructors at interpreter exit, when module globals may be None.
    """
    return _owner == get_process()


@once
def library() -> DriverLibrary:
    """Load and initialize the driver; DeviceError if there is none or it is too old."""
    global _owner
    check_process()
    name = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
    try:
        driver = DriverLibrary(ctypes.CDLL(os.environ.get("WEFT_CUDA_LIBRARY") or name))
    except OSError as error:
        if "map" in str(error) and (limited := address_space_error("NVIDIA's driver does not load", error)):
            raise limited from error
        hint = "install NVIDIA's driver; start a container with GPUs"
        raise DeviceError(f"there is no driver of an NVIDIA GPU: {error}", hint=hint) from error
    with _loading:
        _owner = os.getpid()
        version = c_int()
        try:
            driver("cuInit", 0)
            driver("cuDriverGetVersion", byref(version))
        except DriverError as fault:
            problem = "NVIDIA's driver does not start"
            limited = address_space_error(problem, fault) if fault.is_out_of_memory else None
            raise limited or DeviceError(f"{problem}: {fault}", hint=fault.hint) from fault
    if version.value < LEAST_VERSION:
        has, needs = (f"{number // 1000}.{number % 1000 // 10}" for number in (version.value, LEAST_VERSION))
        problem = f"NVIDIA's driver is too old: it supports CUDA {has}, weft needs {needs}"
        raise DeviceError(problem, hint="update the driver; no other part of CUDA is needed")
    return driver
