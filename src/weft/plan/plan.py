"""The plan of a section, for all sizes and for one set of them. plan/sections.py makes it, plan/verify.py proves it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from weft.errors import ExecutionError
from weft.ir.arrays import Array
from weft.ir.dim_evaluator import DimEvaluator
from weft.ir.dims import Dim, Expr
from weft.ir.kernel import Kernel
from weft.ir.program import Value
from weft.ir.work import Allocation, Place, PlannedLaunch, Repeated
from weft.records import dataclass

ALIGNMENT = 64  # bytes; blocks of memory start at multiples of it
ABSOLUTE, ARENA, ERRORS, FIRST_FREE = 0, 1, 2, 3
"""The regions of places: host addresses, the arena, the error flag, and from FIRST_FREE on inputs and outputs."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The launches and memory of a section. `constants` are arrays that launches point to, so they must live as long.

    `lower_bound` is the most bytes alive at any step, `sum_bytes` the size of an arena without reuse.
    """

    launches: tuple[PlannedLaunch | Repeated, ...]
    arena_bytes: int
    outputs: tuple[tuple[tuple[int, ...], np.dtype[Any]], ...]  # shape and dtype of each
    constants: tuple[Array, ...]
    allocations: tuple[Allocation, ...]  # of the section's own values and workspaces; a scan's body is one
    lower_bound: int
    sum_bytes: int
    steps: tuple[tuple[int, ...], ...]  # task numbers in order; those of one step may run in parallel


# -- for all sizes ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DefinedSize:
    """The definition of a symbol: the largest of some dims, or the most bytes that one of some units needs."""

    name: str
    parts: tuple[Dim, ...]
    units: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Condition:
    """What a layout assumes of sizes: that a dim equals a number, or differs from it."""

    dim: Expr
    relation: str  # "==" or "!="
    number: int

    def holds(self, number: DimEvaluator) -> bool:
        return (number(self.dim) == self.number) == (self.relation == "==")


@dataclass(frozen=True, slots=True)
class BlockStack:
    """The offset of each block, the total, and for each block a bit mask of the blocks that it never overlaps."""

    offsets: tuple[Dim, ...]
    total: Dim
    apart: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SymbolicPlace:
    """The position of a buffer in a region, or in a block of the arena."""

    region: int
    offset: Dim = 0
    block: int = -1

    def moved(self, more: Dim) -> SymbolicPlace:
        return self if more == 0 else SymbolicPlace(self.region, self.offset + more, self.block)


@dataclass(frozen=True, slots=True)
class SymbolicLaunch:
    """A `PlannedLaunch` for all sizes."""

    kernel: Kernel
    blocks: Dim
    buffers: tuple[SymbolicPlace, ...]
    parameters: tuple[Dim, ...]
    origin: str
    task: int
    flops: Dim
    bytes: Dim
    sizes: tuple[Dim, ...]
    after: tuple[int, ...] | None = None

    def at(self, number: DimEvaluator, starts: Sequence[int]) -> PlannedLaunch:
        """Return the launch for one set of sizes; `starts` are the offsets of the arena's blocks."""
        blocks = number(self.blocks)
        return PlannedLaunch(
            self.kernel,
            blocks,
            tuple(
                [
                    Place(place.region, number(place.offset) + (starts[place.block] if place.block >= 0 else 0))
                    for place in self.buffers
                ]
            ),
            number.parameters(self.parameters, blocks),
            self.origin,
            self.task,
            number(self.flops) if blocks else 0,
            number(self.bytes) if blocks else 0,
            tuple(map(number, self.sizes)),
            self.after,
        )


@dataclass(frozen=True, slots=True)
class SymbolicLoop:
    """A `Repeated` for all sizes."""

    launches: tuple[SymbolicLaunch, ...]
    shifts: tuple[tuple[Dim, ...], ...]
    count: Dim

    def at(self, number: DimEvaluator, starts: Sequence[int]) -> Repeated:
        shifts = tuple(tuple(map(number, by_buffer)) for by_buffer in self.shifts)
        return Repeated(tuple(launch.at(number, starts) for launch in self.launches), shifts, number(self.count))


@dataclass(frozen=True, slots=True)
class SymbolicBlock:
    """A block of the arena; `first` and `last` are steps."""

    name: str
    origin: str
    size: Dim
    first: int
    last: int


@dataclass(frozen=True, slots=True, eq=False)
class SymbolicPlan:
    """A plan for all sizes that meet its conditions.

    A run takes the first of the `stacks` with the smallest total. `shapes` are those of values that might have a
    negative size. `unshared` are the bytes of all values and workspaces. `entries` says how many launches, or loops of
    launches, each step has.
    """

    launches: tuple[SymbolicLaunch | SymbolicLoop, ...]
    stacks: tuple[BlockStack, ...]
    outputs: tuple[tuple[tuple[Dim, ...], np.dtype[Any]], ...]
    constants: tuple[Array, ...]
    blocks: tuple[SymbolicBlock, ...]
    definitions: tuple[DefinedSize, ...]
    conditions: tuple[Condition, ...]
    shapes: tuple[tuple[Value, tuple[Dim, ...]], ...]
    unshared: tuple[Dim, ...]
    steps: tuple[tuple[int, ...], ...]
    entries: tuple[int, ...]
    alignment: int

    def fits(self, sizes: Mapping[str, int]) -> bool:
        """Whether sizes meet the conditions of this plan."""
        if not self.conditions:
            return True
        number = DimEvaluator(sizes)
        return all(condition.holds(number) for condition in self.conditions)

    def at(self, sizes: Mapping[str, int]) -> Plan:
        """Return the plan for one set of sizes; ExecutionError for a tensor of negative size."""
        from weft.plan.arena import Lifetime, most_alive

        number = self.evaluator(sizes)
        for value, symbolic_shape in self.shapes:
            shape = tuple(map(number, symbolic_shape))
            if min(shape) < 0:
                raise ExecutionError(f"a dimension of negative size: {value.type} is {shape}")
        stack = min(self.stacks, key=lambda stack: number(stack.total))
        starts = list(map(number, stack.offsets))
        launches = tuple([entry.at(number, starts) for entry in self.launches])
        sized = [(block, number(block.size)) for block in self.blocks]
        lifetimes = [Lifetime(self._align(size), block.first, block.last) for block, size in sized]
        spans = self._find_spans(launches)
        return Plan(
            launches,
            number(stack.total),
            tuple((tuple(map(number, shape)), dtype) for shape, dtype in self.outputs),
            self.constants,
            tuple(
                Allocation(block.name, block.origin, start, size, spans[block.first][0], spans[block.last][1])
                for (block, size), start in zip(sized, starts)
            ),
            most_alive(lifetimes)[0],
            sum(self._align(number(size)) for size in self.unshared),
            self.steps,
        )

    def evaluator(self, sizes: Mapping[str, int]) -> DimEvaluator:
        """Return an evaluator that knows sizes and all defined symbols."""
        number = DimEvaluator(sizes)
        for definition in self.definitions:
            number.bind(definition.name, max(map(number, definition.parts)))
        return number

    def _align(self, size: int) -> int:
        return -(-size // self.alignment) * self.alignment

    def _find_spans(self, launches: Iterable[PlannedLaunch | Repeated]) -> list[tuple[int, int]]:
        """Return the first and last launch of each step, as `unrolled` counts them."""
        counts = [entry.count * len(entry.launches) if isinstance(entry, Repeated) else 1 for entry in launches]
        spans = []
        entry = total = 0
        for entries in self.entries:
            first, total = total, total + sum(counts[entry : entry + entries])
            entry += entries
            spans.append((first, max(total - 1, 0)))
        return spans
