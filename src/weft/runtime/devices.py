"""The devices that weft knows, which of them are here, and why others are not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Union

from weft.backends.cpu import machine
from weft.backends.cpu.codegen import code_identity
from weft.backends.cpu.compile import compile_program
from weft.backends.cpu.executable import Executable
from weft.backends.reference import interpret
from weft.errors import DeviceError
from weft.ir.compiled import CompiledProgram
from weft.ir.program import TensorProgram
from weft.kernels.sections import divide

Runner = Callable[[Sequence[Any]], list[Any]]
Compiled = Union[TensorProgram, CompiledProgram]
Tell = Callable[[str, float], None]  # the stage, and how far it is


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


@dataclass(frozen=True, slots=True)
class Engine:
    """What a device does with a program: make what runs there, a value, and run it.

    `compile` takes the precision and whether code may be cached, and tells how far it is; `start` takes the number of
    threads.
    """

    compile: Callable[[TensorProgram, str, bool, Tell], Compiled]
    start: Callable[[Compiled, int | None], Runner]
    identity: Callable[[], str] | None  # of what compiled programs depend on; None: they are not worth keeping


def engine(name: str) -> Engine:
    return _ENGINES[name]


def _run_reference(program: Compiled, threads: int | None) -> Runner:  # noqa: ARG001
    assert isinstance(program, TensorProgram)
    return partial(interpret.run, program)


def _compile_for_cpu(program: TensorProgram, precision: str, cache: bool, tell: Tell) -> Compiled:
    target = replace(machine.host().target, transformed_products=precision != "strict")
    sections = divide(program, target, partial(tell, "building kernels"))
    return compile_program(program, sections, cache, partial(tell, "generating code"))


def _run_on_cpu(program: Compiled, threads: int | None) -> Runner:
    assert isinstance(program, CompiledProgram)
    return Executable(program, threads or machine.usable_cores()).run


_ENGINES: dict[str, Engine] = {
    "cpu": Engine(_compile_for_cpu, _run_on_cpu, code_identity),
    "reference": Engine(lambda program, *_: program, _run_reference, None),
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
