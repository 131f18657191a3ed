"""A device as a foreign package brings it: a processor with short vectors, played by the one that is here.

Kernels are built for its own target; weft's LLVM backend makes them run. acme_card.py has one with memory of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from weft.backends.cpu.codegen import code_identity
from weft.backends.cpu.compile import compile_program
from weft.backends.cpu.executable import CpuExecutable
from weft.backends.cpu.machine import host
from weft.backends.device import Backend, Compiled, CompilingDriver, Device, Driver, Progress, Runner, RunOptions
from weft.ir.compiled import CompiledProgram
from weft.ir.program import TensorProgram
from weft.ir.target import Target
from weft.ir.tensors import DeviceTensor, host_tensor
from weft.ir.work import Section

VERSION = "1.2.0"
COMPILED: list[str] = []  # the devices that something was compiled for


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

    def start(self, program: Compiled, options: RunOptions) -> Runner:
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

    def find(self, wanted: str) -> Device | None:
        return super().find(wanted or "0")

    def driver(self, name: str) -> Driver:
        return AcmeDriver(name)


class AbsentBackend(Backend):
    """What is not here, and says so; that it fails while it looks is its own fault."""

    name = "acme_absent"

    def devices(self) -> list[Device]:
        raise RuntimeError("no chip answers")

    def driver(self, name: str) -> Driver:
        raise NotImplementedError


DEVICE = AcmeBackend()
ABSENT = AbsentBackend()
