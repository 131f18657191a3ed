"""WebGPU adapters as weft devices. wgpu is imported when one is first used."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path

from weft.backends.device import SOFTWARE, Backend, Device, Driver, Standing
from weft.backends.webgpu import adapters
from weft.errors import DeviceError, WeftError

_GPU_FILES = ("dri/renderD*", "nvidia[0-9]*", "dxg", "kgsl-3d0", "mali0")  # under /dev on Linux


class WebGpuBackend(Backend):
    """Adapters, best first: `webgpu`, `webgpu:1`, or `webgpu:` with a part of an adapter's name."""

    name = "webgpu"

    def devices(self) -> list[Device]:
        return self._list_devices(usable=True)

    def standing(self, device: Device) -> Standing:
        return Standing.NAMED if device.kind == SOFTWARE else Standing.ACCELERATOR

    def automatic(self) -> list[Device]:
        """Skip wgpu, which takes half a second to start, if the system has no device files of GPUs."""
        if sys.platform == "linux" and not any(True for name in _GPU_FILES for _ in Path("/dev").glob(name)):
            return []
        return [gpu for gpu in self._list_devices(usable=False) if gpu.available and gpu.kind != SOFTWARE]

    def find(self, selector: str) -> Device:
        if not adapters.is_installed():
            problem = f"device {self.name!r} is not available: the package wgpu is not installed"
            raise DeviceError(problem, hint=adapters.INSTALL)
        adapters.check_process()
        return _describe(adapters.find_adapter(selector))

    def driver(self, name: str) -> Driver:
        from weft.backends.webgpu.driver import WebGpuDriver

        return WebGpuDriver(name)

    def _list_devices(self, usable: bool) -> list[Device]:
        """List the adapters, or the reason why there are none; `usable`: an error in a forked child is a reason."""
        if not adapters.is_installed():
            problem = f"any GPU, through the package wgpu, which is not installed: {adapters.INSTALL}"
            return [Device(self.name, False, problem)]
        try:
            found_adapters = adapters.adapters()
            if usable:
                adapters.check_process()
        except WeftError as error:
            return [Device(self.name, False, error.problem)]
        devices = [_describe(adapter) for adapter in found_adapters]
        return devices or [Device(self.name, False, "any GPU: wgpu finds none here")]


def _describe(adapter: adapters.Adapter) -> Device:
    description = f"{adapter.name}, through {adapter.backend}"
    if adapter.is_software:
        description += ": a software rasteriser, used only if named"
    limits = {name: value for name, value in asdict(adapter.limits).items() if type(value) is int}
    features = tuple(sorted(adapter.features))
    return Device(adapter.device, True, description, adapter.kind, adapter.driver, features, limits)


DEVICE = WebGpuBackend()
