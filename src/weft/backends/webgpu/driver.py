"""What compiles and runs programs on one adapter. It imports wgpu: whoever has an adapter has that too."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from weft.backends.device import Array, Compiled, CompilingDriver, Listing, Progress, Recorder, Runner, RunOptions
from weft.backends.resident.executable import ResidentExecutable
from weft.backends.resident.recording import recorder
from weft.backends.resident.tensor import upload
from weft.backends.webgpu import adapters, gpu, targets
from weft.backends.webgpu.calibration import rates_of
from weft.backends.webgpu.compile import compile_program, wgsl_text
from weft.backends.webgpu.launches import gpu_launches
from weft.backends.webgpu.peak import known_peak
from weft.cost.roofline import Peak
from weft.ir.compiled import CompiledProgram
from weft.ir.kernel import Kernel
from weft.ir.program import TensorProgram
from weft.ir.target import Target
from weft.ir.tensors import DeviceTensor
from weft.ir.work import Section


class WebGpuDriver(CompilingDriver):
    """Writes shaders for an adapter, and runs them there. The GPU itself is opened when a program is started, or
    to find out once how fast it is.
    """

    has_memory = True

    def target(self, precision: str) -> Target:  # noqa: ARG002
        adapter = self._adapter()
        return targets.target_of(adapter.limits, adapter.abilities, rates_of(adapter))

    def identity(self) -> str:
        adapter = self._adapter()
        return f"webgpu {self.target('')} {adapter.abilities} {adapter.limits}"

    def compile(
        self,
        program: TensorProgram,
        sections: Sequence[Section],
        cache: bool,  # noqa: ARG002
        progress: Progress,
    ) -> CompiledProgram:
        adapter = self._adapter()
        telling = partial(progress, "generating code")
        return compile_program(program, sections, adapter.abilities, adapter.limits.max_subgroup, telling)

    def listings(self, kernel: Kernel) -> Sequence[Listing]:
        adapter = self._adapter()
        text = wgsl_text(kernel, adapter.abilities, adapter.limits.max_subgroup)
        return (Listing("WGSL", "wgsl", ".wgsl", text),)

    def start(self, program: Compiled, options: RunOptions) -> Runner:
        assert isinstance(program, CompiledProgram)
        opened = self._gpu()
        executable = ResidentExecutable(program, opened, gpu_launches(program, opened), options.memory_limit)
        executable.compile_usual()
        return executable

    def place(self, array: Array) -> DeviceTensor:
        return upload(self._gpu(), array)

    def record(self, program: Compiled, threads: int | None) -> Recorder:  # noqa: ARG002
        assert isinstance(program, CompiledProgram)
        opened = self._gpu()
        return Recorder(recorder(program, opened, gpu_launches(program, opened)), 1)

    def calibrate(self, threads: int) -> Peak:  # noqa: ARG002
        return known_peak(self._gpu())

    @property
    def _wanted(self) -> str:
        return self.name.partition(":")[2]

    def _adapter(self) -> adapters.Adapter:
        adapters.check_process()
        return adapters.find_adapter(self._wanted)

    def _gpu(self) -> gpu.Gpu:
        return gpu.open_gpu(self._wanted)
