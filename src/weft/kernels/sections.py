"""TensorProgram -> sections: stretches of work for kernels, and between them steps for the host.

A section's values that others see are row-major; inside, layouts are the section's own business. What comes out knows
no memory yet: tasks name values, and reshapes are aliases.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Union

from weft.ir.program import Reshape, Step, TensorProgram, Value
from weft.ir.scalar import Index, Load
from weft.ir.target import Target
from weft.ir.types import TensorType
from weft.ir import dims
from weft.kernels.assign import assign_layouts, needed_layout, rank, same_in_memory
from weft.kernels.group import Group, group_steps
from weft.kernels.inline import inline_maps
from weft.kernels.launch import Tensor, Work
from weft.kernels.layout import Layout, row_major
from weft.kernels.select import build_work, copy_work, is_native


@dataclass(frozen=True, slots=True)
class Task:
    """Work, with the values that its references to operands and results stand for."""

    work: Work
    operands: tuple[Value, ...]
    results: tuple[Value, ...]
    origin: str


@dataclass(frozen=True, slots=True)
class NativeSection:
    tasks: tuple[Task, ...]
    aliases: Mapping[Value, Value]  # values that lie where another does
    inputs: tuple[Value, ...]  # from outside of the section, without constants
    outputs: tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class HostSection:
    steps: tuple[Step, ...]


Section = Union[NativeSection, HostSection]


def divide(program: TensorProgram, target: Target) -> tuple[Section, ...]:
    """The whole program as sections, in an order that the data allows."""
    program = inline_maps(program)
    numbers = iter(range(_highest(program) + 1, 1 << 60))
    sections: list[Section] = []
    for native, groups in _stretches(group_steps(program)):
        if native:
            sections.append(_native_section(program, groups, target, numbers))
        else:
            sections.append(HostSection(tuple(step for group in groups for step in group.steps)))
    return tuple(sections)


def _stretches(groups: Sequence[Group]) -> list[tuple[bool, list[Group]]]:
    stretches: list[tuple[bool, list[Group]]] = []
    for group in groups:
        native = is_native(group)
        if stretches and stretches[-1][0] == native:
            stretches[-1][1].append(group)
        else:
            stretches.append((native, [group]))
    return stretches


def _native_section(program: TensorProgram, groups: list[Group], target: Target, numbers: Any) -> NativeSection:
    made = {value for group in groups for value in group.results}
    given = [value for group in groups for value in group.operands if value not in made]
    outside = _seen_outside(program, groups)
    part = replace(
        program,
        inputs=tuple(dict.fromkeys(value for value in given if value not in program.constants)),
        outputs=tuple(value for value in dict.fromkeys(v for g in groups for v in g.results) if value in outside),
    )
    builder = _Builder(part, tuple(groups), target, numbers)
    for group in groups:
        builder.add(group)
    return NativeSection(tuple(builder.tasks), builder.aliases, part.inputs, part.outputs)


def _seen_outside(program: TensorProgram, groups: list[Group]) -> set[Value]:
    own = {id(step) for group in groups for step in group.steps}
    seen = set(program.outputs)
    for step in program.steps:
        if id(step) not in own:
            seen.update(step.operands)
    return seen


class _Builder:
    def __init__(self, program: TensorProgram, groups: tuple[Group, ...], target: Target, numbers: Any) -> None:
        self.program = program
        self.layouts: dict[Value, Layout] = assign_layouts(program, groups)
        self.target = target
        self.numbers = numbers
        self.tasks: list[Task] = []
        self.aliases: dict[Value, Value] = {}
        self.copies: dict[tuple[Value, Layout], Value] = {}

    def add(self, group: Group) -> None:
        first = group.steps[0]
        if isinstance(first.primitive, Reshape):
            source = self.in_layout(first.operands[0], row_major(rank(first.operands[0])))
            result = first.results[0]
            if result in self.program.outputs or source in self.program.inputs or source in self.program.constants:
                self.copy(source, result, flat=True)  # what others see, or own, is not shared
            else:
                self.aliases[result] = source
            return
        operands = tuple(self.in_layout(value, self.needed(group, value)) for value in group.operands)
        tensors = {value: self.tensor(stored) for value, stored in zip(group.operands, operands)}
        tensors |= {value: self.tensor(value) for step in group.steps for value in step.results}
        work = build_work(group, tensors, self.target, self.program.constants)
        self.tasks.append(Task(work, operands, group.results, " + ".join(dict.fromkeys(s.origin for s in group.steps))))

    def needed(self, group: Group, value: Value) -> Layout:
        for step in group.steps:
            if value in step.operands:
                return needed_layout(step, value, self.layouts)
        return self.layouts[value]

    def tensor(self, value: Value) -> Tensor:
        assert isinstance(value.type, TensorType)
        layout = self.layouts.get(value, row_major(rank(value)))
        return Tensor(value.type.dtype, value.type.shape or (), layout)

    def in_layout(self, value: Value, layout: Layout) -> Value:
        """The value stored in a layout, by a copy where it is in another."""
        assert isinstance(value.type, TensorType)
        if same_in_memory(self.layouts[value], layout, value.type.shape or ()):
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
        self.tasks.append(Task(work, (source,), (result,), "copy"))



def _highest(program: TensorProgram) -> int:
    values = [*program.inputs, *program.constants, *(value for step in program.steps for value in step.results)]
    return max((value.number for value in values), default=0)
