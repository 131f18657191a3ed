"""What compiles and runs programs on one NVIDIA GPU."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from weft.backends.cuda import gpu, gpus
from weft.backends.cuda.compile import compile_program, identity_of, ptx_of
from weft.backends.cuda.interop import adopt
from weft.backends.cuda.launches import cuda_launches
from weft.backends.cuda.peak import known_peak
from weft.backends.cuda.processors import processor_of, target_of, thread_lanes
from weft.backends.device import Array, Compiled, Listing, Progress, Recorder, Runner, RunOptions, TunableDriver
from weft.backends.llvm.emit import llvm_text
from weft.backends.resident.executable import ResidentExecutable
from weft.backends.resident.recording import recorder
from weft.backends.resident.tensor import upload
from weft.cache.tuning import kept_choices
from weft.cost.roofline import Peak
from weft.ir.compiled import CompiledProgram
from weft.ir.kernel import Kernel
from weft.ir.program import TensorProgram
from weft.ir.target import Choices, Target
from weft.ir.tensors import DeviceTensor
from weft.ir.work import Section


class CudaDriver(TunableDriver):
    """Compiles for a GPU, and runs programs as graphs there."""

    has_memory = True

    def __init__(self, name: str, choices: Choices | None = None) -> None:
        """`choices`: None for those that are kept."""
        super().__init__(name)
        self._choices = choices

    @property
    def hardware(self) -> str:
        described = self._described()
        return f"{described.name}, {described.units} units"

    def with_choices(self, choices: Choices) -> CudaDriver:
        return CudaDriver(self.name, choices)

    def target(self, precision: str) -> Target:
        if self._choices is None:
            self._choices = kept_choices(self.hardware)
        return target_of(self._described(), precision, self._choices)

    def identity(self) -> str:
        described = self._described()
        code = identity_of(processor_of(described), described.capability, described.driver)
        return f"cuda {self.target('')} {code}"

    def compile(
        self, program: TensorProgram, sections: Sequence[Section], cache: bool, progress: Progress
    ) -> CompiledProgram:
        return compile_program(program, sections, self._gpu(), cache, partial(progress, "generating code"))

    def listings(self, kernel: Kernel) -> Sequence[Listing]:
        processor = processor_of(self._described())
        lanes = thread_lanes(processor)
        ptx, _ = ptx_of(kernel, lanes, processor)
        return Listing("LLVM", "llvm", ".ll", llvm_text([kernel], lanes)), Listing("PTX", "gas", ".ptx", ptx)

    def start(self, program: Compiled, options: RunOptions) -> Runner:
        assert isinstance(program, CompiledProgram)
        opened = self._gpu()
        executable = ResidentExecutable(program, opened, cuda_launches(program, opened), options.memory_limit)
        executable.compile_usual()
        return executable

    def place(self, array: Array) -> DeviceTensor:
        return upload(self._gpu(), array)

    def adopt(self, content: object) -> DeviceTensor | None:
        return adopt(self._gpu(), content)

    def follow(self, stream: int) -> None:
        self._gpu().after_stream(stream)

    def lead(self, stream: int) -> None:
        self._gpu().before_stream(stream)

    def record(self, program: Compiled, threads: int | None) -> Recorder:  # noqa: ARG002
        assert isinstance(program, CompiledProgram)
        opened = self._gpu()
        return Recorder(recorder(program, opened, cuda_launches(program, opened)), 1)

    def calibrate(self, threads: int) -> Peak:  # noqa: ARG002
        return known_peak(self._gpu())

    @property
    def _wanted(self) -> str:
        return self.name.partition(":")[2]

    def _described(self) -> gpus.NvidiaGpu:
        return gpus.find_gpu(self._wanted)

    def _gpu(self) -> gpu.CudaGpu:
        return gpu.open_gpu(self._wanted)
