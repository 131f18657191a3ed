"""Plans of random sections are valid and small, and the verifier finds faults in them."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st
from plan.random_sections import RandomSection, expected_outputs, launch, random_section, run_plan, size_of

from weft.ir.program import Value
from weft.ir.types import TensorType
from weft.ir.work import NativeSection, Place, PlannedLaunch, Reference, Task, Work
from weft.plan.plan import ARENA, Plan
from weft.plan.sections import make_plan
from weft.plan.verify import PlanError, verify_plan

SEEDS = st.integers(0, 1 << 30)


def inputs_of(case: RandomSection) -> list[np.ndarray]:
    return [np.random.default_rng(7).integers(0, 256, size_of(value), np.uint8) for value in case.section.inputs]


@given(seed=SEEDS)
@settings(max_examples=150)
def test_plans_give_the_results_of_separate_memory(seed: int) -> None:
    note(f"seed {seed}")
    case = random_section(seed)
    for steps in (None, case.steps):
        plan = make_plan(case.section, case.constants, {}, steps)
        verify_plan(case.section, plan, case.constants, {})
        assert plan.lower_bound <= plan.arena_bytes <= 1.25 * plan.lower_bound
        for expected, actual in zip(expected_outputs(case, inputs_of(case)), run_plan(case, plan, inputs_of(case))):
            np.testing.assert_array_equal(actual, expected)


@given(seed=SEEDS)
@settings(max_examples=150)
def test_verifier_accepts_only_correct_plans(seed: int) -> None:
    """A random change of a place is reported, or does not change results."""
    note(f"seed {seed}")
    case = random_section(seed, tasks=15)
    plan = make_plan(case.section, case.constants, {})
    broken = changed(plan, random.Random(seed))
    try:
        verify_plan(case.section, broken, case.constants, {})
    except PlanError:
        return
    for expected, actual in zip(expected_outputs(case, inputs_of(case)), run_plan(case, broken, inputs_of(case))):
        np.testing.assert_array_equal(actual, expected)


def changed(plan: Plan, chooser: random.Random) -> Plan:
    launches = [entry for entry in plan.launches if isinstance(entry, PlannedLaunch)]
    number = chooser.randrange(len(launches))
    buffers = list(launches[number].buffers)
    index = chooser.randrange(len(buffers))
    place = buffers[index]
    if place.region == ARENA:
        buffers[index] = Place(ARENA, 64 * chooser.randrange(plan.arena_bytes // 64 + 1))
    else:
        buffers[index] = Place(place.region, place.offset + chooser.choice([-64, 64, 1]))
    launches[number] = replace(launches[number], buffers=tuple(buffers))
    return replace(plan, launches=tuple(launches))


# -- planted faults ----------------------------------------------------------------------------------------------------


def chain() -> tuple[RandomSection, Plan]:
    """in -> a -> b -> c -> out, each of 640 bytes; a is read again by c."""
    case = random_section(0, tasks=1)
    source = case.section.inputs[0]
    values = [replace(source, number=2000 + n, name=name) for n, name in enumerate("abc")]
    out = replace(source, number=2010, name="out")
    a, b, c = values

    def task(operands: tuple, result: object) -> Task:
        reads = [Reference("operand", number) for number in range(len(operands))]
        return Task(Work((launch("mix", reads, [Reference("result", 0)]),)), operands, (result,), f"makes {result}")

    tasks = (task((source,), a), task((a,), b), task((a, b), c), task((c,), out))
    section = NativeSection(tasks, {}, (source,), (out,))
    chained = RandomSection(section, {}, ((0,), (1,), (2,), (3,)))
    return chained, make_plan(section, {}, {})


def with_buffer(plan: Plan, number: int, index: int, place: Place) -> Plan:
    launches = list(plan.launches)
    entry = launches[number]
    assert isinstance(entry, PlannedLaunch)
    buffers = [*entry.buffers[:index], place, *entry.buffers[index + 1 :]]
    launches[number] = replace(entry, buffers=tuple(buffers))
    return replace(plan, launches=tuple(launches))


def place_of(plan: Plan, number: int, index: int) -> Place:
    entry = plan.launches[number]
    assert isinstance(entry, PlannedLaunch)
    return entry.buffers[index]


def check(case: RandomSection, plan: Plan, steps: tuple[tuple[int, ...], ...] | None = None) -> None:
    verify_plan(case.section, plan if steps is None else replace(plan, steps=steps), case.constants, {})


def test_chain_is_valid() -> None:
    check(*chain())


def test_overlap_is_found() -> None:
    case, plan = chain()
    beside = place_of(plan, 0, 1)
    with pytest.raises(PlanError, match="over operand 0"):
        check(case, with_buffer(plan, 1, 1, Place(ARENA, beside.offset + 1)))


def test_early_reuse_is_found() -> None:
    """b overwrites a, which c still reads."""
    case, plan = chain()
    a = place_of(plan, 0, 1)
    moved = with_buffer(with_buffer(plan, 1, 0, a), 2, 0, place_of(plan, 1, 1))
    with pytest.raises(PlanError, match="operand 0 of makes"):
        check(case, moved)


@pytest.mark.usefixtures("unverified")
def test_late_write_is_found() -> None:
    case, plan = chain()
    first, second, *rest = plan.launches
    with pytest.raises(PlanError, match="missing"):
        check(case, replace(plan, launches=(second, first, *rest)))
    swapped = replace(case.section, tasks=(case.section.tasks[1], case.section.tasks[0], *case.section.tasks[2:]))
    reordered = make_plan(swapped, {}, {})
    with pytest.raises(PlanError, match=r"nothing was written there|is there"):
        verify_plan(swapped, reordered, {}, {})


def test_places_out_of_range_are_found() -> None:
    case, plan = chain()
    with pytest.raises(PlanError, match="leave region"):
        check(case, with_buffer(plan, 0, 1, Place(ARENA, plan.arena_bytes - 1)))
    with pytest.raises(PlanError, match="leave region"):
        check(case, with_buffer(plan, 0, 0, Place(place_of(plan, 0, 0).region, 1)))
    with pytest.raises(PlanError, match="leave region"):
        check(case, replace(plan, arena_bytes=plan.arena_bytes - 64))


def test_parallel_launches_that_share_memory_are_found() -> None:
    case, plan = chain()
    for after in ((), (1,)):
        launches = list(plan.launches)
        assert isinstance(launches[2], PlannedLaunch)
        launches[2] = replace(launches[2], after=after)
        if after:
            check(case, replace(plan, launches=tuple(launches)))  # which waits for the first one
        else:
            with pytest.raises(PlanError, match="in parallel"):
                check(case, replace(plan, launches=tuple(launches)))
    eager = replace(plan, launches=tuple(replace(launch, after=None) for launch in plan.launches))
    check(case, eager)
    with pytest.raises(PlanError, match="in parallel"):
        check(case, eager, ((0, 1), (2,), (3,)))
    with pytest.raises(PlanError, match="every task once"):
        check(case, plan, ((0,), (1,), (2,)))


def test_missing_and_surplus_launches_are_found() -> None:
    case, plan = chain()
    with pytest.raises(PlanError, match="missing"):
        check(case, replace(plan, launches=plan.launches[:2] + plan.launches[3:]))
    with pytest.raises(PlanError, match="belongs to no task"):
        check(case, replace(plan, launches=(*plan.launches, plan.launches[0])))


def test_outputs_must_be_where_they_belong() -> None:
    case, plan = chain()
    with pytest.raises(PlanError, match="output"):
        check(case, with_buffer(plan, 3, 1, Place(ARENA, 0)))


# -- order -------------------------------------------------------------------------------------------------------------


@given(seed=SEEDS)
@settings(max_examples=60)
def test_chosen_order_never_needs_more_memory(seed: int) -> None:
    note(f"seed {seed}")
    case = random_section(seed, tasks=40)
    own = [(number,) for number in range(len(case.section.tasks))]
    chosen = make_plan(case.section, case.constants, {})
    assert chosen.lower_bound <= make_plan(case.section, case.constants, {}, own).lower_bound
    assert chosen == make_plan(case.section, case.constants, {})


def test_branches_are_scheduled_depth_first() -> None:
    """Four branches widen and narrow again; in the file's breadth-first order all wide values are live at once."""
    case = random_section(0, tasks=1)
    source = case.section.inputs[0]

    def value(number: int, size: int) -> Value:
        return Value(3000 + number, TensorType(source.type.dtype, (size,)), f"b{number}")  # type: ignore[union-attr]

    def task(operands: tuple[Value, ...], result: Value) -> Task:
        reads = [Reference("operand", number) for number in range(len(operands))]
        return Task(Work((launch("mix", reads, [Reference("result", 0)]),)), operands, (result,), f"makes {result}")

    wide, narrow = [value(n, 64_000) for n in range(4)], [value(10 + n, 64) for n in range(4)]
    out = value(20, 64)
    tasks = (
        *(task((source,), w) for w in wide),
        *(task((w,), n) for w, n in zip(wide, narrow)),
        task(tuple(narrow), out),
    )
    section = NativeSection(tasks, {}, (source,), (out,))
    own = make_plan(section, {}, {}, [(number,) for number in range(len(tasks))])
    assert own.lower_bound > 4 * 64_000
    assert make_plan(section, {}, {}).lower_bound < 1.1 * 64_000
