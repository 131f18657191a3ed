"""Lay out the memory of a section for all sizes: sharing is decided once, and offsets are functions of the sizes.

Blocks are first placed for reference sizes (plan/arena.py), which orders them from the bottom up. The offset of a block
is then the end of the highest block below it with an overlapping lifetime. So blocks that are alive at the same time
never overlap, whatever the sizes, and for the reference sizes the total is the planned one.

Offsets are dims of additional symbols, which `definitions` define in order: each is the largest of some dims. Decisions
that no layout can make for all sizes (whether a copy is contiguous, how long a scan is) are made for the sizes of one
run and become conditions: the layout holds for all sizes that meet them.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Mapping, Sequence
from dataclasses import field
from functools import cache
from itertools import accumulate
from operator import or_

from weft.ir import dims
from weft.ir.dim_evaluator import DimEvaluator
from weft.ir.dims import Dim, Expr, Symbol
from weft.ir.program import Value
from weft.ir.work import NativeSection, ScanTask
from weft.plan.arena import Lifetime, Placement, find_overlaps, most_alive, place_blocks
from weft.plan.order import SizeEstimates, choose_order
from weft.plan.plan import BlockStack, Condition, DefinedSize
from weft.plan.storage import MemoryBlock, Sizes, StoragePlan, plan_storage
from weft.records import dataclass

LARGEST_BYTES = 2**56
"""The limit of offsets and tensors, so that sums of a few of them fit into 64 bits."""

Owner = object
"""The owner of a block: a value, or a tuple such as the numbers of a task and of its workspace."""

Bindings = Mapping[str, Dim]
"""The sizes of a body's symbols in terms of outer symbols."""

Steps = Sequence[Sequence[int]]
"""Task numbers in order; those of one step may run in parallel."""


@dataclass(frozen=True, slots=True)
class ScanLayout:
    """The two buffers of each carry, as offsets in a scan's memory, and the offset of its body's memory."""

    inner: Bindings
    pairs: tuple[tuple[Dim, Dim], ...]
    base: Dim
    body: SectionLayout


@dataclass(frozen=True, slots=True)
class SectionLayout:
    """The steps of a section, which values share memory, and the offsets of blocks in the section's memory."""

    steps: Steps
    storage: StoragePlan
    stack: BlockStack
    scans: Mapping[int, ScanLayout] = field(default_factory=dict)

    @property
    def order(self) -> list[int]:
        return [number for step in self.steps for number in step]

    @property
    def total(self) -> Dim:
        return self.stack.total

    @property
    def offsets(self) -> dict[Owner, Dim]:
        return {block.owner: offset for block, offset in zip(self.storage.blocks, self.stack.offsets)}


def bind_dim(dim: Dim, bindings: Bindings) -> Dim:
    """Express a dim of a body in outer symbols."""
    if isinstance(dim, int) or not bindings:
        return dim
    return dims.substitute(dim, lambda atom: _bind_atom(atom, bindings))


def _bind_atom(atom: Symbol | dims.Axis, bindings: Bindings) -> Dim:
    dim = bindings.get(atom.name) if isinstance(atom, Symbol) else None
    return dims.from_atom(atom) if dim is None else dim


def bind_shape(value: Value, bindings: Bindings) -> tuple[Dim, ...]:
    if not bindings:
        return value.shape
    return tuple([bind_dim(dim, bindings) for dim in value.shape])


def value_bytes(value: Value, bindings: Bindings) -> Dim:
    if not bindings:
        return value.nbytes
    return dims.product(bind_shape(value, bindings)) * value.itemsize


def bind_body(task: ScanTask, outer: Bindings) -> dict[str, Dim]:
    """Return the sizes that a scan's body gets from its inputs, and those of `outer`."""
    inner, primitive = dict(outer), task.primitive
    for number, (inside, outside) in enumerate(zip(task.program.inputs, task.operands)):
        shape = bind_shape(outside, outer)
        is_sequence = primitive.carries <= number < primitive.carries + primitive.sequences
        for dim, size in zip(inside.shape, shape[1:] if is_sequence else shape):
            symbol = dims.as_symbol(dim)
            if symbol is not None and size != dim:
                inner[symbol.name] = size
    return inner


class LayoutPlanner:
    """Lays out sections for all sizes that meet its conditions."""

    def __init__(
        self, references: Sequence[Mapping[str, int]], alignment: int, sizes: Mapping[str, int] | None = None
    ) -> None:
        """`references` are sizes: the first determine the order of tasks and blocks, others alternatives of the latter.

        `sizes` are those for which decisions are made that no layout can make for all sizes. Without them, copies are
        never taken for contiguous, and there are no conditions.
        """
        self._references = list(map(DimEvaluator, references))
        self.reference = self._references[0]
        self.alignment = alignment
        self.definitions: list[DefinedSize] = []
        self.conditions: dict[Condition, None] = {}
        self._sizes = None if sizes is None else DimEvaluator(sizes)
        self._placements: dict[tuple[Lifetime, ...], Placement] = {}

    # -- decisions ---------------------------------------------------------------------------------------------------

    def is_equal(self, dim: Dim, number: int) -> bool:
        """Whether a dim equals a number; a condition if that depends on the sizes."""
        if isinstance(dim, int):
            return dim == number
        low, high = dims.bounds(dim)
        if self._sizes is None or (low is not None and low > number) or (high is not None and high < number):
            return False
        is_equal = self._sizes(dim) == number
        self.conditions[Condition(dim, "==" if is_equal else "!=", number)] = None
        return is_equal

    def fix(self, dim: Dim) -> int:
        """Return the value of a dim for the sizes of the run, and make it a condition."""
        if isinstance(dim, int):
            return dim
        assert self._sizes is not None
        number = self._sizes(dim)
        self.conditions[Condition(dim, "==", number)] = None
        return number

    def estimate(self, dim: Dim) -> int:
        """Return the value of a dim for the reference sizes, 0 where it is impossible."""
        try:
            return max(self.reference(dim), 0)
        except ArithmeticError:
            return 0

    # -- sizes -------------------------------------------------------------------------------------------------------

    def align(self, size: Dim) -> Dim:
        return dims.ceildiv(size, self.alignment) * self.alignment

    def largest(self, of: Sequence[Dim]) -> Dim:
        """Return the largest of some dims, none negative: a number, or a newly defined symbol."""
        fixed = max((dim for dim in of if isinstance(dim, int)), default=0)
        others: tuple[Dim, ...] = tuple(dict.fromkeys(dim for dim in of if isinstance(dim, Expr)))
        if not others:
            return fixed
        parts = (fixed, *others) if fixed else others
        if len(parts) == 1:
            return parts[0]
        return self._define(DefinedSize(self._name(), parts), max(map(self.estimate, parts)))

    def largest_unit(self, units: Sequence[tuple[int, int]]) -> Dim:
        """Define the most bytes that one of some units needs; `units` are numbers, with the bytes for usual sizes."""
        numbers = tuple(number for number, _ in units)
        return self._define(DefinedSize(self._name(), (), numbers), max((size for _, size in units), default=0))

    def _name(self) -> str:
        return f"\0{len(self.definitions)}"  # cannot be the name of a dim of a model

    def _define(self, definition: DefinedSize, estimate: int) -> Dim:
        self.definitions.append(definition)
        for reference in self._references:
            reference.bind(definition.name, estimate)
        return dims.symbol(definition.name, 0, LARGEST_BYTES)

    # -- layouts -----------------------------------------------------------------------------------------------------

    def choose_steps(self, section: NativeSection, external: Collection[Value], bindings: Bindings) -> Steps:
        """Order tasks one by one so that they need little memory, never more than in the section's own order."""
        section_steps = [(number,) for number in range(len(section.tasks))]
        estimates = SizeEstimates(
            lambda dim: self.estimate(bind_dim(dim, bindings)),
            lambda value: self.estimate(value_bytes(value, bindings)),
            cache(lambda task: self._estimate_scan(task, bindings)),
        )
        steps = [(number,) for number in choose_order(section, estimates, external.__contains__)]
        if steps == section_steps:
            return section_steps
        scan_bytes: dict[int, Dim] = {
            id(task): estimates.scan_bytes(task) for task in section.tasks if isinstance(task, ScanTask)
        }
        sizes = self._symbolic_sizes(bindings, scan_bytes)
        least, own = (self._peak(section, external, order, sizes) for order in (steps, section_steps))
        return steps if least <= own else section_steps

    def lay_out(
        self, section: NativeSection, external: Collection[Value], steps: Steps, bindings: Bindings
    ) -> SectionLayout:
        """Lay out a section whose tasks run in these steps; `external` values have memory elsewhere."""
        scans = {
            number: self._lay_out_scan(task, bindings)
            for number, task in enumerate(section.tasks)
            if isinstance(task, ScanTask)
        }
        scan_bytes = {id(section.tasks[number]): scan.base + scan.body.total for number, scan in scans.items()}
        storage = self._choose_storage(section, external, steps, self._symbolic_sizes(bindings, scan_bytes))
        return SectionLayout(steps, storage, self.stack(storage.blocks), scans)

    def stack(self, blocks: Sequence[MemoryBlock]) -> BlockStack:
        """Return the offsets of blocks, ordered from the bottom up as they are for the reference sizes."""
        placement = self._place(blocks)
        if all(isinstance(block.size, int) for block in blocks):
            return BlockStack(placement.offsets, placement.size, self._find_apart(blocks, placement))
        order = sorted(range(len(blocks)), key=lambda number: (placement.offsets[number], number))
        position = {number: place for place, number in enumerate(order)}
        overlaps = find_overlaps([Lifetime(0, block.first, block.last) for block in blocks])
        offsets: list[Dim] = [0] * len(blocks)
        ends: list[Dim] = [0] * len(blocks)
        under = [0] * len(blocks)
        for number in order:
            below = [other for other in overlaps[number] if position[other] < position[number]]
            covered = 0
            for other in below:
                covered |= under[other]
                under[number] |= under[other] | 1 << other
            offsets[number] = self.largest([ends[other] for other in below if not covered >> other & 1])
            ends[number] = offsets[number] + self.align(blocks[number].size)
        covered = 0
        for mask in under:
            covered |= mask
        top = [end for number, end in enumerate(ends) if not covered >> number & 1]
        return BlockStack(tuple(offsets), self.largest(top), _make_symmetric(under))

    def stack_alternatives(self, layout: SectionLayout) -> list[BlockStack]:
        """Return the stack of a layout, and others if the order of blocks depends on sizes."""
        blocks = layout.storage.blocks
        if all(isinstance(block.size, int) for block in blocks):
            return [layout.stack]
        stacks = [layout.stack]
        for reference in self._references[1:]:
            self.reference = reference
            stacks.append(self.stack(blocks))
        self.reference = self._references[0]
        return stacks

    def _find_apart(self, blocks: Sequence[MemoryBlock], placement: Placement) -> tuple[int, ...]:
        """Return for each block of fixed size a mask of the blocks that end before it starts or start after it ends."""
        sizes = [self.estimate(self.align(block.size)) for block in blocks]
        starts = sorted((offset, n) for n, offset in enumerate(placement.offsets))
        ends = sorted((offset + size, n) for n, (offset, size) in enumerate(zip(placement.offsets, sizes)))
        below = [0, *accumulate((1 << number for _, number in ends), or_)]
        above = [0, *accumulate((1 << number for _, number in reversed(starts)), or_)][::-1]
        last = len(blocks)
        return tuple(
            below[bisect_right(ends, (offset, last))] | above[bisect_left(starts, (offset + size, -1))]
            for offset, size in zip(placement.offsets, sizes)
        )

    def _symbolic_sizes(self, bindings: Bindings, scan_bytes: Mapping[int, Dim]) -> Sizes:
        return Sizes(
            lambda dim: bind_dim(dim, bindings),
            cache(lambda value: value_bytes(value, bindings)),
            lambda task: scan_bytes[id(task)],
            lambda pieces: self.is_equal(pieces, 1),
        )

    def _lay_out_scan(self, task: ScanTask, outer: Bindings) -> ScanLayout:
        inner = bind_body(task, outer)
        base: Dim = 0
        pairs = []
        for value in task.program.inputs[: task.primitive.carries]:
            size = self.align(value_bytes(value, inner))
            pairs.append((base, base + size))
            base = base + 2 * size
        external = {*task.body.inputs, *task.body.outputs, *task.program.constants}
        steps = [(number,) for number in range(len(task.body.tasks))]
        return ScanLayout(inner, tuple(pairs), base, self.lay_out(task.body, external, steps, inner))

    def _estimate_scan(self, task: ScanTask, outer: Bindings) -> int:
        """Estimate the bytes of a scan, for the choice of an order."""
        inner = bind_body(task, outer)
        carried = sum(self.estimate(value_bytes(v, inner)) for v in task.program.inputs[: task.primitive.carries])
        results = (value for one in task.body.tasks for value in one.results)
        return 2 * carried + sum(self.estimate(value_bytes(value, inner)) for value in results)

    def _peak(self, section: NativeSection, external: Collection[Value], steps: Steps, sizes: Sizes) -> int:
        """Return the most bytes alive at any step, for the reference sizes."""
        storage = self._choose_storage(section, external, steps, sizes)
        return most_alive(self._lifetimes(storage.blocks))[0]

    def _choose_storage(
        self, section: NativeSection, external: Collection[Value], steps: Steps, sizes: Sizes
    ) -> StoragePlan:
        """Choose which values share memory; concatenated operands lie in the result unless that needs more."""
        spans = _find_spans(section, steps)
        storage = plan_storage(section, sizes, spans, external)
        if len(storage.skipped) <= 1:
            return storage
        apart = plan_storage(section, sizes, spans, external, join=False)
        return min(storage, apart, key=lambda choice: self._place(choice.blocks).size)

    def _lifetimes(self, blocks: Sequence[MemoryBlock]) -> list[Lifetime]:
        return [Lifetime(self.estimate(self.align(block.size)), block.first, block.last) for block in blocks]

    def _place(self, blocks: Sequence[MemoryBlock]) -> Placement:
        lifetimes = tuple(self._lifetimes(blocks))
        placement = self._placements.get(lifetimes)
        if placement is None:
            placement = self._placements[lifetimes] = place_blocks(lifetimes, self.alignment)
        return placement


def _make_symmetric(masks: Sequence[int]) -> tuple[int, ...]:
    """Set bit m of mask n where bit n of mask m is set."""
    result = list(masks)
    for number, mask in enumerate(masks):
        while mask:
            low = mask & -mask
            result[low.bit_length() - 1] |= 1 << number
            mask ^= low
    return tuple(result)


def _find_spans(section: NativeSection, steps: Steps) -> list[tuple[int, int]]:
    """Return the first and the last step of each task."""
    spans = [(0, 0)] * len(section.tasks)
    for number, tasks in enumerate(steps):
        for task in tasks:
            spans[task] = (number, number)
    return spans
