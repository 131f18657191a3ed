"""The tape of a plan for all sizes, filled in with the numbers for some."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import inf
from typing import NamedTuple

import numpy as np

from weft.backends.cpu.memory import address
from weft.backends.cpu.tape import (
    BLOCKS,
    BUFFERS,
    FIRST_PLACE,
    FUNCTION,
    MOST,
    MOST_BLOCKS,
    PARAMETERS_AT,
    SpreadLaunch,
    SpreadLoop,
    Tape,
    build_steps,
    serial_steps,
    unroll_loop,
)
from weft.cost.launches import LONGEST_SEQUENCE, LaunchTimes
from weft.cost.roofline import Peak
from weft.errors import ExecutionError
from weft.plan.plan import SymbolicLoop
from weft.plan.plan_numbers import PlanNumbers, SizedNumbers, list_launches


class FilledTape(NamedTuple):
    """A tape for some sizes, the threads that it is worth, and how a run can be interrupted (see CpuPlan)."""

    tape: Tape
    threads: int
    is_long: bool
    may_block: bool


class TapeForm:
    """The tables of a tape without the numbers that depend on sizes."""

    def __init__(self, slots: PlanNumbers, addresses: Mapping[str, int], keep: object) -> None:
        self._slots, self._keep = slots, keep
        launches = slots.launches
        self._rows = np.zeros((len(launches), 6), np.int64)
        self._rows[:, FUNCTION] = [addresses[launch.kernel.name] for launch in launches]
        self._rows[:, BUFFERS] = slots.buffers
        self._rows[:, FIRST_PLACE] = np.cumsum(slots.buffers) - slots.buffers
        self._rows[:, PARAMETERS_AT] = 8 * (np.cumsum(slots.parameters) - slots.parameters)
        self._places = np.stack([slots.regions, np.zeros_like(slots.regions)], 1)

    def fill(self, numbers: SizedNumbers, threads: int, peak: Peak) -> FilledTape:
        """Fill in the numbers for some sizes, for a run with at most this many threads of this peak."""
        if numbers.blocks.max(initial=0) >= MOST_BLOCKS:
            raise ExecutionError(f"a launch with {numbers.blocks.max():,} blocks: the limit is {MOST_BLOCKS - 1:,}")
        counts = [numbers.loop_count(loop) for loop in self._slots.loops]
        repeats = np.ones(len(self._rows), np.int64)
        for loop, count in zip(self._slots.loops, counts):
            repeats[loop.first : loop.stop] = count
        times = LaunchTimes(numbers.blocks, numbers.flops, numbers.bytes, repeats, peak)
        rows, places = self._rows.copy(), self._places.copy()
        rows[:, BLOCKS] = numbers.blocks
        rows[:, PARAMETERS_AT] += address(numbers.parameters)
        rows[:, MOST] = times.blocks_between_checks
        places[:, 1] = numbers.offsets
        for loop, count in zip(reversed(self._slots.loops), reversed(counts)):
            shifts = numbers.loop_shifts(loop)
            rows, places = unroll_loop(rows, places, loop.first, loop.stop - loop.first, shifts, count)
        threads = threads if times.is_worth_waking else 1
        steps = build_steps(list(self._spread(times, numbers.blocks.tolist(), counts))) if threads > 1 else None
        tape = Tape.from_tables(
            rows,
            places,
            numbers.parameters,
            serial_steps(len(rows)) if steps is None else steps,
            self._list_origins(counts),
            self._keep,
        )
        may_block = times.may_block
        return FilledTape(tape, threads, may_block or times.is_long, may_block)

    def _spread(
        self, times: LaunchTimes, blocks: Sequence[int], counts: Sequence[int]
    ) -> Iterator[SpreadLaunch | SpreadLoop]:
        """Yield how threads share each entry of the plan.

        Short launches that depend on the previous one are joined: the same thread runs them right after it.
        """
        seconds, shared = times.seconds.tolist(), times.is_worth_sharing.tolist()
        left = iter(counts)
        sequence = inf  # seconds of the current sequence
        first = 0
        for number, entry in enumerate(self._slots.plan.launches):
            if isinstance(entry, SymbolicLoop):
                launches = range(first, first + len(entry.launches))
                parts = [SpreadLaunch(blocks[n], blocks[n] if shared[n] else 1, (), joined=False) for n in launches]
                yield SpreadLoop(parts, next(left))
                sequence = inf
            elif shared[first]:
                yield SpreadLaunch(blocks[first], blocks[first], entry.after, joined=False)
                sequence = inf
            else:
                follows = entry.after is None or number - 1 in entry.after
                joined = follows and sequence + seconds[first] <= LONGEST_SEQUENCE
                yield SpreadLaunch(blocks[first], 1, entry.after, joined)
                sequence = sequence + seconds[first] if joined else seconds[first]
            first += len(list_launches(entry))

    def _list_origins(self, counts: Sequence[int]) -> list[tuple[list[str], int]]:
        left = iter(counts)
        return [
            ([launch.origin for launch in list_launches(entry)], next(left) if isinstance(entry, SymbolicLoop) else 1)
            for entry in self._slots.plan.launches
        ]
