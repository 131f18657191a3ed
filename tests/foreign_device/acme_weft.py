"""An example device, as an installed package: a processor with short vectors, simulated by this machine.

Kernels are built for its own target; weft's LLVM backend makes them run. acme_card.py has one with memory of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from weft.backends.cpu.compile import compile_program
from weft.backends.cpu.executable import CpuExecutable
from weft.backends.device import (
    Backend,
    CompilingDriver,
    Device,
    DeviceProgram,
    Driver,
    Executable,
    Progress,
    RunOptions,
)
from weft.backends.host.codegen import code_identity
from weft.backends.host.machine import host
from weft.ir.compiled import CompiledProgram
from weft.ir.program import TensorProgram
from weft.ir.target import Target
from weft.ir.tensors import DeviceTensor, host_tensor
from weft.ir.work import Section

VERSION = "1.2.0"
COMPILED: list[str] = []  # the devices that programs were compiled for


class AcmeDriver(CompilingDriver):
    """One of the two chips."""

    def target(self, precision: str) -> Target:
        return replace(host().target, vector_bytes=16, transformed_products=precision != "strict")

    def identity(self) -> str:
        return f"acme {VERSION} {code_identity()}"

    def compile(
        self, program: TensorProgram, sections: Sequence[Section], cache: bool, progress: Progress
    ) -> CompiledProgram:
        COMPILED.append(self.name)
        return compile_program(program, sections, cache, lambda fraction: progress("etching", fraction))

    def start(self, program: DeviceProgram, options: RunOptions) -> Executable:
        assert isinstance(program, CompiledProgram)
        return CpuExecutable(program, 1, options)

    def place(self, array: Any) -> DeviceTensor:
        return host_tensor(array, self.name)


class AcmeBackend(Backend):
    """Two chips, by number."""

    name = "acme"

    def devices(self) -> list[Device]:
        limits = {"vector_bytes": 16}
        return [
            Device(f"acme:{number}", True, f"chip {number}", "other", "2.0", ("etched",), limits) for number in (0, 1)
        ]

    def find(self, suffix: str) -> Device | None:
        return super().find(suffix or "0")

    def driver(self, name: str) -> Driver:
        return AcmeDriver(name)


class AbsentBackend(Backend):
    """A backend whose search for devices fails."""

    name = "acme_absent"

    def devices(self) -> list[Device]:
        raise RuntimeError("no chip answers")

    def driver(self, name: str) -> Driver:
        raise NotImplementedError


DEVICE = AcmeBackend()
ABSENT = AbsentBackend()
