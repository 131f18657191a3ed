"""A schedule -> pieces of the program, and the record of what was placed where and why."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from weft.cost.prediction import number_at
from weft.fuse.host import host_by_nature
from weft.ir.mixed import CrossingValue, MovedStep, PieceRecord, PlacementRecord
from weft.ir.program import Scan, Step, step_name
from weft.placement.partition import on_one
from weft.placement.pieces import DeviceSteps, ProgramPiece, cut
from weft.placement.schedule import Schedule, crossings
from weft.placement.units import Problem


def pieces_of(problem: Problem, schedule: Schedule) -> tuple[ProgramPiece, ...]:
    """The parts of a schedule as programs; where there is only one, that is the program as it came."""
    if len(schedule.parts) == 1:
        return (ProgramPiece(problem.candidates[schedule.parts[0].device].name, problem.source),)
    order = {id(step): number for number, step in enumerate(problem.program.steps)}
    parts = []
    for part in schedule.parts:
        steps = [step for unit in part.units for step in problem.units[unit].group.steps]
        steps.sort(key=lambda step: order[id(step)])
        parts.append(DeviceSteps(problem.candidates[part.device].name, tuple(steps)))
    return cut(problem.program, parts)


def record_of(
    problem: Problem, schedule: Schedule, sizes: Mapping[str, int], kernels: Sequence[int]
) -> PlacementRecord:
    """What a schedule means, for people; `kernels` is how many each of its parts has become."""
    names = [candidate.name for candidate in problem.candidates]
    return PlacementRecord(
        names[schedule.primary],
        tuple(
            PieceRecord(names[part.device], _steps(problem, part.units), count, part.seconds)
            for part, count in zip(schedule.parts, kernels, strict=True)
        ),
        tuple(_moved(problem, schedule, sizes)),
        tuple(_crossing(problem, schedule, names)),
        schedule.seconds,
        tuple((name, on_one(problem, number).seconds) for number, name in enumerate(names)),
        tuple(sizes.items()),
        schedule.side_by_side,
        assignment=tuple(names[device] for device in schedule.assignment),
    )


def _steps(problem: Problem, units: Sequence[int]) -> int:
    return sum(len(problem.units[unit].group.steps) for unit in units)


def _crossing(problem: Problem, schedule: Schedule, names: Sequence[str]) -> Iterator[CrossingValue]:
    for one in crossings(problem, schedule.assignment):
        source, target = ("" if end is None else names[end] for end in (one.source, one.target))
        yield CrossingValue(one.passing.value.name or str(one.passing.value), source, target, one.passing.bytes)


def _moved(problem: Problem, schedule: Schedule, sizes: Mapping[str, int]) -> Iterator[MovedStep]:
    """The steps that left the primary device; those of one unit share its seconds evenly."""
    names = [candidate.name for candidate in problem.candidates]
    for unit, device in zip(problem.units, schedule.assignment):
        if device == schedule.primary:
            continue
        here, there = unit.seconds[schedule.primary], unit.seconds[device]
        times = f"{duration(here)} on {names[schedule.primary]}, {duration(there)} on {names[device]}"
        share = len(unit.group.steps)
        for step in unit.group.steps:
            lacking = unit.lacking[schedule.primary]
            reason = _reason(step, lacking, times, here <= there, sizes)
            node, name = step.origin, step_name(step)
            yield MovedStep(node, name, names[device], reason, lacking is not None, there / share, here / share)


def _reason(step: Step, lacking: str | None, times: str, along: bool, sizes: Mapping[str, int]) -> str:
    nature = host_by_nature(step)
    if lacking is not None or nature is not None:
        return lacking or nature or ""
    if along:
        return f"goes along with its neighbours, so that fewer values cross: {times}"
    if isinstance(step.primitive, Scan):
        return f"sequential: {number_at(step.primitive.length, sizes):,} turns, {times}"
    return times


def duration(seconds: float) -> str:
    """A time in a unit of its size."""
    for unit, name in ((1.0, "s"), (1e-3, "ms")):
        if seconds >= unit:
            return f"{seconds / unit:.3g} {name}"
    return f"{seconds / 1e-6:.3g} µs"
