"""A plan as a function of its sizes: exactly the plan that `make_plan` makes, in a fraction of the time.

A section's layout is similar for most sizes. Size-dependent decisions are either made again (the order of tasks, which
of two storage plans, the offsets in the arena) or checked (which values share memory, which copies are skipped); all
other numbers are expressions, compiled once to one Python function of the sizes. If a decision differs from the
template's, a new plan is made: a run takes the predicted memory, independent of earlier runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from weft.ir.arrays import Array
from weft.ir.dim_evaluator import DimEvaluator
from weft.ir.dims import Dim
from weft.ir.formulas import FormulaWriter
from weft.ir.program import Value
from weft.ir.work import NativeSection, PlannedLaunch, Task
from weft.plan.arena import Lifetime, Placement, place_blocks
from weft.plan.order import OrderChoice
from weft.plan.plan import ABSOLUTE, ARENA, Plan
from weft.plan.renewal import PlanSearch, value_bytes, value_shape
from weft.plan.sections import storage_choices
from weft.plan.storage import Sizes, StoragePlan
from weft.plan.waits import find_waits
from weft.records import dataclass

Order = tuple[int, ...]  # task numbers
Steps = Sequence[Sequence[int]]


@dataclass(frozen=True, slots=True, eq=False)
class Filled:
    """A template filled in for some sizes; arrays are by launch, by parameter, by buffer."""

    arena_bytes: int
    blocks: Array
    parameters: Array
    offsets: Array
    flops: Array
    bytes: Array
    used: Sequence[int]  # bytes of each buffer; 0 for constants
    outputs: tuple[tuple[tuple[int, ...], np.dtype[Any]], ...]


class SectionOrders:
    """Chooses the order of a section's tasks for many sizes. Not thread-safe."""

    def __init__(
        self, section: NativeSection, symbols: Sequence[str], constants: Mapping[Value, Array], sizes: Mapping[str, int]
    ) -> None:
        """`sizes` is an example; KeyError where dims depend on more than the symbols."""
        external = {*section.inputs, *section.outputs, *constants}
        number = DimEvaluator(sizes)
        bytes_of_sizes = Sizes(number, lambda value: number(value_bytes(value)), lambda _: 0)
        self._choice = OrderChoice(section, bytes_of_sizes, external.__contains__)
        results = [value for task in section.tasks for value in task.results]
        spaces = [_workspace_bytes(task) for task in section.tasks]
        names = {name: f"s{number}" for number, name in enumerate(symbols)}
        write = FormulaWriter(names.__getitem__)
        sizes_of = [write(0 if value in external else value_bytes(value)) for value in results]
        result = f"[{', '.join(sizes_of)}], [{', '.join(map(write, spaces))}]"
        self._compute = write.define("compute", ", ".join(names.values()), result)

    def choose(self, sizes: Sequence[int]) -> Order | None:
        """Choose the order of tasks; None for sizes that cannot be computed."""
        try:
            return tuple(self._choice.choose(*self._compute(*sizes)))
        except ArithmeticError:
            return None


class PlanTemplate:
    """A plan that can be filled in for other sizes with the same order of tasks."""

    def __init__(self, plan: Plan, choice: LayoutChoice, compute: Callable[..., Any], rows: BufferRows) -> None:
        self.plan, self.choice = plan, choice
        self._compute, self._rows = compute, rows

    def fill(self, sizes: Sequence[int]) -> Filled | None:
        """Fill in the plan for the sizes of the section's symbols; None where a decision differs."""
        try:
            numbers = self._compute(*sizes)
        except ArithmeticError:
            return None
        if numbers is None:
            return None
        blocks, parameters, inside, flops, moved, used, shown, *bytes_of = numbers
        arena = self.choice.place(bytes_of)
        if arena is None:
            return None
        rows = self._rows
        blocks = np.array(blocks, np.int64)
        busy = blocks > 0
        counts = np.maximum(np.bincount(rows.tasks, busy), 1)[rows.tasks] if len(busy) else 1.0
        offsets = rows.fixed + np.array([*arena.offsets, 0], np.int64)[rows.blocks] + np.array(inside, np.int64)
        output_sizes = iter(shown)
        return Filled(
            arena.size,
            blocks,
            np.array(parameters, np.int64) * busy.repeat(rows.parameters),
            offsets,
            np.array(flops, np.float64) * busy / counts,
            np.array(moved, np.float64) * busy / counts,
            used,
            tuple((tuple([next(output_sizes) for _ in shape]), dtype) for shape, dtype in self.plan.outputs),
        )

    def waits(self, filled: Filled) -> list[set[int]]:
        """Find the launches that each launch waits for."""
        buffers = iter(zip(filled.offsets.tolist(), filled.used))
        uses = [
            [
                (region, offset, offset + size, written)
                for (region, written), (offset, size) in zip(launch, buffers)
                if size
            ]
            for launch in self._rows.regions
        ]
        return find_waits(uses)


@dataclass(frozen=True, slots=True, eq=False)
class BufferRows:
    """The size-independent facts of each buffer: its memory block (one past the last: none), offset and use.

    `tasks` are those of launches, and `parameters` how many each launch has.
    """

    blocks: Array
    fixed: Array
    regions: tuple[tuple[tuple[int, bool], ...], ...]  # by launch and buffer: the region, and whether it is written
    tasks: Array
    parameters: Array


class _Layout:
    """The storage plans for one order of tasks, with the lifetimes of their memory blocks."""

    def __init__(self, storages: Sequence[StoragePlan], alignment: int) -> None:
        self.storages = storages
        self._spans = [[(block.first, block.last) for block in storage.blocks] for storage in storages]
        self._alignment = alignment

    def place(self, sizes: Sequence[Sequence[int]]) -> tuple[int, Placement]:
        """Return the number of the storage plan with the smallest arena for blocks of these sizes, and the arena."""
        placements = [
            place_blocks([Lifetime(size, *span) for size, span in zip(bytes_of, spans)], self._alignment)
            for bytes_of, spans in zip(sizes, self._spans)
        ]
        least = min(range(len(placements)), key=lambda number: placements[number].size)
        return least, placements[least]


class LayoutChoice:
    """Chooses the order of tasks and the storage plan by the same rules as `make_plan`."""

    def __init__(self, layouts: Sequence[_Layout], lean: Sequence[int], steps: Steps, *, may_grow: bool) -> None:
        """`layouts`: of the file's order, of the lean order if that differs, of parallel steps if there are any."""
        self.layouts = layouts
        self.lean, self.steps = lean, steps
        self._grouped, self._may_grow = len(lean) != len(steps), may_grow
        sizes = [[[block.size for block in storage.blocks] for storage in layout.storages] for layout in layouts]
        self.decisions = self._choose(sizes)[:3]

    def _choose(self, sizes: Sequence[Sequence[Sequence[int]]]) -> tuple[int, int, int, Placement]:
        """Return the layout for serial tasks, the layout to use, its storage plan, and the arena."""
        placed = [layout.place(own) for layout, own in zip(self.layouts, sizes)]
        serial = placed[:-1] if self._grouped else placed
        lean = len(serial) - 1
        if placed[lean][1].lower_bound > placed[0][1].lower_bound:
            lean = 0
        chosen = lean
        if self._grouped and (self._may_grow or placed[-1][1].size <= placed[lean][1].size):
            chosen = len(placed) - 1
        return lean, chosen, *placed[chosen]

    def place(self, bytes_of: Sequence[Sequence[int]]) -> Placement | None:
        """Place blocks of these sizes; None where a decision differs."""
        left = iter(bytes_of)
        *decisions, arena = self._choose([[next(left) for _ in layout.storages] for layout in self.layouts])
        return arena if tuple(decisions) == self.decisions else None

    @property
    def storage(self) -> StoragePlan:
        return self.layouts[self.decisions[1]].storages[self.decisions[2]]


def make_template(
    section: NativeSection,
    symbols: Sequence[str],
    constants: Mapping[Value, Array],
    sizes: Mapping[str, int],
    plan: Plan,
    order: Order,
    alignment: int,
    group: Callable[[Order], Steps],
    *,
    may_grow: bool,
) -> PlanTemplate | None:
    """Make a template of a plan, for sizes with this order of tasks; None if there is none.

    `group` builds parallel steps from an order; `may_grow`: whether these may take more memory.
    """
    own = tuple(range(len(section.tasks)))
    orders = [own] if own == order else [own, order]
    for lean in orders:
        steps = group(lean)
        grouped = [steps] if len(steps) != len(lean) else []
        all_steps = [*([(task,) for task in tasks] for tasks in orders), *grouped]
        layouts = [_Layout(storage_choices(section, constants, sizes, layout), alignment) for layout in all_steps]
        choice = LayoutChoice(layouts, lean, steps, may_grow=may_grow)
        if orders[choice.decisions[0]] == lean and tuple(map(tuple, all_steps[choice.decisions[1]])) == plan.steps:
            return _build_template(section, symbols, sizes, plan, choice)
    return None


def _build_template(
    section: NativeSection, symbols: Sequence[str], sizes: Mapping[str, int], plan: Plan, choice: LayoutChoice
) -> PlanTemplate | None:
    number, varying = DimEvaluator(sizes), frozenset(symbols)
    storages = [storage for layout in choice.layouts for storage in layout.storages]
    searches = {id(storage): PlanSearch(section, storage, number, varying, ()) for storage in storages}
    search = searches[id(choice.storage)]
    if search.offsets is None:
        return None
    for storage_search in searches.values():
        storage_search.find_decisions()
        search.conditions.update(storage_search.conditions)
    placed = choice.place([[block.size for block in storage.blocks] for storage in storages])
    if placed is None or placed.size != plan.arena_bytes:
        return None
    return _TemplateBuilder(section, search, plan, placed, symbols).build(choice, storages)


class _TemplateBuilder:
    """Matches the launches of a plan with the tasks that they come from."""

    def __init__(
        self, section: NativeSection, search: PlanSearch, plan: Plan, arena: Placement, symbols: Sequence[str]
    ) -> None:
        self.section, self.search, self.plan, self.arena = section, search, plan, arena
        self.symbols = symbols
        self.numbers = {block.owner: number for number, block in enumerate(search.storage.blocks)}
        self.blocks: list[Dim] = []
        self.parameters: list[Dim] = []
        self.inside: list[Dim] = []  # offsets of buffers in their memory blocks
        self.flops: list[Dim] = []
        self.moved: list[Dim] = []
        self.used: list[Dim] = []  # bytes of buffers
        self.tasks: list[int] = []  # of launches
        self.memory_blocks: list[int] = []
        self.fixed: list[int] = []

    def build(self, choice: LayoutChoice, storages: Sequence[StoragePlan]) -> PlanTemplate | None:
        if not self.follow():
            return None
        shown = [size for value in self.section.outputs for size in value_shape(value)]
        bytes_of = [[self.block_bytes(block.owner) for block in storage.blocks] for storage in storages]
        lists = (self.blocks, self.parameters, self.inside, self.flops, self.moved, self.used, shown, *bytes_of)
        names = {name: f"s{number}" for number, name in enumerate(self.symbols)}
        write = FormulaWriter(names.__getitem__)
        conditions = [f"{write(left)} {sign} {write(right)}" for left, sign, right in self.search.conditions.values()]
        if conditions:
            write.lines.append(f"if not ({' and '.join(conditions)}): return None")
        texts = [f"[{', '.join(map(write, entries))}]" for entries in lists]
        compute = write.define("compute", ", ".join(names.values()), f"[{', '.join(texts)}]")
        rows = BufferRows(
            np.array(self.memory_blocks, np.intp),
            np.array(self.fixed, np.int64),
            tuple(_regions(entry) for entry in self.plan.launches if isinstance(entry, PlannedLaunch)),
            np.array(self.tasks, np.intp),
            np.array(
                [len(entry.parameters) for entry in self.plan.launches if isinstance(entry, PlannedLaunch)], np.intp
            ),
        )
        return PlanTemplate(self.plan, choice, compute, rows)

    def follow(self) -> bool:
        """Match all launches; False where that is ambiguous."""
        entries = iter(self.plan.launches)
        for number in (number for step in self.plan.steps for number in step):
            task = self.section.tasks[number]
            assert isinstance(task, Task)
            launches = [
                launch
                for index, launch in enumerate(task.work.launches)
                if (number, index) not in self.search.storage.skipped
            ]
            for launch in launches:
                entry = next(entries, None)
                if not isinstance(entry, PlannedLaunch) or entry.kernel is not launch.kernel:
                    return False
                self.blocks.append(launch.blocks)
                self.parameters += launch.values
                self.flops.append(task.effort.flops)
                self.moved.append(task.effort.bytes)
                self.tasks.append(number)
                for reference, buffer, size in zip(launch.references, entry.buffers, entry.sizes):
                    self.add_buffer(number, task, reference, buffer, size)
        return next(entries, None) is None

    def add_buffer(self, number: int, task: Task, reference: Any, buffer: Any, size: int) -> None:
        inside = self.search.offset(reference, task)
        owner: Value | tuple[int, int] | None = None
        used: Dim = 0
        if reference.kind == "workspace":
            owner = number, reference.number
            used = _space_bytes(task.work.workspaces[reference.number])
        elif reference.kind in ("operand", "result"):
            value = (task.operands if reference.kind == "operand" else task.results)[reference.number]
            owner = self.search.storage.home(value).base
            used = value_bytes(value)
        block = self.numbers[owner] if buffer.region == ARENA and owner is not None else len(self.numbers)
        at = self.arena.offsets[block] if block < len(self.numbers) else 0
        self.memory_blocks.append(block)
        self.fixed.append(buffer.offset - at - self.search.number(inside))
        self.inside.append(inside)
        self.used.append(used if buffer.region != ABSOLUTE else 0)
        assert buffer.region == ABSOLUTE or self.search.number(self.used[-1]) == size

    def block_bytes(self, owner: Value | tuple[int, int]) -> Dim:
        if isinstance(owner, Value):
            return value_bytes(owner)
        task = self.section.tasks[owner[0]]
        assert isinstance(task, Task)
        return _space_bytes(task.work.workspaces[owner[1]])


def _regions(launch: PlannedLaunch) -> tuple[tuple[int, bool], ...]:
    shared = [buffer.written for buffer in launch.kernel.buffers if buffer.local_size is None]
    return tuple((place.region, written) for place, written in zip(launch.buffers, shared))


def _space_bytes(space: Any) -> Dim:
    size: Dim = space.size * space.dtype.numpy.itemsize
    return size


def _workspace_bytes(task: Any) -> Dim:
    total: Dim = 0
    for space in task.work.workspaces:
        total = total + _space_bytes(space)
    return total
