"""The driver that compiles and runs programs on one NVIDIA GPU."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from weft.backends.cuda import discovery, gpu
from weft.backends.cuda.compile import code_identity, compile_program, emit_ptx
from weft.backends.cuda.interop import adopt
from weft.backends.cuda.launches import CudaLaunchCompiler
from weft.backends.cuda.peak import measure_peak
from weft.backends.cuda.processors import build_target, choose_lanes, choose_processor
from weft.backends.device import DeviceProgram, Executable, Listing, Progress, Recorder, RunOptions, TunableDriver
from weft.backends.llvm.emit import llvm_text
from weft.backends.resident.executable import ResidentExecutable
from weft.backends.resident.recording import build_recorder
from weft.backends.resident.tensor import upload
from weft.cache.tuning import cached_choices
from weft.cost.roofline import Peak
from weft.ir.arrays import Array
from weft.ir.compiled import CompiledProgram
from weft.ir.kernel import Kernel
from weft.ir.program import TensorProgram
from weft.ir.target import Choices, Target
from weft.ir.tensors import DeviceTensor
from weft.ir.work import Section


class CudaDriver(TunableDriver):
    """Compiles programs for a GPU, and runs them."""

    has_memory = True

    def __init__(self, name: str, choices: Choices | None = None) -> None:
        """`choices` of None are read from the cache of tuned choices."""
        super().__init__(name)
        self._choices = choices

    @property
    def hardware(self) -> str:
        return f"{self._properties.name}, {self._properties.units} units"

    def with_choices(self, choices: Choices) -> CudaDriver:
        return CudaDriver(self.name, choices)

    def target(self, precision: str) -> Target:
        if self._choices is None:
            self._choices = cached_choices(self.hardware)
        return build_target(self._properties, precision, self._choices)

    def identity(self) -> str:
        return f"cuda {self.target('')} {code_identity(self._properties)}"

    def compile(
        self, program: TensorProgram, sections: Sequence[Section], cache: bool, progress: Progress
    ) -> CompiledProgram:
        return compile_program(program, sections, self._open(), cache, partial(progress, "generating code"))

    def listings(self, kernel: Kernel) -> Sequence[Listing]:
        processor = choose_processor(self._properties)
        lanes = choose_lanes(processor)
        ptx, _ = emit_ptx(kernel, lanes, processor)
        return Listing("LLVM", "llvm", ".ll", llvm_text([kernel], lanes)), Listing("PTX", "gas", ".ptx", ptx)

    def start(self, program: DeviceProgram, options: RunOptions) -> Executable:
        assert isinstance(program, CompiledProgram)
        opened = self._open()
        executable = ResidentExecutable(
            program, opened, CudaLaunchCompiler.from_program(program, opened), options.memory_limit
        )
        executable.compile_usual()
        return executable

    def place(self, array: Array) -> DeviceTensor:
        return upload(self._open(), array)

    def adopt(self, content: object) -> DeviceTensor | None:
        return adopt(self._open(), content)

    def follow(self, stream: int) -> None:
        self._open().wait_for_stream(stream)

    def lead(self, stream: int) -> None:
        self._open().make_stream_wait(stream)

    def record(self, program: DeviceProgram, threads: int | None) -> Recorder:  # noqa: ARG002
        assert isinstance(program, CompiledProgram)
        opened = self._open()
        return Recorder(build_recorder(program, opened, CudaLaunchCompiler.from_program(program, opened)), 1)

    def calibrate(self, threads: int) -> Peak:  # noqa: ARG002
        return measure_peak(self._open())

    @property
    def _properties(self) -> discovery.GpuProperties:
        return discovery.find_gpu(self._selector)

    @property
    def _selector(self) -> str:
        return self.name.partition(":")[2]

    def _open(self) -> gpu.CudaGpu:
        return gpu.open_gpu(self._selector)
