"""List the GPUs that the driver shows, and find one by number or name.

The driver decides which GPUs or MIG partitions it shows, and in which order; it honours CUDA_VISIBLE_DEVICES.
"""

from __future__ import annotations

from ctypes import byref, c_char, c_int, c_size_t

from weft.backends.cuda.library import DriverLibrary, library
from weft.errors import DeviceError
from weft.quantities import format_bytes
from weft.records import dataclass
from weft.threads import once

LEAST_CAPABILITY = (7, 0)
NO_GPU = "NVIDIA's driver shows no GPU"
ATTRIBUTES = {  # CUdevice_attribute
    "units": 16,
    "memory_clock": 36,
    "bus_bits": 37,
    "major": 75,
    "minor": 76,
    "shared_bytes": 97,
    "pools": 115,
}


@dataclass(frozen=True, slots=True)
class GpuProperties:
    """A GPU, or a MIG partition of one."""

    number: int  # in `list_gpus()`
    name: str
    capability: tuple[int, int]
    memory_bytes: int
    driver: int  # CUDA version of the driver: 12040 for 12.4
    units: int  # multiprocessors
    shared_bytes: int  # largest shared memory of a block
    memory_clock: int  # kHz; 0 if unknown
    bus_bits: int
    pools: bool  # whether stream-ordered memory pools are supported

    @property
    def device(self) -> str:
        """The device's name in weft."""
        return f"cuda:{self.number}"

    @property
    def driver_text(self) -> str:
        return f"CUDA {self.driver // 1000}.{self.driver % 1000 // 10}"

    def __str__(self) -> str:
        major, minor = self.capability
        return f"{self.name}, compute capability {major}.{minor}, {format_bytes(self.memory_bytes)}"


@once
def list_gpus() -> tuple[GpuProperties, ...]:
    """List all GPUs in the driver's order; DeviceError if there is no driver."""
    driver = library()
    count, version = c_int(), c_int()
    driver("cuDeviceGetCount", byref(count))
    driver("cuDriverGetVersion", byref(version))
    return tuple(_read_properties(driver, number, version.value) for number in range(count.value))


def _read_properties(driver: DriverLibrary, number: int, version: int) -> GpuProperties:
    device, size, text = c_int(), c_size_t(), (c_char * 256)()
    driver("cuDeviceGet", byref(device), number)
    driver("cuDeviceGetName", text, len(text), device)
    driver("cuDeviceTotalMem_v2", byref(size), device)
    attributes: dict[str, int] = {}
    for attribute, number_in_cuda in ATTRIBUTES.items():
        value = c_int()
        error = driver.function("cuDeviceGetAttribute")(byref(value), number_in_cuda, device)
        attributes[attribute] = 0 if error else value.value
    return GpuProperties(
        number,
        text.value.decode(errors="replace"),
        (attributes["major"], attributes["minor"]),
        size.value,
        version,
        max(attributes["units"], 1),
        attributes["shared_bytes"],
        attributes["memory_clock"],
        attributes["bus_bits"],
        bool(attributes["pools"]),
    )


def find_gpu(selector: str) -> GpuProperties:
    """Find a GPU by its number or a part of its name, the first usable one for ""; DeviceError if there is none."""
    gpus = list_gpus()
    if not gpus:
        hint = "check that CUDA_VISIBLE_DEVICES allows one and that this container was started with GPUs"
        raise DeviceError(NO_GPU, hint=hint)
    if not selector:
        gpu: GpuProperties | None = next((gpu for gpu in gpus if gpu.capability >= LEAST_CAPABILITY), gpus[0])
    elif selector.isdecimal():
        gpu = gpus[int(selector)] if int(selector) < len(gpus) else None
    else:
        gpu = next((gpu for gpu in gpus if selector.lower() in gpu.name.lower()), None)
    if gpu is None:
        names = ", ".join(f"{gpu.device} ({gpu.name})" for gpu in gpus)
        raise DeviceError(f"there is no device 'cuda:{selector}'", hint=f"the driver shows {names}")
    if gpu.capability < LEAST_CAPABILITY:
        raise DeviceError(f"{gpu} is too old: weft needs 7.0 (Volta) or newer", hint="use another device")
    return gpu
