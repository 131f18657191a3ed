"""Runs that are recorded: an executable whose sections and host steps note when they ran, by the GPU's own clock.

In: a compiled program and its inputs. Out: one `RunRecord` a run. Nothing of it is in the way of other runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from time import perf_counter_ns
from typing import Any

import numpy as np

from weft.backends.reference.interpret import RunBody
from weft.backends.webgpu.executable import Executable, run_step
from weft.backends.webgpu.gpu import Gpu, Recording, TimedRecording
from weft.backends.webgpu.section import SectionRunner
from weft.ir.compiled import CompiledProgram
from weft.ir.program import Step, Value, step_name
from weft.ir.record import HostRecord, NativeRecord, RunRecord
from weft.ir.work import PlannedLaunch, unrolled

Array = np.ndarray[Any, Any]


def recorder(program: CompiledProgram, gpu: Gpu) -> Callable[[Sequence[Any]], RunRecord]:
    """A function that runs a program on inputs and tells how it went; DeviceError where a GPU cannot time kernels."""
    gpu.check_can_time()
    notes = _Notes()
    executable = Executable(program, gpu, runner=notes.section_runner, step=notes.run_step)

    def record(inputs: Sequence[Any]) -> RunRecord:
        notes.parts.clear()
        start = perf_counter_ns()
        executable.run(inputs)
        return RunRecord(start, perf_counter_ns(), tuple(notes.parts))

    return record


class _Notes:
    """What happened in the present run, in the order in which it ended."""

    def __init__(self) -> None:
        self.parts: list[NativeRecord | HostRecord] = []
        self.sections = 0

    def section_runner(self, *arguments: Any) -> SectionRunner:
        self.sections += 1
        return _RecordedSection(self, self.sections - 1, *arguments)

    def run_step(self, step: Step, operands: list[Any], sizes: dict[str, int], run_body: RunBody | None) -> list[Any]:
        before = len(self.parts)
        start = perf_counter_ns()
        results = run_step(step, operands, sizes, run_body)
        end = perf_counter_ns()
        inside = sum(_own_time(part) for part in self.parts[before:])
        self.parts.append(HostRecord(step.origin, step_name(step), start, end, inside))
        return results


class _RecordedSection(SectionRunner):
    """A section that notes the times of its launches."""

    def __init__(self, notes: _Notes, number: int, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.notes = notes
        self.number = number

    def _record(self, *arguments: Any) -> Recording:
        return TimedRecording(self.gpu, super()._record(*arguments).dispatches)

    def run(self, inputs: Sequence[Any], sizes: Mapping[str, int], keep: frozenset[Value] = frozenset()) -> list[Any]:
        start = perf_counter_ns()
        results = super().run(inputs, sizes, keep)
        self.gpu.wait()
        end = perf_counter_ns()
        prepared = self._prepared(sizes)
        recording = self.memory.recordings[prepared]
        assert isinstance(recording, TimedRecording)
        plan = prepared.plan
        launches = tuple(unrolled(plan.launches))
        times = _times(launches, recording.ticks(), end)
        record = NativeRecord(self.number, launches, times, plan.allocations, plan.arena_bytes, start, end)
        self.notes.parts.append(record)
        return results


def _times(launches: Sequence[PlannedLaunch], ticks: Array, end: int) -> Array:
    """When each launch started and ended, by the host's clock: the last at the end; 0 for one without blocks."""
    times = np.zeros((len(launches), 1, 2), np.int64)
    ran = [number for number, launch in enumerate(launches) if launch.blocks]
    if ran:
        times[ran, 0] = np.stack([ticks[:-1], ticks[1:]], 1) - ticks[-1] + end
    return times


def _own_time(part: NativeRecord | HostRecord) -> int:
    """The time of a record that no record inside of it shows."""
    return part.end - part.start - (part.inside if isinstance(part, HostRecord) else 0)
