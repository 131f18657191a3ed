"""A compiled program with other weights, without compiling it again.

What a program becomes depends on its weights: values are folded and embedded, tiles are transformed where values are
of one size. So with new weights the model is traced, optimised and fused again, which is quick, and all decisions are
made again. Only where everything but the contents of constants is then the same, to the last bit, does the compiled
program stay: groups that read a constant of other content are built again, and if they have become the very same
kernels, what was packed for them is replaced. Whoever sees None compiles.

Kernels that were built before are remembered, so that building a group again comes to looking at its values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from hashlib import sha256
from typing import Any

import numpy as np

from weft.backends.naming import named
from weft.ir.alike import alike
from weft.ir.compiled import CompiledProgram
from weft.ir.graph import Graph, weight_arrays
from weft.ir.groups import FusedProgram, Group, HostGroup, KernelGroup, ReshapeGroup, ScanGroup, stretches
from weft.ir.packing import array_of
from weft.ir.program import Step, TensorProgram, Value, bodies, with_bodies
from weft.ir.target import Target
from weft.ir.work import HostSection, NativeSection, ScanTask, Section, Task, Work, all_works
from weft.kernels.lower.memoize import memoizing
from weft.kernels.sections import group_works, works_section
from weft.records import dataclass

Array = np.ndarray[Any, Any]


class UnlikeError(Exception):
    """What was compiled is not for the new weights."""


@dataclass(frozen=True, slots=True)
class Elements:
    """A constant without its elements; those of two that are alike may still differ.

    A weight as the model has it is known by its array, which is kept anyway, and what was computed by a digest.
    """

    dtype: str
    shape: tuple[int, ...]
    weight: Array | None = field(compare=False)
    digest: bytes = field(compare=False)

    def is_same(self, other: Elements) -> bool:
        if self.weight is not None or other.weight is not None:
            return self.weight is other.weight
        return self.digest == other.digest


def skeleton(graph: Graph, fused: FusedProgram) -> FusedProgram:
    """The fused program of a graph without the elements of its constants, which are `Content`s instead."""
    return _without_elements(fused, {id(array) for array in weight_arrays(graph).values()})


def _without_elements(fused: FusedProgram, weights: set[int]) -> FusedProgram:
    def program(inner: TensorProgram) -> TensorProgram:
        contents = {value: _content(array, weights) for value, array in inner.constants.items()}
        return replace(inner, constants=contents, steps=tuple(map(step, inner.steps)))

    def step(each: Step) -> Step:
        return replace(each, primitive=with_bodies(each.primitive, program)) if bodies(each.primitive) else each

    def group(each: Group) -> Group:
        match each:
            case ScanGroup(steps=(scan,)):
                return replace(each, steps=(step(scan),), body=_without_elements(each.body, weights))
            case HostGroup():
                inside = tuple(_without_elements(body, weights) for body in each.bodies)
                return replace(each, steps=tuple(map(step, each.steps)), bodies=inside)
            case _:
                return each

    return replace(fused, program=program(fused.program), groups=tuple(map(group, fused.groups)))


def _content(constant: Any, weights: set[int]) -> Any:
    if not isinstance(constant, np.ndarray) or constant.dtype == object:
        return constant  # to be compared as it is
    if id(constant) in weights:
        return Elements(str(constant.dtype), constant.shape, constant, b"")
    once = constant[tuple(slice(None) if stride else slice(1) for stride in constant.strides)]  # if it is repeated
    digest = sha256(repr(once.shape).encode())
    digest.update(np.ascontiguousarray(once).reshape(-1).view(np.uint8).data)
    return Elements(str(constant.dtype), constant.shape, None, digest.digest())


@dataclass(frozen=True, slots=True, eq=False)
class KnownWorks:
    """What groups of a compiled program were built to, for whoever builds them again with other constants."""

    target: Target
    kernels: dict[Any, Any] = field(default_factory=dict)  # what builders remember
    outlines: dict[tuple[Value, ...], Any] = field(default_factory=dict)  # of works that were compiled, by results


def revise(
    compiled: CompiledProgram, before: FusedProgram, after: FusedProgram, fused: FusedProgram, known: KnownWorks
) -> CompiledProgram | None:
    """What was compiled from the program whose skeleton is `before`, with the constants of one that is alike.

    `after` is the skeleton of that one.
    """
    if not alike(before, after):
        return None
    try:
        with memoizing(known.kernels):
            revision = Revision(before, after, fused, known)
            sections, constants = _revise_level(revision, compiled.sections, compiled.constants)
    except UnlikeError:
        return None
    return replace(compiled, sections=sections, constants=constants)


@dataclass(frozen=True, slots=True)
class Revision:
    """A program, or the body of a scan inside it: its skeletons with the old and new constants, and the new one."""

    before: FusedProgram
    after: FusedProgram
    fused: FusedProgram
    known: KnownWorks

    def changed(self) -> set[Value]:
        """The constants whose elements are others now."""
        old, new = self.before.program.constants, self.after.program.constants
        return {value for value in new if isinstance(new[value], Elements) and not new[value].is_same(old[value])}


def _revise_level(
    revision: Revision, sections: Sequence[Section], constants: Mapping[Value, Any]
) -> tuple[tuple[Section, ...], dict[Value, Any]]:
    """Sections and constants that were compiled from the old program, for the new one."""
    changed, contents = revision.changed(), revision.fused.program.constants
    found = {value: contents[value] if value in changed else content for value, content in constants.items()}
    if any((content.dtype, content.shape) != (found[value].dtype, found[value].shape)
           for value, content in constants.items() if value in changed):  # fmt: skip
        raise UnlikeError  # a device has something of its own made of them
    groups = [list(zip(*same)) for same in zip(*map(_stretches, (revision.before, revision.after, revision.fused)))]
    if len(groups) != len(sections):
        raise UnlikeError
    made: list[Section] = []
    for members, section in zip(groups, sections):
        if isinstance(section, NativeSection):
            made.append(_revise_native(revision, members, section, changed))
        else:
            made.append(_revise_host(revision, members, section))
    return tuple(made), found


Members = tuple[Group, Group, Group]
"""A group of the old skeleton, and the same of the new one and of the program itself."""


def _stretches(fused: FusedProgram) -> list[tuple[Group, ...]]:
    return [groups for _, groups in stretches(fused.groups)]


def _revise_native(
    revision: Revision, members: Sequence[Members], section: NativeSection, changed: set[Value]
) -> NativeSection:
    tasks = list(section.tasks)
    places = {task.results: number for number, task in enumerate(tasks)}
    for old, new, group in members:
        if isinstance(group, ReshapeGroup):
            continue
        place = places.get(group.results)
        if place is None:
            raise UnlikeError
        if isinstance(old, ScanGroup) and isinstance(new, ScanGroup) and isinstance(group, ScanGroup):
            inside = Revision(old.body, new.body, group.body, revision.known)
            tasks[place] = _revise_scan(inside, tasks[place])
        elif not isinstance(group, (ScanGroup, HostGroup)) and _reads(group, changed):
            works = group_works(group, revision.fused, revision.known.target)
            those = slice(place + 1 - len(works), place + 1)
            _check_same(works, tasks[those], group.results, revision.known)
            tasks[those] = map(_revise_task, tasks[those], works)
    return replace(section, tasks=tuple(tasks))


def _revise_host(revision: Revision, members: Sequence[Members], section: HostSection) -> HostSection:
    """Steps of the host, with the programs inside them: in the order of the steps, as their sections are."""
    inside: list[Revision] = []
    for old, new, group in members:
        if isinstance(old, HostGroup) and isinstance(new, HostGroup) and isinstance(group, HostGroup):
            inside += [Revision(*same, revision.known) for same in zip(old.bodies, new.bodies, group.bodies)]
    if len(inside) != len(section.bodies):
        raise UnlikeError
    waiting = zip(inside, section.bodies)
    made: list[tuple[Section, ...]] = []

    def revised(body: TensorProgram) -> TensorProgram:
        sections, constants = _revise_level(*next(waiting), body.constants)
        made.append(sections)
        return replace(body, constants=constants)

    steps = tuple(replace(step, primitive=with_bodies(step.primitive, revised)) for step in section.steps)
    return HostSection(steps, tuple(made))


def _revise_scan(inside: Revision, task: Task | ScanTask) -> ScanTask:
    if not isinstance(task, ScanTask):
        raise UnlikeError
    (body,), constants = _revise_level(inside, (task.body,), task.program.constants)
    assert isinstance(body, NativeSection)
    return replace(task, body=body, program=replace(task.program, constants=constants))


def _reads(group: KernelGroup, changed: set[Value]) -> bool:
    inside = (value for step in group.steps for value in step.operands)
    return any(value in changed for value in (*group.operands, *group.inputs, *inside))


def _check_same(
    works: Sequence[Work], tasks: Sequence[Task | ScanTask], results: tuple[Value, ...], known: KnownWorks
) -> None:
    """Raise UnlikeError unless works are those that tasks were compiled from, but for the elements of constants."""
    outline = [_outline(work) for work in works]
    if results in known.outlines:
        if not alike(known.outlines[results], outline):
            raise UnlikeError
        return
    (section,) = named((works_section(works, known.target),))
    assert isinstance(section, NativeSection)
    compiled = [_outline(task.work, by_name=True) for task in tasks if isinstance(task, Task)]
    if not alike(compiled, [_outline(work, by_name=True) for work in all_works(section)]):
        raise UnlikeError
    known.outlines[results] = outline


def _revise_task(task: Task | ScanTask, work: Work) -> Task:
    """A task with the constants of work that is otherwise the same."""
    assert isinstance(task, Task)
    return replace(task, work=replace(task.work, constants=tuple(map(array_of, work.constants))))


def _outline(work: Work, by_name: bool = False) -> tuple[Any, ...]:
    """All of a work but the elements of its constants; kernels that have names of their own are known by those."""
    launches = [
        (launch.kernel.name if by_name else launch.kernel, launch.blocks, launch.parameters, launch.buffers)
        for launch in work.launches
    ]
    constants = [(str(constant.dtype), constant.shape) for constant in work.constants]
    return launches, constants, work.workspaces, work.overwritable, work.copies
