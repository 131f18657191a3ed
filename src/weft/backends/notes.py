"""What happens in a run that is recorded: noted by whatever runs its sections and host steps, on any device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter_ns
from typing import Any

from weft.backends.reference.interpret import RunBody
from weft.ir.program import Step, step_name
from weft.ir.record import HostRecord, NativeRecord, RunRecord

RunStep = Callable[[Step, list[Any], dict[str, int], "RunBody | None"], list[Any]]


class Notes:
    """The parts of the present run, in the order in which they ended."""

    def __init__(self) -> None:
        self.parts: list[NativeRecord | HostRecord] = []
        self._sections = 0

    def next_section(self) -> int:
        """The number of a native section, in the order in which they are made."""
        self._sections += 1
        return self._sections - 1

    def around(self, run_step: RunStep) -> RunStep:
        """What runs a step on the host, and notes when."""

        def noted(step: Step, operands: list[Any], sizes: dict[str, int], run_body: RunBody | None) -> list[Any]:
            before = len(self.parts)
            start = perf_counter_ns()
            results = run_step(step, operands, sizes, run_body)
            end = perf_counter_ns()
            inside = sum(_own_time(part) for part in self.parts[before:])
            self.parts.append(HostRecord(step.origin, step_name(step), start, end, inside))
            return results

        return noted

    def recording(self, run: Callable[[Sequence[Any]], Any]) -> Callable[[Sequence[Any]], RunRecord]:
        """A function that runs on inputs and tells how it went; `run` leaves its notes here."""

        def record(inputs: Sequence[Any]) -> RunRecord:
            self.parts.clear()
            start = perf_counter_ns()
            run(inputs)
            return RunRecord(start, perf_counter_ns(), tuple(self.parts))

        return record


def _own_time(part: NativeRecord | HostRecord) -> int:
    """The time of a record that no record inside of it shows."""
    return part.end - part.start - (part.inside if isinstance(part, HostRecord) else 0)
