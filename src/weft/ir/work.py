"""Work: what kernels a program becomes, and on which memory they run.

First without memory: works refer to the operands and results of what they compute, tasks to values, and sections are
stretches of tasks between steps for the host. Then planned: launches on places in regions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Literal, TypeVar, Union

from weft.errors import InternalError
from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.ir.kernel import Kernel
from weft.ir.packing import Constant
from weft.ir.program import Scan, Step, TensorProgram, Value
from weft.records import dataclass

Bound = TypeVar("Bound")

# -- without memory --------------------------------------------------------------------------------------------------

PAIR_PRODUCTS = "pair products"  # the template of products that round their operands to bfloat16


@dataclass(frozen=True, slots=True)
class Reference:
    """Memory for a kernel's buffer: one of the step's operands, its result, or one of the work's own.

    `errors` is one int32 that a kernel sets to 1 where the data is at fault (an index out of range).
    """

    kind: Literal["operand", "result", "workspace", "constant", "errors"]
    number: int


@dataclass(frozen=True, slots=True)
class Launch:
    """A kernel with what it is launched on: so many blocks, and by name its parameters' values and buffers' memory.

    Exactly the kernel's parameters and those of its buffers that are not local are bound; here in the kernel's order,
    in whatever order they were given.
    """

    kernel: Kernel
    blocks: Dim
    parameters: tuple[tuple[str, Dim], ...]
    buffers: tuple[tuple[str, Reference], ...]

    def __post_init__(self) -> None:
        names = tuple(buffer.name for buffer in self.kernel.buffers if buffer.local_size is None)
        object.__setattr__(self, "parameters", _bound(self.kernel.name, self.kernel.parameters, self.parameters))
        object.__setattr__(self, "buffers", _bound(self.kernel.name, names, self.buffers))

    @property
    def values(self) -> tuple[Dim, ...]:
        """Of the parameters, in the kernel's order."""
        return tuple([value for _, value in self.parameters])

    @property
    def references(self) -> tuple[Reference, ...]:
        """The memory of the buffers, in the kernel's order."""
        return tuple([reference for _, reference in self.buffers])

    def rebound(self, references: Mapping[Reference, Reference]) -> Launch:
        """The same launch on other memory, where that is given for what it is on now."""
        moved = tuple((name, references.get(reference, reference)) for name, reference in self.buffers)
        return self if moved == self.buffers else replace(self, buffers=moved)


def _bound(kernel: str, names: tuple[str, ...], given: tuple[tuple[str, Bound], ...]) -> tuple[tuple[str, Bound], ...]:
    if tuple([name for name, _ in given]) == names:
        return given
    found = dict(given)
    if len(found) != len(given) or found.keys() != set(names):
        raise InternalError(
            f"{kernel} takes {', '.join(names) or 'nothing'}, given {', '.join(name for name, _ in given)}"
        )
    return tuple((name, found[name]) for name in names)


@dataclass(frozen=True, slots=True)
class Workspace:
    """Memory that is needed only while a work's kernels run."""

    dtype: DType
    size: Dim  # elements


@dataclass(frozen=True, slots=True)
class Copy:
    """A launch that only copies `size` elements of an operand, from `source` on, to the result, from `target` on.

    They lie in so many `pieces`. Where that is one, both may lie in the same memory, and the launch is not needed.
    """

    launch: int
    operand: int
    source: Dim
    target: Dim
    size: Dim
    pieces: Dim


@dataclass(frozen=True, slots=True, eq=False)
class Work:
    """Kernels that together do one step: launches, run in order.

    The only result may take the memory of an operand that is `overwritable`: each of its elements is read for nothing
    but what is written in its place, and that is written once.
    """

    launches: tuple[Launch, ...]
    workspaces: tuple[Workspace, ...] = ()
    constants: tuple[Constant, ...] = ()
    overwritable: tuple[int, ...] = ()
    copies: tuple[Copy, ...] = ()


@dataclass(frozen=True, slots=True)
class Effort:
    """What has to be done at least, whatever kernels do it: arithmetic, and bytes read and written."""

    flops: Dim = 0
    bytes: Dim = 0


@dataclass(frozen=True, slots=True, eq=False)
class Task:
    """Work, with the values that its references to operands and results stand for.

    `template` is what built it, and `reason` why that one, for people.
    """

    work: Work
    operands: tuple[Value, ...]
    results: tuple[Value, ...]
    origin: str
    effort: Effort = Effort()
    template: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class ScanTask:
    """A scan: operands are carries, sequences, captures; results the last carries and the stacked outputs.

    `program` is the body, `body` its only section, `copies` one per carry, from one place of it to another.
    """

    primitive: Scan
    program: TensorProgram
    body: NativeSection
    copies: tuple[Work, ...]
    operands: tuple[Value, ...]
    results: tuple[Value, ...]
    origin: str


@dataclass(frozen=True, slots=True, eq=False)
class NativeSection:
    """A stretch of tasks; what others see of it is row-major."""

    tasks: tuple[Task | ScanTask, ...]
    aliases: Mapping[Value, Value]  # values that lie where another does
    inputs: tuple[Value, ...]  # from outside of the section, without constants
    outputs: tuple[Value, ...]
    symbols: tuple[str, ...] | None = None  # the sizes that its plan depends on, once they were looked for


@dataclass(frozen=True, slots=True, eq=False)
class HostSection:
    """Steps for the host; `bodies` are the sections of the programs inside them, in order."""

    steps: tuple[Step, ...]
    bodies: tuple[tuple[Section, ...], ...] = ()


Section = Union[NativeSection, HostSection]


def all_works(section: NativeSection) -> Iterator[Work]:
    """The works of a section, and those in the bodies of its scans."""
    for task in section.tasks:
        if isinstance(task, ScanTask):
            yield from all_works(task.body)
            yield from task.copies
        else:
            yield task.work


def count_launches(sections: Iterable[Section]) -> int:
    """How many launches sections have, those of scans and inside of control flow once."""
    count = 0
    for section in sections:
        if isinstance(section, NativeSection):
            count += sum(len(work.launches) for work in all_works(section))
        else:
            count += sum(map(count_launches, section.bodies))
    return count


def map_launches(sections: Sequence[Section], function: Callable[[Launch], Launch]) -> tuple[Section, ...]:
    """Sections with other launches in place of theirs; works that tasks share stay shared."""
    works: dict[int, Work] = {}

    def changed(work: Work) -> Work:
        if id(work) not in works:
            launches = tuple(map(function, work.launches))
            works[id(work)] = replace(work, launches=launches)
        return works[id(work)]

    def changed_section(section: NativeSection) -> NativeSection:
        return replace(section, tasks=tuple(map(changed_task, section.tasks)))

    def changed_task(task: Task | ScanTask) -> Task | ScanTask:
        if isinstance(task, ScanTask):
            return replace(task, body=changed_section(task.body), copies=tuple(map(changed, task.copies)))
        return replace(task, work=changed(task.work))

    return tuple(
        changed_section(section)
        if isinstance(section, NativeSection)
        else replace(section, bodies=tuple(map_launches(body, function) for body in section.bodies))
        for section in sections
    )


# -- planned ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Place:
    """Where a buffer is: so many bytes from the start of a region that a run names."""

    region: int
    offset: int = 0


@dataclass(frozen=True, slots=True)
class PlannedLaunch:
    """A kernel's blocks 0..blocks-1 on given memory; `origin` says what they are for.

    `task` is the number of the task that it belongs to, `flops` and `bytes` are its part of what that has to do; the
    launches of one task share them evenly. `sizes` are the bytes that its buffers take, 0 for those that no launch
    writes. `after` are the numbers, in the plan, of launches that must be done before it starts; None: all before it.
    """

    kernel: Kernel
    blocks: int
    buffers: tuple[Place, ...]
    parameters: tuple[int, ...]
    origin: str = ""
    task: int = 0
    flops: float = 0.0
    bytes: float = 0.0
    sizes: tuple[int, ...] = ()
    after: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Repeated:
    """Launches in order, `count` times; each time, buffers lie `shifts` bytes further (per launch and buffer)."""

    launches: tuple[PlannedLaunch, ...]
    shifts: tuple[tuple[int, ...], ...]
    count: int


@dataclass(frozen=True, slots=True)
class Allocation:
    """Bytes of the arena, and the launches (as `unrolled` counts them) from whose first to whose last they are needed.

    `name` is that of the value, or says what the memory is for; `origin` are the nodes that it belongs to.
    """

    name: str
    origin: str
    offset: int
    size: int
    first: int
    last: int


def unrolled(launches: Iterable[PlannedLaunch | Repeated]) -> Iterator[PlannedLaunch]:
    """Every launch, one by one."""
    for entry in launches:
        if isinstance(entry, PlannedLaunch):
            yield entry
            continue
        for time in range(entry.count):
            for launch, shifts in zip(entry.launches, entry.shifts):
                moved = [Place(b.region, b.offset + time * shift) for b, shift in zip(launch.buffers, shifts)]
                yield replace(launch, buffers=tuple(moved))
