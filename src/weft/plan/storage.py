"""Decide which values of a section share memory, and the lifetime of each block of memory.

A value's `Home` is an offset in another value's memory. Reshapes and slices lie in their operand; concatenated operands
lie in the result, and an operand that dies where it may be overwritten lies in the result. All other values have
memory of their own: a block, or an external region.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from weft.ir.dims import Dim
from weft.ir.program import Value
from weft.ir.work import Copy, NativeSection, ScanTask, Task
from weft.records import dataclass

Span = tuple[int, int]  # first and last step of a task


@dataclass(frozen=True, slots=True)
class Home:
    base: Value
    offset: Dim  # bytes


@dataclass(frozen=True, slots=True)
class MemoryBlock:
    """Memory of a value, of a workspace (task and number), or of a whole scan (task and -1)."""

    owner: object
    size: Dim
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class StoragePlan:
    """`homes` of values without memory of their own; `skipped` copy launches, by task and number, are not needed."""

    homes: Mapping[Value, Home]
    blocks: tuple[MemoryBlock, ...]
    skipped: frozenset[tuple[int, int]]

    def home(self, value: Value) -> Home:
        """Return the value whose memory holds this one, and the offset."""
        offset: Dim = 0
        while (home := self.homes.get(value)) is not None:
            value, offset = home.base, offset + home.offset
        return Home(value, offset)


@dataclass(frozen=True, slots=True)
class Sizes:
    """Functions for the sizes of a plan: the value of a dim, the bytes of values and of scan bodies.

    These are numbers, or dims for all sizes; two dims that are not known to be equal count as different. `is_one` says
    whether a number of pieces is 1.
    """

    number: Callable[[Dim], Dim]
    value_bytes: Callable[[Value], Dim]
    scan_bytes: Callable[[ScanTask], Dim]
    is_one: Callable[[Dim], bool]


def plan_storage(
    section: NativeSection, sizes: Sizes, spans: Sequence[Span], external: Collection[Value], *, join: bool = True
) -> StoragePlan:
    """Plan the storage of tasks that run at the steps of `spans`; `external` values have memory elsewhere.

    `join`: operands of a concatenation may lie in the result.
    """
    work = _Arrangement(section, sizes, spans, external)
    work.find_slices()
    if join:
        work.find_concatenated()
    work.reading = [work.find_read_operands(number, task) for number, task in enumerate(section.tasks)]
    work.find_overwritten()
    return StoragePlan(work.homes, tuple(work.memory_blocks()), frozenset(work.skipped))


class _Arrangement:
    def __init__(
        self, section: NativeSection, sizes: Sizes, spans: Sequence[Span], external: Collection[Value]
    ) -> None:
        self.section, self.sizes, self.spans, self.external = section, sizes, spans, external
        self.homes = {value: Home(base, 0) for value, base in section.aliases.items()}
        self.skipped: set[tuple[int, int]] = set()
        self.computed = {value for task in section.tasks for value in task.results}
        self.reading: list[list[int]] = []  # the operands that each task reads after skipping copies

    def root(self, value: Value) -> Home:
        offset: Dim = 0
        while (home := self.homes.get(value)) is not None:
            value, offset = home.base, offset + home.offset
        return Home(value, offset)

    def single_copies(self) -> list[tuple[int, Task, Copy]]:
        """List the contiguous copies."""
        return [
            (number, task, copy)
            for number, task in enumerate(self.section.tasks)
            if isinstance(task, Task)
            for copy in task.work.copies
            if self.is_contiguous(copy)
        ]

    def find_slices(self) -> None:
        """Place results that are a contiguous slice of an operand in the operand."""
        for number, task, copy in self.single_copies():
            (result, *others) = task.results
            if result in self.external or others or len(task.work.launches) > 1 or self.sizes.number(copy.target) != 0:
                continue
            if self.sizes.number(copy.size) * result.itemsize == self.sizes.value_bytes(result):
                start = self.sizes.number(copy.source) * result.itemsize
                self.homes[result] = Home(task.operands[copy.operand], start)
                self.skipped.add((number, copy.launch))

    def find_concatenated(self) -> None:
        """Place operands that are copied entirely in the result, unless they lie in another value.

        All launches must be such copies: which part of the result another launch writes is unknown.
        """
        for number, task, copy in self.single_copies():
            if (number, copy.launch) in self.skipped or self.sizes.number(copy.source) != 0:
                continue
            copies = task.work.copies
            if len(copies) < len(task.work.launches) or not all(map(self.is_contiguous, copies)):
                continue
            result = task.results[0]
            home = self.root(task.operands[copy.operand])
            size = self.sizes.number(copy.size) * result.itemsize
            if self.is_own(home) and self.sizes.value_bytes(home.base) == size:
                self.homes[home.base] = Home(result, self.sizes.number(copy.target) * result.itemsize)
                self.skipped.add((number, copy.launch))

    def is_contiguous(self, copy: Copy) -> bool:
        return self.sizes.is_one(self.sizes.number(copy.pieces))

    def is_own(self, home: Home) -> bool:
        """Whether this is an entire value with memory of its own, computed in this section."""
        return home.offset == 0 and home.base not in self.external and home.base in self.computed

    def find_overwritten(self) -> None:
        """Place an operand in the result of a task that reads it last and may overwrite it."""
        candidates = [
            (number, task, operand)
            for number, task in sorted(enumerate(self.section.tasks), key=lambda pair: self.spans[pair[0]])
            if isinstance(task, Task) and task.work.overwritable and not self.is_skipped(number, task)
            for operand in task.work.overwritable
        ]
        if not candidates:
            return
        readers = self.readers()
        overwriting: set[int] = set()
        for number, task, operand in candidates:
            (result, *others) = task.results
            source = self.root(task.operands[operand])
            if others or number in overwriting or not self.is_own(source) or self.root(result).base == source.base:
                continue
            same_size = self.sizes.value_bytes(source.base) == self.sizes.value_bytes(result)
            if same_size and self.dies_at(readers[source.base], number, operand):
                self.homes[source.base] = Home(result, 0)
                overwriting.add(number)
                home = self.root(result).base
                readers.setdefault(home, []).extend(readers.pop(source.base))

    def is_skipped(self, number: int, task: Task) -> bool:
        return all((number, launch) in self.skipped for launch in range(len(task.work.launches)))

    def readers(self) -> dict[Value, list[tuple[int, int]]]:
        """Find for each value with memory of its own the tasks and operands that read it."""
        readers: dict[Value, list[tuple[int, int]]] = {}
        for number, task in enumerate(self.section.tasks):
            for operand in self.reading[number]:
                readers.setdefault(self.root(task.operands[operand]).base, []).append((number, operand))
        return readers

    def find_read_operands(self, number: int, task: Task | ScanTask) -> list[int]:
        """List the operands that a task reads in launches that are not skipped."""
        if isinstance(task, ScanTask):
            return list(range(len(task.operands)))
        used = {
            reference.number
            for index, launch in enumerate(task.work.launches)
            if (number, index) not in self.skipped
            for _, reference in launch.buffers
            if reference.kind == "operand"
        }
        return sorted(used)

    def dies_at(self, readers: Sequence[tuple[int, int]], number: int, operand: int) -> bool:
        """Whether all other readers are done before the task starts."""
        start = self.spans[number][0]
        return all(self.spans[reader][1] < start for reader, by in readers if (reader, by) != (number, operand))

    def memory_blocks(self) -> list[MemoryBlock]:
        first: dict[Value, int] = {}
        last: dict[Value, int] = {}
        blocks: list[MemoryBlock] = []
        for number, task in enumerate(self.section.tasks):
            start, end = self.spans[number]
            written = () if isinstance(task, Task) and self.is_skipped(number, task) else task.results
            for value in (*(task.operands[operand] for operand in self.reading[number]), *written):
                base = self.root(value).base
                first[base] = min(first.get(base, start), start)
                last[base] = max(last.get(base, end), end)
            if isinstance(task, ScanTask):
                blocks.append(MemoryBlock((number, -1), self.sizes.scan_bytes(task), start, end))
                continue
            for index, workspace in enumerate(task.work.workspaces):
                size = self.sizes.number(workspace.size) * workspace.dtype.numpy.itemsize
                blocks.append(MemoryBlock((number, index), size, start, end))
        values = [value for value in first if value not in self.external]
        return blocks + [
            MemoryBlock(value, self.sizes.value_bytes(value), first[value], last[value]) for value in values
        ]
