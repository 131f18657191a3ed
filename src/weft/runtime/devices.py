"""The devices that weft knows, which of them are here, and why others are not."""

from __future__ import annotations

from dataclasses import dataclass

from weft.errors import DeviceError


@dataclass(frozen=True, slots=True)
class Device:
    name: str
    available: bool
    description: str  # what it is, or why it is not available


def devices() -> list[Device]:
    """Every device, best first."""
    return [
        Device("cuda", False, "NVIDIA GPUs: not in this version of weft"),
        Device("webgpu", False, "any GPU through WebGPU: not in this version of weft"),
        Device("cpu", False, "native code through LLVM: not in this version of weft"),
        Device("reference", True, "numpy, one step at a time: exact and unhurried"),
    ]


def choose(name: str) -> Device:
    """The device of that name, or the best one for "auto"."""
    known = devices()
    if name == "auto":
        return next(device for device in known if device.available)
    for device in known:
        if device.name == name:
            if device.available:
                return device
            raise DeviceError(f"device {name!r} is not available: {device.description}", hint="see weft.devices()")
    names = ", ".join(device.name for device in known)
    raise DeviceError(f"there is no device {name!r}", hint=f"weft knows {names}, and auto for the best one here")
