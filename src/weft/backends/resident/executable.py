"""A compiled program ready to run on a device with memory of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from weft.backends.device import NO_SIZES
from weft.backends.notes import RunStep
from weft.backends.reference import interpret
from weft.backends.reference.interpret import RunBody
from weft.backends.reference.sizes import GuardError
from weft.backends.resident.device import LaunchCompiler, MemoryDevice
from weft.backends.resident.section import ResidentSection, ResidentState, RunMemory
from weft.backends.resident.staying import Residence, read_operands, residence
from weft.backends.resident.tensor import read_all, upload
from weft.backends.resident.weights import ResidentWeights
from weft.backends.sections import SectionRunner, Sections
from weft.errors import ExecutionError, OutOfMemoryError
from weft.ir.compiled import CompiledProgram
from weft.ir.program import Step, Value
from weft.ir.work import NativeSection
from weft.plan.limits import MemoryBudget
from weft.plan.plan import Plan
from weft.plan.program import ProgramPlan, weight_bytes
from weft.plan.usual_sizes import usual_sizes


class ResidentExecutable:
    """Runs one program. Several threads may call `run`."""

    def __init__(
        self,
        program: CompiledProgram,
        device: MemoryDevice,
        launches: LaunchCompiler,
        memory_limit: int | None = None,
        around: Callable[[RunStep], RunStep] | None = None,
    ) -> None:
        """`launches` has the program's code; what runs steps on the host is put into `around`."""
        self.program = program
        budget = MemoryBudget() if memory_limit is None else MemoryBudget(memory_limit, weight_bytes(program))
        self._state = ResidentState(device, launches, ResidentWeights(device), RunMemory(device), budget)
        self._residence = residence(program)
        steps = HostSteps(device, self._residence).run
        self._whole = Sections(program, program.sections, self._section, steps if around is None else around(steps))

    def _section(self, section: NativeSection, constants: Mapping[Value, Any]) -> ResidentSection:
        return self._runner(section, constants, self._residence.outputs[id(section)])

    def _runner(
        self, section: NativeSection, constants: Mapping[Value, Any], stays: frozenset[Value]
    ) -> ResidentSection:
        return ResidentSection(section, constants, self._state, stays)

    def run(self, inputs: Sequence[Any], keep: Sequence[int] = (), sizes: Mapping[str, int] = NO_SIZES) -> list[Any]:
        """The outputs for these inputs, arrays or tensors of this device; GuardError where the program does not apply.

        Those whose numbers are in `keep` stay on the device, where they were computed there.
        """
        bound, pending = self._whole.bind(inputs, sizes)
        kept = frozenset(self.program.outputs[number] for number in keep)
        results = self._whole.run_bound(inputs, bound, pending, kept)
        arrays = read_all([None if number in keep else result for number, result in enumerate(results)])
        return [result if number in keep else arrays[number] for number, result in enumerate(results)]

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
        for runner in self._whole.runners_for(sizes):
            assert isinstance(runner, ResidentSection)
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
            except (GuardError, ArithmeticError, ExecutionError):
                continue  # sizes that make no sense for this model
        if full is not None:
            raise full

    def shortcut(self, inputs: Sequence[Any]) -> None:  # noqa: ARG002
        """There is none: what a call costs here is not Python's checks."""
        return


def _workspace(runner: SectionRunner, plan: Plan, sizes: Mapping[str, int]) -> int:
    assert isinstance(runner, ResidentSection)
    return runner.workspace(plan, sizes)


class HostSteps:
    """Runs steps on the host: on arrays, but what goes through control flow stays where it is."""

    def __init__(self, device: MemoryDevice, stays: Residence) -> None:
        self._device = device
        self._brought = stays.brought

    def run(self, step: Step, operands: list[Any], sizes: dict[str, int], run_body: RunBody | None) -> list[Any]:
        """The results of a step."""
        count = read_operands(step)
        given = [*read_all(operands[:count]), *operands[count:]]
        for number in self._brought.get(id(step), ()):  # not in every turn of a loop
            if isinstance(given[number], np.ndarray):
                given[number] = upload(self._device, given[number])
        return interpret.run_step(step, given, sizes, run_body)
