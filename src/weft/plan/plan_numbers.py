"""All numbers of a symbolic plan, by the slots of one table: evaluate it for some sizes, and take them as arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, overload

import numpy as np

from weft.ir.arrays import Array
from weft.ir.work import PlannedLaunch, Repeated
from weft.plan.numbers import NumberTable, NumberTableBuilder
from weft.plan.plan import SymbolicLaunch, SymbolicLoop, SymbolicPlan
from weft.records import dataclass
from weft.threads import cached_property

Compute = Callable[[NumberTable, Array], bool]
"""Evaluates the operations of a table on its slots, and returns whether all checks hold."""


@dataclass(frozen=True, slots=True, eq=False)
class LoopSlots:
    """The launches of a loop, by the numbers of the first and after the last, and the slots of its numbers."""

    first: int
    stop: int
    count: int
    shifts: Array  # by buffer


class PlanNumbers:
    """The slots of a plan's numbers.

    Launches, parameters and buffers are in the order of the plan; those of loops are there once.
    `buffers` and `parameters` say how many each launch has.
    """

    def __init__(self, plan: SymbolicPlan, symbols: Sequence[str], compute: Compute) -> None:
        self.plan = plan
        self._symbols, self._compute = symbols, compute
        self.launches = [launch for entry in plan.launches for launch in list_launches(entry)]
        write = NumberTableBuilder(symbols, plan.definitions)
        blocks = write.slots([launch.blocks for launch in self.launches])
        flops = write.slots([launch.flops for launch in self.launches])
        moved = write.slots([launch.bytes for launch in self.launches])
        parameters = [write.slots(launch.parameters) for launch in self.launches]
        offsets = write.slots([place.offset for launch in self.launches for place in launch.buffers])
        used = write.slots([size for launch in self.launches for size in launch.sizes])
        shapes = [write.slots(shape) for shape, _ in plan.outputs]
        sizes = write.slots([dim for _, shape in plan.shapes for dim in shape])
        totals = write.slots([stack.total for stack in plan.stacks])
        starts = [write.slots([*stack.offsets, 0]) for stack in plan.stacks]
        loops = _loop_slots(plan, write)
        for condition in plan.conditions:
            write.check(write.slot(condition.dim), condition.relation, condition.number)
        for slot in (*sizes, *blocks, *[count for _, _, count, _ in loops]):
            write.check(slot, ">=", 0)
        write.check_valid([*totals, *offsets, *[slot for slots in (*starts, *shapes) for slot in slots]])
        for slot, slots in zip(blocks, parameters):  # without blocks, parameters may divide by a size of 0
            write.check_valid(slots, unless=slot)
        for _, _, count, shifts in loops:
            write.check_valid(shifts, unless=count)
        self.table = write.build()
        resolve = write.resolve
        self.block_slots, self.flop_slots, self.byte_slots = resolve(blocks), resolve(flops), resolve(moved)
        self.parameter_slots = resolve([slot for slots in parameters for slot in slots])
        self.offset_slots, self.used_slots = resolve(offsets), resolve(used)
        self.shape_slots = [(resolve(slots).tolist(), dtype) for slots, (_, dtype) in zip(shapes, plan.outputs)]
        self.total_slots: list[int] = resolve(totals).tolist()
        self.start_slots = [resolve(slots) for slots in starts]  # by stack; the last is that of a 0
        places = [place for launch in self.launches for place in launch.buffers]
        self.block_of = np.array([place.block for place in places], np.intp)
        self.block_of[self.block_of < 0] = len(
            plan.stacks[0].offsets
        )  # for buffers outside of the arena: they start at 0
        self.loops = [
            LoopSlots(first, stop, int(resolve([count])[0]), resolve(shifts)) for first, stop, count, shifts in loops
        ]
        self.buffers = np.array([len(launch.buffers) for launch in self.launches], np.int64)
        self.parameters = np.array([len(launch.parameters) for launch in self.launches], np.int64)
        self.regions = np.array([place.region for place in places], np.int64)

    def evaluate(self, sizes: Mapping[str, int]) -> SizedNumbers | None:
        """Evaluate the numbers for sizes; None if the plan does not apply to them or a number is invalid."""
        try:
            values = self.table.start([sizes[name] for name in self._symbols])
        except OverflowError:
            return None
        return SizedNumbers(self, values, sizes) if self._compute(self.table, values) else None


class SizedNumbers:
    """The numbers of a plan for one set of sizes; `values` has those of all slots, arrays are taken from it lazily."""

    def __init__(self, slots: PlanNumbers, values: Array, sizes: Mapping[str, int]) -> None:
        self._slots, self.values, self.sizes = slots, values, sizes
        item = values.item
        totals: list[int] = [item(slot) for slot in slots.total_slots]
        self.arena_bytes = min(totals)
        self._stack = totals.index(self.arena_bytes)
        self.outputs = tuple([(tuple([item(slot) for slot in shape]), dtype) for shape, dtype in slots.shape_slots])

    @cached_property
    def blocks(self) -> Array:
        return self.values.take(self._slots.block_slots)

    @cached_property
    def has_blocks(self) -> Array:
        return self.blocks > 0

    @cached_property
    def parameters(self) -> Array:
        """The parameters of all launches; 0 for those without blocks."""
        return self.values.take(self._slots.parameter_slots) * self.has_blocks.repeat(self._slots.parameters)

    @cached_property
    def offsets(self) -> Array:
        slots, values = self._slots, self.values
        return values.take(slots.offset_slots) + values.take(slots.start_slots[self._stack])[slots.block_of]

    @property
    def flops(self) -> Array:
        return self.values.take(self._slots.flop_slots) * self.has_blocks

    @property
    def bytes(self) -> Array:
        return self.values.take(self._slots.byte_slots) * self.has_blocks

    @property
    def used(self) -> Array:
        """The bytes of each buffer; 0 for those that no launch writes."""
        return self.values.take(self._slots.used_slots)

    def loop_count(self, loop: LoopSlots) -> int:
        return int(self.values[loop.count])

    def loop_shifts(self, loop: LoopSlots) -> Array:
        return self.values.take(loop.shifts)


@overload
def list_launches(entry: SymbolicLaunch | SymbolicLoop) -> tuple[SymbolicLaunch, ...]: ...
@overload
def list_launches(entry: PlannedLaunch | Repeated) -> tuple[PlannedLaunch, ...]: ...
def list_launches(entry: Any) -> Any:
    """Return the launches of an entry of a plan, those of a loop once."""
    return entry.launches if isinstance(entry, (SymbolicLoop, Repeated)) else (entry,)


def _loop_slots(plan: SymbolicPlan, write: NumberTableBuilder) -> list[tuple[int, int, int, list[int]]]:
    loops = []
    first = 0
    for entry in plan.launches:
        stop = first + len(list_launches(entry))
        if isinstance(entry, SymbolicLoop):
            shifts = write.slots([shift for by_buffer in entry.shifts for shift in by_buffer])
            loops.append((first, stop, write.slot(entry.count), shifts))
        first = stop
    return loops
