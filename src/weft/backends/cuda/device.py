"""NVIDIA's GPUs as devices: one for each that the driver shows. The driver comes in with the first use of one."""

from __future__ import annotations

import sys
from pathlib import Path

from weft.backends.cuda import gpus
from weft.backends.device import Backend, Device, Driver, Standing
from weft.errors import WeftError

_GPU_FILES = ("nvidia[0-9]*", "nvidia-caps", "dxg", "nvhost-gpu", "nvgpu")  # under /dev on Linux


class CudaBackend(Backend):
    """GPUs in the driver's order. The name alone is the first, with a number or a part of a GPU's name that one."""

    name = "cuda"

    def devices(self) -> list[Device]:
        try:
            found = [_described(gpu) for gpu in gpus.gpus()]
        except WeftError as error:
            return [Device(self.name, False, error.problem)]
        return found or [Device(self.name, False, gpus.NONE)]

    def standing(self, device: Device) -> Standing:  # noqa: ARG002
        return Standing.ACCELERATOR

    def automatic(self) -> list[Device]:
        """Where no GPU can be, the driver is not started: that would take a while."""
        return [] if _cannot_be() else [device for device in self.devices() if device.available]

    def find(self, wanted: str) -> Device:
        return _described(gpus.find_gpu(wanted))

    def driver(self, name: str) -> Driver:
        from weft.backends.cuda.driver import CudaDriver

        return CudaDriver(name)


def _cannot_be() -> bool:
    return sys.platform == "linux" and not any(True for name in _GPU_FILES for _ in Path("/dev").glob(name))


def _described(gpu: gpus.NvidiaGpu) -> Device:
    usable = gpu.capability >= gpus.LEAST_CAPABILITY
    what = str(gpu) if usable else f"{gpu}: too old, weft needs compute capability 7.0"
    limits = {"memory_bytes": gpu.memory_bytes, "units": gpu.units, "shared_bytes": gpu.shared_bytes}
    return Device(gpu.device, usable, what, "discrete", gpu.driver_text, (), limits)


DEVICE = CudaBackend()
