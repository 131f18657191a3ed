"""All numbers of a symbolic plan, by the slots of one table: evaluate it for some sizes, and take them as arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, overload

import numpy as np

from weft.ir.arrays import Array
from weft.ir.work import PlannedLaunch, Repeated
from weft.plan.numbers import INVALID, NumberTable, NumberTableBuilder
from weft.plan.plan import SymbolicLaunch, SymbolicLoop, SymbolicPlan
from weft.records import dataclass

Compute = Callable[[NumberTable, Array], None]
"""Evaluates the operations of a table on its slots."""


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
        parameters = write.slots([value for launch in self.launches for value in launch.parameters])
        offsets = write.slots([place.offset for launch in self.launches for place in launch.buffers])
        used = write.slots([size for launch in self.launches for size in launch.sizes])
        shapes = [write.slots(shape) for shape, _ in plan.outputs]
        sizes = write.slots([dim for _, shape in plan.shapes for dim in shape])
        conditions = [(write.slot(c.dim), c.relation, c.number) for c in plan.conditions]
        stacks = [(write.slot(stack.total), write.slots([*stack.offsets, 0])) for stack in plan.stacks]
        loops = _loop_slots(plan, write)
        self.table = write.build()
        resolve = write.resolve
        self._blocks, self._flops, self._bytes = resolve(blocks), resolve(flops), resolve(moved)
        self._parameters, self._offsets, self._used = resolve(parameters), resolve(offsets), resolve(used)
        self._shapes = [(resolve(slots), dtype) for slots, (_, dtype) in zip(shapes, plan.outputs)]
        self._sizes = resolve(sizes)
        self._conditions = [(int(resolve([slot])[0]), relation, number) for slot, relation, number in conditions]
        self._stacks = [(int(resolve([total])[0]), resolve(starts)) for total, starts in stacks]
        blocks_of = [place.block for launch in self.launches for place in launch.buffers]
        self._block_of = np.array(blocks_of, np.intp)  # -1, the last, for buffers outside of the arena
        self.loops = [
            LoopSlots(first, stop, int(resolve([count])[0]), resolve(shifts)) for first, stop, count, shifts in loops
        ]
        self.buffers = np.array([len(launch.buffers) for launch in self.launches], np.int64)
        self.parameters = np.array([len(launch.parameters) for launch in self.launches], np.int64)
        self.regions = np.array([place.region for launch in self.launches for place in launch.buffers], np.int64)

    def evaluate(self, sizes: Mapping[str, int]) -> SizedNumbers | None:
        """Evaluate the numbers for sizes; None if the plan does not apply to them or a number is invalid."""
        try:
            values = self.table.start([sizes[name] for name in self._symbols])
        except OverflowError:
            return None
        self._compute(self.table, values)
        for slot, relation, number in self._conditions:
            value = values.item(slot)
            is_equal = value == number
            if value == INVALID or (value < number if relation == ">=" else is_equal != (relation == "==")):
                return None
        numbers = SizedNumbers(self, values, sizes)
        return numbers if numbers.are_valid() else None


class SizedNumbers:
    """The numbers of a plan for one set of sizes."""

    def __init__(self, slots: PlanNumbers, values: Array, sizes: Mapping[str, int]) -> None:
        self._slots, self._values, self.sizes = slots, values, sizes
        self.blocks = values.take(slots._blocks)
        self.has_blocks = self.blocks > 0
        self.parameters = values.take(slots._parameters)
        if not self.has_blocks.all():  # their parameters may divide by a size of 0
            self.parameters *= self.has_blocks.repeat(slots.parameters)
        self.arena_bytes, starts = min([(values.item(total), n) for n, (total, _) in enumerate(slots._stacks)])
        self.offsets = values.take(slots._offsets) + values.take(slots._stacks[starts][1])[slots._block_of]

    def are_valid(self) -> bool:
        slots, values = self._slots, self._values
        if len(slots._sizes) and values.take(slots._sizes).min() < 0:
            return False
        smallest = [array.min(initial=0) for array in (self.parameters, self.offsets)]
        return min(*smallest, self.arena_bytes) > INVALID and bool(self.blocks.min(initial=0) >= 0)

    @property
    def flops(self) -> Array:
        return self._values.take(self._slots._flops) * self.has_blocks

    @property
    def bytes(self) -> Array:
        return self._values.take(self._slots._bytes) * self.has_blocks

    @property
    def used(self) -> Array:
        """The bytes of each buffer; 0 for those that no launch writes."""
        return self._values.take(self._slots._used)

    @property
    def outputs(self) -> tuple[tuple[tuple[int, ...], np.dtype[Any]], ...]:
        return tuple((tuple(self._values.take(slots).tolist()), dtype) for slots, dtype in self._slots._shapes)

    def loop_count(self, loop: LoopSlots) -> int:
        return int(self._values[loop.count])

    def loop_shifts(self, loop: LoopSlots) -> Array:
        return self._values.take(loop.shifts)


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
