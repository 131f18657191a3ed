"""The memory of a whole program for one set of sizes, known before anything runs.

Weights are constants that launches and host steps read. Sections run one after the other in the same arena, as large as
any of them needs; values passed between sections, and the outputs, have memory of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from weft.ir.arrays import Array
from weft.ir.compiled import CompiledProgram, section_constants
from weft.ir.dim_evaluator import DimEvaluator
from weft.ir.dtypes import DType
from weft.ir.program import Value, bodies
from weft.ir.work import NativeSection, PlannedLaunch, Repeated, Section, all_works
from weft.plan.plan import Plan
from weft.quantities import format_bytes, format_plural
from weft.records import dataclass

Planner = Callable[[NativeSection, Mapping[Value, Array], Mapping[str, int]], Plan]


@dataclass(frozen=True, slots=True)
class SectionPlan:
    """A native section with its plan, and the bytes of arrays besides the arena while it runs, outputs included."""

    section: NativeSection
    constants: Mapping[Value, Array]
    plan: Plan
    beside: int


@dataclass(frozen=True, slots=True)
class ProgramPlan:
    """The plans of a program's sections. `unplanned` nodes have sizes that depend on data; they are not counted."""

    sections: tuple[SectionPlan, ...]
    weights: int
    workspace: int  # bytes that a run and its threads need on the device besides the arena
    inputs: int
    outputs: int
    beside: int  # the most bytes of arrays besides the arena, outputs included
    unplanned: tuple[str, ...]

    def __repr__(self) -> str:
        parts = f"arena {format_bytes(self.arena)}, weights {format_bytes(self.weights)}"
        return f"<memory plan: {format_plural(len(self.sections), 'section')}, {parts}>"

    @property
    def busiest(self) -> SectionPlan | None:
        """The section with the largest arena."""
        return max(self.sections, key=lambda part: part.plan.arena_bytes, default=None)

    @property
    def arena(self) -> int:
        """Bytes of the arena, which all sections share."""
        return max((part.plan.arena_bytes for part in self.sections), default=0)

    @property
    def lower_bound(self) -> int:
        """The most bytes alive at any step: no arena can be smaller."""
        return max((part.plan.lower_bound for part in self.sections), default=0)


def plan_program(
    program: CompiledProgram, sizes: Mapping[str, int], workspace: int = 0, make: Planner | None = None
) -> ProgramPlan:
    """Plan all sections whose sizes are known; ArithmeticError for impossible sizes."""
    if make is None:
        from weft.plan.sections import make_plan

        make = make_plan
    number = DimEvaluator(sizes)
    parts: list[SectionPlan] = []
    unplanned: list[str] = []
    alive = _alive_arrays(program)
    for place, top in enumerate(program.sections):
        for section, outer in _native_sections((top,), program.constants):
            constants = section_constants(section, outer)
            try:
                outputs = section.outputs if section is not top else ()
                beside = sum(_bytes(value, number) for value in (*alive[place], *outputs) if _is_tensor(value))
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


def _alive_arrays(program: CompiledProgram) -> list[list[Value]]:
    """List for each section the arrays besides the arena that are alive while it runs."""
    first: dict[Value, int] = {}
    last: dict[Value, int] = {}
    for place, section in enumerate(program.sections):
        reads, writes = _uses(section)
        first.update((value, place) for value in writes)
        last.update((value, place) for value in (*reads, *writes))
    last.update((value, len(program.sections)) for value in program.outputs)
    return [
        [value for value, start in first.items() if start <= place <= last[value]]
        for place in range(len(program.sections))
    ]


def _uses(section: Section) -> tuple[Sequence[Value], Sequence[Value]]:
    if isinstance(section, NativeSection):
        return section.inputs, section.outputs
    return (
        [value for step in section.steps for value in step.operands],
        [value for step in section.steps for value in step.results],
    )


def weight_bytes(program: CompiledProgram) -> int:
    """Sum the bytes of all constants, including those of bodies; constants in the same memory count once."""
    by_address: dict[tuple[int, int], int] = {}
    packed = 0
    for array in _all_constants(program.constants, program.sections):
        if isinstance(array, np.ndarray):
            by_address[array.ctypes.data, array.nbytes] = array.nbytes
        else:
            packed += int(getattr(array, "nbytes", 0))
    return sum(by_address.values()) + packed


def _all_constants(constants: Mapping[Value, Any], sections: Iterable[Section]) -> Iterable[Any]:
    yield from constants.values()
    for section, outer in _native_sections(sections, constants):
        yield from section_constants(section, outer).values()
        yield from (constant for work in all_works(section) for constant in work.constants)


def _native_sections(
    sections: Iterable[Section], constants: Mapping[Value, Any]
) -> Iterator[tuple[NativeSection, Mapping[Value, Any]]]:
    """Yield native sections, including those of bodies, with the constants of their program."""
    for section in sections:
        if isinstance(section, NativeSection):
            yield section, constants
            continue
        inside = [body for step in section.steps for body in bodies(step.primitive)]
        for body, parts in zip(inside, section.bodies):
            yield from _native_sections(parts, body.constants)


def local_bytes(program: CompiledProgram) -> int:
    """Return the bytes that a thread needs for the local buffers of a kernel."""
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
    return value.is_tensor and value.dtype is not DType.string


def known_bytes(values: Iterable[Value], number: DimEvaluator) -> Iterable[int]:
    """Yield the bytes of each value, 0 if unknown."""
    for value in values:
        try:
            yield _bytes(value, number)
        except KeyError:
            yield 0


def _bytes(value: Value, number: DimEvaluator) -> int:
    if not value.has_shape or value.dtype is DType.string:
        raise KeyError(str(value))
    return prod(map(number, value.shape)) * value.itemsize
