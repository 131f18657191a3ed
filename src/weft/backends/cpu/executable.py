"""A compiled program loaded on the CPU: its code in memory, its sections and their arenas."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from weft.backends.cpu.memory import ARENA_OVERHEAD, Arenas
from weft.backends.cpu.section import CpuSection
from weft.backends.device import NO_SIZES, RunOptions, Shortcut
from weft.backends.executable import SectionedExecutable
from weft.backends.host.codegen import load_program_code
from weft.backends.naming import kernel_names
from weft.ir.compiled import CompiledProgram
from weft.ir.program import Value
from weft.ir.work import NativeSection
from weft.plan.limits import MemoryBudget
from weft.plan.program import ProgramPlan, local_bytes, weight_bytes


class CpuExecutable(SectionedExecutable):
    """A program on the CPU. Several threads may call `run` at once."""

    def __init__(
        self,
        program: CompiledProgram,
        threads: int,
        options: RunOptions = RunOptions(),  # noqa: B008
        run_step: Callable[..., list[Any]] | None = None,
    ) -> None:
        """Weights, arena, workspace and outputs share a memory limit; under one, no arena may grow for speed.

        `run_step` runs a step on the host.
        """
        self.code = load_program_code(program.objects, kernel_names(program.sections))
        self.threads = threads
        self.arenas = Arenas()
        self.workspace = ARENA_OVERHEAD + threads * local_bytes(program)
        if options.memory_limit is None:
            self.budget = MemoryBudget(may_grow=options.may_grow)
        else:
            self.budget = MemoryBudget(options.memory_limit, weight_bytes(program), self.workspace)
        super().__init__(program, program.sections, self._load_section, run_step, late=options.late)
        has_dynamic_sizes = any(section.symbols for section in self.all_sections())
        self.arenas.are_rounded = has_dynamic_sizes and options.memory_limit is None

    def _load_section(self, section: NativeSection, constants: Mapping[Value, Any]) -> CpuSection:
        return CpuSection(section, constants, self)

    def plan(self, sizes: Mapping[str, int]) -> ProgramPlan:
        plan = self.plan_sections(sizes, self.workspace)
        return replace(plan, workspace=self.workspace + self.arenas.round(plan.arena) - plan.arena)

    def shortcut(self, inputs: Sequence[Any]) -> Shortcut | None:
        if not self.is_one_section:
            return super().shortcut(inputs)
        section = self.sections[0]
        assert isinstance(section, CpuSection)
        return section.load_plan(self.bind(inputs, NO_SIZES)[0]).run
