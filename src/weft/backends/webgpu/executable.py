"""A compiled program ready to run on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from weft.backends.naming import kernel_names
from weft.backends.reference import interpret
from weft.backends.sections import Runner, Sections
from weft.backends.webgpu.gpu import Gpu
from weft.backends.webgpu.section import RunMemory, SectionRunner
from weft.backends.webgpu.shader import Shader
from weft.backends.webgpu.tensor import GpuTensor
from weft.backends.webgpu.weights import Weights
from weft.errors import ExecutionError, OutOfMemoryError
from weft.ir.compiled import CompiledProgram
from weft.ir.program import Step, Value
from weft.ir.work import NativeSection
from weft.plan.limits import MemoryBudget
from weft.plan.program import ProgramPlan, weight_bytes
from weft.plan.sections import Plan
from weft.plan.usual_sizes import usual_sizes

Array = np.ndarray[Any, Any]


class Executable:
    """Runs one program. Several threads may call `run`."""

    def __init__(
        self,
        program: CompiledProgram,
        gpu: Gpu,
        limit: int | None = None,
        runner: Callable[..., SectionRunner] = SectionRunner,
        step: Callable[..., list[Any]] | None = None,
    ) -> None:
        """`runner` makes what runs a native section, `step` runs a step on the host."""
        self.program = program
        self.gpu = gpu
        names = kernel_names(program.sections)
        shaders = {name: Shader.decode(code) for name, code in zip(names, program.objects, strict=True)}
        weights, memory = Weights(gpu), RunMemory(gpu)
        budget = MemoryBudget(limit, weight_bytes(program)) if limit is not None else MemoryBudget()
        read = _read_by_native(program)

        def make(section: NativeSection, constants: Mapping[Value, Any]) -> SectionRunner:
            stays = frozenset(value for value in section.outputs if value in read)
            return runner(section, constants, shaders, weights, memory, budget, stays)

        self._whole = Sections(program, program.sections, make, step or run_step)

    def run(self, inputs: Sequence[Any], keep: Sequence[int] = ()) -> list[Any]:
        """The outputs for these inputs, arrays or tensors of this GPU; GuardError where the program does not apply.

        Those whose numbers are in `keep` stay on the device, where they were computed there.
        """
        sizes, pending = self._whole.bind(inputs, {})
        kept = frozenset(self.program.outputs[number] for number in keep)
        results = self._whole.run_bound(inputs, sizes, pending, kept)
        return [
            result if number in keep or not isinstance(result, GpuTensor) else result.numpy()
            for number, result in enumerate(results)
        ]

    def plan(self, sizes: Mapping[str, int]) -> ProgramPlan:
        """The memory of a run with these sizes; GuardError where the program does not apply to them."""
        plan = self._whole.plan(self.program, sizes, 0)
        runners = {id(runner.section): runner for runner in self._whole.all_runners()}
        needed = [_workspace(runners[id(part.section)], part.plan, sizes) for part in plan.sections]
        return replace(plan, workspace=max(needed, default=0))

    def compile(self, sizes: Mapping[str, int]) -> None:
        """Get ready what runs with these sizes need, as far as they tell; otherwise the first run does it.

        GuardError where the program does not apply to them.
        """
        interpret.check_guards(self._whole.guards, sizes)
        for runner in self._whole.all_runners():
            assert isinstance(runner, SectionRunner)
            if set(runner.symbols) <= set(sizes):
                runner.compile(sizes)

    def compile_usual(self) -> None:
        """Get ready what runs with usual sizes need; OutOfMemoryError where not even small inputs fit."""
        full: OutOfMemoryError | None = None
        for sizes in usual_sizes(self.program.inputs, self.program.guards, {}):
            try:
                self.compile(sizes)
                return
            except OutOfMemoryError as error:
                full = error
            except (interpret.GuardError, ArithmeticError, ExecutionError):
                continue  # sizes that make no sense for this model
        if full is not None:
            raise full

    def shortcut(self, inputs: Sequence[Any]) -> Callable[[Sequence[Array]], list[Array]] | None:  # noqa: ARG002
        """There is none: what a call costs here is not Python's checks."""
        return None


def _workspace(runner: Runner, plan: Plan, sizes: Mapping[str, int]) -> int:
    assert isinstance(runner, SectionRunner)
    return runner.workspace(plan, sizes)


def run_step(step: Step, operands: Sequence[Any], sizes: dict[str, int], run_body: Any) -> list[Any]:
    """A step for the host, on arrays."""
    arrays = [operand.numpy() if isinstance(operand, GpuTensor) else operand for operand in operands]
    return interpret.run_step(step, arrays, sizes, run_body)


def _read_by_native(program: CompiledProgram) -> set[Value]:
    """Values that native sections read, and no step of the host does."""
    native = {value for section in program.sections if isinstance(section, NativeSection) for value in section.inputs}
    host = {
        value
        for section in program.sections
        if not isinstance(section, NativeSection)
        for step in section.steps
        for value in step.operands
    }
    return native - host
