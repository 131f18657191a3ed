"""Work: the kernel launches of a program, before and after memory is planned.

Before planning, a work refers to operands and results by number, a task binds them to values, and a section holds the
tasks between two host steps. After planning, launches refer to offsets in memory regions.
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
from weft.quantities import format_plural
from weft.records import dataclass

Bound = TypeVar("Bound")

# -- before planning --------------------------------------------------------------------------------------------------

PAIR_PRODUCTS = "pair products"  # the template of products that round their operands to bfloat16


@dataclass(frozen=True, slots=True)
class Reference:
    """The memory of a kernel's buffer: an operand, result, workspace or constant.

    `errors` is one int32 that a kernel sets to 1 for invalid data (an index out of range).
    """

    kind: Literal["operand", "result", "workspace", "constant", "errors"]
    number: int


@dataclass(frozen=True, slots=True)
class Launch:
    """A kernel with its number of blocks and its arguments: parameters and buffers by name.

    All parameters and all buffers that are not local must be bound; they are sorted into the kernel's order.
    """

    kernel: Kernel
    blocks: Dim
    parameters: tuple[tuple[str, Dim], ...]
    buffers: tuple[tuple[str, Reference], ...]

    def __post_init__(self) -> None:
        names = tuple(buffer.name for buffer in self.kernel.buffers if buffer.local_size is None)
        object.__setattr__(
            self, "parameters", _sort_arguments(self.kernel.name, self.kernel.parameters, self.parameters)
        )
        object.__setattr__(self, "buffers", _sort_arguments(self.kernel.name, names, self.buffers))

    @property
    def values(self) -> tuple[Dim, ...]:
        """The values of the parameters, in the kernel's order."""
        return tuple([value for _, value in self.parameters])

    @property
    def references(self) -> tuple[Reference, ...]:
        """The memory of the buffers, in the kernel's order."""
        return tuple([reference for _, reference in self.buffers])

    def rebound(self, references: Mapping[Reference, Reference]) -> Launch:
        """Replace some references by others."""
        moved = tuple((name, references.get(reference, reference)) for name, reference in self.buffers)
        return self if moved == self.buffers else replace(self, buffers=moved)


def _sort_arguments(
    kernel: str, names: tuple[str, ...], arguments: tuple[tuple[str, Bound], ...]
) -> tuple[tuple[str, Bound], ...]:
    if tuple([name for name, _ in arguments]) == names:
        return arguments
    by_name = dict(arguments)
    if len(by_name) != len(arguments) or by_name.keys() != set(names):
        raise InternalError(
            f"{kernel} takes {', '.join(names) or 'nothing'}, not {', '.join(name for name, _ in arguments)}"
        )
    return tuple((name, by_name[name]) for name in names)


@dataclass(frozen=True, slots=True)
class Workspace:
    """Memory that is needed only while a work's kernels run."""

    dtype: DType
    size: Dim  # elements


@dataclass(frozen=True, slots=True)
class Copy:
    """A launch that only copies `size` elements from offset `source` of an operand to offset `target` of the result.

    `pieces` is the number of contiguous runs. If it is 1, both may share memory, which makes the launch unnecessary.
    """

    launch: int
    operand: int
    source: Dim
    target: Dim
    size: Dim
    pieces: Dim


@dataclass(frozen=True, slots=True, eq=False)
class Work:
    """The launches, in order, that compute one group.

    A single result may reuse the memory of an `overwritable` operand: each of its elements is read only for the result
    element at its place, which is written once.
    """

    launches: tuple[Launch, ...]
    workspaces: tuple[Workspace, ...] = ()
    constants: tuple[Constant, ...] = ()
    overwritable: tuple[int, ...] = ()
    copies: tuple[Copy, ...] = ()


@dataclass(frozen=True, slots=True)
class Effort:
    """The minimum arithmetic, and bytes read and written, of some work, independent of kernels."""

    flops: Dim = 0
    bytes: Dim = 0


@dataclass(frozen=True, slots=True, eq=False)
class Task:
    """Work with the values of its operands and results.

    `template` names the template that built it; `reason` says why it was selected. `rounded` is the type that fusion
    rounded float32 operands of its products to.
    """

    work: Work
    operands: tuple[Value, ...]
    results: tuple[Value, ...]
    origin: str
    effort: Effort = Effort()
    template: str = ""
    reason: str = ""
    rounded: DType | None = None


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
    """Consecutive tasks on the device; inputs and outputs are row-major."""

    tasks: tuple[Task | ScanTask, ...]
    aliases: Mapping[Value, Value]  # values that share the memory of another
    inputs: tuple[Value, ...]  # from outside of the section, without constants
    outputs: tuple[Value, ...]
    symbols: tuple[str, ...] | None = None  # that its plan depends on, once they are computed


@dataclass(frozen=True, slots=True, eq=False)
class HostSection:
    """Steps that run on the host; `bodies` are the sections of their nested programs, in order."""

    steps: tuple[Step, ...]
    bodies: tuple[tuple[Section, ...], ...] = ()


Section = Union[NativeSection, HostSection]


def all_works(section: NativeSection) -> Iterator[Work]:
    """Yield the works of a section, including those in the bodies of scans."""
    for task in section.tasks:
        if isinstance(task, ScanTask):
            yield from all_works(task.body)
            yield from task.copies
        else:
            yield task.work


@dataclass(frozen=True, slots=True)
class KernelCounts:
    """Distinct kernels of a program, and their launches in a run; scans and control flow count once."""

    kernels: int
    launches: int

    def __str__(self) -> str:
        return f"{format_plural(self.kernels, 'kernel')}, {format_plural(self.launches, 'launch')}"


def count_kernels(sections: Iterable[Section]) -> KernelCounts:
    """Count the kernels of sections, which have unique names, and their launches."""
    names = [launch.kernel.name for launch in all_launches(sections)]
    return KernelCounts(len(set(names)), len(names))


def all_launches(sections: Iterable[Section]) -> Iterator[Launch]:
    """Yield the launches of sections, including those of bodies."""
    for section in sections:
        if isinstance(section, NativeSection):
            for work in all_works(section):
                yield from work.launches
        else:
            for body in section.bodies:
                yield from all_launches(body)


def map_launches(sections: Sequence[Section], function: Callable[[Launch], Launch]) -> tuple[Section, ...]:
    """Apply a function to every launch; works that are shared between tasks stay shared."""
    works: dict[int, Work] = {}

    def change_work(work: Work) -> Work:
        if id(work) not in works:
            launches = tuple(map(function, work.launches))
            works[id(work)] = replace(work, launches=launches)
        return works[id(work)]

    def change_section(section: NativeSection) -> NativeSection:
        return replace(section, tasks=tuple(map(change_task, section.tasks)))

    def change_task(task: Task | ScanTask) -> Task | ScanTask:
        if isinstance(task, ScanTask):
            return replace(task, body=change_section(task.body), copies=tuple(map(change_work, task.copies)))
        return replace(task, work=change_work(task.work))

    return tuple(
        change_section(section)
        if isinstance(section, NativeSection)
        else replace(section, bodies=tuple(map_launches(body, function) for body in section.bodies))
        for section in sections
    )


# -- planned ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Place:
    """The position of a buffer: an offset in bytes into a memory region."""

    region: int
    offset: int = 0


@dataclass(frozen=True, slots=True)
class PlannedLaunch:
    """A launch of blocks 0..blocks-1 on planned memory; `origin` names the ONNX nodes.

    `task` is the index of its task, whose effort (`flops`, `bytes`) its launches share evenly. `sizes` are the bytes of
    its buffers, 0 for those that no launch writes. `after` are the indices, in the plan, of launches that must finish
    before it starts; None means all before it.
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
    """Launches repeated `count` times; each iteration moves buffers by `shifts` bytes (per launch and buffer)."""

    launches: tuple[PlannedLaunch, ...]
    shifts: tuple[tuple[int, ...], ...]
    count: int


@dataclass(frozen=True, slots=True)
class Allocation:
    """Bytes of the arena, and the first and last launch (as `unrolled` counts them) that use them.

    `name` is that of the value, or the purpose of the memory; `origin` names its ONNX nodes.
    """

    name: str
    origin: str
    offset: int
    size: int
    first: int
    last: int


def unrolled(launches: Iterable[PlannedLaunch | Repeated]) -> Iterator[PlannedLaunch]:
    """Yield every launch of every iteration."""
    for entry in launches:
        if isinstance(entry, PlannedLaunch):
            yield entry
            continue
        for time in range(entry.count):
            for launch, shifts in zip(entry.launches, entry.shifts):
                places = [Place(b.region, b.offset + time * shift) for b, shift in zip(launch.buffers, shifts)]
                yield replace(launch, buffers=tuple(places))
