"""The devices that weft knows, which of them are here, and why others are not."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol, Union

from weft.backends.cpu import machine
from weft.backends.cpu.codegen import code_identity
from weft.backends.cpu.compile import compile_program
from weft.backends.cpu.executable import Executable
from weft.backends.cpu.peak import known_peak
from weft.backends.cpu.recording import recorder
from weft.backends.reference import interpret
from weft.errors import DeviceError
from weft.ir.compiled import CompiledProgram
from weft.ir.program import TensorProgram
from weft.ir.record import RunRecord
from weft.ir.target import Peak
from weft.kernels.sections import divide
from weft.plan.program import ProgramPlan

Shortcut = Callable[[Sequence[Any]], list[Any]]
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


class Runner(Protocol):
    """A program on a device. Several threads may call it at once."""

    def run(self, inputs: Sequence[Any]) -> list[Any]:
        """The outputs for these inputs; GuardError where the program does not apply to their sizes."""
        ...

    def shortcut(self, inputs: Sequence[Any]) -> Shortcut | None:
        """What runs on row-major arrays of the dtypes and shapes of these, which ran before, with the least overhead.

        All its results are new arrays. None where there is no such way.
        """
        ...

    def plan(self, sizes: Mapping[str, int]) -> ProgramPlan | None:
        """The memory of a run with these sizes, None where it is not planned; GuardError as for `run`."""
        ...


@dataclass(frozen=True, slots=True)
class Recorder:
    """A program on a device that tells when each of its launches ran; one run at a time."""

    run: Callable[[Sequence[Any]], RunRecord]
    threads: int
    machine: Peak  # of so many threads


@dataclass(frozen=True, slots=True)
class Wishes:
    """Of runs: how many threads, how many bytes at most, and what is to give way, memory or time."""

    threads: int | None = None
    limit: int | None = None
    prefer: str = "memory"


@dataclass(frozen=True, slots=True)
class Engine:
    """What a device does with a program: make what runs there, a value, and run it.

    `compile` takes the precision and whether code may be cached, and tells how far it is; `start` takes what its users
    ask of runs.
    """

    compile: Callable[[TensorProgram, str, bool, Tell], Compiled]
    start: Callable[[Compiled, Wishes], Runner]
    identity: Callable[[], str] | None  # of what compiled programs depend on; None: they are not worth keeping
    record: Callable[[Compiled, int | None], Recorder] | None = None  # None: it cannot time its kernels


def engine(name: str) -> Engine:
    return _ENGINES[name]


@dataclass(frozen=True, slots=True)
class _Interpreted:
    program: TensorProgram

    def run(self, inputs: Sequence[Any]) -> list[Any]:
        return interpret.run(self.program, inputs)

    def shortcut(self, inputs: Sequence[Any]) -> None:  # noqa: ARG002
        return None

    def plan(self, sizes: Mapping[str, int]) -> None:  # noqa: ARG002
        return None


def _run_reference(program: Compiled, wishes: Wishes) -> Runner:  # noqa: ARG001
    assert isinstance(program, TensorProgram)
    return _Interpreted(program)


def _compile_for_cpu(program: TensorProgram, precision: str, cache: bool, tell: Tell) -> Compiled:
    target = replace(machine.host().target, transformed_products=precision != "strict")
    sections = divide(program, target, partial(tell, "building kernels"))
    return compile_program(program, sections, cache, partial(tell, "generating code"))


def _run_on_cpu(program: Compiled, wishes: Wishes) -> Runner:
    assert isinstance(program, CompiledProgram)
    threads = wishes.threads or machine.usable_cores()
    return Executable(program, threads, limit=wishes.limit, may_grow=wishes.prefer == "speed")


def _record_on_cpu(program: Compiled, threads: int | None) -> Recorder:
    assert isinstance(program, CompiledProgram)
    count = threads or machine.usable_cores()
    return Recorder(recorder(program, count), count, known_peak(count))


_ENGINES: dict[str, Engine] = {
    "cpu": Engine(_compile_for_cpu, _run_on_cpu, code_identity, _record_on_cpu),
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
