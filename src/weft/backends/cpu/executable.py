"""A compiled program ready to run on the CPU: its code in memory, and what runs its sections in order."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from weft.backends.cpu.codegen import code_of
from weft.backends.cpu.memory import ARENA_OVERHEAD, Arenas
from weft.backends.cpu.section import CpuSection, CpuState
from weft.backends.device import NO_SIZES, RunOptions, Shortcut
from weft.backends.naming import kernel_names
from weft.backends.sections import Sections
from weft.ir import dims
from weft.ir.compiled import CompiledProgram
from weft.ir.program import Value
from weft.ir.types import TensorType
from weft.ir.work import NativeSection
from weft.plan.limits import MemoryBudget
from weft.plan.program import ProgramPlan, local_bytes, weight_bytes

Array = np.ndarray[Any, Any]


def shown_sizes(inputs: Sequence[Value]) -> frozenset[str]:
    """The names of the sizes that inputs show."""
    shapes = [value.type.shape or () for value in inputs if isinstance(value.type, TensorType)]
    return frozenset(symbol.name for shape in shapes for size in shape for symbol in dims.symbols(size))


class CpuExecutable:
    """Runs one program. Several threads may call `run` at once."""

    def __init__(
        self,
        program: CompiledProgram,
        threads: int,
        options: RunOptions = RunOptions(),  # noqa: B008
        step: Callable[..., list[Any]] | None = None,
    ) -> None:
        """Under a memory limit, which weights, arena, workspace and outputs share, no arena may grow for speed.

        `step` runs a step on the host.
        """
        self.program = program
        self.threads = threads
        self.sections = program.sections
        names = kernel_names(program.sections)
        code = code_of(program.objects, names)
        self.workspace = ARENA_OVERHEAD + threads * local_bytes(program)
        if options.memory_limit is None:
            budget = MemoryBudget(may_grow=options.may_grow)
        else:
            budget = MemoryBudget(options.memory_limit, weight_bytes(program), self.workspace)
        self._state = CpuState(code, threads, Arenas(), budget, shown_sizes(program.inputs))
        self._whole = Sections(program, program.sections, self._section, step, late=options.late)

    def _section(self, section: NativeSection, constants: Mapping[Value, Any]) -> CpuSection:
        return CpuSection(section, constants, self._state)

    def run(
        self,
        inputs: Sequence[Any],
        keep: Sequence[int] = (),  # noqa: ARG002
        sizes: Mapping[str, int] = NO_SIZES,
    ) -> list[Any]:
        """The outputs for these inputs; GuardError where the program does not apply to their sizes."""
        return self._whole.run_bound(inputs, *self._whole.bind(inputs, sizes))

    def plan(self, sizes: Mapping[str, int]) -> ProgramPlan:
        """The memory of a run with these sizes; GuardError where the program does not apply to them."""
        return self._whole.plan(self.program, sizes, self.workspace)

    def shortcut(self, inputs: Sequence[Any]) -> Shortcut | None:
        """What gives the outputs for contiguous arrays of the dtypes and shapes of these, which ran before.

        All outputs are new arrays, or those that are offered for them.
        """
        if not self._whole.single:
            return self._whole.shortcut(*self._whole.bind(inputs, {}))
        runner = self._whole.runners[0]
        assert isinstance(runner, CpuSection)
        return runner.prepared(self._whole.bind(inputs, {})[0]).run
