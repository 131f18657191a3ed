"""FusedProgram -> sections: stretches of work for kernels, and between them steps for the host.

A section's values that others see are row-major; inside, layouts are the section's own business. What comes out knows
no memory yet: tasks name values, and reshapes are aliases. A scan whose body is one native section is a task too: its
body's tasks are repeated for every iteration when memory is planned.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import count

from weft.cost.effort import copy_effort, effort
from weft.fuse.layouts import needed_layout, rank, same_in_memory
from weft.ir.groups import (
    FusedProgram,
    Group,
    HeavyGroup,
    HostGroup,
    KernelGroup,
    ReshapeGroup,
    ScanGroup,
    Values,
    section_values,
    stretches,
)
from weft.ir.layout import Layout, row_major
from weft.ir.program import Scan, TensorProgram, Value, join_origins
from weft.ir.target import Target, ThreadTarget
from weft.ir.types import TensorType
from weft.ir.verification import verified
from weft.ir.work import HostSection, NativeSection, ScanTask, Section, Task, Work
from weft.kernels.build.templates import Request
from weft.kernels.lower.barriers import sections_with_barriers
from weft.kernels.lower.memoize import memoizing
from weft.kernels.lower.tensors import StoredTensor
from weft.kernels.select import choose, copy_work

Progress = Callable[[float], None]
Built = Callable[[Work], None]


def build_sections(
    fused: FusedProgram, target: Target, progress: Progress | None = None, built: Built | None = None
) -> tuple[Section, ...]:
    """The kernels of all groups, in their order; `progress` is told which part of the groups is done.

    `built` hears of each work as soon as it is there, unless its kernels are changed when all are.
    """
    with memoizing():
        sections = _build(fused, target, progress, None if isinstance(target, ThreadTarget) else built)
    return _finished(sections, target)


def _build(
    fused: FusedProgram, target: Target, progress: Progress | None = None, built: Built | None = None
) -> tuple[Section, ...]:
    numbers = count(_highest(fused.program) + 1)
    done = count(1)
    sections: list[Section] = []
    for on_device, groups in stretches(fused.groups):
        if not on_device:
            sections.append(_host_section(groups, target, built))
            continue
        inputs, outputs = section_values(fused.program, groups)
        builder = _Builder(fused, outputs, target, numbers, built)
        for group in groups:
            told = len(builder.tasks)
            builder.add(group)
            if built is not None:
                for task in builder.tasks[told:]:
                    for work in task.copies if isinstance(task, ScanTask) else (task.work,):
                        built(work)
            if progress is not None:
                progress(next(done) / len(fused.groups))
        sections.append(NativeSection(tuple(builder.tasks), builder.aliases, inputs, outputs))
    return tuple(sections)


def _host_section(groups: Sequence[Group], target: Target, built: Built | None) -> HostSection:
    steps = tuple(step for group in groups for step in group.steps)
    bodies = [body for group in groups if isinstance(group, HostGroup) for body in group.bodies]
    return HostSection(steps, tuple(_build(body, target, None, built) for body in bodies))


class _Builder:
    """The tasks of one section."""

    def __init__(
        self,
        fused: FusedProgram,
        outputs: Values,
        target: Target,
        numbers: Iterator[int],
        built: Built | None,
    ) -> None:
        self.built = built
        self.fused = fused
        self.outputs = outputs
        self.layouts: dict[Value, Layout] = dict(fused.layouts)
        self.target = target
        self.numbers = numbers
        self.tasks: list[Task | ScanTask] = []
        self.aliases: dict[Value, Value] = {}
        self.copies: dict[tuple[Value, Layout], Value] = {}

    def add(self, group: Group) -> None:
        match group:
            case ReshapeGroup():
                self.add_reshape(group)
            case ScanGroup():
                self.add_scan(group)
            case HostGroup():
                raise AssertionError("the host's groups are no tasks")
            case _:
                self.add_kernels(group)

    def add_reshape(self, group: ReshapeGroup) -> None:
        (operand,), (result,) = group.operands, group.results
        source = self.in_layout(operand, row_major(rank(operand)))
        if result in self.outputs:
            self.copy(source, result, "another shape that is seen outside", flat=True)
        else:
            self.aliases[result] = source

    def add_kernels(self, group: KernelGroup) -> None:
        """What all parts but the last make, packed keys for example, are values of their own: what they are made from
        need not outlive them.
        """
        operands = tuple(self.in_layout(value, needed_layout(group, value, self.layouts)) for value in group.operands)
        choice = choose(_request(group, self.fused, self.target))
        why = (choice.template, choice.reason)
        origin = join_origins(step.origin for step in group.steps)
        *packing, last = choice.parts
        packed: list[Value] = []
        for part in packing:
            value = Value(next(self.numbers), TensorType(part.result.dtype, part.result.shape))
            taken = tuple(operands[number] for number in part.operands)
            self.tasks.append(Task(part.work, taken, (value,), origin, template=why[0], reason=why[1]))
            packed.append(value)
        needed = effort(group.steps, group.operands, group.results)
        taken = (*(operands[number] for number in last.operands), *packed)
        self.tasks.append(Task(last.work, taken, group.results, origin, needed, *why))

    def add_scan(self, group: ScanGroup) -> None:
        (step,) = group.steps
        assert isinstance(step.primitive, Scan)
        (body,) = _build(group.body, self.target, None, self.built)
        assert isinstance(body, NativeSection)
        carries = [_row_major(value) for value in step.operands[: step.primitive.carries]]
        copies = tuple(copy_work(carry, carry, self.target, flat=True) for carry in carries)
        operands = tuple(self.in_layout(value, row_major(rank(value))) for value in step.operands)
        program = group.body.program
        self.tasks.append(ScanTask(step.primitive, program, body, copies, operands, step.results, step.origin))

    def tensor(self, value: Value) -> StoredTensor:
        return replace(_row_major(value), layout=self.layouts.get(value, row_major(rank(value))))

    def in_layout(self, value: Value, layout: Layout) -> Value:
        """The value stored in a layout, by a copy where it is in another."""
        assert isinstance(value.type, TensorType)
        if self.layouts[value] == layout:
            return value
        key = (value, layout)
        if key not in self.copies:
            copy = Value(next(self.numbers), value.type, value.name)
            self.layouts[copy] = layout
            if same_in_memory(self.layouts[value], layout, value.type.shape or ()):
                self.aliases[copy] = value
            else:
                self.copy(value, copy, "a reader needs another layout")
            self.copies[key] = copy
        return self.copies[key]

    def copy(self, source: Value, result: Value, reason: str, *, flat: bool = False) -> None:
        work = copy_work(self.tensor(source), self.tensor(result), self.target, flat=flat)
        self.tasks.append(Task(work, (source,), (result,), "copy", copy_effort(source), "copy", reason))


def group_works(group: KernelGroup, fused: FusedProgram, target: Target) -> tuple[Work, ...]:
    """What one group of a program becomes: the works of tasks that follow each other in its section."""
    with memoizing():
        return tuple(part.work for part in choose(_request(group, fused, target)).parts)


def works_section(works: Sequence[Work], target: Target) -> NativeSection:
    """Works as they are in a section, in tasks without values."""
    (section,) = _finished((NativeSection(tuple(Task(work, (), (), "") for work in works), {}, (), ()),), target)
    assert isinstance(section, NativeSection)
    return section


def _request(group: KernelGroup, fused: FusedProgram, target: Target) -> Request[KernelGroup, Target]:
    made = {value: fused.layouts.get(value, row_major(rank(value))) for step in group.steps for value in step.results}
    layouts = {value: needed_layout(group, value, fused.layouts) for value in group.operands} | made
    tensors = {value: replace(_row_major(value), layout=layout) for value, layout in layouts.items()}
    tiles = fused.tiles.get(group.heavy.results[0]) if isinstance(group, HeavyGroup) else None
    return Request(group, tensors, fused.program.constants, target, None if tiles is None else tiles.size)


def _finished(sections: tuple[Section, ...], target: Target) -> tuple[Section, ...]:
    return verified(sections_with_barriers(sections) if isinstance(target, ThreadTarget) else sections)


def _row_major(value: Value) -> StoredTensor:
    assert isinstance(value.type, TensorType)
    return StoredTensor(value.type.dtype, value.type.shape or (), row_major(rank(value)))


def _highest(program: TensorProgram) -> int:
    values = [*program.inputs, *program.constants, *(value for step in program.steps for value in step.results)]
    return max((value.number for value in values), default=0)
