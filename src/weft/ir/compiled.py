"""A program with its machine code: all that a run needs, so that it can be kept and loaded without a compiler."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from weft.errors import InternalError
from weft.ir import dims
from weft.ir.dims import Dim
from weft.ir.narrowed import NarrowedProduct, narrowed_in
from weft.ir.program import Guard, TensorProgram, Value, with_bodies
from weft.ir.types import TensorType
from weft.ir.work import HostSection, NativeSection, ScanTask, Section, Task
from weft.records import dataclass

Array = np.ndarray[Any, Any]


class AwaitedObjects(Sequence[bytes]):
    """Code that may still be compiled: who looks at it waits until all of it is there, or hears what went wrong."""

    def __init__(self, pending: Sequence[Callable[[], bytes]]) -> None:
        self._pending = tuple(pending)
        self._made: tuple[bytes, ...] | None = None

    def made(self) -> tuple[bytes, ...]:
        """All of it, once it is compiled."""
        made = self._made
        if made is None:
            made = self._made = tuple([wait() for wait in self._pending])
            self._pending = ()
        return made

    def number_made(self) -> int:
        """How much of it is there by now."""
        return len(self) - sum(not getattr(wait, "is_done", True) for wait in self._pending)

    def __len__(self) -> int:
        return len(self._pending if self._made is None else self._made)

    def __getitem__(self, place: Any) -> Any:
        return self.made()[place]

    def __eq__(self, other: object) -> bool:
        return self.made() == (other.made() if isinstance(other, AwaitedObjects) else other)

    __hash__ = None  # type: ignore[assignment]


@dataclass(frozen=True, eq=False)
class CompiledProgram:
    """Sections whose kernels have names of their own, under which the objects hold their code.

    `constants` are those that the sections read as they are, or that are outputs. Without slots it can be referred to
    weakly, so that all who load a model in a process share one. `narrowed` are the products that round their operands.
    """

    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    guards: tuple[Guard, ...]
    constants: Mapping[Value, Any]
    sections: tuple[Section, ...]
    objects: Sequence[bytes]
    narrowed: tuple[NarrowedProduct, ...] = ()


def compiled(program: TensorProgram, sections: tuple[Section, ...], objects: Sequence[bytes]) -> CompiledProgram:
    """What a run needs of a program, once its sections have their code."""
    constants = _read_constants(program, sections)
    _verify_made(program, constants, sections)
    narrowed = tuple(narrowed_in(sections))
    return CompiledProgram(
        program.inputs, program.outputs, program.guards, constants, _lean(sections), objects, narrowed
    )


def _read_constants(program: TensorProgram, sections: tuple[Section, ...]) -> dict[Value, Any]:
    read = set(program.outputs)
    for section in sections:
        if isinstance(section, NativeSection):
            read |= read_values(section)
        else:
            read.update(value for step in section.steps for value in step.operands)
    return {value: content for value, content in program.constants.items() if value in read}


def _verify_made(program: TensorProgram, constants: Mapping[Value, Any], sections: tuple[Section, ...]) -> None:
    """Raise InternalError where a section reads what nothing makes: a plan would find a place for it all the same."""
    made = {*program.inputs, *constants}
    for section in sections:
        if isinstance(section, NativeSection):
            made.update(section.aliases, *(task.results for task in section.tasks))
            unmade = read_values(section) - made
            if unmade:
                raise InternalError(f"{min(unmade, key=lambda value: value.number)} is read and never made")
        else:
            made.update(*(step.results for step in section.steps))


def _lean(sections: tuple[Section, ...]) -> tuple[Section, ...]:
    """Sections without the steps of the programs inside, which have sections of their own."""
    return tuple(
        replace(_without_bodies(section), symbols=section_symbols(section))
        if isinstance(section, NativeSection)
        else _lean_host(section)
        for section in sections
    )


def _lean_host(section: HostSection) -> HostSection:
    parts = iter(section.bodies)

    def lean(body: TensorProgram) -> TensorProgram:
        return replace(body, steps=(), constants=_read_constants(body, next(parts)))

    steps = tuple(replace(step, primitive=with_bodies(step.primitive, lean)) for step in section.steps)
    return HostSection(steps, tuple(map(_lean, section.bodies)))


def read_values(section: NativeSection) -> set[Value]:
    """What a section's tasks read from memory; a packed constant is read from its packing instead."""
    read: set[Value] = set()
    for value in (operand for task in section.tasks for operand in read_operands(task)):
        read.add(value)
        while value in section.aliases:
            value = section.aliases[value]
            read.add(value)
    return read


def section_constants(section: NativeSection, constants: Mapping[Value, Any]) -> dict[Value, Array]:
    """The constants that tasks read from memory, contiguous; those of scans' bodies too."""
    found: dict[Value, Array] = {}
    for task in section.tasks:
        if isinstance(task, ScanTask):
            found |= section_constants(task.body, task.program.constants)
    for value in read_values(section):
        if value in constants:
            found[value] = np.ascontiguousarray(constants[value])
    return found


def read_operands(task: Task | ScanTask) -> list[Value]:
    """The operands that a task reads from memory."""
    if isinstance(task, ScanTask):
        return list(task.operands)
    used = {r.number for launch in task.work.launches for r in launch.references if r.kind == "operand"}
    return [task.operands[number] for number in sorted(used)]


def _without_bodies(section: NativeSection) -> NativeSection:
    """Scans' programs without their steps and packed constants: the sections of their bodies say it all."""
    if not any(isinstance(task, ScanTask) for task in section.tasks):
        return section
    return replace(section, tasks=tuple(_lean_scan(t) if isinstance(t, ScanTask) else t for t in section.tasks))


def _lean_scan(task: ScanTask) -> ScanTask:
    read = {*read_values(task.body), *task.program.outputs}
    constants = {value: content for value, content in task.program.constants.items() if value in read}
    program = replace(task.program, steps=(), constants=constants)
    primitive = replace(task.primitive, body=replace(program, constants={}))
    return replace(task, primitive=primitive, program=program, body=_without_bodies(task.body))


def section_symbols(section: NativeSection) -> tuple[str, ...]:
    """The sizes that a section's plan depends on."""
    return tuple(sorted(_symbols(section)))


def _symbols(section: NativeSection) -> set[str]:
    found: set[Dim] = set()
    inner: set[str] = set()
    for task in section.tasks:
        for value in (*task.operands, *task.results):
            found.update(_shape(value))
        if isinstance(task, ScanTask):
            found.add(task.primitive.length)
            inner |= _symbols(task.body) - _bound_inside(task)
            continue
        for launch in task.work.launches:
            found.add(launch.blocks)
            found.update(launch.values)
        found.update(workspace.size for workspace in task.work.workspaces)
        found.update((task.effort.flops, task.effort.bytes))
    found.update(dim for value in section.outputs for dim in _shape(value))
    return inner | _names(found)


def _bound_inside(task: ScanTask) -> set[str]:
    """The sizes that a scan's body learns from its inputs."""
    return _names({dim for value in task.program.inputs for dim in _shape(value)})


def _names(found: set[Dim]) -> set[str]:
    return {symbol.name for dim in found for symbol in dims.symbols(dim)}


def _shape(value: Value) -> tuple[Dim, ...]:
    assert isinstance(value.type, TensorType)
    return value.type.shape or ()
