"""A native section for one set of sizes: an arena with a place for every value, and the launches on them.

Regions: whole addresses (constants), the arena, the errors, then the section's inputs and outputs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from weft.errors import ExecutionError, UnsupportedModelError
from weft.ir import dims
from weft.ir.dims import Dim, Expr
from weft.ir.numbers import Numbers
from weft.ir.packing import array_of
from weft.ir.program import Value
from weft.ir.types import TensorType
from weft.ir.verification import is_verifying
from weft.ir.work import (
    Allocation,
    Effort,
    NativeSection,
    Place,
    PlannedLaunch,
    Reference,
    Repeated,
    ScanTask,
    Task,
    Work,
)
from weft.plan.arena import Lifetime, Placement, place
from weft.plan.order import choose_order
from weft.plan.plan import ABSOLUTE, ALIGNMENT, ARENA, ERRORS, FIRST_FREE, Plan
from weft.plan.scans import UNROLLED, ScanPlaces, repeat
from weft.plan.storage import Sizes, StoragePlan, arrange
from weft.plan.waits import with_waits
from weft.records import dataclass

Array = np.ndarray[Any, Any]
Owners = Collection["Value | tuple[int, int]"]  # of pieces of memory: values, or a task's number and a workspace's
MOST_LISTED = 1 << 18  # launches of loops within loops, which are listed one by one
_NOWHERE = Place(ABSOLUTE)


def make_plan(
    section: NativeSection,
    constants: Mapping[Value, Array],
    sizes: Mapping[str, int],
    steps: Sequence[Sequence[int]] | None = None,
    alignment: int = ALIGNMENT,
    roomy: Owners = frozenset(),
    known: Mapping[Expr, int] | None = None,
) -> Plan:
    """Places and launches for given sizes; `constants` are those that tasks read from memory.

    `steps` are numbers of tasks in the order to run in; those of one step may run side by side. None: one by one, in
    an order that needs little memory, never more than the section's own. What is `roomy` gets more than its bytes.
    `known` are values of dims, computed before.
    """
    given = {value: Place(FIRST_FREE + number) for number, value in enumerate((*section.inputs, *section.outputs))}
    planner = _Planner(constants, Numbers(sizes, known), alignment, roomy)
    planner.check_launches(section)
    if steps is None:
        steps = planner.lean_steps(section, frozenset(given))
    for number, task in enumerate(section.tasks):
        planner.tasks[id(task.work if isinstance(task, Task) else task)] = number
    layout = planner.place_section(section, frozenset(given), steps, 0)
    places = {**layout.places, **given}
    launches: list[PlannedLaunch | Repeated] = []
    spans: list[tuple[int, int]] = []  # of each step: its first launch and its last
    count = 0
    for step in steps:
        own = [launch for number in step for launch in planner.task_launches(section, number, layout, places)]
        launches += own
        first, count = count, count + sum(_count(entry) for entry in own)
        spans.append((first, max(count - 1, 0)))
    outputs = tuple((planner.shape(value), _dtype(value)) for value in section.outputs)
    plan = Plan(
        with_waits(launches),
        layout.arena.size,
        outputs,
        (*constants.values(), *planner.kept),
        _allocations(section, layout, spans),
        layout.arena.lower_bound,
        planner.sum_bytes(section, layout.storage),
        tuple(map(tuple, steps)),
    )
    if is_verifying():
        from weft.plan.verify import verify_plan

        verify_plan(section, plan, constants, sizes)
    return plan


def section_storage(
    section: NativeSection,
    constants: Mapping[Value, Array],
    sizes: Mapping[str, int],
    steps: Sequence[Sequence[int]],
    alignment: int = ALIGNMENT,
    roomy: Owners = frozenset(),
) -> StoragePlan:
    """Who lies in whose memory in the plan that `make_plan` makes of the same."""
    given = frozenset((*section.inputs, *section.outputs))
    return _Planner(constants, Numbers(sizes), alignment, roomy).lay_out(section, given, steps)[0]


def storage_choices(
    section: NativeSection, constants: Mapping[Value, Array], sizes: Mapping[str, int], steps: Sequence[Sequence[int]]
) -> list[StoragePlan]:
    """The ways to share memory that `make_plan` tries, of which it takes the first that makes the smallest arena."""
    given = frozenset((*section.inputs, *section.outputs))
    return _Planner(constants, Numbers(sizes), ALIGNMENT).choices(section, given, steps)


def bytes_with_room(size: int) -> int:
    """What a piece that may grow gets."""
    return size + size // 2 + ALIGNMENT


def shape_of(value: Value) -> tuple[Dim, ...]:
    assert isinstance(value.type, TensorType)
    return value.type.shape or ()


@dataclass(frozen=True, slots=True)
class _Layout:
    """Where a section's own memory is: places of values and of (task, number) workspaces."""

    storage: StoragePlan
    arena: Placement
    places: dict[Value, Place]
    workspaces: dict[tuple[int, int], Place]


class _Planner:
    def __init__(
        self, constants: Mapping[Value, Array], number: Numbers, alignment: int, roomy: Owners = frozenset()
    ) -> None:
        self.constants = constants
        self.number = number
        self.alignment = alignment
        self.roomy = roomy
        self.kept: list[Array] = []  # packed constants that launches point to
        self.known_bytes: dict[Value, int] = {}
        self.packed: dict[tuple[int, int], Place] = {}  # by (id of the work, number)
        self.tasks: dict[int, int] = {}  # numbers of tasks, by the id of the work
        self.known_scans: dict[int, int] = {}  # bytes of scans, by their id
        self.bodies: dict[int, tuple[_Layout, list[tuple[Place, Place]]]] = {}  # of scans, by their id
        self.known: tuple[Sequence[Sequence[int]], tuple[StoragePlan, Placement]] | None = None

    @property
    def sizes(self) -> Sizes:
        """Not kept: it refers to the planner, which would live on with all the constants that it knows."""
        return Sizes(self.number, self.bytes, self.scan_bytes)

    # -- places ------------------------------------------------------------------------------------------------------

    def place_section(
        self, section: NativeSection, given: frozenset[Value], steps: Sequence[Sequence[int]], base: int
    ) -> _Layout:
        """Places in the arena, from `base` on, for what only the section sees, and those of constants."""
        storage, arena = self.lay_out(section, given, steps)
        spots = [Place(ARENA, base + offset) for offset in arena.offsets]
        places: dict[Value, Place] = {}
        workspaces: dict[tuple[int, int], Place] = {}
        for piece, spot in zip(storage.pieces, spots):
            if isinstance(piece.owner, Value):
                places[piece.owner] = spot
            else:
                workspaces[piece.owner] = spot
        for value in {home.base for task in section.tasks for home in map(storage.home, task.operands)}:
            if value in self.constants:
                places[value] = Place(ABSOLUTE, self.constants[value].ctypes.data)
        for number, task in enumerate(section.tasks):
            if isinstance(task, ScanTask):
                self.place_scan(task, workspaces[number, -1].offset)
        return _Layout(storage, arena, places, workspaces)

    def lean_steps(self, section: NativeSection, given: frozenset[Value]) -> Sequence[Sequence[int]]:
        """Tasks one by one, in an order that needs little memory."""
        own = _one_by_one(section)
        elsewhere = given | self.constants.keys()
        steps = [(number,) for number in choose_order(section, self.sizes, elsewhere.__contains__)]
        if steps == own:
            return own
        least = self.lay_out(section, given, own)[1].lower_bound
        return steps if self.lay_out(section, given, steps)[1].lower_bound <= least else own

    def lay_out(
        self, section: NativeSection, given: frozenset[Value], steps: Sequence[Sequence[int]]
    ) -> tuple[StoragePlan, Placement]:
        """What shares memory, and offsets; parts of concatenations lie in the result unless that needs more memory.

        The answer for the same steps is kept.
        """
        if self.known is None or self.known[0] is not steps:
            choices = [(storage, self.place(storage)) for storage in self.choices(section, given, steps)]
            self.known = steps, min(choices, key=lambda pair: pair[1].size)
        return self.known[1]

    def choices(
        self, section: NativeSection, given: frozenset[Value], steps: Sequence[Sequence[int]]
    ) -> list[StoragePlan]:
        """Ways to share memory, of which the first that makes the smallest arena is taken."""
        spans, elsewhere = _spans(section, steps), given | self.constants.keys()
        storage = arrange(section, self.sizes, spans, elsewhere)
        if len(storage.skipped) <= 1:
            return [storage]
        return [storage, arrange(section, self.sizes, spans, elsewhere, join=False)]

    def scan_bytes(self, task: ScanTask) -> int:
        """Memory for two sets of carries and for the inside of the body; that of a scan is computed once."""
        known = self.known_scans.get(id(task))
        if known is None:
            known = self.known_scans[id(task)] = self.compute_scan_bytes(task)
        return known

    def compute_scan_bytes(self, task: ScanTask) -> int:
        self.bind_body(task)
        carried = sum(self.aligned(self.bytes(value)) for value in task.program.inputs[: task.primitive.carries])
        trial = _Planner(self.constants, self.number, self.alignment)
        trial.known_scans = self.known_scans
        given = frozenset((*task.body.inputs, *task.body.outputs))
        return 2 * carried + trial.lay_out(task.body, given, _one_by_one(task.body))[1].size

    def place_scan(self, task: ScanTask, base: int) -> None:
        self.bind_body(task)
        pairs: list[tuple[Place, Place]] = []
        for value in task.program.inputs[: task.primitive.carries]:
            size = self.aligned(self.bytes(value))
            pairs.append((Place(ARENA, base), Place(ARENA, base + size)))
            base += 2 * size
        given = frozenset((*task.body.inputs, *task.body.outputs))
        self.bodies[id(task)] = self.place_section(task.body, given, _one_by_one(task.body), base), pairs

    def bind_body(self, task: ScanTask) -> None:
        """Sizes that the body's inputs show for the first time."""
        primitive = task.primitive
        for number, (inner, outer) in enumerate(zip(task.program.inputs, task.operands)):
            shape = self.shape(outer)
            is_sequence = primitive.carries <= number < primitive.carries + primitive.sequences
            for dim, size in zip(shape_of(inner), shape[1:] if is_sequence else shape):
                symbol = dims.as_symbol(dim)
                if symbol is not None:
                    self.number.bind(symbol.name, size)
        self.known_bytes.clear()

    # -- launches ----------------------------------------------------------------------------------------------------

    def check_launches(self, section: NativeSection) -> None:
        """UnsupportedModelError where loops within loops would be listed for ever."""
        for task in section.tasks:
            if isinstance(task, ScanTask) and self.count_launches(task) > MOST_LISTED:
                raise UnsupportedModelError(
                    f"loops in loops, which are planned iteration by iteration, make more than {MOST_LISTED:,} steps",
                    node=task.origin or None,
                    hint="nest fewer loops, or give them shorter sequences",
                )

    def count_launches(self, task: Task | ScanTask) -> int:
        """How many launches are listed, at least, for a task."""
        if isinstance(task, Task):
            return len(task.work.launches)
        self.bind_body(task)
        listed = min(self.number(task.primitive.length), UNROLLED - 1)
        return listed * sum(map(self.count_launches, task.body.tasks))

    def body_launches(
        self, section: NativeSection, layout: _Layout, places: Mapping[Value, Place]
    ) -> Iterator[PlannedLaunch | Repeated]:
        for number in range(len(section.tasks)):
            yield from self.task_launches(section, number, layout, places)

    def task_launches(
        self, section: NativeSection, number: int, layout: _Layout, places: Mapping[Value, Place]
    ) -> Iterator[PlannedLaunch | Repeated]:
        task = section.tasks[number]

        def locate(value: Value) -> Place:
            home = layout.storage.home(value)
            found = places.get(home.base, _NOWHERE)
            return Place(found.region, found.offset + home.offset) if home.offset else found

        operands, results = list(map(locate, task.operands)), list(map(locate, task.results))
        if isinstance(task, ScanTask):
            yield from self.scan_launches(task, operands, results)
            return
        spaces = [layout.workspaces[number, index] for index in range(len(task.work.workspaces))]
        skipped = layout.storage.skipped
        missing = {launch for launch in range(len(task.work.launches)) if (number, launch) in skipped}
        yield from self.work_launches(task, _Memory(operands, results, spaces), missing)

    def work_launches(self, task: Task, memory: _Memory, skipped: set[int]) -> Iterator[PlannedLaunch]:
        work = task.work
        own = self.tasks.setdefault(id(work), len(self.tasks))
        all_blocks = [self.number(launch.blocks) for launch in work.launches]
        count = max(sum(1 for number, blocks in enumerate(all_blocks) if blocks and number not in skipped), 1)
        share = self.number(task.effort.flops) / count, self.number(task.effort.bytes) / count
        for number, (launch, blocks) in enumerate(zip(work.launches, all_blocks)):
            if number not in skipped:
                references = launch.references
                buffers = tuple(self.locate(reference, work, memory) for reference in references)
                parameters = self.number.parameters(launch.values, blocks)
                flops, moved = share if blocks else (0.0, 0.0)
                sizes = tuple(
                    self.used_bytes(reference, task) if buffer.region != ABSOLUTE else 0
                    for reference, buffer in zip(references, buffers)
                )
                yield PlannedLaunch(launch.kernel, blocks, buffers, parameters, task.origin, own, flops, moved, sizes)

    def locate(self, reference: Reference, work: Work, memory: _Memory) -> Place:
        match reference.kind:
            case "operand":
                return memory.operands[reference.number]
            case "result":
                return memory.results[reference.number]
            case "workspace":
                return memory.workspaces[reference.number]
            case "constant":
                return self.pack(work, reference.number)
            case "errors":
                return Place(ERRORS)

    def used_bytes(self, reference: Reference, task: Task) -> int:
        """The bytes that a reference stands for; 0 for what is never written, and for errors, which may be at once."""
        match reference.kind:
            case "operand":
                return self.bytes(task.operands[reference.number])
            case "result":
                return self.bytes(task.results[reference.number])
            case "workspace":
                workspace = task.work.workspaces[reference.number]
                return self.number(workspace.size) * workspace.dtype.numpy.itemsize
            case "constant" | "errors":
                return 0

    def pack(self, work: Work, number: int) -> Place:
        key = (id(work), number)
        if key not in self.packed:
            array = np.ascontiguousarray(array_of(work.constants[number]))
            self.kept.append(array)
            self.packed[key] = Place(ABSOLUTE, array.ctypes.data)
        return self.packed[key]

    def scan_launches(
        self, task: ScanTask, operands: list[Place], results: list[Place]
    ) -> Iterator[PlannedLaunch | Repeated]:
        """The body's launches for every iteration.

        Carries alternate between two places and sequences move on evenly, so iterations but the first and the last
        are one pair of them, repeated.
        """
        self.bind_body(task)
        length = self.number(task.primitive.length)
        layout, pairs = self.bodies[id(task)]
        steps = ScanPlaces(task, layout.places, pairs, operands, results, length, self.bytes)

        def once(step: int) -> list[PlannedLaunch | Repeated]:
            return list(self.body_launches(task.body, layout, steps.at(step)))

        step = 0
        if length > UNROLLED:
            yield from once(0)
            repeated = repeat([*once(1), *once(2)], [*once(3), *once(4)], (length - 2) // 2)
            if repeated is not None:
                yield repeated
                step = 1 + 2 * repeated.count
            else:
                step = 1
        for number in range(step, length):
            yield from once(number)
        for copy, value, source, result in zip(task.copies, task.results, steps.carries_before(length), results):
            if source != result:
                effort = Effort(0, 2 * self.bytes(value))
                moving = Task(copy, (value,), (value,), task.origin, effort)
                yield from self.work_launches(moving, _Memory([source], [result], []), set())

    # -- numbers -----------------------------------------------------------------------------------------------------

    def shape(self, value: Value) -> tuple[int, ...]:
        sizes = tuple(map(self.number, shape_of(value)))
        if sizes and min(sizes) < 0:
            raise ExecutionError(f"a dimension of negative size: {value.type} is {sizes}")
        return sizes

    def bytes(self, value: Value) -> int:
        known = self.known_bytes.get(value)
        if known is None:
            known = self.known_bytes[value] = prod(self.shape(value)) * _dtype(value).itemsize
        return known

    def aligned(self, size: int) -> int:
        return -(-size // self.alignment) * self.alignment

    def place(self, storage: StoragePlan) -> Placement:
        return place(
            [
                Lifetime(
                    bytes_with_room(piece.size) if piece.owner in self.roomy else piece.size, piece.first, piece.last
                )
                for piece in storage.pieces
            ],
            self.alignment,
        )

    def sum_bytes(self, section: NativeSection, storage: StoragePlan) -> int:
        """What a section's own values and workspaces take if each has memory of its own."""
        seen = {*section.outputs, *section.aliases}
        values = sum(self.aligned(self.bytes(v)) for task in section.tasks for v in task.results if v not in seen)
        spaces = [piece.size for piece in storage.pieces if not isinstance(piece.owner, Value)]
        return values + sum(map(self.aligned, spaces))


@dataclass(frozen=True, slots=True)
class _Memory:
    """What the references of a work stand for."""

    operands: list[Place]
    results: list[Place]
    workspaces: list[Place]


def _allocations(section: NativeSection, layout: _Layout, spans: Sequence[tuple[int, int]]) -> tuple[Allocation, ...]:
    origins = {value: task.origin for task in section.tasks for value in task.results}

    def label(owner: Value | tuple[int, int]) -> tuple[str, str]:
        if isinstance(owner, Value):
            return owner.name or str(owner), origins.get(owner, "")
        task, index = owner
        return "inside of the scan" if index < 0 else "workspace", section.tasks[task].origin

    return tuple(
        Allocation(*label(piece.owner), offset, piece.size, spans[piece.first][0], spans[piece.last][1])
        for piece, offset in zip(layout.storage.pieces, layout.arena.offsets)
    )


def _spans(section: NativeSection, steps: Sequence[Sequence[int]]) -> list[tuple[int, int]]:
    """The first and the last step of each task."""
    spans = [(0, 0)] * len(section.tasks)
    for number, tasks in enumerate(steps):
        for task in tasks:
            spans[task] = (number, number)
    return spans


def _one_by_one(section: NativeSection) -> list[tuple[int]]:
    return [(number,) for number in range(len(section.tasks))]


def _count(entry: PlannedLaunch | Repeated) -> int:
    return entry.count * len(entry.launches) if isinstance(entry, Repeated) else 1


def _dtype(value: Value) -> np.dtype[Any]:
    assert isinstance(value.type, TensorType)
    return value.type.dtype.numpy
