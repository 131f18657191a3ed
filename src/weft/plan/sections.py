"""Plan a native section for one set of sizes: an arena with a place for every value, and the launches.

Regions: host addresses (constants), the arena, the error flag, then the section's inputs and outputs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from math import prod

import numpy as np

from weft.errors import ExecutionError, UnsupportedModelError
from weft.ir import dims
from weft.ir.arrays import Array
from weft.ir.dim_evaluator import DimEvaluator
from weft.ir.dims import Expr
from weft.ir.packing import load_constant
from weft.ir.program import Value
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
from weft.plan.arena import Lifetime, Placement, place_blocks
from weft.plan.order import choose_order
from weft.plan.plan import ABSOLUTE, ALIGNMENT, ARENA, ERRORS, FIRST_FREE, Plan
from weft.plan.scans import UNROLLED, ScanPlaces, repeat_launches
from weft.plan.storage import Sizes, StoragePlan, plan_storage
from weft.plan.waits import with_waits
from weft.records import dataclass

Owners = Collection["Value | tuple[int, int]"]  # of memory blocks: values, or (task, workspace) numbers
MOST_LISTED = 1 << 18  # launches of nested loops, which are unrolled
_NOWHERE = Place(ABSOLUTE)


def make_plan(
    section: NativeSection,
    constants: Mapping[Value, Array],
    sizes: Mapping[str, int],
    steps: Sequence[Sequence[int]] | None = None,
    alignment: int = ALIGNMENT,
    roomy: Owners = frozenset(),
    computed_dims: Mapping[Expr, int] | None = None,
) -> Plan:
    """Plan places and launches for these sizes; `constants` are those that tasks read from memory.

    `steps` are task numbers in order; those of one step may run in parallel. None: one by one, in an order that needs
    little memory, never more than the section's own order. Owners in `roomy` get room to grow. `computed_dims` are dims
    with values that were computed before.
    """
    external = {value: Place(FIRST_FREE + number) for number, value in enumerate((*section.inputs, *section.outputs))}
    planner = _Planner(constants, DimEvaluator(sizes, computed_dims), alignment, roomy)
    planner.check_launches(section)
    if steps is None:
        steps = planner.low_memory_steps(section, frozenset(external))
    for number, task in enumerate(section.tasks):
        planner.tasks[id(task.work if isinstance(task, Task) else task)] = number
    layout = planner.place_section(section, frozenset(external), steps, 0)
    places = {**layout.places, **external}
    launches: list[PlannedLaunch | Repeated] = []
    spans: list[tuple[int, int]] = []  # first and last launch of each step
    count = 0
    for step in steps:
        step_launches = [launch for number in step for launch in planner.task_launches(section, number, layout, places)]
        launches += step_launches
        first, count = count, count + sum(_count(entry) for entry in step_launches)
        spans.append((first, max(count - 1, 0)))
    outputs = tuple((planner.shape(value), value.dtype.numpy) for value in section.outputs)
    plan = Plan(
        with_waits(launches),
        layout.arena.size,
        outputs,
        (*constants.values(), *planner.packed_arrays),
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
    roomy: Owners = frozenset(),
) -> StoragePlan:
    """Return how values share memory in the plan that `make_plan` makes of the same arguments."""
    external = frozenset((*section.inputs, *section.outputs))
    return _Planner(constants, DimEvaluator(sizes), ALIGNMENT, roomy).lay_out(section, external, steps)[0]


def storage_choices(
    section: NativeSection, constants: Mapping[Value, Array], sizes: Mapping[str, int], steps: Sequence[Sequence[int]]
) -> list[StoragePlan]:
    """List the storage plans that `make_plan` tries; it takes the first with the smallest arena."""
    external = frozenset((*section.inputs, *section.outputs))
    return _Planner(constants, DimEvaluator(sizes), ALIGNMENT).choices(section, external, steps)


def bytes_with_room(size: int) -> int:
    """Return the size of a block with room to grow."""
    return size + size // 2 + ALIGNMENT


@dataclass(frozen=True, slots=True)
class _Layout:
    """The places of a section's values and of its (task, number) workspaces."""

    storage: StoragePlan
    arena: Placement
    places: dict[Value, Place]
    workspaces: dict[tuple[int, int], Place]


class _Planner:
    def __init__(
        self, constants: Mapping[Value, Array], number: DimEvaluator, alignment: int, roomy: Owners = frozenset()
    ) -> None:
        self.constants = constants
        self.number = number
        self.alignment = alignment
        self.roomy = roomy
        self.packed_arrays: list[Array] = []  # constants that launches point to
        self.value_sizes: dict[Value, int] = {}
        self.packed: dict[tuple[int, int], Place] = {}  # by (id of the work, number)
        self.tasks: dict[int, int] = {}  # numbers of tasks, by the id of the work
        self.scan_sizes: dict[int, int] = {}  # bytes of scans, by their id
        self.bodies: dict[int, tuple[_Layout, list[tuple[Place, Place]]]] = {}  # of scans, by their id
        self.last_layout: tuple[Sequence[Sequence[int]], tuple[StoragePlan, Placement]] | None = None

    @property
    def sizes(self) -> Sizes:
        """Built on demand: storing it would be a reference cycle that keeps the planner and its constants alive."""
        return Sizes(self.number, self.bytes, self.scan_bytes)

    # -- places ------------------------------------------------------------------------------------------------------

    def place_section(
        self, section: NativeSection, external: frozenset[Value], steps: Sequence[Sequence[int]], base: int
    ) -> _Layout:
        """Place the section's internal values in the arena, from `base` on, and its constants."""
        storage, arena = self.lay_out(section, external, steps)
        spots = [Place(ARENA, base + offset) for offset in arena.offsets]
        places: dict[Value, Place] = {}
        workspaces: dict[tuple[int, int], Place] = {}
        for block, spot in zip(storage.blocks, spots):
            if isinstance(block.owner, Value):
                places[block.owner] = spot
            else:
                workspaces[block.owner] = spot
        for value in {home.base for task in section.tasks for home in map(storage.home, task.operands)}:
            if value in self.constants:
                places[value] = Place(ABSOLUTE, self.constants[value].ctypes.data)
        for number, task in enumerate(section.tasks):
            if isinstance(task, ScanTask):
                self.place_scan(task, workspaces[number, -1].offset)
        return _Layout(storage, arena, places, workspaces)

    def low_memory_steps(self, section: NativeSection, external: frozenset[Value]) -> Sequence[Sequence[int]]:
        """Order tasks one by one so that they need little memory."""
        section_steps = _serial_steps(section)
        elsewhere = external | self.constants.keys()
        steps = [(number,) for number in choose_order(section, self.sizes, elsewhere.__contains__)]
        if steps == section_steps:
            return section_steps
        least = self.lay_out(section, external, section_steps)[1].lower_bound
        return steps if self.lay_out(section, external, steps)[1].lower_bound <= least else section_steps

    def lay_out(
        self, section: NativeSection, external: frozenset[Value], steps: Sequence[Sequence[int]]
    ) -> tuple[StoragePlan, Placement]:
        """Plan storage and offsets; concatenated operands lie in the result unless that needs more memory.

        The result for the same steps is cached.
        """
        if self.last_layout is None or self.last_layout[0] is not steps:
            choices = [(storage, self.place(storage)) for storage in self.choices(section, external, steps)]
            self.last_layout = steps, min(choices, key=lambda pair: pair[1].size)
        return self.last_layout[1]

    def choices(
        self, section: NativeSection, external: frozenset[Value], steps: Sequence[Sequence[int]]
    ) -> list[StoragePlan]:
        """List storage plans, of which the first with the smallest arena is taken."""
        spans, elsewhere = _spans(section, steps), external | self.constants.keys()
        storage = plan_storage(section, self.sizes, spans, elsewhere)
        if len(storage.skipped) <= 1:
            return [storage]
        return [storage, plan_storage(section, self.sizes, spans, elsewhere, join=False)]

    def scan_bytes(self, task: ScanTask) -> int:
        """Return the bytes of a scan: two sets of carries and its body. Cached."""
        size = self.scan_sizes.get(id(task))
        if size is None:
            size = self.scan_sizes[id(task)] = self.compute_scan_bytes(task)
        return size

    def compute_scan_bytes(self, task: ScanTask) -> int:
        self.bind_body(task)
        carried = sum(self.align(self.bytes(value)) for value in task.program.inputs[: task.primitive.carries])
        trial = _Planner(self.constants, self.number, self.alignment)
        trial.scan_sizes = self.scan_sizes
        external = frozenset((*task.body.inputs, *task.body.outputs))
        return 2 * carried + trial.lay_out(task.body, external, _serial_steps(task.body))[1].size

    def place_scan(self, task: ScanTask, base: int) -> None:
        self.bind_body(task)
        pairs: list[tuple[Place, Place]] = []
        for value in task.program.inputs[: task.primitive.carries]:
            size = self.align(self.bytes(value))
            pairs.append((Place(ARENA, base), Place(ARENA, base + size)))
            base += 2 * size
        external = frozenset((*task.body.inputs, *task.body.outputs))
        self.bodies[id(task)] = self.place_section(task.body, external, _serial_steps(task.body), base), pairs

    def bind_body(self, task: ScanTask) -> None:
        """Bind the sizes that only the body's inputs show."""
        primitive = task.primitive
        for number, (inner, outer) in enumerate(zip(task.program.inputs, task.operands)):
            shape = self.shape(outer)
            is_sequence = primitive.carries <= number < primitive.carries + primitive.sequences
            for dim, size in zip(inner.shape, shape[1:] if is_sequence else shape):
                symbol = dims.as_symbol(dim)
                if symbol is not None:
                    self.number.bind(symbol.name, size)
        self.value_sizes.clear()

    # -- launches ----------------------------------------------------------------------------------------------------

    def check_launches(self, section: NativeSection) -> None:
        """Raise UnsupportedModelError for nested loops with too many launches."""
        for task in section.tasks:
            if isinstance(task, ScanTask) and self.count_launches(task) > MOST_LISTED:
                raise UnsupportedModelError(
                    f"nested loops, which are planned iteration by iteration, make more than {MOST_LISTED:,} steps",
                    node=task.origin or None,
                    hint="nest fewer loops, or give them shorter sequences",
                )

    def count_launches(self, task: Task | ScanTask) -> int:
        """Return a lower bound on the number of launches listed for a task."""
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
            base = places.get(home.base, _NOWHERE)
            return Place(base.region, base.offset + home.offset) if home.offset else base

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
        task_number = self.tasks.setdefault(id(work), len(self.tasks))
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
                yield PlannedLaunch(
                    launch.kernel, blocks, buffers, parameters, task.origin, task_number, flops, moved, sizes
                )

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
        """Return the bytes of a reference; 0 for constants and for the error flag, which need no waits."""
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
            array = np.ascontiguousarray(load_constant(work.constants[number]))
            self.packed_arrays.append(array)
            self.packed[key] = Place(ABSOLUTE, array.ctypes.data)
        return self.packed[key]

    def scan_launches(
        self, task: ScanTask, operands: list[Place], results: list[Place]
    ) -> Iterator[PlannedLaunch | Repeated]:
        """Yield the body's launches for every iteration.

        Carries alternate between two places and sequences advance by a constant, so all iterations but the first and
        the last are one repeated pair.
        """
        self.bind_body(task)
        length = self.number(task.primitive.length)
        layout, pairs = self.bodies[id(task)]
        steps = ScanPlaces(task, layout.places, pairs, operands, results, length, self.bytes)

        def iteration_launches(step: int) -> list[PlannedLaunch | Repeated]:
            return list(self.body_launches(task.body, layout, steps.at(step)))

        step = 0
        if length > UNROLLED:
            yield from iteration_launches(0)
            repeated = repeat_launches(
                [*iteration_launches(1), *iteration_launches(2)],
                [*iteration_launches(3), *iteration_launches(4)],
                (length - 2) // 2,
            )
            if repeated is not None:
                yield repeated
                step = 1 + 2 * repeated.count
            else:
                step = 1
        for number in range(step, length):
            yield from iteration_launches(number)
        for copy, value, source, result in zip(task.copies, task.results, steps.carries_before(length), results):
            if source != result:
                effort = Effort(0, 2 * self.bytes(value))
                moving = Task(copy, (value,), (value,), task.origin, effort)
                yield from self.work_launches(moving, _Memory([source], [result], []), set())

    # -- numbers -----------------------------------------------------------------------------------------------------

    def shape(self, value: Value) -> tuple[int, ...]:
        sizes = tuple(map(self.number, value.shape))
        if sizes and min(sizes) < 0:
            raise ExecutionError(f"a dimension of negative size: {value.type} is {sizes}")
        return sizes

    def bytes(self, value: Value) -> int:
        size = self.value_sizes.get(value)
        if size is None:
            size = self.value_sizes[value] = prod(self.shape(value)) * value.itemsize
        return size

    def align(self, size: int) -> int:
        return -(-size // self.alignment) * self.alignment

    def place(self, storage: StoragePlan) -> Placement:
        return place_blocks(
            [
                Lifetime(
                    bytes_with_room(block.size) if block.owner in self.roomy else block.size, block.first, block.last
                )
                for block in storage.blocks
            ],
            self.alignment,
        )

    def sum_bytes(self, section: NativeSection, storage: StoragePlan) -> int:
        """Sum the bytes of a section's own values and workspaces without sharing."""
        not_own = {*section.outputs, *section.aliases}
        values = sum(self.align(self.bytes(v)) for task in section.tasks for v in task.results if v not in not_own)
        spaces = [block.size for block in storage.blocks if not isinstance(block.owner, Value)]
        return values + sum(map(self.align, spaces))


@dataclass(frozen=True, slots=True)
class _Memory:
    """The places that the references of a work stand for."""

    operands: list[Place]
    results: list[Place]
    workspaces: list[Place]


def _allocations(section: NativeSection, layout: _Layout, spans: Sequence[tuple[int, int]]) -> tuple[Allocation, ...]:
    origins = {value: task.origin for task in section.tasks for value in task.results}

    def label(owner: Value | tuple[int, int]) -> tuple[str, str]:
        if isinstance(owner, Value):
            return owner.name or str(owner), origins.get(owner, "")
        task, index = owner
        return "scan body" if index < 0 else "workspace", section.tasks[task].origin

    return tuple(
        Allocation(*label(block.owner), offset, block.size, spans[block.first][0], spans[block.last][1])
        for block, offset in zip(layout.storage.blocks, layout.arena.offsets)
    )


def _spans(section: NativeSection, steps: Sequence[Sequence[int]]) -> list[tuple[int, int]]:
    """Return the first and the last step of each task."""
    spans = [(0, 0)] * len(section.tasks)
    for number, tasks in enumerate(steps):
        for task in tasks:
            spans[task] = (number, number)
    return spans


def _serial_steps(section: NativeSection) -> list[tuple[int]]:
    return [(number,) for number in range(len(section.tasks))]


def _count(entry: PlannedLaunch | Repeated) -> int:
    return entry.count * len(entry.launches) if isinstance(entry, Repeated) else 1
