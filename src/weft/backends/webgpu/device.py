"""GPUs that WebGPU reaches as devices: one for each adapter. wgpu comes in with the first use of one."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path

from weft.backends.device import SOFTWARE, Backend, Device, Driver, Standing
from weft.backends.webgpu import adapters
from weft.errors import DeviceError, WeftError

_GPU_FILES = ("dri/renderD*", "nvidia[0-9]*", "dxg", "kgsl-3d0", "mali0")  # under /dev on Linux, any GPU's


class WebGpuBackend(Backend):
    """Adapters, best first. The name alone is the best GPU, with a number or a part of an adapter's name that one."""

    name = "webgpu"

    def devices(self) -> list[Device]:
        return self._listed(usable=True)

    def standing(self, device: Device) -> Standing:
        return Standing.NAMED if device.kind == SOFTWARE else Standing.ACCELERATOR

    def automatic(self) -> list[Device]:
        """Where no GPU can be, none is looked for: that would take half a second."""
        if sys.platform == "linux" and not any(True for name in _GPU_FILES for _ in Path("/dev").glob(name)):
            return []
        return [gpu for gpu in self._listed(usable=False) if gpu.available and gpu.kind != SOFTWARE]

    def find(self, wanted: str) -> Device:
        if not adapters.is_installed():
            problem = f"device {self.name!r} is not available: the package wgpu is not installed"
            raise DeviceError(problem, hint=adapters.INSTALL)
        adapters.check_process()
        return _described(adapters.find_adapter(wanted))

    def driver(self, name: str) -> Driver:
        from weft.backends.webgpu.driver import WebGpuDriver

        return WebGpuDriver(name)

    def _listed(self, usable: bool) -> list[Device]:
        """All, or why there are none; unless `usable`, those that this process or its parent can use."""
        if not adapters.is_installed():
            missing = f"any GPU, through the package wgpu, which is not installed: {adapters.INSTALL}"
            return [Device(self.name, False, missing)]
        try:
            found = adapters.adapters()
            if usable:
                adapters.check_process()
        except WeftError as error:
            return [Device(self.name, False, error.problem)]
        described = [_described(adapter) for adapter in found]
        return described or [Device(self.name, False, "any GPU: wgpu finds none here")]


def _described(adapter: adapters.Adapter) -> Device:
    what = f"{adapter.name}, through {adapter.backend}"
    if adapter.is_software:
        what += ": a program that plays a GPU, used only if named"
    limits = {name: value for name, value in asdict(adapter.limits).items() if type(value) is int}
    features = tuple(sorted(adapter.features))
    return Device(adapter.device, True, what, adapter.kind, adapter.driver, features, limits)


DEVICE = WebGpuBackend()
