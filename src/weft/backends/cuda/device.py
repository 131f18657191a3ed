"""NVIDIA GPUs as weft devices. libcuda is loaded when a GPU is first used."""

from __future__ import annotations

import sys
from pathlib import Path

from weft.backends.cuda import discovery
from weft.backends.device import Backend, Device, Driver, Standing
from weft.errors import WeftError

_GPU_FILES = ("nvidia[0-9]*", "nvidia-caps", "dxg", "nvhost-gpu", "nvgpu")  # under /dev on Linux


class CudaBackend(Backend):
    """NVIDIA GPUs in the driver's order: `cuda`, `cuda:1`, or `cuda:` with a part of a GPU's name."""

    name = "cuda"

    def devices(self) -> list[Device]:
        try:
            devices = [_describe(gpu) for gpu in discovery.list_gpus()]
        except WeftError as error:
            return [Device(self.name, False, error.problem)]
        return devices or [Device(self.name, False, discovery.NO_GPU)]

    def standing(self, device: Device) -> Standing:  # noqa: ARG002
        return Standing.ACCELERATOR

    def automatic(self) -> list[Device]:
        """Skip the driver, which is slow to start, if the system has no device files of GPUs."""
        return [] if _has_no_gpu_files() else [device for device in self.devices() if device.available]

    def find(self, selector: str) -> Device:
        return _describe(discovery.find_gpu(selector))

    def driver(self, name: str) -> Driver:
        from weft.backends.cuda.driver import CudaDriver

        return CudaDriver(name)


def _has_no_gpu_files() -> bool:
    return sys.platform == "linux" and not any(True for name in _GPU_FILES for _ in Path("/dev").glob(name))


def _describe(gpu: discovery.GpuProperties) -> Device:
    is_usable = gpu.capability >= discovery.LEAST_CAPABILITY
    description = str(gpu) if is_usable else f"{gpu}: too old, weft needs compute capability 7.0"
    limits = {"memory_bytes": gpu.memory_bytes, "units": gpu.units, "shared_bytes": gpu.shared_bytes}
    return Device(gpu.device, is_usable, description, "discrete", gpu.driver_text, (), limits)


DEVICE = CudaBackend()
