"""An assignment of units to devices -> parts that run as pieces, in order, and how long they are expected to take.

Parts are as large as they can be: a unit belongs to the part of its device that has crossed between devices as often on
the way to it. Nothing of such a part can wait for another that waits for it.
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.cost.calibration import Direction, transfer_seconds
from weft.placement.units import Candidate, Passing, Problem
from weft.records import dataclass

PIECE_SECONDS = 3e-5  # that a piece takes on any device beside what a run there costs
WORTH_A_THREAD = 5e-4  # seconds that two parts overlap at least, for a thread to be started

Assignment = tuple[int, ...]
"""The number of the candidate that each unit runs on."""


@dataclass(frozen=True, slots=True)
class Rules:
    """The candidate that units stay on unless they are moved, and which may be.

    What leaves it is taken to cost `caution` times what is predicted: predictions are not exact.
    """

    primary: int
    movable: frozenset[int] = frozenset()
    caution: float = 1.0


@dataclass(frozen=True, slots=True)
class ScheduledPart:
    """Units that run as one piece, the parts that it needs something of, and the seconds it is expected to take."""

    device: int
    units: tuple[int, ...]
    after: tuple[int, ...]
    seconds: float


@dataclass(frozen=True, slots=True)
class Schedule:
    """An assignment as parts in order, and how long they are expected to take; `side_by_side`: those may overlap.

    The primary candidate is the one that others were moved from.
    """

    primary: int
    assignment: Assignment
    parts: tuple[ScheduledPart, ...]
    seconds: float
    side_by_side: bool


@dataclass(frozen=True, slots=True)
class Crossing:
    """A value that goes from one candidate's memory to another's, None for the host's; between which parts."""

    passing: Passing
    source: int | None
    target: int | None
    maker: int | None  # the part that makes it; None: the caller gives it
    reader: int | None  # the first part that needs it there; None: the caller does


def schedule(problem: Problem, assignment: Assignment, rules: Rules) -> Schedule:
    """How an assignment runs."""
    parts, where = _parts(problem, assignment)
    after = [
        tuple(sorted({where[other] for unit in units for other in problem.units[unit].before} - {number}))
        for number, (_, units) in enumerate(parts)
    ]
    transfers = _transfer_seconds(problem, assignment, where, rules.caution)
    scheduled = []
    for number, (device, units) in enumerate(parts):
        factor = 1.0 if device == rules.primary else rules.caution
        own = PIECE_SECONDS if len(parts) > 1 else 0.0
        run = problem.candidates[device].calibration.run_seconds
        work = sum(problem.units[unit].seconds[device] for unit in units)
        seconds = own + factor * (run + work) + transfers[number]
        scheduled.append(ScheduledPart(device, tuple(units), after[number], seconds))
    side_by_side = _overlap(scheduled)
    seconds = _last_end(scheduled) if side_by_side else sum(part.seconds for part in scheduled)
    return Schedule(rules.primary, assignment, tuple(scheduled), seconds, side_by_side)


def crossings(problem: Problem, assignment: Assignment) -> list[Crossing]:
    """All values that have to be brought from one memory to another, each once for each."""
    return _crossings(problem, assignment, _parts(problem, assignment)[1])


def _parts(problem: Problem, assignment: Assignment) -> tuple[list[tuple[int, list[int]]], list[int]]:
    """Units by part, in order, with the part's device; and the part of each unit."""
    levels: list[int] = []
    found: dict[tuple[int, int], list[int]] = {}
    for number, unit in enumerate(problem.units):
        device = assignment[number]
        levels.append(max((levels[other] + (assignment[other] != device) for other in unit.before), default=0))
        found.setdefault((levels[number], device), []).append(number)
    where = [0] * len(problem.units)
    parts = []
    for place, key in enumerate(sorted(found)):
        parts.append((key[1], found[key]))
        for member in found[key]:
            where[member] = place
    return parts, where


# -- transfers -------------------------------------------------------------------------------------------------------


def _crossings(problem: Problem, assignment: Assignment, where: Sequence[int]) -> list[Crossing]:
    memories = [number if candidate.has_memory else None for number, candidate in enumerate(problem.candidates)]
    found = []
    for passing in problem.passing:
        source = None if passing.maker is None else memories[assignment[passing.maker]]
        maker = None if passing.maker is None else where[passing.maker]
        readers: dict[int | None, int | None] = {}
        for unit in sorted(passing.readers, key=where.__getitem__):
            readers.setdefault(memories[assignment[unit]], where[unit])
        if passing.is_output:
            readers.setdefault(None, None)
        found += [Crossing(passing, source, to, maker, reader) for to, reader in readers.items() if to != source]
    return found


def _transfer_seconds(problem: Problem, assignment: Assignment, where: Sequence[int], caution: float) -> list[float]:
    """For each part, what it takes to bring there what it reads and away what others read; one way goes together."""
    count = max(where, default=-1) + 1
    up: list[dict[Passing, bool]] = [{} for _ in range(count)]  # whether it is between parts, by what is moved
    down: list[dict[Passing, bool]] = [{} for _ in range(count)]
    for crossing in _crossings(problem, assignment, where):
        inner = crossing.maker is not None and crossing.reader is not None
        if crossing.target is not None and crossing.reader is not None:
            up[crossing.reader][crossing.passing] = inner
        if crossing.source is not None and crossing.maker is not None:
            down[crossing.maker][crossing.passing] = inner or down[crossing.maker].get(crossing.passing, False)
    devices = {place: problem.candidates[assignment[unit]] for unit, place in enumerate(where)}
    return [
        _one_way(up[number], devices[number], "up", caution) + _one_way(down[number], devices[number], "down", caution)
        for number in range(count)
    ]


def _one_way(moved: dict[Passing, bool], device: Candidate, direction: Direction, caution: float) -> float:
    if not moved:
        return 0.0
    seconds = transfer_seconds(sum(passing.bytes for passing in moved), device.calibration, direction)
    return seconds * (caution if any(moved.values()) else 1.0)


# -- time ------------------------------------------------------------------------------------------------------------


def _overlap(parts: Sequence[ScheduledPart]) -> bool:
    """Whether two parts on different devices, of which none waits for the other, are worth a thread."""
    reached: list[set[int]] = []
    for part in parts:
        reached.append(set(part.after).union(*(reached[other] for other in part.after)))
    return any(
        parts[other].device != part.device
        and other not in reached[number]
        and min(parts[other].seconds, part.seconds) >= WORTH_A_THREAD
        for number, part in enumerate(parts)
        for other in range(number)
    )


def _last_end(parts: Sequence[ScheduledPart]) -> float:
    """When all are done, if each begins once what it needs is there and its device is free."""
    free: dict[int, float] = {}
    ends: list[float] = []
    for part in parts:
        begin = max([free.get(part.device, 0.0), *(ends[other] for other in part.after)])
        ends.append(begin + part.seconds)
        free[part.device] = ends[-1]
    return max(ends, default=0.0)
