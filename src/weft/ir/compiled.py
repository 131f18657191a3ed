"""Compiled programs: sections with machine code, which can be cached and run without a compiler."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from weft.errors import InternalError
from weft.ir import dims
from weft.ir.arrays import Array
from weft.ir.dims import Dim
from weft.ir.narrowed_products import NarrowedProduct, find_narrowed_products
from weft.ir.program import Guard, TensorProgram, Value, with_bodies
from weft.ir.state import StateLayout
from weft.ir.work import HostSection, NativeSection, ScanTask, Section, Task
from weft.records import dataclass


class AwaitedObjects(Sequence[bytes]):
    """Object code that may still be compiling; access waits for all of it, and raises the errors of compilation."""

    def __init__(self, pending: Sequence[Callable[[], bytes]]) -> None:
        self._pending = tuple(pending)
        self._objects: tuple[bytes, ...] | None = None

    def wait(self) -> tuple[bytes, ...]:
        """Wait for all object files."""
        objects = self._objects
        if objects is None:
            objects = self._objects = tuple([future() for future in self._pending])
            self._pending = ()
        return objects

    def count_ready(self) -> int:
        """Count the object files that are ready."""
        return len(self) - sum(not getattr(future, "is_done", True) for future in self._pending)

    def __len__(self) -> int:
        return len(self._pending if self._objects is None else self._objects)

    def __getitem__(self, index: Any) -> Any:
        return self.wait()[index]

    def __eq__(self, other: object) -> bool:
        return self.wait() == (other.wait() if isinstance(other, AwaitedObjects) else other)

    __hash__ = None  # type: ignore[assignment]


@dataclass(frozen=True, eq=False)
class CompiledProgram:
    """Sections with unique kernel names, and the object files that define these kernels.

    `constants` are those that sections read without packing, and those that are outputs. `narrowed` are the products
    that round their operands. `state` describes the inputs that runs change. The class has no slots, so that sessions
    can share one through a weak reference.
    """

    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    guards: tuple[Guard, ...]
    constants: Mapping[Value, Any]
    sections: tuple[Section, ...]
    objects: Sequence[bytes]
    narrowed: tuple[NarrowedProduct, ...] = ()
    state: StateLayout | None = None


def build_compiled_program(
    program: TensorProgram, sections: tuple[Section, ...], objects: Sequence[bytes]
) -> CompiledProgram:
    """Build the compiled form of a program from its sections and their code."""
    constants = _read_constants(program, sections)
    _verify_defined(program, constants, sections)
    narrowed = tuple(find_narrowed_products(sections))
    return CompiledProgram(
        program.inputs, program.outputs, program.guards, constants, _strip_bodies(sections), objects, narrowed
    )


def _read_constants(program: TensorProgram, sections: tuple[Section, ...]) -> dict[Value, Any]:
    read = set(program.outputs)
    for section in sections:
        if isinstance(section, NativeSection):
            read |= read_values(section)
        else:
            read.update(value for step in section.steps for value in step.operands)
    return {value: content for value, content in program.constants.items() if value in read}


def _verify_defined(program: TensorProgram, constants: Mapping[Value, Any], sections: tuple[Section, ...]) -> None:
    """Raise InternalError if a section reads a value that is never defined: planning would not notice."""
    defined = {*program.inputs, *constants}
    for section in sections:
        if isinstance(section, NativeSection):
            defined.update(section.aliases, *(task.results for task in section.tasks))
            undefined = read_values(section) - defined
            if undefined:
                raise InternalError(f"{min(undefined, key=lambda value: value.number)} is read but never defined")
        else:
            defined.update(*(step.results for step in section.steps))


def _strip_bodies(sections: tuple[Section, ...]) -> tuple[Section, ...]:
    """Drop the steps of nested programs, whose sections replace them."""
    return tuple(
        replace(_strip_scans(section), symbols=section_symbols(section))
        if isinstance(section, NativeSection)
        else _strip_host_section(section)
        for section in sections
    )


def _strip_host_section(section: HostSection) -> HostSection:
    parts = iter(section.bodies)

    def strip_body(body: TensorProgram) -> TensorProgram:
        return replace(body, steps=(), constants=_read_constants(body, next(parts)))

    steps = tuple(replace(step, primitive=with_bodies(step.primitive, strip_body)) for step in section.steps)
    return HostSection(steps, tuple(map(_strip_bodies, section.bodies)))


def read_values(section: NativeSection) -> set[Value]:
    """Return the values that a section's tasks read from memory; packed constants are not among them."""
    read: set[Value] = set()
    for value in (operand for task in section.tasks for operand in read_operands(task)):
        read.add(value)
        while value in section.aliases:
            value = section.aliases[value]
            read.add(value)
    return read


def section_constants(section: NativeSection, constants: Mapping[Value, Any]) -> dict[Value, Array]:
    """Return the constants that tasks, including those in scans, read from memory, as contiguous arrays."""
    arrays: dict[Value, Array] = {}
    for task in section.tasks:
        if isinstance(task, ScanTask):
            arrays |= section_constants(task.body, task.program.constants)
    for value in read_values(section):
        if value in constants:
            arrays[value] = np.ascontiguousarray(constants[value])
    return arrays


def read_operands(task: Task | ScanTask) -> list[Value]:
    """Return the operands that a task reads from memory."""
    if isinstance(task, ScanTask):
        return list(task.operands)
    used = {r.number for launch in task.work.launches for r in launch.references if r.kind == "operand"}
    return [task.operands[number] for number in sorted(used)]


def _strip_scans(section: NativeSection) -> NativeSection:
    """Drop steps and packed constants from the programs of scans: the sections of their bodies are enough."""
    if not any(isinstance(task, ScanTask) for task in section.tasks):
        return section
    return replace(section, tasks=tuple(_strip_scan(t) if isinstance(t, ScanTask) else t for t in section.tasks))


def _strip_scan(task: ScanTask) -> ScanTask:
    read = {*read_values(task.body), *task.program.outputs}
    constants = {value: content for value, content in task.program.constants.items() if value in read}
    program = replace(task.program, steps=(), constants=constants)
    primitive = replace(task.primitive, body=replace(program, constants={}))
    return replace(task, primitive=primitive, program=program, body=_strip_scans(task.body))


def section_symbols(section: NativeSection) -> tuple[str, ...]:
    """Return the symbols that a section's plan depends on."""
    return tuple(sorted(_symbols(section)))


def _symbols(section: NativeSection) -> set[str]:
    expressions: set[Dim] = set()
    inner: set[str] = set()
    for task in section.tasks:
        for value in (*task.operands, *task.results):
            expressions.update(value.shape)
        if isinstance(task, ScanTask):
            expressions.add(task.primitive.length)
            inner |= _symbols(task.body) - _bound_symbols(task)
            continue
        for launch in task.work.launches:
            expressions.add(launch.blocks)
            expressions.update(launch.values)
        expressions.update(workspace.size for workspace in task.work.workspaces)
        expressions.update((task.effort.flops, task.effort.bytes))
    for value in (*section.outputs, *section.aliases, *section.aliases.values()):
        expressions.update(value.shape)
    return inner | _symbol_names(expressions)


def _bound_symbols(task: ScanTask) -> set[str]:
    """Return the symbols that a scan's body binds from its inputs."""
    return _symbol_names({dim for value in task.program.inputs for dim in value.shape})


def _symbol_names(expressions: set[Dim]) -> set[str]:
    return {symbol.name for dim in expressions for symbol in dims.symbols(dim)}
