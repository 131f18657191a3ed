"""TensorProgram -> sections: stretches of work for kernels, and between them steps for the host.

A section's values that others see are row-major; inside, layouts are the section's own business. What comes out knows
no memory yet: tasks name values, and reshapes are aliases. A scan whose body is one native section is a task too: its
body's tasks are repeated for every iteration when memory is planned.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import Any

from weft.cost.effort import copy_effort, effort
from weft.fuse.attention import Attention, numbered
from weft.fuse.grouping import Group, group_steps, single_groups
from weft.fuse.inline import inline_maps
from weft.fuse.layouts import assign_layouts, needed_layout, rank, same_in_memory
from weft.ir.layout import Layout, row_major
from weft.ir.program import Reshape, Scan, TensorProgram, Value, bodies, join_origins
from weft.ir.target import Target
from weft.ir.types import TensorType
from weft.ir.work import HostSection, NativeSection, ScanTask, Section, Task
from weft.kernels.attention_tasks import attention_parts, streams_attention
from weft.kernels.build.memoize import memoizing
from weft.kernels.lower.barriers import sections_with_barriers
from weft.kernels.lower.tensors import Tensor
from weft.kernels.select import build_work, copy_work, is_native
from weft.kernels.vector.winograd_choice import choose_tiles

Progress = Callable[[float], None]
OTHER_BUFFERS = 4  # of a kernel, beside the operands of a map in it


def divide(program: TensorProgram, target: Target, progress: Progress | None = None) -> tuple[Section, ...]:
    """The whole program as sections, in an order that the data allows."""
    with memoizing():
        sections = _divide(program, target, progress)
    return sections_with_barriers(sections) if target.threads else sections


def _divide(program: TensorProgram, target: Target, progress: Progress | None = None) -> tuple[Section, ...]:
    program = inline_maps(program, target.most_buffers - OTHER_BUFFERS)
    numbers = count(_highest(program) + 1)
    groups = _narrow(group_steps(program, streams=streams_attention(target)), target)
    tiles = choose_tiles(program, target)
    done = count(1)

    def tell() -> None:
        if progress is not None:
            progress(next(done) / len(groups))

    scans = {group: scan for group in groups if (scan := _native_scan(group, target)) is not None}
    sections: list[Section] = []
    for native, stretch in _stretches(groups, scans, target):
        if native:
            sections.append(_native_section(program, stretch, scans, target, tiles, numbers, tell))
        else:
            steps = tuple(step for group in stretch for step in group.steps)
            inside = tuple(_divide(body, target) for step in steps for body in bodies(step.primitive))
            sections.append(HostSection(steps, inside))
    return tuple(sections)


def _narrow(groups: Sequence[Group], target: Target) -> tuple[Group, ...]:
    """Groups without those that have more buffers than a kernel may: these as single steps."""
    found: list[Group] = []
    for group in groups:
        wide = len(group.operands) + len(group.results) + OTHER_BUFFERS > target.most_buffers
        found += single_groups(group) if wide and len(group.steps) > 1 else (group,)
    return tuple(found)


def _stretches(
    groups: Sequence[Group], scans: Mapping[Group, ScanTask], target: Target
) -> list[tuple[bool, list[Group]]]:
    stretches: list[tuple[bool, list[Group]]] = []
    for group in groups:
        native = group in scans or is_native(group, target)
        if stretches and stretches[-1][0] == native:
            stretches[-1][1].append(group)
        else:
            stretches.append((native, [group]))
    return stretches


def _native_scan(group: Group, target: Target) -> ScanTask | None:
    """A scan as a task, if its body is one native section that makes every output."""
    (step, *_) = group.steps
    if not isinstance(step.primitive, Scan) or not all(_is_tensor(v) for v in (*step.operands, *step.results)):
        return None
    program = inline_maps(step.primitive.body, target.most_buffers - OTHER_BUFFERS)
    sections = _divide(program, target)
    if program.guards or len(sections) != 1 or not isinstance(sections[0], NativeSection):
        return None
    body = sections[0]
    stacked = program.outputs[step.primitive.carries :]
    if not set(program.outputs) <= set(body.outputs) or len(set(stacked)) < len(stacked):
        return None
    carries = [_row_major(value) for value in step.operands[: step.primitive.carries]]
    copies = tuple(copy_work(carry, carry, target, flat=True) for carry in carries)
    return ScanTask(step.primitive, program, body, copies, step.operands, step.results, step.origin)


def _native_section(
    program: TensorProgram,
    groups: list[Group],
    scans: Mapping[Group, ScanTask],
    target: Target,
    tiles: Mapping[Value, int],
    numbers: Iterator[int],
    tell: Callable[[], None],
) -> NativeSection:
    made = {value for group in groups for value in group.results}
    given = [value for group in groups for value in group.operands if value not in made]
    outside = _seen_outside(program, groups)
    part = replace(
        program,
        inputs=tuple(dict.fromkeys(value for value in given if value not in program.constants)),
        outputs=tuple(value for value in dict.fromkeys(v for g in groups for v in g.results) if value in outside),
    )
    builder = _Builder(part, tuple(groups), target, tiles, numbers)
    for group in groups:
        if group in scans:
            builder.add_scan(scans[group])
        else:
            builder.add(group)
        tell()
    return NativeSection(tuple(builder.tasks), builder.aliases, part.inputs, part.outputs)


def _seen_outside(program: TensorProgram, groups: list[Group]) -> set[Value]:
    own = {id(step) for group in groups for step in group.steps}
    seen = set(program.outputs)
    for step in program.steps:
        if id(step) not in own:
            seen.update(step.operands)
    return seen


class _Builder:
    """The tasks of one section."""

    def __init__(
        self,
        program: TensorProgram,
        groups: tuple[Group, ...],
        target: Target,
        tiles: Mapping[Value, int],
        numbers: Iterator[int],
    ) -> None:
        self.program = program
        self.layouts: dict[Value, Layout] = assign_layouts(program, groups)
        self.target = target
        self.tiles = tiles
        self.numbers = numbers
        self.tasks: list[Task | ScanTask] = []
        self.aliases: dict[Value, Value] = {}
        self.copies: dict[tuple[Value, Layout], Value] = {}

    def add(self, group: Group) -> None:
        first = group.steps[0]
        if isinstance(first.primitive, Reshape) and len(group.steps) == 1:
            source = self.in_layout(first.operands[0], row_major(rank(first.operands[0])))
            if first.results[0] in self.program.outputs:
                self.copy(source, first.results[0], flat=True)
            else:
                self.aliases[first.results[0]] = source
            return
        operands = tuple(self.in_layout(value, needed_layout(group, value, self.layouts)) for value in group.operands)
        tensors = {value: self.tensor(stored) for value, stored in zip(group.operands, operands)}
        tensors |= {value: self.tensor(value) for step in group.steps for value in step.results}
        if group.attention is not None:
            self.add_attention(group, numbered(group.attention, group.operands), operands, tensors)
            return
        work = build_work(group, tensors, self.target, self.program.constants, self.tiles)
        if work is None:
            for part in single_groups(group):
                self.add(part)
            return
        origin = join_origins(step.origin for step in group.steps)
        needed = effort(group.steps, group.operands, group.results)
        self.tasks.append(Task(work, operands, group.results, origin, needed))

    def add_attention(
        self, group: Group, attention: Attention, operands: Sequence[Value], tensors: Mapping[Value, Tensor]
    ) -> None:
        """Keys and values are packed by tasks of their own: what they are packed from need not outlive these."""
        given = [tensors[value] for value in group.operands]
        *packing, last = attention_parts(attention, given, tensors[group.results[0]], self.target)
        origin = join_origins(step.origin for step in group.steps)
        packed: list[Value] = []
        for part in packing:
            value = Value(next(self.numbers), TensorType(part.result.dtype, part.result.shape))
            self.tasks.append(Task(part.work, tuple(operands[n] for n in part.operands), (value,), origin))
            packed.append(value)
        needed = effort(group.steps, group.operands, group.results)
        taken = (*(operands[number] for number in last.operands), *packed)
        self.tasks.append(Task(last.work, taken, group.results, origin, needed))

    def add_scan(self, scan: ScanTask) -> None:
        operands = tuple(self.in_layout(value, row_major(rank(value))) for value in scan.operands)
        self.tasks.append(replace(scan, operands=operands))

    def tensor(self, value: Value) -> Tensor:
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
                self.copy(value, copy)
            self.copies[key] = copy
        return self.copies[key]

    def copy(self, source: Value, result: Value, *, flat: bool = False) -> None:
        work = copy_work(self.tensor(source), self.tensor(result), self.target, flat=flat)
        self.tasks.append(Task(work, (source,), (result,), "copy", copy_effort(source)))


def _row_major(value: Value) -> Tensor:
    assert isinstance(value.type, TensorType)
    return Tensor(value.type.dtype, value.type.shape or (), row_major(rank(value)))


def _is_tensor(value: Value) -> bool:
    return isinstance(value.type, TensorType) and value.type.shape is not None


def _highest(program: TensorProgram) -> Any:
    values = [*program.inputs, *program.constants, *(value for step in program.steps for value in step.results)]
    return max((value.number for value in values), default=0)
