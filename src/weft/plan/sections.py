"""Plan a native section once, for all sizes: an arena with a place for every value, and the launches.

Regions: host addresses (constants), the arena, the error flag, then the section's inputs and outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import reduce
from operator import and_

import numpy as np

from weft.errors import UnsupportedModelError
from weft.ir import dims
from weft.ir.arrays import Array
from weft.ir.dim_evaluator import DimEvaluator
from weft.ir.dims import Dim
from weft.ir.packing import load_constant
from weft.ir.program import Value
from weft.ir.verification import is_verifying
from weft.ir.work import Effort, NativeSection, Reference, ScanTask, Task, Work
from weft.plan.layout import (
    Bindings,
    LayoutPlanner,
    ScanLayout,
    SectionLayout,
    Steps,
    bind_body,
    bind_dim,
    bind_shape,
    value_bytes,
)
from weft.plan.plan import (
    ABSOLUTE,
    ALIGNMENT,
    ARENA,
    ERRORS,
    FIRST_FREE,
    Plan,
    SymbolicBlock,
    SymbolicLaunch,
    SymbolicLoop,
    SymbolicPlace,
    SymbolicPlan,
)
from weft.plan.scans import UNROLLED, ScanPlaces, find_shifts
from weft.plan.waits import with_waits
from weft.records import dataclass

GroupTasks = Callable[[Sequence[int], DimEvaluator], Steps]
"""Groups task numbers in order into steps that run in parallel, for the sizes of an evaluator."""

Entry = SymbolicLaunch | SymbolicLoop
MOST_LISTED = 1 << 18  # launches of nested loops, which are unrolled
_NOWHERE = SymbolicPlace(ABSOLUTE)


def plan_section(
    section: NativeSection,
    constants: Mapping[Value, Array],
    sizes: Mapping[str, int],
    references: Sequence[Mapping[str, int]] = (),
    *,
    steps: Steps | None = None,
    group: GroupTasks | None = None,
    may_grow: bool = False,
    alignment: int = ALIGNMENT,
) -> SymbolicPlan:
    """Plan places and launches for these sizes and all that meet the plan's conditions.

    The plan depends on the `references`, by default these sizes, and on the conditions, but not otherwise on `sizes`.
    The first reference determines the order of tasks; memory is laid out for each, and a run takes the smallest.
    `constants` are those that tasks read from memory. `steps` are task numbers in order; None: one by one, in
    an order that needs little memory. `group` makes parallel steps of these, which are taken if the arena is not
    larger or `may_grow`.
    """
    planner = LayoutPlanner(references or [sizes], alignment, sizes)
    external = frozenset((*section.inputs, *section.outputs, *constants))
    if steps is None:
        steps = planner.choose_steps(section, external, {})
    layout = planner.lay_out(section, external, steps, {})
    if group is not None:
        grouped = group(layout.order, planner.reference)
        if len(grouped) != len(steps):
            parallel = planner.lay_out(section, external, grouped, {})
            if may_grow or planner.estimate(parallel.total) <= planner.estimate(layout.total):
                layout = parallel
    plan = _LaunchBuilder(section, constants, planner).build(layout)
    if is_verifying():
        from weft.plan.verify import verify_plan

        verify_plan(section, plan.at(sizes), constants, sizes)
    return plan


def make_plan(
    section: NativeSection,
    constants: Mapping[Value, Array],
    sizes: Mapping[str, int],
    steps: Steps | None = None,
    alignment: int = ALIGNMENT,
) -> Plan:
    """Plan places and launches for one set of sizes."""
    return plan_section(section, constants, sizes, steps=steps, alignment=alignment).at(sizes)


@dataclass(frozen=True, slots=True)
class _Memory:
    """The places that the references of a work stand for."""

    operands: Sequence[SymbolicPlace]
    results: Sequence[SymbolicPlace]
    workspaces: Sequence[SymbolicPlace]


@dataclass(frozen=True, slots=True)
class _Part:
    """A section that is being built, or the body of a scan in it, with the places of its blocks by their owners."""

    section: NativeSection
    layout: SectionLayout
    bindings: Bindings
    blocks: Mapping[object, SymbolicPlace]


class _LaunchBuilder:
    def __init__(self, section: NativeSection, constants: Mapping[Value, Array], planner: LayoutPlanner) -> None:
        self.section, self.constants, self.planner = section, constants, planner
        self.packed_arrays: list[Array] = []  # constants that launches point to
        self.packed: dict[tuple[int, int], SymbolicPlace] = {}  # by (id of the work, number)
        self.tasks = {
            id(task.work if isinstance(task, Task) else task): number for number, task in enumerate(section.tasks)
        }
        self.shapes: dict[tuple[Dim, ...], tuple[Value, tuple[Dim, ...]]] = {}
        self.constant_places = {value: SymbolicPlace(ABSOLUTE, array.ctypes.data) for value, array in constants.items()}

    def build(self, layout: SectionLayout) -> SymbolicPlan:
        self.check_launches()
        section = self.section
        blocks = enumerate(layout.storage.blocks)
        part = _Part(section, layout, {}, {block.owner: SymbolicPlace(ARENA, 0, number) for number, block in blocks})
        external = (*section.inputs, *section.outputs)
        outside = {value: SymbolicPlace(FIRST_FREE + number) for number, value in enumerate(external)}
        launches: list[Entry] = []
        entries: list[int] = []
        for step in layout.steps:
            count = len(launches)
            for number in step:
                launches += self.task_launches(part, number, outside)
            entries.append(len(launches) - count)
        outputs = tuple((value.shape, value.dtype.numpy) for value in section.outputs)
        stacks = self.planner.stack_alternatives(layout)
        self.note_shapes(section.outputs, {})
        return SymbolicPlan(
            with_waits(launches, _intersect([stack.apart for stack in stacks])),
            tuple(stacks),
            outputs,
            (*self.constants.values(), *self.packed_arrays),
            tuple(self.describe_blocks(layout)),
            tuple(self.planner.definitions),
            tuple(self.planner.conditions),
            tuple(self.shapes.values()),
            tuple(self.unshared_bytes(layout)),
            tuple(map(tuple, layout.steps)),
            tuple(entries),
            self.planner.alignment,
        )

    def task_launches(self, part: _Part, number: int, outside: Mapping[Value, SymbolicPlace]) -> Iterator[Entry]:
        """Yield the launches of a task; `outside` are the places of values that are not in the part's own memory."""
        task, layout = part.section.tasks[number], part.layout
        inside = part.blocks

        def locate(value: Value) -> SymbolicPlace:
            home = layout.storage.home(value)
            base = inside.get(home.base) or outside.get(home.base) or self.constant_places.get(home.base, _NOWHERE)
            return base.moved(home.offset)

        self.note_shapes((*task.operands, *task.results), part.bindings)
        operands, results = list(map(locate, task.operands)), list(map(locate, task.results))
        if isinstance(task, ScanTask):
            yield from self.scan_launches(task, layout.scans[number], inside[number, -1], operands, results)
            return
        spaces = [inside[number, index] for index in range(len(task.work.workspaces))]
        skipped = {launch for launch in range(len(task.work.launches)) if (number, launch) in layout.storage.skipped}
        yield from self.work_launches(task, _Memory(operands, results, spaces), skipped, part.bindings)

    def work_launches(
        self, task: Task, memory: _Memory, skipped: set[int], bindings: Bindings
    ) -> Iterator[SymbolicLaunch]:
        work = task.work
        task_number = self.tasks.setdefault(id(work), len(self.tasks))
        count = max(sum(1 for n, launch in enumerate(work.launches) if launch.blocks != 0 and n not in skipped), 1)
        flops = dims.ceildiv(bind_dim(task.effort.flops, bindings), count)
        moved = dims.ceildiv(bind_dim(task.effort.bytes, bindings), count)
        for number, launch in enumerate(work.launches):
            if number in skipped:
                continue
            buffers = tuple(self.locate(reference, work, memory) for reference in launch.references)
            sizes = tuple(
                self.used_bytes(reference, task, bindings) if buffer.region != ABSOLUTE else 0
                for reference, buffer in zip(launch.references, buffers)
            )
            yield SymbolicLaunch(
                launch.kernel,
                bind_dim(launch.blocks, bindings),
                buffers,
                tuple([bind_dim(value, bindings) for value in launch.values]),
                task.origin,
                task_number,
                flops,
                moved,
                sizes,
            )

    def locate(self, reference: Reference, work: Work, memory: _Memory) -> SymbolicPlace:
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
                return SymbolicPlace(ERRORS)

    def used_bytes(self, reference: Reference, task: Task, bindings: Bindings) -> Dim:
        """Return the bytes of a reference; 0 for constants and for the error flag, which need no waits."""
        match reference.kind:
            case "operand":
                return value_bytes(task.operands[reference.number], bindings)
            case "result":
                return value_bytes(task.results[reference.number], bindings)
            case "workspace":
                workspace = task.work.workspaces[reference.number]
                return bind_dim(workspace.size, bindings) * workspace.dtype.numpy.itemsize
            case "constant" | "errors":
                return 0

    def pack(self, work: Work, number: int) -> SymbolicPlace:
        key = (id(work), number)
        if key not in self.packed:
            array = np.ascontiguousarray(load_constant(work.constants[number]))
            self.packed_arrays.append(array)
            self.packed[key] = SymbolicPlace(ABSOLUTE, array.ctypes.data)
        return self.packed[key]

    # -- scans -------------------------------------------------------------------------------------------------------

    def scan_launches(
        self,
        task: ScanTask,
        layout: ScanLayout,
        memory: SymbolicPlace,
        operands: Sequence[SymbolicPlace],
        results: Sequence[SymbolicPlace],
    ) -> Iterator[Entry]:
        """Yield the body's launches: the first iteration, pairs of iterations that repeat, and the last ones.

        Carries alternate between two places and sequences advance by a constant, so all iterations but the first and
        the last are repeated pairs, and one more if their number is odd.
        """
        inner = layout.inner
        inside = {owner: memory.moved(layout.base + offset) for owner, offset in layout.body.offsets.items()}
        part = _Part(task.body, layout.body, inner, inside)
        pairs = [tuple(memory.moved(offset) for offset in pair) for pair in layout.pairs]
        length = bind_dim(task.primitive.length, inner)
        is_nested = _is_nested(task)
        if is_nested:
            length = self.planner.fix(length)
        elif not isinstance(length, int):
            length = next((n for n in (0, 1) if self.planner.is_equal(length, n)), length)
        places = ScanPlaces(task, pairs, operands, results, length, lambda value: value_bytes(value, inner))

        def iterate(step: Dim) -> list[Entry]:
            outside = places.at(step)
            return [e for n in range(len(task.body.tasks)) for e in self.task_launches(part, n, outside)]

        if isinstance(length, int) and (is_nested or length <= UNROLLED):
            for step in range(length):
                yield from iterate(step)
        else:
            yield from iterate(0)
            yield _repeat([*iterate(1), *iterate(2)], [*iterate(3), *iterate(4)], (length - 2) // 2)
            odd = (length - 2) % 2
            if odd == 1:
                yield from iterate(length - 2)
            elif odd != 0:
                yield _repeat(iterate(length - 2), iterate(length - 2), odd)
            yield from iterate(length - 1)
        for copy, value, source, result in zip(task.copies, task.results, places.carries_before(length), results):
            if source != result:
                moving = Task(copy, (value,), (value,), task.origin, Effort(0, 2 * value.nbytes))
                yield from self.work_launches(moving, _Memory([source], [result], []), set(), inner)

    def check_launches(self) -> None:
        """Raise UnsupportedModelError for nested loops with too many launches."""
        for task in self.section.tasks:
            if isinstance(task, ScanTask) and _is_nested(task) and self.count_listed(task, {}) > MOST_LISTED:
                raise UnsupportedModelError(
                    f"nested loops, which are planned iteration by iteration, make more than {MOST_LISTED:,} steps",
                    node=task.origin or None,
                    hint="nest fewer loops, or give them shorter sequences",
                )

    def count_listed(self, task: Task | ScanTask, outer: Bindings) -> int:
        """Return about how many launches are listed for a task."""
        if isinstance(task, Task):
            return len(task.work.launches)
        inner = bind_body(task, outer)
        length = self.planner.fix(bind_dim(task.primitive.length, inner)) if _is_nested(task) else UNROLLED
        return length * sum(self.count_listed(one, inner) for one in task.body.tasks)

    # -- bytes -------------------------------------------------------------------------------------------------------

    def note_shapes(self, values: Sequence[Value], bindings: Bindings) -> None:
        """Remember the shapes that may have a negative size."""
        for value in values:
            shape = bind_shape(value, bindings)
            if shape not in self.shapes and any(type(dim) is not int and _may_be_negative(dim) for dim in shape):
                self.shapes[shape] = value, shape

    def describe_blocks(self, layout: SectionLayout) -> Iterator[SymbolicBlock]:
        origins = {value: task.origin for task in self.section.tasks for value in task.results}
        for block in layout.storage.blocks:
            if isinstance(block.owner, Value):
                name, origin = block.owner.name or str(block.owner), origins.get(block.owner, "")
            else:
                assert isinstance(block.owner, tuple)
                task, index = block.owner
                name, origin = "scan body" if index == -1 else "workspace", self.section.tasks[task].origin
            yield SymbolicBlock(name, origin, block.size, block.first, block.last)

    def unshared_bytes(self, layout: SectionLayout) -> Iterator[Dim]:
        """Yield the bytes of a section's own values and workspaces."""
        not_own = {*self.section.outputs, *self.section.aliases}
        yield from (value.nbytes for task in self.section.tasks for value in task.results if value not in not_own)
        yield from (block.size for block in layout.storage.blocks if not isinstance(block.owner, Value))


def _intersect(masks: Sequence[Sequence[int]]) -> list[int]:
    return [reduce(and_, by_stack) for by_stack in zip(*masks)]


def _may_be_negative(dim: Dim) -> bool:
    low = dims.bounds(dim)[0]
    return low is None or low < 0


def _is_nested(task: ScanTask) -> bool:
    return any(isinstance(one, ScanTask) for one in task.body.tasks)


def _repeat(first: Sequence[Entry], following: Sequence[Entry], count: Dim) -> SymbolicLoop:
    """Repeat launches; in each iteration buffers move as they do from `first` to `following`."""
    launches = [entry for entry in first if isinstance(entry, SymbolicLaunch)]
    after = [entry for entry in following if isinstance(entry, SymbolicLaunch)]
    return SymbolicLoop(tuple(launches), find_shifts(launches, after), count)
