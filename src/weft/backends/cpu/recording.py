"""Runs that are recorded: an executable whose sections and host steps note when they ran.

In: a compiled program and its inputs. Out: one `RunRecord` a run. Nothing of it is in the way of other runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from time import perf_counter_ns
from typing import Any

import numpy as np

from weft.backends.cpu.executable import CpuExecutable
from weft.backends.cpu.memory import ALIGNMENT, address, contiguous
from weft.backends.cpu.section import CpuSection
from weft.backends.cpu.tape import Tape
from weft.backends.notes import Notes
from weft.backends.reference.interpret import run_step
from weft.errors import ExecutionError
from weft.ir.compiled import CompiledProgram
from weft.ir.program import Value
from weft.ir.record import NativeRecord, RunRecord
from weft.ir.work import NativeSection, PlannedLaunch, unrolled
from weft.plan.plan import Plan

Array = np.ndarray[Any, Any]


def recorder(program: CompiledProgram, threads: int) -> Callable[[Sequence[Any]], RunRecord]:
    """A function that runs a program on inputs and tells how it went."""
    notes = Notes()
    return notes.recording(_RecordedExecutable(notes, program, threads).run)


class _RecordedExecutable(CpuExecutable):
    """One whose sections note the times of their launches."""

    def __init__(self, notes: Notes, program: CompiledProgram, threads: int) -> None:
        self.notes = notes
        super().__init__(program, threads, step=notes.around(run_step))

    def _section(self, section: NativeSection, constants: Mapping[Value, Any]) -> CpuSection:
        return _RecordedSection(self.notes, section, constants, self._state)


class _RecordedSection(CpuSection):
    """A section that notes the times of its launches, on memory of its own."""

    def __init__(self, notes: Notes, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.notes = notes
        self.number = notes.next_section()
        self._known: tuple[tuple[int, ...], Plan, tuple[PlannedLaunch, ...], Tape] | None = None

    def run(
        self,
        inputs: Sequence[Array],
        sizes: Mapping[str, int],
        keep: frozenset[Value] = frozenset(),  # noqa: ARG002
    ) -> list[Array]:
        plan, launches, tape = self._planned(sizes)
        given = [contiguous(array) for array in inputs]
        outputs = [np.empty(shape, dtype) for shape, dtype in plan.outputs]
        memory = np.zeros(plan.arena_bytes + 2 * ALIGNMENT, np.uint8)
        errors = -(-memory.ctypes.data // ALIGNMENT) * ALIGNMENT
        places = [0, errors + ALIGNMENT, errors, *map(address, given), *map(address, outputs)]
        start = perf_counter_ns()
        times = tape.run_timed(places, self.threads)
        end = perf_counter_ns()
        if memory[errors - memory.ctypes.data :][:4].any():
            raise ExecutionError("an index is out of range")
        record = NativeRecord(self.number, launches, times, plan.allocations, plan.arena_bytes, start, end)
        self.notes.parts.append(record)
        return outputs

    def _planned(self, sizes: Mapping[str, int]) -> tuple[Plan, tuple[PlannedLaunch, ...], Tape]:
        key = tuple([sizes[name] for name in self.symbols])
        if self._known is None or self._known[0] != key:
            plan = self.make_plan(sizes)
            self._known = (key, plan, tuple(unrolled(plan.launches)), self.make_tape(plan))
        return self._known[1:]
