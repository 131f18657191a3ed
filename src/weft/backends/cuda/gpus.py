"""The GPUs that the driver shows, what they are, and which of them a name means.

Which are shown, whole ones or parts (MIG), and in which order, is the driver's matter: it reads CUDA_VISIBLE_DEVICES.
"""

from __future__ import annotations

from ctypes import byref, c_char, c_int, c_size_t

from weft.backends.cuda.library import DriverLibrary, library
from weft.errors import DeviceError
from weft.records import dataclass
from weft.threads import once

LEAST_CAPABILITY = (7, 0)
NONE = "NVIDIA's driver shows no GPU"
_ATTRIBUTES = {  # by the driver's numbers
    "units": 16,
    "memory_clock": 36,
    "bus_bits": 37,
    "major": 75,
    "minor": 76,
    "shared_bytes": 97,
    "pools": 115,
}


@dataclass(frozen=True, slots=True)
class NvidiaGpu:
    """A GPU, or a part of one; `number` is its place in `gpus()`. The memory's clock is in kHz, 0 if it is not told."""

    number: int
    name: str
    capability: tuple[int, int]
    memory_bytes: int
    driver: int  # the version of CUDA that it knows, 12040 for 12.4
    units: int
    shared_bytes: int  # that a block can have
    memory_clock: int
    bus_bits: int
    pools: bool  # whether memory comes from pools, in the order of a stream

    @property
    def device(self) -> str:
        """weft's name for it."""
        return f"cuda:{self.number}"

    @property
    def driver_text(self) -> str:
        return f"CUDA {self.driver // 1000}.{self.driver % 1000 // 10}"

    def __str__(self) -> str:
        major, minor = self.capability
        return f"{self.name}, compute capability {major}.{minor}, {self.memory_bytes / 2**30:.0f} GiB"


@once
def gpus() -> tuple[NvidiaGpu, ...]:
    """All that the driver shows, in its order; DeviceError where there is no driver."""
    driver = library()
    count, version = c_int(), c_int()
    driver("cuDeviceGetCount", byref(count))
    driver("cuDriverGetVersion", byref(version))
    return tuple(_described(driver, number, version.value) for number in range(count.value))


def _described(driver: DriverLibrary, number: int, version: int) -> NvidiaGpu:
    device, size, text = c_int(), c_size_t(), (c_char * 256)()
    driver("cuDeviceGet", byref(device), number)
    driver("cuDeviceGetName", text, len(text), device)
    driver("cuDeviceTotalMem_v2", byref(size), device)
    found: dict[str, int] = {}
    for name, attribute in _ATTRIBUTES.items():
        value = c_int()
        failed = driver.function("cuDeviceGetAttribute")(byref(value), attribute, device)
        found[name] = 0 if failed else value.value
    return NvidiaGpu(
        number,
        text.value.decode(errors="replace"),
        (found["major"], found["minor"]),
        size.value,
        version,
        max(found["units"], 1),
        found["shared_bytes"],
        found["memory_clock"],
        found["bus_bits"],
        bool(found["pools"]),
    )


def find_gpu(wanted: str) -> NvidiaGpu:
    """The GPU that a number or a part of a name means, the first for neither; DeviceError where there is none."""
    found = gpus()
    if not found:
        hint = "is one allowed by CUDA_VISIBLE_DEVICES, and given to this container?"
        raise DeviceError(NONE, hint=hint)
    if not wanted:
        gpu: NvidiaGpu | None = next((gpu for gpu in found if gpu.capability >= LEAST_CAPABILITY), found[0])
    elif wanted.isdecimal():
        gpu = found[int(wanted)] if int(wanted) < len(found) else None
    else:
        gpu = next((gpu for gpu in found if wanted.lower() in gpu.name.lower()), None)
    if gpu is None:
        names = ", ".join(f"{gpu.device} ({gpu.name})" for gpu in found)
        raise DeviceError(f"there is no device 'cuda:{wanted}'", hint=f"the driver shows {names}")
    if gpu.capability < LEAST_CAPABILITY:
        raise DeviceError(f"{gpu} is too old: weft needs 7.0 (Volta) or newer", hint="use another device")
    return gpu
