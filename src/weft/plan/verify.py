"""Prove that a plan is sound, independently of the planner: replay its launches on labelled memory.

Every byte of every region is labelled with the value, and the byte of it, that was written there last. A launch that
reads a value must find all its bytes at its place. So memory that is reused, read or written at the wrong time shows as
a wrong label. Places must lie inside their regions. Two launches that use the same bytes, of which one writes, must not
run in parallel: one has to wait for the other, directly or through others, or be in another step of a plan without
waits.

A value that equals a range of another one (a reshape, a slice, a part of a concatenation) has the other's labels.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import field
from math import prod
from typing import Any

from weft.errors import InternalError
from weft.ir import dims
from weft.ir.arrays import Array
from weft.ir.dim_evaluator import DimEvaluator
from weft.ir.program import Value
from weft.ir.work import (
    Copy,
    Launch,
    NativeSection,
    Place,
    PlannedLaunch,
    Reference,
    Repeated,
    ScanTask,
    Task,
    Work,
    unrolled,
)
from weft.plan.labelled_bytes import Content, LabelledBytes, slice_content
from weft.plan.plan import ABSOLUTE, ARENA, ERRORS, FIRST_FREE, Plan
from weft.records import dataclass

CONSTANT = "a constant"  # the label of all bytes at host addresses


class PlanError(InternalError):
    """A plan whose launches would overwrite each other's data."""


def verify_plan(section: NativeSection, plan: Plan, constants: Mapping[Value, Array], sizes: Mapping[str, int]) -> None:
    """Raise PlanError unless the plan runs the section correctly for any kernels."""
    if sorted(number for step in plan.steps for number in step) != list(range(len(section.tasks))):
        raise PlanError("a plan must run every task once")
    _Replay(section, plan, constants, DimEvaluator(sizes)).run(plan.steps)


@dataclass(frozen=True, slots=True)
class Access:
    """A memory access by an entry of the plan."""

    place: Place
    size: int
    written: bool
    entry: int


@dataclass(frozen=True, slots=True)
class CheckedUse:
    """A launch's use of memory, and the content that is expected or written there."""

    reference: Reference
    place: Place
    content: tuple[Content, ...]

    @property
    def size(self) -> int:
        return sum(part.size for part in self.content)


@dataclass(frozen=True, slots=True)
class _Running:
    """A task during its replay: the references written so far, and the operands they have overwritten."""

    task: Task
    operands: Sequence[tuple[Content, ...]]
    results: Sequence[tuple[Content, ...]]
    step: int
    number: int | None  # None inside a scan
    places: dict[Reference, Place] = field(default_factory=dict)
    written: set[Reference] = field(default_factory=set)
    overwritten: dict[tuple[Reference, Place], tuple[Content, ...]] = field(default_factory=dict)


class _Replay:
    def __init__(
        self, section: NativeSection, plan: Plan, constants: Mapping[Value, Array], number: DimEvaluator
    ) -> None:
        self.section, self.plan, self.constants, self.number = section, plan, constants, number
        self.pending = [(number, launch) for number, entry in enumerate(plan.launches) for launch in unrolled([entry])][
            ::-1
        ]
        self.running = 0  # the plan entry being replayed
        self.memory: dict[int, LabelledBytes] = {}
        self.accesses: list[Access] = []
        self.contents: dict[Value, tuple[Content, ...]] = {}
        self.regions = {ARENA: plan.arena_bytes, ERRORS: 4}
        for count, value in enumerate((*section.inputs, *section.outputs)):
            self.regions[FIRST_FREE + count] = self.bytes(value)
        self.arrays = sorted((array.ctypes.data, array.ctypes.data + array.nbytes) for array in plan.constants)
        for count, value in enumerate(section.inputs):
            self.contents[value] = (Content(value, 0, self.bytes(value)),)
            self.write(Place(FIRST_FREE + count), self.contents[value])
        for value, array in constants.items():
            self.contents[value] = (Content(CONSTANT, array.ctypes.data, array.nbytes),)

    def run(self, steps: Sequence[Sequence[int]]) -> None:
        for step in steps:
            for number in step:
                self.replay(self.section, number, number, self.contents)
        if self.pending:
            raise PlanError(f"a launch belongs to no task: {self.pending[-1][1].kernel.name}")
        _check_waits(self.accesses, _find_finished(self.plan.launches, steps))
        for count, value in enumerate(self.section.outputs):
            place = Place(FIRST_FREE + len(self.section.inputs) + count)
            self.expect(place, self.content(value, self.section, self.contents), f"output {value}")

    # -- tasks -------------------------------------------------------------------------------------------------------

    def replay(
        self, section: NativeSection, number: int, step: int, contents: dict[Value, tuple[Content, ...]]
    ) -> None:
        """Replay the launches of a task. `contents` are those of the values around it."""
        task = section.tasks[number]
        if isinstance(task, ScanTask):
            self.replay_scan(task, section, step, contents)
            return
        operands = [self.content(value, section, contents) for value in task.operands]
        results = [self.result(task, value, operands) for value in task.results]
        contents.update(zip(task.results, results))
        task_number = number if section is self.section else None
        self.replay_work(_Running(task, operands, results, step, task_number))

    def result(self, task: Task, value: Value, operands: list[tuple[Content, ...]]) -> tuple[Content, ...]:
        """Return the content of a result: that of operands where it consists of copies, otherwise new."""
        size = self.bytes(value)
        item = value.itemsize
        parts: list[tuple[int, tuple[Content, ...]]] = []
        for copy in task.work.copies:
            if self.number(copy.pieces) == 1:
                start, length = self.number(copy.source) * item, self.number(copy.size) * item
                parts.append(
                    (self.number(copy.target) * item, tuple(slice_content(operands[copy.operand], start, length)))
                )
        contents: list[Content] = []
        at = 0
        for start, part in sorted(parts, key=lambda entry: entry[0]):
            if start > at:
                contents.append(Content(value, at, start - at))
            contents += part
            at = start + sum(content.size for content in part)
        if at < size:
            contents.append(Content(value, at, size - at))
        if sum(content.size for content in contents) != size:
            raise PlanError(f"copies do not fit the result {value} of {task.origin}")
        return tuple(contents)

    def replay_work(self, running: _Running) -> None:
        work = running.task.work
        copies = {copy.launch: copy for copy in work.copies if self.number(copy.pieces) == 1}
        for number, launch in enumerate(work.launches):
            planned = self.next_launch(launch, running.number)
            if planned is not None:
                self.replay_launch(running, planned, launch.references, copies.get(number))
            elif number not in copies:
                raise PlanError(f"launch {number} of {running.task.origin} is missing")

    def next_launch(self, launch: Launch, task: int | None) -> PlannedLaunch | None:
        """Return the next planned launch if it is this one, of this task."""
        if not self.pending:
            return None
        number, planned = self.pending[-1]
        same = planned.kernel is launch.kernel or planned.kernel == launch.kernel
        if not same or (task is not None and planned.task != task) or planned.blocks != self.number(launch.blocks):
            return None
        if planned.parameters != self.number.parameters(launch.values, planned.blocks):
            return None
        self.running = number
        return self.pending.pop()[1]

    def replay_launch(
        self, running: _Running, planned: PlannedLaunch, references: Sequence[Reference], copy: Copy | None
    ) -> None:
        origin = running.task.origin
        buffers = [buffer for buffer in planned.kernel.buffers if buffer.local_size is None]
        if not len(buffers) == len(references) == len(planned.buffers):
            raise PlanError(f"{planned.kernel.name} of {origin} has {len(planned.buffers)} places")
        reads: list[CheckedUse] = []
        writes: list[CheckedUse] = []
        for reference, place, buffer in zip(references, planned.buffers, buffers):
            content = self.find_content(running, reference, place)
            if content is None:
                continue
            use = CheckedUse(reference, place, content)
            if running.places.setdefault(reference, place) != place:
                raise PlanError(f"{origin} has its {reference.kind} {reference.number} in two places")
            if copy is not None:
                use = self.narrow_to_copy(running.task, use, copy)
            if not buffer.written:
                if reference.kind != "operand" and reference not in running.written:
                    raise PlanError(f"{origin} reads {reference.kind} {reference.number} before it is written")
                reads.append(use)
            elif reference.kind == "operand":
                raise PlanError(f"{origin} writes to its operand {reference.number}")
            else:
                writes.append(use)
        self.touch(running, reads, writes)

    def narrow_to_copy(self, task: Task, use: CheckedUse, copy: Copy) -> CheckedUse:
        """Narrow the use of a copy launch to the copied range of its operand or result."""
        item = task.results[0].itemsize
        start = self.number(copy.source if use.reference.kind == "operand" else copy.target) * item
        part = tuple(slice_content(use.content, start, self.number(copy.size) * item))
        return CheckedUse(use.reference, Place(use.place.region, use.place.offset + start), part)

    def find_content(self, running: _Running, reference: Reference, place: Place) -> tuple[Content, ...] | None:
        """Return the content of a reference; None if only its place is checked."""
        task = running.task
        match reference.kind:
            case "errors":
                if place.region != ERRORS:
                    raise PlanError(f"{task.origin} reports errors to {place}")
                return None
            case "constant":
                self.check_range(place, task.work.constants[reference.number].nbytes, task.origin)
                return None
            case "operand":
                return running.operands[reference.number]
            case "result":
                return running.results[reference.number]
            case "workspace":
                return (self.workspace(task.work, reference.number, running.step),)

    def touch(self, running: _Running, reads: Sequence[CheckedUse], writes: Sequence[CheckedUse]) -> None:
        """Apply a launch's reads, then its writes; they overlap only where an operand may be overwritten."""
        task = running.task
        for use in reads:
            # a kernel that overwrites part of an operand may still read the remaining part
            content = running.overwritten.get((use.reference, use.place), use.content)
            self.expect(use.place, content, f"{use.reference.kind} {use.reference.number} of {task.origin}")
        for written in writes:
            self.check_range(written.place, written.size, task.origin)
            for other in (*reads, *writes):
                if other.reference == written.reference or not _overlap(written, other):
                    continue
                same = written.place == other.place and written.size == other.size
                allowed = other.reference.kind == "operand" and other.reference.number in task.work.overwritable
                if not (same and allowed and written.reference.kind == "result"):
                    new, old = written.reference, other.reference
                    raise PlanError(f"{task.origin} writes {new.kind} {new.number} over {old.kind} {old.number}")
                running.overwritten[other.reference, other.place] = written.content
        for written in writes:
            self.write(written.place, written.content)
            running.written.add(written.reference)
        self.accesses += [Access(use.place, use.size, False, self.running) for use in reads]
        self.accesses += [Access(use.place, use.size, True, self.running) for use in writes]

    def workspace(self, work: Work, number: int, step: int) -> Content:
        space = work.workspaces[number]
        size = self.number(space.size) * space.dtype.numpy.itemsize
        return Content((id(work), number, step), 0, size)

    # -- scans -------------------------------------------------------------------------------------------------------

    def replay_scan(
        self, task: ScanTask, section: NativeSection, step: int, contents: dict[Value, tuple[Content, ...]]
    ) -> None:
        """Replay all iterations: sequences are sliced, carries come from the iteration before, outputs are stacked."""
        primitive, program = task.primitive, task.program
        operands = [self.content(value, section, contents) for value in task.operands]
        self.bind_body(task)
        length = self.number(primitive.length)
        carries = operands[: primitive.carries]
        stop = primitive.carries + primitive.sequences
        sequences, captured = operands[primitive.carries : stop], operands[stop:]
        stacked: list[list[Content]] = [[] for _ in program.outputs[primitive.carries :]]
        for iteration in range(length):
            inner = {value: content for value, content in self.contents.items() if value in self.constants}
            inner.update(zip(program.inputs[: primitive.carries], carries))
            for value, sequence in zip(program.inputs[primitive.carries : stop], sequences):
                inner[value] = tuple(slice_content(sequence, iteration * self.bytes(value), self.bytes(value)))
            inner.update(zip(program.inputs[stop:], captured))
            before = set(inner)
            for number in range(len(task.body.tasks)):
                self.replay(task.body, number, step, inner)
            computed = {value: content for value, content in inner.items() if value not in before}
            fresh = {
                value: _label_iteration(content, computed, (step, iteration)) for value, content in computed.items()
            }
            self.relabel(fresh, computed)
            outputs = [
                fresh.get(value) or self.content(value, task.body, {**inner, **fresh}) for value in program.outputs
            ]
            carries = outputs[: primitive.carries]
            for parts, content in zip(stacked, outputs[primitive.carries :]):
                parts.extend(content)
        results = [*carries, *map(tuple, stacked)]
        for copy, value, content in zip(task.copies, task.results, carries):
            if self.pending and self.next_is(copy, task.origin):
                moved = Task(copy, (value,), (value,), task.origin)
                self.replay_work(_Running(moved, [content], [content], step, None))
        contents.update(zip(task.results, results))

    def next_is(self, work: Work, origin: str) -> bool:
        (_, planned), launch = self.pending[-1], work.launches[0]
        is_own = planned.origin == origin and planned.kernel == launch.kernel
        return is_own and planned.parameters == self.number.parameters(launch.values, planned.blocks)

    def relabel(
        self, fresh: Mapping[Value, tuple[Content, ...]], computed: Mapping[Value, tuple[Content, ...]]
    ) -> None:
        """Relabel the results of an iteration, so that they differ from those of the next."""
        labels = {
            old.label: new.label for value in computed for old, new in zip(computed[value], fresh[value]) if old != new
        }
        for memory in self.memory.values():
            memory.ranges = [
                (end, Content(labels[c.label], c.start, c.size) if c.label in labels else c) for end, c in memory.ranges
            ]

    def bind_body(self, task: ScanTask) -> None:
        primitive = task.primitive
        for number, (inner, outer) in enumerate(zip(task.program.inputs, task.operands)):
            shape = self.shape(outer)
            is_sequence = primitive.carries <= number < primitive.carries + primitive.sequences
            for dim, size in zip(inner.shape, shape[1:] if is_sequence else shape):
                symbol = dims.as_symbol(dim)
                if symbol is not None:
                    self.number.bind(symbol.name, size)

    # -- memory ------------------------------------------------------------------------------------------------------

    def content(
        self, value: Value, section: NativeSection, contents: Mapping[Value, tuple[Content, ...]]
    ) -> tuple[Content, ...]:
        while value not in contents and value in section.aliases:
            if any(value in task.results for task in section.tasks):
                raise PlanError(f"{value} is read before it is written in place")
            value = section.aliases[value]
        if value not in contents:  # never read from memory: a packed constant, or an operand that only has a size
            return (Content(value, 0, self.bytes(value)),)
        return contents[value]

    def expect(self, place: Place, content: Sequence[Content], label: str) -> None:
        """Raise PlanError unless a place holds a content."""
        size = sum(part.size for part in content)
        self.check_range(place, size, label)
        if place.region == ABSOLUTE:
            expected = [Content(CONSTANT, place.offset, size)]
            if size and list(content) != expected:
                raise PlanError(f"{label}: another constant is at {place.offset}")
            return
        memory = self.memory.setdefault(place.region, LabelledBytes())
        at = place.offset
        for part in content:
            done = 0
            for length, actual in memory.find(at, part.size):
                if actual != Content(part.label, part.start + done, length):
                    there = "nothing was written there" if actual is None else f"{actual.label} is there"
                    raise PlanError(f"{label}: at byte {at + done} of region {place.region}, {there}")
                done += length
            at += part.size

    def write(self, place: Place, content: Sequence[Content]) -> None:
        at = place.offset
        for part in content:
            self.memory.setdefault(place.region, LabelledBytes()).write(at, part)
            at += part.size

    def check_range(self, place: Place, size: int, label: str) -> None:
        if not size:
            return
        if place.region == ABSOLUTE:
            number = bisect_right(self.arrays, (place.offset, 1 << 63)) - 1
            inside = number >= 0 and any(
                start <= place.offset and place.offset + size <= end for start, end in self.arrays[: number + 1]
            )
        else:
            inside = place.offset >= 0 and place.offset + size <= self.regions.get(place.region, 0)
        if not inside:
            raise PlanError(f"{label}: {size} bytes from {place.offset} on leave region {place.region}")

    def shape(self, value: Value) -> tuple[int, ...]:
        return tuple(map(self.number, value.shape))

    def bytes(self, value: Value) -> int:
        return prod(self.shape(value)) * value.itemsize


def _find_finished(entries: Sequence[PlannedLaunch | Repeated], steps: Sequence[Sequence[int]]) -> list[int]:
    """Return a bit mask for each entry of the entries that are done before it starts."""
    numbers = {task: number for number, step in enumerate(steps) for task in step}
    at = [numbers.get(entry.task, -1) if isinstance(entry, PlannedLaunch) else -1 for entry in entries]
    done: list[int] = []
    for number, entry in enumerate(entries):
        all_before = (1 << number) - 1
        if isinstance(entry, Repeated):
            done.append(all_before)
        elif entry.after is not None:
            bits = 0
            for other in entry.after:
                if not 0 <= other < number:
                    raise PlanError(f"launch {number} waits for {other}")
                bits |= done[other] | 1 << other
            done.append(bits)
        else:
            in_parallel = sum(1 << other for other in range(number) if at[other] == at[number] >= 0)
            same_task = sum(1 << other for other in range(number) if _same_task(entries[other], entry))
            done.append(all_before & ~in_parallel | same_task)
    return done


def _same_task(entry: PlannedLaunch | Repeated, launch: PlannedLaunch) -> bool:
    return isinstance(entry, PlannedLaunch) and entry.task == launch.task


def _check_waits(accesses: Sequence[Access], done: Sequence[int]) -> None:
    """Raise PlanError if an entry does not wait for an earlier one that uses the same bytes, unless both only read."""
    ordered = sorted(dict.fromkeys(access for access in accesses if access.size), key=_start)
    for number, one in enumerate(ordered):
        end = one.place.offset + one.size
        for other in ordered[number + 1 :]:
            if other.place.region != one.place.region or other.place.offset >= end:
                break
            first, second = sorted((one.entry, other.entry))
            if first != second and (one.written or other.written) and not done[second] >> first & 1:
                raise PlanError(f"launches {first} and {second} may run in parallel and share bytes at {other.place}")


def _start(access: Access) -> tuple[int, int]:
    return access.place.region, access.place.offset


def _overlap(one: CheckedUse, other: CheckedUse) -> bool:
    if one.place.region != other.place.region or not one.size or not other.size:
        return False
    return one.place.offset < other.place.offset + other.size and other.place.offset < one.place.offset + one.size


def _label_iteration(
    content: Sequence[Content], computed: Mapping[Value, Any], iteration: tuple[int, int]
) -> tuple[Content, ...]:
    """Add the iteration to the labels of what it computed."""
    return tuple(
        Content((part.label, iteration), part.start, part.size) if part.label in computed else part for part in content
    )
