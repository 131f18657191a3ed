"""A compiled program loaded on a device with its own memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from weft.backends.device import NO_SIZES
from weft.backends.executable import SectionedExecutable
from weft.backends.reference import interpret
from weft.backends.reference.interpret import RunBody
from weft.backends.reference.sizes import GuardError
from weft.backends.resident.device import LaunchCompiler, MemoryDevice
from weft.backends.resident.residency import count_read_operands, find_residency
from weft.backends.resident.section import ResidentSection, RunMemory
from weft.backends.resident.tensor import read_all, upload
from weft.backends.resident.weights import ResidentWeights
from weft.backends.run_log import RunStep
from weft.errors import ExecutionError, OutOfMemoryError
from weft.ir.compiled import CompiledProgram
from weft.ir.program import Step, Value
from weft.ir.work import NativeSection
from weft.plan.limits import MemoryBudget
from weft.plan.program import ProgramPlan, weight_bytes
from weft.plan.usual_sizes import usual_sizes


class ResidentExecutable(SectionedExecutable):
    """A program on a device with its own memory. Several threads may call `run`."""

    def __init__(
        self,
        program: CompiledProgram,
        device: MemoryDevice,
        launches: LaunchCompiler,
        memory_limit: int | None = None,
        wrap_steps: Callable[[RunStep], RunStep] | None = None,
    ) -> None:
        """`launches` has the program's code; `wrap_steps` wraps the function that runs host steps."""
        self.device, self.launches = device, launches
        self.weights, self.memory = ResidentWeights(device), RunMemory(device)
        self.budget = MemoryBudget() if memory_limit is None else MemoryBudget(memory_limit, weight_bytes(program))
        self.residency = find_residency(program)
        run_step: RunStep = partial(_run_host_step, device, self.residency.uploads)
        if wrap_steps is not None:
            run_step = wrap_steps(run_step)
        super().__init__(program, program.sections, self._load_section, run_step)

    def _load_section(self, section: NativeSection, constants: Mapping[Value, Any]) -> ResidentSection:
        return ResidentSection(section, constants, self)

    def run(self, inputs: Sequence[Any], keep: Sequence[int] = (), sizes: Mapping[str, int] = NO_SIZES) -> list[Any]:
        results = super().run(inputs, keep, sizes)
        arrays = read_all([None if number in keep else result for number, result in enumerate(results)])
        return [result if number in keep else arrays[number] for number, result in enumerate(results)]

    def plan(self, sizes: Mapping[str, int]) -> ProgramPlan:
        plan = self.plan_sections(sizes, 0)
        sections = {id(section.section): section for section in self.all_sections()}
        workspaces = []
        for part in plan.sections:
            section = sections[id(part.section)]
            assert isinstance(section, ResidentSection)
            workspaces.append(section.workspace(part.plan, sizes))
        return replace(plan, workspace=max(workspaces, default=0))

    def compile(self, sizes: Mapping[str, int]) -> None:
        """Compile the launches that these sizes determine; the first run compiles the others.

        GuardError where the program does not apply to the sizes.
        """
        for section in self.sections_for(sizes):
            assert isinstance(section, ResidentSection)
            if set(section.symbols) <= set(sizes):
                section.compile(sizes)

    def compile_usual(self) -> None:
        """Compile the launches of runs with usual sizes; OutOfMemoryError where not even small inputs fit."""
        out_of_memory: OutOfMemoryError | None = None
        for sizes in usual_sizes(self.program.inputs, self.program.guards, {}):
            try:
                self.compile(sizes)
                return
            except OutOfMemoryError as error:
                out_of_memory = error
            except (GuardError, ArithmeticError, ExecutionError):
                continue  # the model does not support these sizes
        if out_of_memory is not None:
            raise out_of_memory

    def shortcut(self, inputs: Sequence[Any]) -> None:  # noqa: ARG002
        """Return None: Python's checks are a small part of a call here."""
        return


def _run_host_step(
    device: MemoryDevice,
    uploads: Mapping[int, Sequence[int]],
    step: Step,
    operands: list[Any],
    sizes: dict[str, int],
    run_body: RunBody | None,
) -> list[Any]:
    """Run a step on the host, on arrays; values that control flow only passes on stay on the device."""
    count = count_read_operands(step)
    contents = [*read_all(operands[:count]), *operands[count:]]
    for number in uploads.get(id(step), ()):  # once, not in every iteration of a loop
        if isinstance(contents[number], np.ndarray):
            contents[number] = upload(device, contents[number])
    return interpret.run_step(step, contents, sizes, run_body)
