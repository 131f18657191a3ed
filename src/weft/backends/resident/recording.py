"""Recorded runs on a device with its own memory: sections log the times of launches by the device's clock.

In: a compiled program and its inputs. Out: one `RunRecord` per run. Other runs are not slowed down.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from time import perf_counter_ns
from typing import Any

import numpy as np

from weft.backends.resident.device import LaunchCompiler, MemoryDevice
from weft.backends.resident.executable import ResidentExecutable
from weft.backends.resident.section import ResidentPlan, ResidentSection
from weft.backends.run_log import RunLog
from weft.ir.arrays import Array
from weft.ir.compiled import CompiledProgram
from weft.ir.program import Value
from weft.ir.run_record import NativeRecord, RunRecord
from weft.ir.work import NativeSection, PlannedLaunch, unrolled


def build_recorder(
    program: CompiledProgram, device: MemoryDevice, launches: LaunchCompiler
) -> Callable[[Sequence[Any]], RunRecord]:
    """Return a function that runs a program and returns the record of the run; DeviceError without a device clock."""
    device.check_can_time()
    log = RunLog()
    return log.record_runs(_RecordedExecutable(log, program, device, launches).run)


class _RecordedExecutable(ResidentExecutable):
    """An executable whose sections log the times of their launches."""

    def __init__(self, log: RunLog, program: CompiledProgram, device: MemoryDevice, launches: LaunchCompiler) -> None:
        self.log = log
        super().__init__(program, device, launches, wrap_steps=log.record_steps)

    def _load_section(self, section: NativeSection, constants: Mapping[Value, Any]) -> ResidentSection:
        return _RecordedSection(self.log, section, constants, self)


class _RecordedSection(ResidentSection):
    """A section that logs the times of its launches."""

    def __init__(self, log: RunLog, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.log = log
        self.number = log.number_section()

    def _record(self, plan: ResidentPlan, memory: Any) -> Any:
        return self.device.timed(super()._record(plan, memory))

    def run(self, inputs: Sequence[Any], sizes: Mapping[str, int], keep: frozenset[Value] = frozenset()) -> list[Any]:
        start = perf_counter_ns()
        results = super().run(inputs, sizes, keep)
        self.device.wait()
        end = perf_counter_ns()
        resident_plan = self.load_plan(sizes)
        plan = resident_plan.slots.plan.at(sizes)
        launches = tuple(unrolled(plan.launches))
        times = _launch_times(launches, self.memory.recordings[resident_plan].ticks(), end)
        record = NativeRecord(self.number, launches, times, plan.allocations, plan.arena_bytes, start, end)
        self.log.records.append(record)
        return results


def _launch_times(launches: Sequence[PlannedLaunch], ticks: Array, end: int) -> Array:
    """Convert ticks to start and end times by the host's clock; the last launch ends at `end`. 0 without blocks."""
    times = np.zeros((len(launches), 1, 2), np.int64)
    ran = [number for number, launch in enumerate(launches) if launch.blocks]
    if ran:
        times[ran, 0] = np.stack([ticks[:-1], ticks[1:]], 1) - ticks[-1] + end
    return times
