"""The driver that compiles and runs programs on one adapter. Importing it imports wgpu."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from weft.backends.device import CompilingDriver, DeviceProgram, Executable, Listing, Progress, Recorder, RunOptions
from weft.backends.resident.executable import ResidentExecutable
from weft.backends.resident.recording import build_recorder
from weft.backends.resident.tensor import upload
from weft.backends.webgpu import adapters, gpu, targets
from weft.backends.webgpu.calibration import find_rates
from weft.backends.webgpu.compile import compile_program, wgsl_text
from weft.backends.webgpu.launches import WebGpuLaunchCompiler
from weft.backends.webgpu.peak import measure_peak
from weft.cost.roofline import Peak
from weft.ir.arrays import Array
from weft.ir.compiled import CompiledProgram
from weft.ir.kernel import Kernel
from weft.ir.program import TensorProgram
from weft.ir.target import Target
from weft.ir.tensors import DeviceTensor
from weft.ir.work import Section


class WebGpuDriver(CompilingDriver):
    """Compiles programs for an adapter, and runs them. The GPU is opened when a program starts or to measure it."""

    has_memory = True

    def target(self, precision: str) -> Target:
        adapter = self._find_adapter()
        return targets.build_target(adapter.limits, adapter.abilities, find_rates(adapter), precision)

    def identity(self) -> str:
        adapter = self._find_adapter()
        return f"webgpu {self.target('')} {adapter.abilities} {adapter.limits}"

    def compile(
        self,
        program: TensorProgram,
        sections: Sequence[Section],
        cache: bool,  # noqa: ARG002
        progress: Progress,
    ) -> CompiledProgram:
        adapter = self._find_adapter()
        report = partial(progress, "generating code")
        return compile_program(program, sections, adapter.abilities, report)

    def listings(self, kernel: Kernel) -> Sequence[Listing]:
        adapter = self._find_adapter()
        text = wgsl_text(kernel, adapter.abilities)
        return (Listing("WGSL", "wgsl", ".wgsl", text),)

    def start(self, program: DeviceProgram, options: RunOptions) -> Executable:
        assert isinstance(program, CompiledProgram)
        opened = self._open()
        compiler = WebGpuLaunchCompiler.from_program(program, opened)
        executable = ResidentExecutable(program, opened, compiler, options.memory_limit)
        executable.compile_usual()
        return executable

    def place(self, array: Array) -> DeviceTensor:
        return upload(self._open(), array)

    def record(self, program: DeviceProgram, threads: int | None) -> Recorder:  # noqa: ARG002
        assert isinstance(program, CompiledProgram)
        opened = self._open()
        return Recorder(build_recorder(program, opened, WebGpuLaunchCompiler.from_program(program, opened)), 1)

    def calibrate(self, threads: int) -> Peak:  # noqa: ARG002
        return measure_peak(self._open())

    @property
    def _selector(self) -> str:
        return self.name.partition(":")[2]

    def _find_adapter(self) -> adapters.Adapter:
        adapters.check_process()
        return adapters.find_adapter(self._selector)

    def _open(self) -> gpu.Gpu:
        return gpu.open_gpu(self._selector)
