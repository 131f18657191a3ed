"""Which values of a section share memory, and from when to when each piece of memory is needed.

A value lies in a `Home`: so many bytes into another value's memory. Reshapes and slices lie inside what they are taken
from; what is concatenated lies inside the result, and an operand that dies where its place may be overwritten lies
where the result will. The memory of all others is their own: a block, or a region that the section is given.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from weft.ir.dims import Dim
from weft.ir.program import Value
from weft.ir.types import TensorType
from weft.ir.work import Copy, NativeSection, ScanTask, Task
from weft.records import dataclass

Span = tuple[int, int]  # the first and the last step of a task


@dataclass(frozen=True, slots=True)
class Home:
    base: Value
    offset: int  # bytes


@dataclass(frozen=True, slots=True)
class Piece:
    """Memory that only a section sees: a value's, a workspace's (of a task and a number), or all of a scan's (-1)."""

    owner: Value | tuple[int, int]
    size: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class StoragePlan:
    """`homes` of values without memory of their own; `skipped` launches, by task and number, have nothing to copy."""

    homes: Mapping[Value, Home]
    pieces: tuple[Piece, ...]
    skipped: frozenset[tuple[int, int]]

    def home(self, value: Value) -> Home:
        """The value whose memory this one lies in, and how far."""
        offset = 0
        while (home := self.homes.get(value)) is not None:
            value, offset = home.base, offset + home.offset
        return Home(value, offset)


@dataclass(frozen=True, slots=True)
class Sizes:
    """Numbers for one set of sizes: of dims, and of the bytes that values and the insides of scans take."""

    number: Callable[[Dim], int]
    value_bytes: Callable[[Value], int]
    scan_bytes: Callable[[ScanTask], int]


def arrange(
    section: NativeSection, sizes: Sizes, spans: Sequence[Span], given: Collection[Value], *, join: bool = True
) -> StoragePlan:
    """Storage for tasks that run at the steps of `spans`; `given` values lie elsewhere.

    `join`: what is concatenated may lie in the result from its first part on.
    """
    work = _Arrangement(section, sizes, spans, given)
    work.find_slices()
    if join:
        work.find_parts()
    work.reading = [work.read(number, task) for number, task in enumerate(section.tasks)]
    work.find_overwritten()
    return StoragePlan(work.homes, tuple(work.pieces()), frozenset(work.skipped))


class _Arrangement:
    def __init__(self, section: NativeSection, sizes: Sizes, spans: Sequence[Span], given: Collection[Value]) -> None:
        self.section, self.sizes, self.spans, self.given = section, sizes, spans, given
        self.homes = {value: Home(base, 0) for value, base in section.aliases.items()}
        self.skipped: set[tuple[int, int]] = set()
        self.makers = {value for task in section.tasks for value in task.results}
        self.reading: list[list[int]] = []  # the operands that tasks read, once it is known what is skipped

    def root(self, value: Value) -> Home:
        offset = 0
        while (home := self.homes.get(value)) is not None:
            value, offset = home.base, offset + home.offset
        return Home(value, offset)

    def single_copies(self) -> list[tuple[int, Task, Copy]]:
        """The copies that lie in one piece."""
        return [
            (number, task, copy)
            for number, task in enumerate(self.section.tasks)
            if isinstance(task, Task)
            for copy in task.work.copies
            if self.sizes.number(copy.pieces) == 1
        ]

    def find_slices(self) -> None:
        """Results that are all of a stretch of an operand lie there."""
        for number, task, copy in self.single_copies():
            (result, *others) = task.results
            if result in self.given or others or len(task.work.launches) > 1 or self.sizes.number(copy.target):
                continue
            if self.sizes.number(copy.size) * _itemsize(result) == self.sizes.value_bytes(result):
                start = self.sizes.number(copy.source) * _itemsize(result)
                self.homes[result] = Home(task.operands[copy.operand], start)
                self.skipped.add((number, copy.launch))

    def find_parts(self) -> None:
        """Operands that are copied whole lie in the result, unless they lie in something else.

        All launches must be such copies: of others it is not known which part of the result they write.
        """
        for number, task, copy in self.single_copies():
            if (number, copy.launch) in self.skipped or self.sizes.number(copy.source):
                continue
            copies = task.work.copies
            if len(copies) < len(task.work.launches) or any(self.sizes.number(one.pieces) != 1 for one in copies):
                continue
            result = task.results[0]
            whole = self.root(task.operands[copy.operand])
            size = self.sizes.number(copy.size) * _itemsize(result)
            if self.is_own(whole) and self.sizes.value_bytes(whole.base) == size:
                self.homes[whole.base] = Home(result, self.sizes.number(copy.target) * _itemsize(result))
                self.skipped.add((number, copy.launch))

    def is_own(self, home: Home) -> bool:
        """Whether it is all of a value with memory of its own, made in this section."""
        return home.offset == 0 and home.base not in self.given and home.base in self.makers

    def find_overwritten(self) -> None:
        """An operand that a task is the last to read, and may overwrite, lies where the result will."""
        candidates = [
            (number, task, operand)
            for number, task in sorted(enumerate(self.section.tasks), key=lambda pair: self.spans[pair[0]])
            if isinstance(task, Task) and task.work.overwritable and not self.is_skipped(number, task)
            for operand in task.work.overwritable
        ]
        if not candidates:
            return
        readers = self.readers()
        taken: set[int] = set()
        for number, task, operand in candidates:
            (result, *others) = task.results
            whole = self.root(task.operands[operand])
            if others or number in taken or not self.is_own(whole) or self.root(result).base == whole.base:
                continue
            same_size = self.sizes.value_bytes(whole.base) == self.sizes.value_bytes(result)
            if same_size and self.dies_at(readers[whole.base], number, operand):
                self.homes[whole.base] = Home(result, 0)
                taken.add(number)
                home = self.root(result).base
                readers.setdefault(home, []).extend(readers.pop(whole.base))

    def is_skipped(self, number: int, task: Task) -> bool:
        return all((number, launch) in self.skipped for launch in range(len(task.work.launches)))

    def readers(self) -> dict[Value, list[tuple[int, int]]]:
        """For each value with memory of its own, the tasks that read from there, and as which operand."""
        found: dict[Value, list[tuple[int, int]]] = {}
        for number, task in enumerate(self.section.tasks):
            for operand in self.reading[number]:
                found.setdefault(self.root(task.operands[operand]).base, []).append((number, operand))
        return found

    def read(self, number: int, task: Task | ScanTask) -> list[int]:
        """The operands that a task reads, beside those that lie in their place already."""
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
        """Whether everyone else is done with a piece of memory before the task starts."""
        start = self.spans[number][0]
        return all(self.spans[reader][1] < start for reader, by in readers if (reader, by) != (number, operand))

    def pieces(self) -> list[Piece]:
        first: dict[Value, int] = {}
        last: dict[Value, int] = {}
        found: list[Piece] = []
        for number, task in enumerate(self.section.tasks):
            start, end = self.spans[number]
            made = () if isinstance(task, Task) and self.is_skipped(number, task) else task.results
            for value in (*(task.operands[operand] for operand in self.reading[number]), *made):
                base = self.root(value).base
                first[base] = min(first.get(base, start), start)
                last[base] = max(last.get(base, end), end)
            if isinstance(task, ScanTask):
                found.append(Piece((number, -1), self.sizes.scan_bytes(task), start, end))
                continue
            for index, workspace in enumerate(task.work.workspaces):
                size = self.sizes.number(workspace.size) * workspace.dtype.numpy.itemsize
                found.append(Piece((number, index), size, start, end))
        own = [value for value in first if value not in self.given]
        return found + [Piece(value, self.sizes.value_bytes(value), first[value], last[value]) for value in own]


def _itemsize(value: Value) -> int:
    assert isinstance(value.type, TensorType)
    return value.type.dtype.numpy.itemsize
