"""The memory of a whole program for one set of sizes, known before anything runs.

Weights are what its launches and host steps read and nobody writes. Sections run one after the other on the same
arena, the largest that any of them needs; what one hands to another, and the outputs, are memory of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from weft.ir.compiled import CompiledProgram, section_constants
from weft.ir.dtypes import DType
from weft.ir.numbers import Numbers
from weft.ir.program import Value, bodies
from weft.ir.types import TensorType
from weft.ir.work import NativeSection, PlannedLaunch, Repeated, Section, all_works
from weft.plan.plan import Plan
from weft.quantities import counted, format_bytes
from weft.records import dataclass

Array = np.ndarray[Any, Any]
Planner = Callable[[NativeSection, Mapping[Value, Array], Mapping[str, int]], Plan]


@dataclass(frozen=True, slots=True)
class SectionPlan:
    """A native section with its plan, and the bytes of arrays beside the arena while it runs, its outputs included."""

    section: NativeSection
    constants: Mapping[Value, Array]
    plan: Plan
    beside: int


@dataclass(frozen=True, slots=True)
class ProgramPlan:
    """`unplanned` are the nodes whose sizes only the data decide, so that they are not counted."""

    sections: tuple[SectionPlan, ...]
    weights: int
    workspace: int  # of the device: what a run needs beside the arena for itself and its threads
    inputs: int
    outputs: int
    beside: int  # the most bytes of arrays beside the arena, outputs included
    unplanned: tuple[str, ...]

    def __repr__(self) -> str:
        parts = f"arena {format_bytes(self.arena)}, weights {format_bytes(self.weights)}"
        return f"<memory plan: {counted(len(self.sections), 'section')}, {parts}>"

    @property
    def busiest(self) -> SectionPlan | None:
        """The section with the largest arena."""
        return max(self.sections, key=lambda part: part.plan.arena_bytes, default=None)

    @property
    def arena(self) -> int:
        """Bytes of the arena, which all sections use in turn."""
        return max((part.plan.arena_bytes for part in self.sections), default=0)

    @property
    def lower_bound(self) -> int:
        """Bytes that no arena can do without, whatever lies where."""
        return max((part.plan.lower_bound for part in self.sections), default=0)


def plan_program(
    program: CompiledProgram, sizes: Mapping[str, int], workspace: int = 0, make: Planner | None = None
) -> ProgramPlan:
    """Plans for all sections whose sizes are known; ArithmeticError where sizes make no sense."""
    if make is None:
        from weft.plan.sections import make_plan

        make = make_plan
    number = Numbers(sizes)
    parts: list[SectionPlan] = []
    unplanned: list[str] = []
    held = _held(program)
    for place, top in enumerate(program.sections):
        for section, known in _native((top,), program.constants):
            constants = section_constants(section, known)
            try:
                own = section.outputs if section is not top else ()
                beside = sum(_bytes(value, number) for value in (*held[place], *own) if _is_tensor(value))
                parts.append(SectionPlan(section, constants, make(section, constants, sizes), beside))
            except KeyError:
                unplanned += [task.origin for task in section.tasks]
    return ProgramPlan(
        tuple(parts),
        weight_bytes(program),
        workspace,
        sum(known_bytes(program.inputs, number)),
        sum(known_bytes(program.outputs, number)),
        max((part.beside for part in parts), default=0),
        tuple(dict.fromkeys(unplanned)),
    )


def launch_count(plan: Plan) -> int:
    return sum(_count(entry) for entry in plan.launches)


def _count(entry: PlannedLaunch | Repeated) -> int:
    return entry.count * len(entry.launches) if isinstance(entry, Repeated) else 1


def _held(program: CompiledProgram) -> list[list[Value]]:
    """For each section, the arrays beside the arena while it runs: made so far or now, and needed now or later."""
    made: dict[Value, int] = {}
    last: dict[Value, int] = {}
    for place, section in enumerate(program.sections):
        reads, writes = _seen(section)
        made.update((value, place) for value in writes)
        last.update((value, place) for value in (*reads, *writes))
    last.update((value, len(program.sections)) for value in program.outputs)
    return [
        [value for value, start in made.items() if start <= place <= last[value]]
        for place in range(len(program.sections))
    ]


def _seen(section: Section) -> tuple[Sequence[Value], Sequence[Value]]:
    if isinstance(section, NativeSection):
        return section.inputs, section.outputs
    return (
        [value for step in section.steps for value in step.operands],
        [value for step in section.steps for value in step.results],
    )


def weight_bytes(program: CompiledProgram) -> int:
    """Bytes of all constants, those that lie in the same memory once; the insides of host steps too."""
    found: dict[tuple[int, int], int] = {}
    packed = 0
    for array in _constants(program.constants, program.sections):
        if isinstance(array, np.ndarray):
            found[array.ctypes.data, array.nbytes] = array.nbytes
        else:
            packed += int(getattr(array, "nbytes", 0))
    return sum(found.values()) + packed


def _constants(constants: Mapping[Value, Any], sections: Iterable[Section]) -> Iterable[Any]:
    yield from constants.values()
    for section, known in _native(sections, constants):
        yield from section_constants(section, known).values()
        yield from (constant for work in all_works(section) for constant in work.constants)


def _native(
    sections: Iterable[Section], constants: Mapping[Value, Any]
) -> Iterator[tuple[NativeSection, Mapping[Value, Any]]]:
    """Native sections with the constants around them, those inside of control flow too."""
    for section in sections:
        if isinstance(section, NativeSection):
            yield section, constants
            continue
        inside = [body for step in section.steps for body in bodies(step.primitive)]
        for body, parts in zip(inside, section.bodies):
            yield from _native(parts, body.constants)


def local_bytes(program: CompiledProgram) -> int:
    """What a thread needs for the local buffers of a kernel."""
    return max((_local_bytes(section) for section in program.sections), default=0)


def _local_bytes(section: Section) -> int:
    if not isinstance(section, NativeSection):
        return max((_local_bytes(part) for body in section.bodies for part in body), default=0)
    kernels = [launch.kernel for work in all_works(section) for launch in work.launches]
    return max(
        (
            sum(b.local_size * b.dtype.numpy.itemsize for b in kernel.buffers if b.local_size is not None)
            for kernel in kernels
        ),
        default=0,
    )


def _is_tensor(value: Value) -> bool:
    return isinstance(value.type, TensorType) and value.type.dtype is not DType.string


def known_bytes(values: Iterable[Value], number: Numbers) -> Iterable[int]:
    """Of each value, 0 where that cannot be told."""
    for value in values:
        try:
            yield _bytes(value, number)
        except KeyError:
            yield 0


def _bytes(value: Value, number: Numbers) -> int:
    if not isinstance(value.type, TensorType) or value.type.shape is None or value.type.dtype is DType.string:
        raise KeyError(str(value))
    return prod(map(number, value.type.shape)) * value.type.dtype.numpy.itemsize
