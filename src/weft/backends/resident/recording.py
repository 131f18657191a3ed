"""Runs that are recorded: an executable whose sections and host steps note when they ran, by the device's own clock.

In: a compiled program and its inputs. Out: one `RunRecord` a run. Nothing of it is in the way of other runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from time import perf_counter_ns
from typing import Any

import numpy as np

from weft.backends.notes import Notes
from weft.backends.resident.device import Array, LaunchCompiler, MemoryDevice
from weft.backends.resident.executable import ResidentExecutable
from weft.backends.resident.section import ResidentPlan, ResidentSection
from weft.ir.compiled import CompiledProgram
from weft.ir.program import Value
from weft.ir.record import NativeRecord, RunRecord
from weft.ir.work import NativeSection, PlannedLaunch, unrolled


def recorder(
    program: CompiledProgram, device: MemoryDevice, launches: LaunchCompiler
) -> Callable[[Sequence[Any]], RunRecord]:
    """A function that runs a program on inputs and tells how it went; DeviceError where the device has no clock."""
    device.check_can_time()
    notes = Notes()
    return notes.recording(_RecordedExecutable(notes, program, device, launches).run)


class _RecordedExecutable(ResidentExecutable):
    """One whose sections note the times of their launches."""

    def __init__(self, notes: Notes, program: CompiledProgram, device: MemoryDevice, launches: LaunchCompiler) -> None:
        self.notes = notes
        super().__init__(program, device, launches, around=notes.around)

    def _runner(
        self, section: NativeSection, constants: Mapping[Value, Any], stays: frozenset[Value]
    ) -> ResidentSection:
        return _RecordedSection(self.notes, section, constants, self._state, stays)


class _RecordedSection(ResidentSection):
    """A section that notes the times of its launches."""

    def __init__(self, notes: Notes, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.notes = notes
        self.number = notes.next_section()

    def _record(self, prepared: ResidentPlan, memory: Any) -> Any:
        return self.device.timed(super()._record(prepared, memory))

    def run(self, inputs: Sequence[Any], sizes: Mapping[str, int], keep: frozenset[Value] = frozenset()) -> list[Any]:
        start = perf_counter_ns()
        results = super().run(inputs, sizes, keep)
        self.device.wait()
        end = perf_counter_ns()
        prepared = self.prepared(sizes)
        plan = prepared.plan
        launches = tuple(unrolled(plan.launches))
        times = _times(launches, self.memory.recordings[prepared].ticks(), end)
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
