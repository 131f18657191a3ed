"""Give a compiled program new weights without compiling it again.

Code depends on weights: values are folded and embedded, and Winograd is chosen by their magnitudes. So the model is
traced, optimised and fused again with the new weights, which is fast, and all decisions are repeated. The compiled
program is reused only if everything but the contents of constants is then identical: groups that read a changed
constant are built again, and if they become the same kernels, their packed constants are replaced. Otherwise the model
is compiled.

Built kernels are memoized, so that building a group again is cheap.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.backends.naming import with_unique_names
from weft.ir.arrays import Array
from weft.ir.compiled import CompiledProgram
from weft.ir.equality import is_identical
from weft.ir.graph import Graph, weight_arrays
from weft.ir.groups import FusedProgram, Group, HostGroup, KernelGroup, ReshapeGroup, ScanGroup, stretches
from weft.ir.packing import load_constant
from weft.ir.program import Step, TensorProgram, Value, bodies, with_bodies
from weft.ir.target import Target
from weft.ir.work import HostSection, NativeSection, ScanTask, Section, Task, Work, all_works
from weft.kernels.lower.memoize import memoization
from weft.kernels.sections import build_group_works, build_works_section
from weft.records import dataclass

if TYPE_CHECKING:
    from weft.backends.device import DeviceProgram
    from weft.compiler import Pipeline


def recompile(pipeline: Pipeline, former: Pipeline, compiled: CompiledProgram) -> DeviceProgram:
    """Reuse the code that `former` compiled with the weights of `pipeline`; compile what depends on the weights."""
    program = pipeline.trace_any_shapes()
    fused = pipeline.fuse(program)
    after = pipeline.skeleton = skeleton(pipeline.read().graph, fused)
    known_works = former.known_works or KnownWorks(pipeline.compiling_driver.target(pipeline.precision))
    revised = revise(compiled, _find_skeleton(former), after, fused, known_works)
    if revised is None:
        return pipeline.compile(program)
    pipeline.known_works = known_works
    return revised


def _find_skeleton(pipeline: Pipeline) -> FusedProgram:
    with pipeline.lock:
        if pipeline.skeleton is None:
            pipeline.skeleton = skeleton(pipeline.read().graph, pipeline.fuse(pipeline.trace_any_shapes()))
        return pipeline.skeleton


class UnlikeError(Exception):
    """The compiled code does not fit the new weights."""


@dataclass(frozen=True, slots=True)
class Elements:
    """A constant without its elements; two that compare equal may differ in them.

    A weight of the model is identified by its array, which is in memory anyway, a computed constant by a digest.
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
    """Return the fused program of a graph with `Elements` instead of its constants."""
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
        return constant  # compared by value
    if id(constant) in weights:
        return Elements(str(constant.dtype), constant.shape, constant, b"")
    # a broadcast constant repeats elements: digest each once
    distinct = constant[tuple(slice(None) if stride else slice(1) for stride in constant.strides)]
    digest = sha256(repr(distinct.shape).encode())
    digest.update(np.ascontiguousarray(distinct).reshape(-1).view(np.uint8).data)
    return Elements(str(constant.dtype), constant.shape, None, digest.digest())


@dataclass(frozen=True, slots=True, eq=False)
class KnownWorks:
    """The kernels and works that a compiled program's groups became, to compare with when they are built again."""

    target: Target
    kernels: dict[Any, Any] = field(default_factory=dict)  # memoized by builders
    outlines: dict[tuple[Value, ...], Any] = field(default_factory=dict)  # of compiled works, by their results


def revise(
    compiled: CompiledProgram, before: FusedProgram, after: FusedProgram, fused: FusedProgram, known_works: KnownWorks
) -> CompiledProgram | None:
    """Return `compiled` with the constants of `fused`; None if more than constants differ.

    `before` is the skeleton of the compiled program, `after` that of `fused`.
    """
    if not is_identical(before, after):
        return None
    try:
        with memoization(known_works.kernels):
            revision = Revision(before, after, fused, known_works)
            sections, constants = _revise_level(revision, compiled.sections, compiled.constants)
    except UnlikeError:
        return None
    return replace(compiled, sections=sections, constants=constants)


@dataclass(frozen=True, slots=True)
class Revision:
    """A program, or the body of a scan: its skeletons with old and new constants, and the new program."""

    before: FusedProgram
    after: FusedProgram
    fused: FusedProgram
    known_works: KnownWorks

    def changed(self) -> set[Value]:
        """Return the constants whose elements changed."""
        old, new = self.before.program.constants, self.after.program.constants
        return {value for value in new if isinstance(new[value], Elements) and not new[value].is_same(old[value])}


def _revise_level(
    revision: Revision, sections: Sequence[Section], constants: Mapping[Value, Any]
) -> tuple[tuple[Section, ...], dict[Value, Any]]:
    """Revise the sections and constants of one level of the program."""
    changed, contents = revision.changed(), revision.fused.program.constants
    new_constants = {value: contents[value] if value in changed else content for value, content in constants.items()}
    if any((content.dtype, content.shape) != (new_constants[value].dtype, new_constants[value].shape)
           for value, content in constants.items() if value in changed):  # fmt: skip
        raise UnlikeError  # a device may have converted them
    groups = [list(zip(*same)) for same in zip(*map(_stretches, (revision.before, revision.after, revision.fused)))]
    if len(groups) != len(sections):
        raise UnlikeError
    new_sections: list[Section] = []
    for members, section in zip(groups, sections):
        if isinstance(section, NativeSection):
            new_sections.append(_revise_native(revision, members, section, changed))
        else:
            new_sections.append(_revise_host(revision, members, section))
    return tuple(new_sections), new_constants


Members = tuple[Group, Group, Group]
"""The same group in the old skeleton, the new skeleton and the new program."""


def _stretches(fused: FusedProgram) -> list[tuple[Group, ...]]:
    return [groups for _, groups in stretches(fused.groups)]


def _revise_native(
    revision: Revision, members: Sequence[Members], section: NativeSection, changed: set[Value]
) -> NativeSection:
    tasks = list(section.tasks)
    positions = {task.results: number for number, task in enumerate(tasks)}
    for old, new, group in members:
        if isinstance(group, ReshapeGroup):
            continue
        position = positions.get(group.results)
        if position is None:
            raise UnlikeError
        if isinstance(old, ScanGroup) and isinstance(new, ScanGroup) and isinstance(group, ScanGroup):
            body_revision = Revision(old.body, new.body, group.body, revision.known_works)
            tasks[position] = _revise_scan(body_revision, tasks[position])
        elif not isinstance(group, (ScanGroup, HostGroup)) and _reads_any(group, changed):
            works = build_group_works(group, revision.fused, revision.known_works.target)
            group_tasks = slice(position + 1 - len(works), position + 1)
            _check_same(works, tasks[group_tasks], group.results, revision.known_works)
            tasks[group_tasks] = map(_revise_task, tasks[group_tasks], works)
    return replace(section, tasks=tuple(tasks))


def _revise_host(revision: Revision, members: Sequence[Members], section: HostSection) -> HostSection:
    """Revise host steps with the programs inside them, in the order of their sections."""
    inside: list[Revision] = []
    for old, new, group in members:
        if isinstance(old, HostGroup) and isinstance(new, HostGroup) and isinstance(group, HostGroup):
            inside += [Revision(*same, revision.known_works) for same in zip(old.bodies, new.bodies, group.bodies)]
    if len(inside) != len(section.bodies):
        raise UnlikeError
    waiting = zip(inside, section.bodies)
    new_sections: list[tuple[Section, ...]] = []

    def revised(body: TensorProgram) -> TensorProgram:
        sections, constants = _revise_level(*next(waiting), body.constants)
        new_sections.append(sections)
        return replace(body, constants=constants)

    steps = tuple(replace(step, primitive=with_bodies(step.primitive, revised)) for step in section.steps)
    return HostSection(steps, tuple(new_sections))


def _revise_scan(revision: Revision, task: Task | ScanTask) -> ScanTask:
    if not isinstance(task, ScanTask):
        raise UnlikeError
    (body,), constants = _revise_level(revision, (task.body,), task.program.constants)
    assert isinstance(body, NativeSection)
    return replace(task, body=body, program=replace(task.program, constants=constants))


def _reads_any(group: KernelGroup, changed: set[Value]) -> bool:
    inside = (value for step in group.steps for value in step.operands)
    return any(value in changed for value in (*group.operands, *group.inputs, *inside))


def _check_same(
    works: Sequence[Work], tasks: Sequence[Task | ScanTask], results: tuple[Value, ...], known_works: KnownWorks
) -> None:
    """Raise UnlikeError unless tasks were compiled from these works, apart from the elements of constants."""
    outline = [_outline(work) for work in works]
    if results in known_works.outlines:
        if not is_identical(known_works.outlines[results], outline):
            raise UnlikeError
        return
    (section,) = with_unique_names((build_works_section(works, known_works.target),))
    assert isinstance(section, NativeSection)
    compiled = [_outline(task.work, by_name=True) for task in tasks if isinstance(task, Task)]
    if not is_identical(compiled, [_outline(work, by_name=True) for work in all_works(section)]):
        raise UnlikeError
    known_works.outlines[results] = outline


def _revise_task(task: Task | ScanTask, work: Work) -> Task:
    """Replace the constants of a task."""
    assert isinstance(task, Task)
    return replace(task, work=replace(task.work, constants=tuple(map(load_constant, work.constants))))


def _outline(work: Work, by_name: bool = False) -> tuple[Any, ...]:
    """Return a work without the elements of its constants; `by_name`: with kernels by their unique names."""
    launches = [
        (launch.kernel.name if by_name else launch.kernel, launch.blocks, launch.parameters, launch.buffers)
        for launch in work.launches
    ]
    constants = [(str(constant.dtype), constant.shape) for constant in work.constants]
    return launches, constants, work.workspaces, work.overwritable, work.copies
