"""An example device with memory of its own, as an installed package: a card, simulated by arrays of bytes.

backends/resident implements weights, tensors, plans and runs for such devices; the card has to allocate buffers, copy
and launch.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf
from time import perf_counter_ns
from typing import Any

import numpy as np

from weft.backends.cpu.compile import compile_program
from weft.backends.device import (
    Backend,
    CompilingDriver,
    Device,
    DeviceProgram,
    Driver,
    Executable,
    Progress,
    Recorder,
    RunOptions,
)
from weft.backends.host.codegen import LoadedCode, code_identity, load_code
from weft.backends.host.machine import host
from weft.backends.naming import kernel_names
from weft.backends.resident.device import BufferSlice, Commands, Find
from weft.backends.resident.executable import ResidentExecutable
from weft.backends.resident.recording import build_recorder
from weft.backends.resident.tensor import upload
from weft.cost.roofline import Peak
from weft.errors import OutOfMemoryError
from weft.ir.compiled import CompiledProgram
from weft.ir.program import TensorProgram
from weft.ir.target import Target
from weft.ir.tensors import DeviceTensor
from weft.ir.work import PlannedLaunch, Section, unrolled
from weft.plan.plan_numbers import PlanNumbers, SizedNumbers

MEMORY = 64 << 20  # bytes of the card
ALIGNMENT = 256
KERNEL = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p)


class CardBuffer:
    """A buffer of the card, aligned to ALIGNMENT."""

    def __init__(self, card: Card, size: int) -> None:
        self.size = size
        self._card = card
        card.allocated += size
        whole = np.zeros(size + ALIGNMENT, np.uint8)
        self.bytes: Any = whole[-whole.ctypes.data % ALIGNMENT :][:size]

    def release(self) -> None:
        if self.bytes is not None:
            self._card.allocated -= self.size
            self.bytes = None

    __del__ = release


@dataclass(frozen=True)
class CardLaunch:
    """A launch with the addresses of its buffers; `keep` are objects that must live as long."""

    kernel: Any
    blocks: int
    buffers: Any
    parameters: Any
    keep: object

    def run(self) -> None:
        self.kernel(0, self.blocks, self.buffers, self.parameters)


class CardRecording:
    """Launches on the card, and the times when they ran."""

    def __init__(self, launches: Sequence[CardLaunch]) -> None:
        self.launches = launches
        self.seconds = inf
        self.began: list[int] = []

    def run(self) -> None:
        self.began = []
        for launch in self.launches:
            self.began.append(perf_counter_ns())
            launch.run()
        self.began.append(perf_counter_ns())

    def ticks(self) -> Any:
        return np.array(self.began, np.int64)


class Card:
    """The opened card: a MemoryDevice."""

    device = "acme_card"
    alignment = ALIGNMENT
    largest_buffer = MEMORY
    binds_in_place = False

    def __init__(self) -> None:
        self.allocated = 0  # bytes
        self.written = 0

    def buffer(self, size: int, label: str = "") -> CardBuffer:
        if self.allocated + size > MEMORY:
            raise OutOfMemoryError(f"the card has no {size:,} bytes for a {label or 'buffer'}")
        return CardBuffer(self, max(size, 16))

    def unset_buffer(self, size: int) -> CardBuffer:
        return self.buffer(size, "tensor")

    def write(self, buffer: CardBuffer, offset: int, data: Any) -> None:
        content = np.frombuffer(np.ascontiguousarray(data).tobytes(), np.uint8)
        buffer.bytes[offset : offset + len(content)] = content
        self.written += len(content)

    def read(self, reads: Sequence[tuple[CardBuffer, int, int]]) -> list[Any]:
        return [buffer.bytes[offset : offset + size].copy() for buffer, offset, size in reads]

    def execute(self, commands: Commands, reads: Sequence[Any], long: bool = False) -> list[Any]:
        for part in commands.cleared:
            part.buffer.bytes[part.offset : part.offset + part.size] = 0
        _copy(commands.before)
        commands.recording.run()
        _copy(commands.after)
        return self.read(reads)

    def timed(self, recording: CardRecording) -> CardRecording:
        return recording

    def check_can_time(self) -> None:
        """The card can always time."""

    def wait(self) -> None:
        """Runs are synchronous."""

    def check(self) -> None:
        """The card is never lost."""


def _copy(copies: Sequence[Any]) -> None:
    for source, start, target, place, size in copies:
        target.bytes[place : place + size] = source.bytes[start : start + size]


@dataclass(frozen=True)
class CardLaunches:
    """The LaunchCompiler of one program."""

    code: LoadedCode
    parameter_bytes: int = 0

    def compile(self, slots: PlanNumbers, numbers: SizedNumbers, find: Find) -> None:
        """Nothing to do: kernels are compiled with the program."""

    def record(self, slots: PlanNumbers, numbers: SizedNumbers, find: Find, movable: range) -> CardRecording:
        launches = slots.plan.at(numbers.sizes).launches
        return CardRecording([self._bind(launch, find) for launch in unrolled(launches) if launch.blocks])

    def _bind(self, launch: PlannedLaunch, find: Find) -> CardLaunch:
        slices = [find(place, size) for place, size in zip(launch.buffers, launch.sizes, strict=True)]
        buffers = (ctypes.c_uint64 * len(slices))(*map(_address, slices))
        parameters = (ctypes.c_int64 * len(launch.parameters))(*launch.parameters)
        kernel = KERNEL(self.code.addresses[launch.kernel.name])
        return CardLaunch(kernel, launch.blocks, buffers, parameters, (self.code, slices))


def _address(part: BufferSlice) -> int:
    address: int = part.buffer.bytes.ctypes.data + part.offset
    return address


CARD = Card()


class CardDriver(CompilingDriver):
    """Compiles for the card and runs there."""

    has_memory = True

    def target(self, precision: str) -> Target:
        return replace(host().target, vector_bytes=16, transformed_products=False)

    def identity(self) -> str:
        return f"acme_card 1.2.0 {code_identity()}"

    def compile(
        self, program: TensorProgram, sections: Sequence[Section], cache: bool, progress: Progress
    ) -> CompiledProgram:
        return compile_program(program, sections, cache)

    def start(self, program: DeviceProgram, options: RunOptions) -> Executable:
        assert isinstance(program, CompiledProgram)
        executable = ResidentExecutable(program, CARD, _launches(program), options.memory_limit)
        executable.compile_usual()
        return executable

    def place(self, array: Any) -> DeviceTensor:
        return upload(CARD, array)

    def record(self, program: DeviceProgram, threads: int | None) -> Recorder:
        assert isinstance(program, CompiledProgram)
        return Recorder(build_recorder(program, CARD, _launches(program)), 1)

    def calibrate(self, threads: int) -> Peak:
        return Peak(1e9, 1e9)


def _launches(program: CompiledProgram) -> CardLaunches:
    return CardLaunches(load_code(program.objects, kernel_names(program.sections)))


class CardBackend(Backend):
    """The one card."""

    name = "acme_card"

    def devices(self) -> list[Device]:
        return [Device(self.name, True, "a card with 64 MiB")]

    def driver(self, name: str) -> Driver:
        return CardDriver(name)


DEVICE = CardBackend()
