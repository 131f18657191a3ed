"""Recorded runs on the CPU: an executable whose sections and host steps log when they ran.

In: a compiled program and its inputs. Out: one `RunRecord` per run. Other runs are not slowed down.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from time import perf_counter_ns
from typing import Any

import numpy as np

from weft.backends.cpu.executable import CpuExecutable
from weft.backends.cpu.memory import ALIGNMENT, contiguous
from weft.backends.cpu.section import CpuSection
from weft.backends.cpu.tape import Tape
from weft.backends.host.addresses import address
from weft.backends.reference.interpret import run_step
from weft.backends.run_log import RunLog
from weft.errors import ExecutionError
from weft.ir.arrays import Array
from weft.ir.compiled import CompiledProgram
from weft.ir.program import Value
from weft.ir.run_record import NativeRecord, RunRecord
from weft.ir.work import NativeSection, PlannedLaunch, unrolled
from weft.plan.plan import Plan


def build_recorder(program: CompiledProgram, threads: int) -> Callable[[Sequence[Any]], RunRecord]:
    """Return a function that runs a program on inputs and returns the record of the run."""
    log = RunLog()
    return log.record_runs(_RecordedExecutable(log, program, threads).run)


class _RecordedExecutable(CpuExecutable):
    """An executable whose sections log the times of their launches."""

    def __init__(self, log: RunLog, program: CompiledProgram, threads: int) -> None:
        self.log = log
        super().__init__(program, threads, run_step=log.record_steps(run_step))

    def _load_section(self, section: NativeSection, constants: Mapping[Value, Any]) -> CpuSection:
        return _RecordedSection(self.log, section, constants, self)


class _RecordedSection(CpuSection):
    """A section that logs the times of its launches, in memory allocated per run."""

    def __init__(self, log: RunLog, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.log = log
        self.number = log.number_section()
        self._last_plan: tuple[tuple[int, ...], Plan, tuple[PlannedLaunch, ...], Tape] | None = None

    def run(
        self,
        inputs: Sequence[Array],
        sizes: Mapping[str, int],
        keep: frozenset[Value] = frozenset(),  # noqa: ARG002
    ) -> list[Array]:
        plan, launches, tape = self._plan_tape(sizes)
        arrays = [contiguous(array) for array in inputs]
        outputs = [np.empty(shape, dtype) for shape, dtype in plan.outputs]
        memory = np.zeros(plan.arena_bytes + 2 * ALIGNMENT, np.uint8)
        errors = -(-memory.ctypes.data // ALIGNMENT) * ALIGNMENT
        regions = [0, errors + ALIGNMENT, errors, *map(address, arrays), *map(address, outputs)]
        start = perf_counter_ns()
        times = tape.run_timed(regions, self.threads)
        end = perf_counter_ns()
        if memory[errors - memory.ctypes.data :][:4].any():
            raise ExecutionError("an index is out of range")
        record = NativeRecord(self.number, launches, times, plan.allocations, plan.arena_bytes, start, end)
        self.log.records.append(record)
        return outputs

    def _plan_tape(self, sizes: Mapping[str, int]) -> tuple[Plan, tuple[PlannedLaunch, ...], Tape]:
        key = tuple([sizes[name] for name in self.symbols])
        if self._last_plan is None or self._last_plan[0] != key:
            plan = self.make_plan(sizes)
            tape = self.fill_tape(*self._evaluate(sizes))
            self._last_plan = (key, plan, tuple(unrolled(plan.launches)), tape)
        return self._last_plan[1:]
