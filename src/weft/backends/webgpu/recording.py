"""Runs that are recorded: an executable whose sections and host steps note when they ran, by the GPU's own clock.

In: a compiled program and its inputs. Out: one `RunRecord` a run. Nothing of it is in the way of other runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from time import perf_counter_ns
from typing import Any

import numpy as np

from weft.backends.notes import Notes
from weft.backends.webgpu.executable import Executable, run_step
from weft.backends.webgpu.gpu import Gpu, Recording, TimedRecording
from weft.backends.webgpu.section import SectionRunner
from weft.ir.compiled import CompiledProgram
from weft.ir.program import Value
from weft.ir.record import NativeRecord, RunRecord
from weft.ir.work import PlannedLaunch, unrolled

Array = np.ndarray[Any, Any]


def recorder(program: CompiledProgram, gpu: Gpu) -> Callable[[Sequence[Any]], RunRecord]:
    """A function that runs a program on inputs and tells how it went; DeviceError where a GPU cannot time kernels."""
    gpu.check_can_time()
    notes = Notes(run_step)

    def section(*arguments: Any) -> SectionRunner:
        return _RecordedSection(notes, notes.next_section(), *arguments)

    return notes.recording(Executable(program, gpu, runner=section, step=notes.run_step).run)


class _RecordedSection(SectionRunner):
    """A section that notes the times of its launches."""

    def __init__(self, notes: Notes, number: int, *arguments: Any) -> None:
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
