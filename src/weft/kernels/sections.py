"""FusedProgram -> sections: native sections of kernels, and host sections between them.

Values that cross sections are row-major; other values may have any layout. Memory is planned later: tasks name values,
and reshapes are aliases. A scan whose body is one native section is one task, and the tasks of its body are repeated
for every iteration when memory is planned.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import count
from typing import Any

from weft.cost.effort import copy_effort, estimate_effort
from weft.fuse.layouts import needed_layout, same_in_memory
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
from weft.ir.narrowed_products import find_rounded_type
from weft.ir.program import Scan, Scatter, TensorProgram, Value, join_origins
from weft.ir.target import Target, ThreadTarget
from weft.ir.types import TensorType
from weft.ir.verification import verified
from weft.ir.work import HostSection, NativeSection, ScanTask, Section, Task, Work
from weft.kernels.build.templates import Request
from weft.kernels.lower.barriers import insert_section_barriers
from weft.kernels.lower.memoize import memoization
from weft.kernels.lower.tensors import StoredTensor
from weft.kernels.select import build_copy, select_kernels

Progress = Callable[[float], None]
OnWork = Callable[[Work], None]


def build_sections(
    fused: FusedProgram,
    target: Target,
    progress: Progress | None = None,
    on_work: OnWork | None = None,
    launches: dict[Any, Any] | None = None,
) -> tuple[Section, ...]:
    """Build the kernels of all groups, in order; `progress` gets the finished fraction of the groups.

    `on_work` gets each work as soon as it is built, except for thread targets, whose kernels get barriers at the end.
    `launches` finds the results of memoized builders; kernels that it finds have no bodies.
    """
    with memoization(launches):
        sections = _build(fused, target, progress, None if isinstance(target, ThreadTarget) else on_work)
    return _finish(sections, target)


def _build(
    fused: FusedProgram, target: Target, progress: Progress | None = None, on_work: OnWork | None = None
) -> tuple[Section, ...]:
    numbers = count(_last_number(fused.program) + 1)
    done = count(1)
    sections: list[Section] = []
    for on_device, groups in stretches(fused.groups):
        if not on_device:
            sections.append(_build_host_section(groups, target, on_work))
            continue
        inputs, outputs = section_values(fused.program, groups)
        builder = _SectionBuilder(fused, outputs, target, numbers, on_work)
        for group in groups:
            first = len(builder.tasks)
            builder.add(group)
            if on_work is not None:
                for task in builder.tasks[first:]:
                    for work in task.copies if isinstance(task, ScanTask) else (task.work,):
                        on_work(work)
            if progress is not None:
                progress(next(done) / len(fused.groups))
        sections.append(NativeSection(tuple(builder.tasks), builder.aliases, inputs, outputs))
    return tuple(sections)


def _build_host_section(groups: Sequence[Group], target: Target, on_work: OnWork | None) -> HostSection:
    steps = tuple(step for group in groups for step in group.steps)
    bodies = [body for group in groups if isinstance(group, HostGroup) for body in group.bodies]
    return HostSection(steps, tuple(_build(body, target, None, on_work) for body in bodies))


class _SectionBuilder:
    """Builds the tasks of one native section."""

    def __init__(
        self,
        fused: FusedProgram,
        outputs: Values,
        target: Target,
        numbers: Iterator[int],
        on_work: OnWork | None,
    ) -> None:
        self.on_work = on_work
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
                raise AssertionError("host groups have no tasks")
            case _:
                self.add_kernels(group)

    def add_reshape(self, group: ReshapeGroup) -> None:
        (operand,), (result,) = group.operands, group.results
        source = self.in_layout(operand, row_major(operand.rank))
        if result in self.outputs:
            self.copy(source, result, "the reshaped value leaves the section", flat=True)
        else:
            self.aliases[result] = source

    def add_kernels(self, group: KernelGroup) -> None:
        """Add a task for each part.

        The results of earlier parts (packed keys, for example) are separate values, so that the operands of these parts
        can be freed before the last part.
        """
        operands = tuple(self.in_layout(value, needed_layout(group, value, self.layouts)) for value in group.operands)
        choice = select_kernels(_request(group, self.fused, self.target))
        origin = join_origins(step.origin for step in group.steps)
        *first_parts, last = choice.parts
        packed: list[Value] = []
        for part in first_parts:
            value = Value(next(self.numbers), TensorType(part.result.dtype, part.result.shape))
            part_operands = tuple(operands[number] for number in part.operands)
            self.tasks.append(
                Task(part.work, part_operands, (value,), origin, template=choice.template, reason=choice.reason)
            )
            packed.append(value)
        last_operands = (*(operands[number] for number in last.operands), *packed)
        group_effort = estimate_effort(group.steps, group.operands, group.results)
        self.tasks.append(
            Task(
                last.work,
                last_operands,
                group.results,
                origin,
                group_effort,
                choice.template,
                choice.reason,
                find_rounded_type(group.steps, self.target),
            )
        )
        primitive = group.steps[0].primitive
        if isinstance(primitive, Scatter) and primitive.in_place:
            self.aliases[group.results[0]] = operands[0]

    def add_scan(self, group: ScanGroup) -> None:
        (step,) = group.steps
        assert isinstance(step.primitive, Scan)
        (body,) = _build(group.body, self.target, None, self.on_work)
        assert isinstance(body, NativeSection)
        carries = [_row_major(value) for value in step.operands[: step.primitive.carries]]
        copies = tuple(build_copy(carry, carry, self.target, flat=True) for carry in carries)
        operands = tuple(self.in_layout(value, row_major(value.rank)) for value in step.operands)
        program = group.body.program
        self.tasks.append(ScanTask(step.primitive, program, body, copies, operands, step.results, step.origin))

    def tensor(self, value: Value) -> StoredTensor:
        return replace(_row_major(value), layout=self.layouts.get(value, row_major(value.rank)))

    def in_layout(self, value: Value, layout: Layout) -> Value:
        """Return the value in a layout: itself, an alias, or a copy."""
        if self.layouts[value] == layout:
            return value
        key = (value, layout)
        if key not in self.copies:
            copy = Value(next(self.numbers), value.type, value.name)
            self.layouts[copy] = layout
            if same_in_memory(self.layouts[value], layout, value.shape):
                self.aliases[copy] = value
            else:
                self.copy(value, copy, "a reader needs another layout")
            self.copies[key] = copy
        return self.copies[key]

    def copy(self, source: Value, result: Value, reason: str, *, flat: bool = False) -> None:
        work = build_copy(self.tensor(source), self.tensor(result), self.target, flat=flat)
        self.tasks.append(Task(work, (source,), (result,), "copy", copy_effort(source), "copy", reason))


def build_group_works(group: KernelGroup, fused: FusedProgram, target: Target) -> tuple[Work, ...]:
    """Build the works of one group, those of consecutive tasks in its section."""
    with memoization():
        return tuple(part.work for part in select_kernels(_request(group, fused, target)).parts)


def build_works_section(works: Sequence[Work], target: Target) -> NativeSection:
    """Build a section of works, in tasks without values."""
    (section,) = _finish((NativeSection(tuple(Task(work, (), (), "") for work in works), {}, (), ()),), target)
    assert isinstance(section, NativeSection)
    return section


def _request(group: KernelGroup, fused: FusedProgram, target: Target) -> Request[KernelGroup, Target]:
    results = {value: fused.layouts.get(value, row_major(value.rank)) for step in group.steps for value in step.results}
    layouts = {value: needed_layout(group, value, fused.layouts) for value in group.operands} | results
    tensors = {value: replace(_row_major(value), layout=layout) for value, layout in layouts.items()}
    tiles = fused.tiles.get(group.heavy.results[0]) if isinstance(group, HeavyGroup) else None
    return Request(group, tensors, fused.program.constants, target, None if tiles is None else tiles.size)


def _finish(sections: tuple[Section, ...], target: Target) -> tuple[Section, ...]:
    return verified(insert_section_barriers(sections) if isinstance(target, ThreadTarget) else sections)


def _row_major(value: Value) -> StoredTensor:
    return StoredTensor(value.dtype, value.shape, row_major(value.rank))


def _last_number(program: TensorProgram) -> int:
    values = [*program.inputs, *program.constants, *(value for step in program.steps for value in step.results)]
    return max((value.number for value in values), default=0)
