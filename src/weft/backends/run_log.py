"""The log of a recorded run: the native sections and host steps that ran, on any device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter_ns
from typing import Any

from weft.backends.reference.interpret import RunBody
from weft.ir.program import Step, step_name
from weft.ir.run_record import HostRecord, NativeRecord, RunRecord

RunStep = Callable[[Step, list[Any], dict[str, int], "RunBody | None"], list[Any]]


class RunLog:
    """The records of the current run, in the order in which sections and steps ended."""

    def __init__(self) -> None:
        self.records: list[NativeRecord | HostRecord] = []
        self._sections = 0

    def number_section(self) -> int:
        """Return the next number for a native section, in the order in which they are loaded."""
        self._sections += 1
        return self._sections - 1

    def record_steps(self, run_step: RunStep) -> RunStep:
        """Wrap a function that runs host steps, so that each is recorded."""

        def run(step: Step, operands: list[Any], sizes: dict[str, int], run_body: RunBody | None) -> list[Any]:
            before = len(self.records)
            start = perf_counter_ns()
            results = run_step(step, operands, sizes, run_body)
            end = perf_counter_ns()
            inside = sum(_self_time(record) for record in self.records[before:])
            self.records.append(HostRecord(step.origin, step_name(step), start, end, inside))
            return results

        return run

    def record_runs(self, run: Callable[[Sequence[Any]], Any]) -> Callable[[Sequence[Any]], RunRecord]:
        """Wrap an executable's `run`, whose sections and steps write to this log, to return the record of a run."""

        def record(inputs: Sequence[Any]) -> RunRecord:
            self.records.clear()
            start = perf_counter_ns()
            run(inputs)
            return RunRecord(start, perf_counter_ns(), tuple(self.records))

        return record


def _self_time(record: NativeRecord | HostRecord) -> int:
    """Return the time of a record without the records inside it."""
    return record.end - record.start - (record.inside if isinstance(record, HostRecord) else 0)
