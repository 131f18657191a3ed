"""The devices that weft knows, which of them are here, and why others are not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from weft.backends.cpu import machine
from weft.backends.cpu.executable import Executable
from weft.backends.reference import interpret
from weft.errors import DeviceError
from weft.ir.program import TensorProgram
from weft.kernels.sections import divide

Runner = Callable[[Sequence[Any]], list[Any]]


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
        Device("cpu", True, f"native code through LLVM, for {machine.host().processor}"),
        Device("reference", True, "numpy, one step at a time: exact and unhurried"),
    ]


def runner(name: str) -> Callable[[TensorProgram, int | None, bool], Runner]:
    """What makes a program run on a device: a function of the program, the threads, and whether code may be cached."""
    return _RUNNERS[name]


def _on_reference(program: TensorProgram, threads: int | None, cache: bool) -> Runner:  # noqa: ARG001
    return partial(interpret.run, program)


def _on_cpu(program: TensorProgram, threads: int | None, cache: bool) -> Runner:
    sections = divide(program, machine.host().target)
    return Executable(program, sections, threads or machine.usable_cores(), cache).run


_RUNNERS: dict[str, Callable[[TensorProgram, int | None, bool], Runner]] = {
    "cpu": _on_cpu,
    "reference": _on_reference,
}


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
