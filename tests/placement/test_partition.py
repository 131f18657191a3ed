"""Which unit runs where: as good as trying everything, never behind one device, in pieces that wait in no circle."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
from placement.forcing import calibration

from weft.cost.calibration import Transfer
from weft.ir.dtypes import DType
from weft.ir.program import TensorProgram, Value
from weft.ir.types import TensorType
from weft.placement.partition import CAUTION, MARGIN, best_single, divided, without_lacking
from weft.placement.schedule import Rules, Schedule, schedule
from weft.placement.units import Candidate, Passing, Problem, Unit

SEEDS = range(60)


def random_problem(seed: int, count: int = 9) -> Problem:
    """Units that read some of those before them, on a device with memory of its own and one without."""
    rng = random.Random(seed)
    moved = Transfer(rng.choice([0.0, 1e-5, 5e-5]), rng.choice([1e9, 1e10]))
    candidates = (
        Candidate("far", None, calibration("far", run=rng.choice([1e-5, 1e-4]), moved=moved), has_memory=True),  # type: ignore[arg-type]
        Candidate("near", None, calibration("near", run=1e-6), has_memory=False),  # type: ignore[arg-type]
    )
    units, passing = [], []
    readers: list[list[int]] = [[] for _ in range(count)]
    for number in range(count):
        before = frozenset(other for other in range(number) if rng.random() < 0.35)
        for other in before:
            readers[other].append(number)
        seconds = (10 ** rng.uniform(-6, -3), 10 ** rng.uniform(-6, -3))
        lacking = ("no kernel" if rng.random() < 0.3 else None, None)
        units.append(Unit(None, before, seconds, lacking))  # type: ignore[arg-type]
    for number in range(count):
        is_output = not readers[number] or rng.random() < 0.1
        passing.append(Passing(_value(number), number, tuple(readers[number]), is_output, rng.choice([64, 10**6])))
    first = [number for number, unit in enumerate(units) if not unit.before]
    passing.append(Passing(_value(count), None, tuple(first), False, rng.choice([64, 10**6])))
    return Problem(TensorProgram((), (), ()), TensorProgram((), (), ()), candidates, tuple(units), tuple(passing))


def _value(number: int) -> Value:
    return Value(number, TensorType(DType.float32, (1,)))


def _everything(problem: Problem, rules: Rules) -> Schedule:
    """The shortest schedule of all there are, if parts run one after the other: units are not moved to overlap."""
    choices = [(0, 1) if number in rules.movable else (rules.primary,) for number in range(len(problem.units))]
    return min((schedule(problem, found, rules) for found in product(*choices)), key=_in_order)


def _in_order(found: Schedule) -> float:
    return sum(part.seconds for part in found.parts)


def test_as_good_as_trying_everything() -> None:
    """Pieces are no part of the exact cut, so that a few schedules may be a little longer than the shortest."""
    behind = []
    for seed in SEEDS:
        problem = random_problem(seed)
        rules = Rules(best_single(problem).primary, frozenset(range(len(problem.units))), CAUTION)
        best = _everything(problem, rules)
        single = best_single(problem)
        found = divided(problem)
        if found is None:
            assert _in_order(best) > 0.97 * MARGIN * single.seconds or len(best.parts) == 1, f"seed {seed}"
        else:
            assert found.seconds <= MARGIN * single.seconds, f"seed {seed}"
            behind.append(found.seconds / _in_order(best))
    assert len(behind) > len(SEEDS) // 4
    assert max(behind) < 1.1
    assert sum(ratio > 1.001 for ratio in behind) < len(behind) // 5


@pytest.mark.parametrize("seed", SEEDS)
def test_only_what_lacks_kernels_leaves_a_named_device(seed: int) -> None:
    problem = random_problem(seed)
    movable = frozenset(number for number, unit in enumerate(problem.units) if unit.lacking[0])
    found = without_lacking(problem)
    assert {number for number, device in enumerate(found.assignment) if device != 0} <= movable
    assert found.seconds <= 1.1 * _in_order(_everything(problem, Rules(0, movable)))


@pytest.mark.parametrize("seed", SEEDS)
def test_parts_wait_in_no_circle(seed: int) -> None:
    problem = random_problem(seed, 30)
    rng = random.Random(seed)
    found = schedule(problem, tuple(rng.randrange(2) for _ in problem.units), Rules(0))
    where = {unit: number for number, part in enumerate(found.parts) for unit in part.units}
    assert sorted(where) == list(range(len(problem.units)))
    for number, part in enumerate(found.parts):
        assert all(other < number for other in part.after)
        assert {found.assignment[unit] for unit in part.units} == {part.device}
        needed = {where[other] for unit in part.units for other in problem.units[unit].before} - {number}
        assert set(part.after) == needed


def _chain(*seconds: tuple[float, float], **changes: Any) -> Problem:
    """Units one after the other, each passing a few bytes on."""
    moved = Transfer(1e-5, 1e10)
    far, near = calibration("far", run=1e-5, moved=moved), calibration("near", run=1e-6)
    candidates = (Candidate("far", None, far, True), Candidate("near", None, near, False))  # type: ignore[arg-type]
    units = tuple(
        Unit(None, frozenset({number - 1} if number else ()), both, (None, None))  # type: ignore[arg-type]
        for number, both in enumerate(seconds)
    )
    last = len(units) - 1
    passing = tuple(
        Passing(_value(number), number, () if number == last else (number + 1,), number == last, 64)
        for number in range(len(units))
    )
    return replace(Problem(TensorProgram((), (), ()), TensorProgram((), (), ()), candidates, units, passing), **changes)


def test_a_sequential_step_between_large_ones_is_moved() -> None:
    found = divided(_chain((1e-3, 1e-1), (5e-2, 1e-3), (1e-3, 1e-1)))
    assert found is not None
    assert found.assignment == (0, 1, 0)
    assert [part.device for part in found.parts] == [0, 1, 0]
    assert not found.side_by_side


def test_what_saves_less_than_pieces_cost_stays() -> None:
    assert divided(_chain((1e-3, 1e-1), (2e-5, 1e-6), (1e-3, 1e-1))) is None


def test_a_small_promise_is_not_believed() -> None:
    assert divided(_chain((1e-3, 1e-1), (5e-4, 1e-6), (1e-3, 1e-1))) is not None
    assert divided(_chain((1e-3, 1e-1), (1.5e-4, 1e-6), (1e-3, 1e-1))) is None


def test_independent_parts_overlap() -> None:
    """Two branches, each quick on another device, are expected to take as long as the longer one."""
    problem = _chain((1e-3, 1e-1), (1e-1, 1e-3), (1e-5, 1e-5))
    units = tuple(replace(unit, before=frozenset({0, 1} if n == 2 else ())) for n, unit in enumerate(problem.units))
    passing = (
        Passing(_value(0), 0, (2,), False, 64),
        Passing(_value(1), 1, (2,), False, 64),
        Passing(_value(2), 2, (), True, 64),
    )
    found = divided(replace(problem, units=units, passing=passing))
    assert found is not None
    assert found.side_by_side
    assert found.seconds < CAUTION * 1e-3 + 3e-4
