"""The tape of a plan for all sizes, which native code fills in with the numbers for some (host/native/tapes.ll)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from weft.backends.cpu.tape import Tape
from weft.backends.host.addresses import DATA_AT, address
from weft.backends.host.runner import runner
from weft.cost.launches import estimation_limits
from weft.cost.roofline import Peak
from weft.errors import ExecutionError, InternalError
from weft.ir.arrays import Array
from weft.plan.plan import SymbolicLaunch, SymbolicLoop
from weft.plan.plan_numbers import PlanNumbers, SizedNumbers, list_launches

MOST_BLOCKS = 1 << 32


class TapeForm:
    """The launches of a plan as tables for native code, by the slots of their numbers."""

    def __init__(
        self, slots: PlanNumbers, addresses: Mapping[str, int], threads: int, peak: Peak, keep: object
    ) -> None:
        """`addresses` are those of kernels, in code that `keep` holds; runs have at most `threads` of this peak."""
        functions = [addresses[launch.kernel.name] for launch in slots.launches]
        counts = (slots.buffers, slots.parameters)
        launches = _table(functions, slots.block_slots, slots.flop_slots, slots.byte_slots, *counts)
        buffers = _table(slots.regions, slots.offset_slots, slots.block_of, _shift_slots(slots))
        entries, waits = _entry_tables(slots)
        tables = (
            launches,
            buffers,
            slots.parameter_slots.astype(np.int64),
            entries,
            waits,
            np.array(slots.total_slots, np.int64),
            np.array(slots.start_slots, np.int64),
            estimation_limits(peak),
        )
        parameters_at, entries_at, waits_at, totals_at, starts_at, limits_at = map(address, tables[2:])
        self._head = np.array(
            [
                len(launches),
                address(launches),
                address(buffers),
                parameters_at,
                len(slots.parameter_slots),
                len(entries),
                entries_at,
                waits_at,
                len(slots.total_slots),
                totals_at,
                starts_at,
                len(slots.start_slots[0]),
                slots.buffers.max(initial=0),
                1 + slots.regions.max(initial=-1),
                DATA_AT,
                threads,
                limits_at,
            ],
            np.int64,
        )
        self._at = address(self._head)
        self._tables, self._keep = tables, keep
        self._fill = runner().fill
        self._origins = [[launch.origin for launch in list_launches(entry)] for entry in slots.plan.launches]

    def fill(self, numbers: SizedNumbers) -> Tape:
        """Fill in the numbers for some sizes."""
        fill, values = self._fill, address(numbers.values)
        words = fill(self._at, values, 0, 0)
        if words < 0:
            blocks = numbers.blocks.max(initial=0)
            if blocks >= MOST_BLOCKS:
                raise ExecutionError(f"a launch with {blocks:,} blocks: the limit is {MOST_BLOCKS - 1:,}")
            raise ExecutionError("too many launches for these sizes", hint="check the sizes of the inputs")
        table = np.empty(words, np.int64)
        fill(self._at, values, address(table), words)
        return Tape(table, self._origins, self._keep)


def _table(*columns: Array | Sequence[int]) -> Array:
    return np.stack([np.asarray(column, np.int64) for column in columns], 1)


def _shift_slots(slots: PlanNumbers) -> Array:
    """Return the slot of each buffer's shift; any slot outside of loops, where it is not used."""
    shifts = np.zeros(len(slots.regions), np.int64)
    for loop in slots.loops:
        first = slots.buffers[: loop.first].sum()
        shifts[first : first + len(loop.shifts)] = loop.shifts
    return shifts


def _entry_tables(slots: PlanNumbers) -> tuple[Array, Array]:
    """Return a row for each entry (launches, buffers, the slot of a loop's count, its waits), and the waits of all."""
    rows: list[tuple[int, int, int, int, int]] = []
    waits: list[int] = []
    loops = iter(slots.loops)
    for number, entry in enumerate(slots.plan.launches):
        buffers = sum(len(launch.buffers) for launch in list_launches(entry))
        if isinstance(entry, SymbolicLoop):
            rows.append((len(entry.launches), buffers, next(loops).count, 0, -1))
            continue
        rows.append((1, buffers, -1, len(waits), -1 if entry.after is None else len(entry.after)))
        waits += _check_waits(entry, number)
    return np.array(rows, np.int64).reshape(-1, 5), np.array(waits, np.int64)


def _check_waits(launch: SymbolicLaunch, number: int) -> Sequence[int]:
    """Return the entries that a launch waits for, all of which are before it."""
    waits = launch.after or ()
    if not all(0 <= other < number for other in waits):
        raise InternalError(f"launch {number} waits for {waits}")
    return waits
