"""A plan as a function of its sizes: the very plan that `make_plan` makes, in a fraction of the time.

A section that meets size after size is laid out much the same for each. What a plan decides by its sizes is either
decided again (the order of tasks, which of two ways to share memory, the offsets in the arena) or checked (who lies in
whose memory, which copies are left out); all other numbers are expressions, compiled once to one Python function of the
sizes. Where a decision is another than the template's, there is none for these sizes, and a plan is made: a run
takes the memory that was predicted for it, whatever ran before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from weft.ir.dims import Dim
from weft.ir.formulas import FormulaWriter
from weft.ir.numbers import Numbers
from weft.ir.program import Value
from weft.ir.work import NativeSection, PlannedLaunch, Task
from weft.plan.arena import Lifetime, Placement, place
from weft.plan.order import OrderChoice
from weft.plan.plan import ABSOLUTE, ARENA, Plan
from weft.plan.renewal import PlanSearch, value_bytes, value_shape
from weft.plan.sections import storage_choices
from weft.plan.storage import Sizes, StoragePlan
from weft.plan.waits import find_waits
from weft.records import dataclass

Array = np.ndarray[Any, Any]
Order = tuple[int, ...]  # numbers of tasks
Steps = Sequence[Sequence[int]]


@dataclass(frozen=True, slots=True, eq=False)
class Filled:
    """What differs from a template's plan for some sizes; arrays are by launch, by parameter, by buffer."""

    arena_bytes: int
    blocks: Array
    parameters: Array
    offsets: Array
    flops: Array
    bytes: Array
    used: Sequence[int]  # bytes of each buffer; 0 for those that nobody writes
    outputs: tuple[tuple[tuple[int, ...], np.dtype[Any]], ...]


class SectionOrders:
    """The order that a section's tasks are planned in, for size after size. Not for several threads at once."""

    def __init__(
        self, section: NativeSection, symbols: Sequence[str], constants: Mapping[Value, Array], sizes: Mapping[str, int]
    ) -> None:
        """`sizes` are some that it has met; KeyError where dims depend on more than the symbols."""
        elsewhere = {*section.inputs, *section.outputs, *constants}
        number = Numbers(sizes)
        known = Sizes(number, lambda value: number(value_bytes(value)), lambda _: 0)
        self._choice = OrderChoice(section, known, elsewhere.__contains__)
        results = [value for task in section.tasks for value in task.results]
        spaces = [_workspace(task) for task in section.tasks]
        names = {name: f"s{number}" for number, name in enumerate(symbols)}
        write = FormulaWriter(names.__getitem__)
        sizes_of = [write(0 if value in elsewhere else value_bytes(value)) for value in results]
        result = f"[{', '.join(sizes_of)}], [{', '.join(map(write, spaces))}]"
        self._compute = write.define("compute", ", ".join(names.values()), result)

    def choose(self, sizes: Sequence[int]) -> Order | None:
        """Numbers of tasks; None where that cannot be told."""
        try:
            return tuple(self._choice.choose(*self._compute(*sizes)))
        except ArithmeticError:
            return None


class PlanTemplate:
    """One plan, for the order that its section's tasks have for some sizes, filled in for others with that order."""

    def __init__(self, plan: Plan, choice: LayoutChoice, compute: Callable[..., Any], rows: BufferRows) -> None:
        self.plan, self.choice = plan, choice
        self._compute, self._rows = compute, rows

    def fill(self, sizes: Sequence[int]) -> Filled | None:
        """The plan for the sizes of the section's symbols; None where it is another."""
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
        offsets = rows.fixed + np.array([*arena.offsets, 0], np.int64)[rows.pieces] + np.array(inside, np.int64)
        given = iter(shown)
        return Filled(
            arena.size,
            blocks,
            np.array(parameters, np.int64) * busy.repeat(rows.parameters),
            offsets,
            np.array(flops, np.float64) * busy / counts,
            np.array(moved, np.float64) * busy / counts,
            used,
            tuple((tuple([next(given) for _ in shape]), dtype) for shape, dtype in self.plan.outputs),
        )

    def waits(self, filled: Filled) -> list[set[int]]:
        """For each launch, those that it waits for."""
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
    """What is fixed of each buffer: its piece (one past the last: none), its offset beside that, what it is used for.

    `tasks` are those of launches, which share the work of one, and `parameters` how many each has.
    """

    pieces: Array
    fixed: Array
    regions: tuple[tuple[tuple[int, bool], ...], ...]  # by launch and buffer: a region, and whether it is written
    tasks: Array
    parameters: Array


class _Layout:
    """The ways to share memory in one order of tasks: the spans of time of each piece."""

    def __init__(self, storages: Sequence[StoragePlan], alignment: int) -> None:
        self.storages = storages
        self._spans = [[(piece.first, piece.last) for piece in storage.pieces] for storage in storages]
        self._alignment = alignment

    def place(self, sizes: Sequence[Sequence[int]]) -> tuple[int, Placement]:
        """Which of them makes the smallest arena for pieces of so many bytes, and that."""
        made = [
            place([Lifetime(size, *span) for size, span in zip(bytes_of, spans)], self._alignment)
            for bytes_of, spans in zip(sizes, self._spans)
        ]
        least = min(range(len(made)), key=lambda number: made[number].size)
        return least, made[least]


class LayoutChoice:
    """Which order of tasks a plan has, and how they share memory, by the same rules that made the plan."""

    def __init__(self, layouts: Sequence[_Layout], lean: Sequence[int], steps: Steps, *, may_grow: bool) -> None:
        """`layouts`: of the file's order, of the chosen one if that is another, of steps side by side if there are."""
        self.layouts = layouts
        self.lean, self.steps = lean, steps
        self._grouped, self._may_grow = len(lean) != len(steps), may_grow
        self.taken = self._choose([[[p.size for p in one.pieces] for one in layout.storages] for layout in layouts])[:3]

    def _choose(self, sizes: Sequence[Sequence[Sequence[int]]]) -> tuple[int, int, int, Placement]:
        """The layout for tasks one by one, the layout that is taken, its way to share memory, and the arena."""
        made = [layout.place(own) for layout, own in zip(self.layouts, sizes)]
        single = made[:-1] if self._grouped else made
        lean = len(single) - 1
        if made[lean][1].lower_bound > made[0][1].lower_bound:
            lean = 0
        chosen = lean
        if self._grouped and (self._may_grow or made[-1][1].size <= made[lean][1].size):
            chosen = len(made) - 1
        return lean, chosen, *made[chosen]

    def place(self, bytes_of: Sequence[Sequence[int]]) -> Placement | None:
        """Where pieces of so many bytes lie; None where anything was chosen otherwise."""
        left = iter(bytes_of)
        *taken, arena = self._choose([[next(left) for _ in layout.storages] for layout in self.layouts])
        return arena if tuple(taken) == self.taken else None

    @property
    def storage(self) -> StoragePlan:
        return self.layouts[self.taken[1]].storages[self.taken[2]]


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
    """The template of a plan for sizes whose chosen order is given; None: there is none.

    `group` makes steps side by side of an order, and `may_grow` is whether they may take more memory.
    """
    own = tuple(range(len(section.tasks)))
    singles = [own] if own == order else [own, order]
    for lean in singles:
        steps = group(lean)
        grouped = [steps] if len(steps) != len(lean) else []
        all_steps = [*([(task,) for task in one] for one in singles), *grouped]
        layouts = [_Layout(storage_choices(section, constants, sizes, one), alignment) for one in all_steps]
        choice = LayoutChoice(layouts, lean, steps, may_grow=may_grow)
        if singles[choice.taken[0]] == lean and tuple(map(tuple, all_steps[choice.taken[1]])) == plan.steps:
            return _template(section, symbols, sizes, plan, choice)
    return None


def _template(
    section: NativeSection, symbols: Sequence[str], sizes: Mapping[str, int], plan: Plan, choice: LayoutChoice
) -> PlanTemplate | None:
    number, varying = Numbers(sizes), frozenset(symbols)
    storages = [storage for layout in choice.layouts for storage in layout.storages]
    searches = {id(storage): PlanSearch(section, storage, number, varying, ()) for storage in storages}
    search = searches[id(choice.storage)]
    if search.offsets is None:
        return None
    for one in searches.values():
        one.find_decisions()
        search.conditions.update(one.conditions)
    placed = choice.place([[piece.size for piece in storage.pieces] for storage in storages])
    if placed is None or placed.size != plan.arena_bytes:
        return None
    return _Follow(section, search, plan, placed, symbols).template(choice, storages)


class _Follow:
    """Goes along the launches of a plan with what they were made from."""

    def __init__(
        self, section: NativeSection, search: PlanSearch, plan: Plan, arena: Placement, symbols: Sequence[str]
    ) -> None:
        self.section, self.search, self.plan, self.arena = section, search, plan, arena
        self.symbols = symbols
        self.numbers = {piece.owner: number for number, piece in enumerate(search.storage.pieces)}
        self.blocks: list[Dim] = []
        self.parameters: list[Dim] = []
        self.inside: list[Dim] = []  # of buffers: how far into their pieces they start
        self.flops: list[Dim] = []
        self.moved: list[Dim] = []
        self.used: list[Dim] = []  # bytes of buffers
        self.tasks: list[int] = []  # of launches
        self.pieces: list[int] = []
        self.fixed: list[int] = []

    def template(self, choice: LayoutChoice, storages: Sequence[StoragePlan]) -> PlanTemplate | None:
        if not self.follow():
            return None
        shown = [size for value in self.section.outputs for size in value_shape(value)]
        bytes_of = [[self.piece_bytes(piece.owner) for piece in storage.pieces] for storage in storages]
        lists = (self.blocks, self.parameters, self.inside, self.flops, self.moved, self.used, shown, *bytes_of)
        names = {name: f"s{number}" for number, name in enumerate(self.symbols)}
        write = FormulaWriter(names.__getitem__)
        conditions = [f"{write(left)} {sign} {write(right)}" for left, sign, right in self.search.conditions.values()]
        if conditions:
            write.lines.append(f"if not ({' and '.join(conditions)}): return None")
        texts = [f"[{', '.join(map(write, entries))}]" for entries in lists]
        compute = write.define("compute", ", ".join(names.values()), f"[{', '.join(texts)}]")
        rows = BufferRows(
            np.array(self.pieces, np.intp),
            np.array(self.fixed, np.int64),
            tuple(_regions(entry) for entry in self.plan.launches if isinstance(entry, PlannedLaunch)),
            np.array(self.tasks, np.intp),
            np.array(
                [len(entry.parameters) for entry in self.plan.launches if isinstance(entry, PlannedLaunch)], np.intp
            ),
        )
        return PlanTemplate(self.plan, choice, compute, rows)

    def follow(self) -> bool:
        """False where launches cannot be told apart."""
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
                    self.note_buffer(number, task, reference, buffer, size)
        return next(entries, None) is None

    def note_buffer(self, number: int, task: Task, reference: Any, buffer: Any, size: int) -> None:
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
        piece = self.numbers[owner] if buffer.region == ARENA and owner is not None else len(self.numbers)
        at = self.arena.offsets[piece] if piece < len(self.numbers) else 0
        self.pieces.append(piece)
        self.fixed.append(buffer.offset - at - self.search.number(inside))
        self.inside.append(inside)
        self.used.append(used if buffer.region != ABSOLUTE else 0)
        assert buffer.region == ABSOLUTE or self.search.number(self.used[-1]) == size

    def piece_bytes(self, owner: Value | tuple[int, int]) -> Dim:
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


def _workspace(task: Any) -> Dim:
    total: Dim = 0
    for space in task.work.workspaces:
        total = total + _space_bytes(space)
    return total
