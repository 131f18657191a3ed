"""The CPU device: native code through LLVM, in the host's memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from weft.backends.cpu.executable import CpuExecutable
from weft.backends.cpu.peak import known_peak
from weft.backends.cpu.pool import MOST_THREADS
from weft.backends.cpu.portability import describe_lack, list_needs, rank_needs
from weft.backends.device import (
    NATIVE,
    Backend,
    Compilation,
    CompilingDriver,
    Device,
    DeviceProgram,
    Executable,
    Listing,
    Progress,
    Recorder,
    RunOptions,
    Standing,
)
from weft.backends.host import machine
from weft.backends.host.codegen import code_identity, compile_cached
from weft.backends.host.processor import describe_processor
from weft.backends.host.runner import offer_runner, runner_text
from weft.cache.code import shared_cache
from weft.cache.digests import key_of
from weft.ir.arrays import Array
from weft.ir.compiled import CompiledProgram
from weft.ir.tensors import host_tensor
from weft.threads import usable_cores

if TYPE_CHECKING:
    from weft.backends.host.machine import Machine
    from weft.cache.pack import KernelPack
    from weft.cost.roofline import Peak
    from weft.ir.kernel import Kernel
    from weft.ir.program import TensorProgram
    from weft.ir.target import Target
    from weft.ir.tensors import DeviceTensor
    from weft.ir.work import Section


class CpuDriver(CompilingDriver):
    """Compiles for a machine, by default this one, and runs programs on threads of this one."""

    def __init__(self, name: str, machine: Machine | None = None) -> None:
        super().__init__(name)
        self._machine = machine

    @property
    def machine(self) -> Machine:
        return self._machine or machine.host()

    def target(self, precision: str) -> Target:
        narrow = precision == "fast"
        return replace(
            self.machine.target,
            transformed_products=precision != "strict",
            narrow_products=narrow,
            widens_weights=self.machine.target.widens_weights and not narrow,  # both have weights of 16 bits
        )

    def identity(self) -> str:
        return code_identity(self.machine)

    def for_target(self, name: str) -> CpuDriver:
        return self if name == NATIVE else CpuDriver(self.name, machine.named(name))

    def needs(self) -> Mapping[str, Any]:
        return list_needs(self.machine)

    def lack(self, needs: Mapping[str, Any]) -> str | None:
        return describe_lack(needs)

    def rank(self, needs: Mapping[str, Any]) -> int:
        return rank_needs(needs)

    def support(self) -> Mapping[str, bytes]:

        needs = self.needs()
        system = "win32" if needs["system"] == "windows" else needs["system"]
        text = runner_text(system, arm=needs["architecture"] == "aarch64")
        return {key_of(text): compile_cached(text, self.machine, shared_cache())}

    def take_support(self, code: Mapping[str, Callable[[], bytes]]) -> None:

        offer_runner(code)

    def compile(
        self, program: TensorProgram, sections: Sequence[Section], cache: bool, progress: Progress
    ) -> CompiledProgram:
        from weft.backends.cpu.compile import compile_program

        return compile_program(program, sections, cache, partial(progress, "generating code"), self.machine)

    def begin(self, cache: bool, progress: Progress) -> Compilation:
        from weft.backends.cpu.compile import CpuCompilation

        pack = self._open_pack() if cache else None
        return CpuCompilation(self.machine, cache, pack, partial(progress, "generating code"))

    def prepare(self) -> None:
        self._open_pack()

    def _open_pack(self) -> KernelPack | None:
        """Open the pack for this machine, unless the driver compiles for another."""
        from weft.backends.cpu.kernel_packs import open_pack

        return open_pack() if self._machine is None else None

    def listings(self, kernel: Kernel) -> Sequence[Listing]:
        from weft.backends.llvm.compilation import assembly_text
        from weft.backends.llvm.emit import llvm_text
        from weft.backends.llvm.vector_lanes import choose_lanes

        text = llvm_text([kernel], choose_lanes(self.machine.target.features))
        assembly = assembly_text(text, self.machine)
        return Listing("LLVM", "llvm", ".ll", text), Listing("assembly", "gas", ".s", assembly)

    def start(self, program: DeviceProgram, options: RunOptions) -> Executable:
        assert isinstance(program, CompiledProgram)
        return CpuExecutable(program, _count_threads(options.threads), options)

    def place(self, array: Array) -> DeviceTensor:
        return host_tensor(array, self.name)

    def record(self, program: DeviceProgram, threads: int | None) -> Recorder:
        from weft.backends.cpu.recording import build_recorder

        assert isinstance(program, CompiledProgram)
        return Recorder(build_recorder(program, _count_threads(threads)), _count_threads(threads))

    def calibrate(self, threads: int) -> Peak:

        return known_peak(threads)


def _count_threads(threads: int | None) -> int:
    return min(threads or usable_cores(), MOST_THREADS)


class CpuBackend(Backend):
    """The one CPU device, which is always available."""

    name = "cpu"

    def devices(self) -> list[Device]:
        return [Device(self.name, True, f"native code through LLVM, for {describe_processor()}")]

    def standing(self, device: Device) -> Standing:  # noqa: ARG002
        return Standing.HOST

    def driver(self, name: str) -> CpuDriver:
        return CpuDriver(name)


DEVICE = CpuBackend()
