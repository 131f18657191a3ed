"""Verify the memory of exported models: launches are replayed on labelled bytes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from export import networks

from weft.backends.naming import with_unique_names
from weft.export.units import CodeUnit, UnitBuilder
from weft.ir.arrays import Array
from weft.ir.compiled import section_constants
from weft.ir.dim_evaluator import DimEvaluator
from weft.ir.packing import load_constant
from weft.ir.program import Value
from weft.ir.work import NativeSection, Place, PlannedLaunch, Reference, Task
from weft.loading import open_pipeline
from weft.plan.plan import ABSOLUTE, ARENA, ERRORS, FIRST_FREE, Plan
from weft.plan.usual_sizes import usual_sizes
from weft.plan.verify import PlanError, verify_plan
from weft.runtime.options import LoadOptions


def _unit(source: bytes) -> CodeUnit:
    pipeline = open_pipeline(source, LoadOptions(device="cpu", cache=False))
    program = pipeline.program()
    sections = with_unique_names(pipeline.build(pipeline.fuse(program)))
    usual = next(iter(usual_sizes(program.inputs, program.guards, {})))
    return UnitBuilder(program.inputs, (), usual).build(program, sections, {})


def _plan(unit: CodeUnit, sizes: Mapping[str, int], constants: Mapping[Value, Array]) -> tuple[NativeSection, Plan]:
    """Return the plan of a unit with one section for some sizes."""
    (section,), layout = unit.sections, unit.layouts[0]
    number = DimEvaluator(sizes)
    for definition in unit.planner.definitions:
        number.bind(definition.name, max(map(number, definition.parts)))
    start = number(unit.offsets[0, "section"])
    places: dict[Any, Place] = {owner: Place(ARENA, start + number(offset)) for owner, offset in layout.offsets.items()}
    places |= {value: Place(ABSOLUTE, array.ctypes.data) for value, array in constants.items()}
    external = (*section.inputs, *section.outputs)
    places |= {value: Place(FIRST_FREE + count) for count, value in enumerate(external)}
    packed: list[Array] = list(constants.values())
    launches: list[PlannedLaunch] = []

    def locate(value: Value) -> Place:
        home = layout.storage.home(value)
        place = places.get(home.base, Place(ABSOLUTE))
        return Place(place.region, place.offset + number(home.offset))

    def locate_buffer(reference: Reference, task: Task, at: int) -> Place:
        match reference.kind:
            case "operand":
                return locate(task.operands[reference.number])
            case "result":
                return locate(task.results[reference.number])
            case "workspace":
                return places[at, reference.number]
            case "constant":
                packed.append(np.ascontiguousarray(load_constant(task.work.constants[reference.number])))
                return Place(ABSOLUTE, packed[-1].ctypes.data)
            case _:
                return Place(ERRORS)

    for at in layout.order:
        task = section.tasks[at]
        assert isinstance(task, Task)
        for index, launch in enumerate(task.work.launches):
            if (at, index) not in layout.storage.skipped:
                blocks = number(launch.blocks)
                buffers = tuple(locate_buffer(reference, task, at) for reference in launch.references)
                parameters = number.parameters(launch.values, blocks)
                launches.append(PlannedLaunch(launch.kernel, blocks, buffers, parameters, task.origin, at))
    steps = tuple((at,) for at in layout.order)
    return section, Plan(tuple(launches), number(unit.total), (), tuple(packed), (), 0, 0, steps)


CASES: dict[str, tuple[Callable[[], bytes], list[dict[str, int]]]] = {
    "convolutional": (networks.convnet, [{"batch": n} for n in (1, 2, 13)]),
    "transformer": (
        networks.transformer,
        [{"batch": n, "length": m} for n, m in ((1, 1), (1, 128), (9, 1), (3, 77), (2, 500))],
    ),
    "quantized": (networks.quantized_convnet, [{"n": n} for n in (1, 5)]),
    "passing": (networks.passthrough, [{"n": n} for n in (1, 100)]),
}


@pytest.mark.parametrize("case", CASES)
def test_no_launch_reads_overwritten_memory(case: str) -> None:
    build, runs = CASES[case]
    unit = _unit(build())
    (section,) = unit.sections
    constants = section_constants(section, unit.constants)
    for sizes in runs:
        section, plan = _plan(unit, sizes, constants)
        verify_plan(section, plan, constants, sizes)


def test_the_verifier_finds_memory_that_is_shared_too_early() -> None:
    unit = _unit(networks.transformer())
    (section,) = unit.sections
    constants = section_constants(section, unit.constants)
    sizes = {"batch": 2, "length": 9}
    section, plan = _plan(unit, sizes, constants)
    broken = [
        PlannedLaunch(
            launch.kernel,
            launch.blocks,
            tuple(Place(ARENA, 0) if place.region == ARENA else place for place in launch.buffers),
            launch.parameters,
            launch.origin,
            launch.task,
        )
        for launch in plan.launches
        if isinstance(launch, PlannedLaunch)
    ]
    wrong = Plan(tuple(broken), plan.arena_bytes, (), plan.constants, (), 0, 0, plan.steps)
    with pytest.raises(PlanError):
        verify_plan(section, wrong, constants, sizes)
