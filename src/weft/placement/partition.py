"""Which unit runs where: a cut of least cost between two devices, and then as few pieces as pay off.

The cut is exact for what units and transfers cost; that every piece is a run of its own, and that pieces on two devices
overlap, shows only in the schedule. So cuts are made with several prices for a value that crosses, pieces that do not
pay go back to the other device, units where pieces meet go where they do better, and the assignment whose schedule is
the shortest is taken.

Predictions are not exact: whatever leaves the primary device is taken to cost more than predicted there (CAUTION), and
a placement must promise to save a good part of the time (MARGIN).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from math import inf

from weft.cost.calibration import Direction, transfer_seconds
from weft.placement.cuts import SINK, SOURCE, Network
from weft.placement.schedule import PIECE_SECONDS, Assignment, Rules, Schedule, schedule
from weft.placement.units import HOME, Candidate, Passing, Problem

CAUTION = 1.5  # what leaves the primary device is taken to cost so many times what was predicted
MARGIN = 0.9  # part of the time on the best single device that a placement may take at most
PRICES = (0.0, 0.3, 1.0, 2.0)  # of a value that crosses, beside its bytes: in runs and transfers of nothing
MOST_MOVES = 64  # one after the other, and so many that are tried for each


def best_single(problem: Problem) -> Schedule:
    """The candidate on which all units together are expected to take the least time."""
    alone = [on_one(problem, device) for device in range(len(problem.candidates))]
    return min(alone, key=lambda found: found.seconds)


def on_one(problem: Problem, device: int) -> Schedule:
    """All units on one candidate."""
    return schedule(problem, (device,) * len(problem.units), Rules(device))


def divided(problem: Problem) -> Schedule | None:
    """The best placement on several devices, if it promises to be well ahead of each device alone."""
    single = best_single(problem)
    if not problem.units:
        return None
    rules = Rules(single.assignment[0], frozenset(range(len(problem.units))), CAUTION)
    if _least(problem, rules) > MARGIN * single.seconds:
        return None
    found = _search(problem, rules)
    return found if found.seconds <= MARGIN * single.seconds and len(found.parts) > 1 else None


def without_lacking(problem: Problem) -> Schedule:
    """The best placement that moves nothing but what the first candidate has no kernels for, or none of that."""
    movable = frozenset(number for number, unit in enumerate(problem.units) if unit.lacking[HOME] is not None)
    return _search(problem, Rules(HOME, movable))


def _least(problem: Problem, rules: Rules) -> float:
    """Seconds that no placement one after the other can take less than."""
    factors = [1.0 if device == rules.primary else rules.caution for device in range(len(problem.candidates))]
    return sum(min(seconds * factor for seconds, factor in zip(unit.seconds, factors)) for unit in problem.units)


def _search(problem: Problem, rules: Rules) -> Schedule:
    """The shortest schedule that is found, that on the primary candidate alone among them."""
    best = schedule(problem, (rules.primary,) * len(problem.units), rules)
    seen = {best.assignment}
    others = [number for number in range(len(problem.candidates)) if number != rules.primary and rules.movable]
    for other, price in product(others, PRICES):
        assignment = _least_cut(problem, other, rules, price)
        if assignment not in seen:
            seen.add(assignment)
            found = _with_fewer_parts(problem, rules, schedule(problem, assignment, rules))
            best = min(best, found, key=lambda one: (one.seconds, len(one.parts)))
    return best


# -- cuts ------------------------------------------------------------------------------------------------------------


def _least_cut(problem: Problem, other: int, rules: Rules, price: float) -> Assignment:
    """The assignment to the primary and another candidate whose units and transfers cost the least."""
    pair = (rules.primary, other)
    first, second = (problem.candidates[number] for number in pair)
    network = Network()
    nodes = [network.node() for _ in problem.units]
    for number, (node, unit) in enumerate(zip(nodes, problem.units)):
        network.edge(node, SINK, unit.seconds[rules.primary])
        network.edge(SOURCE, node, rules.caution * unit.seconds[other] if number in rules.movable else inf)
    host = SOURCE if not first.has_memory else SINK if not second.has_memory else None
    ends = price * sum(one.calibration.run_seconds + PIECE_SECONDS for one in (first, second))
    for passing in problem.passing:
        maker = host if passing.maker is None else nodes[passing.maker]
        readers = [nodes[reader] for reader in passing.readers]
        readers += [host] if passing.is_output and host is not None else []
        if maker is not None:
            there = rules.caution * _way_seconds(first, second, passing, price) + ends
            back = rules.caution * _way_seconds(second, first, passing, price) + ends
            _join(network, maker, readers, there, back)
    side = network.first_side()
    return tuple(rules.primary if node in side else other for node in nodes)


def _way_seconds(source: Candidate, target: Candidate, passing: Passing, price: float) -> float:
    """Seconds from the memory of one candidate to that of another, over the host's; `price` of what beginning takes."""
    ways: list[tuple[Candidate, Direction]] = [(source, "down"), (target, "up")]
    total = 0.0
    for candidate, direction in ways:
        if candidate.has_memory:
            nothing = transfer_seconds(0, candidate.calibration, direction)
            total += transfer_seconds(passing.bytes, candidate.calibration, direction) - (1 - price) * nothing
    return total


def _join(network: Network, maker: int, readers: Sequence[int], there: float, back: float) -> None:
    """That a value is made on one side and read on the other costs so much once, however many read it."""
    away, home = network.node(), network.node()
    network.edge(maker, away, there)
    network.edge(home, maker, back)
    for reader in readers:
        network.edge(away, reader, inf)
        network.edge(reader, home, inf)


# -- fewer pieces ----------------------------------------------------------------------------------------------------


def _with_fewer_parts(problem: Problem, rules: Rules, found: Schedule) -> Schedule:
    """The schedule after all moves to another candidate that make it shorter, the best move first: of whole parts, and
    once there are none of single units where parts meet.
    """
    for _ in range(MOST_MOVES):
        for members in (_parts(found), _edges(problem, found)):
            moves = _moves(problem, rules, found, members)
            others = [schedule(problem, assignment, rules) for assignment in moves]
            best = min(others, key=lambda one: one.seconds, default=found)
            if best.seconds < found.seconds:
                found = best
                break
        else:
            return found
    return found


def _parts(found: Schedule) -> list[tuple[int, ...]]:
    return [part.units for part in found.parts[:MOST_MOVES]]


def _edges(problem: Problem, found: Schedule) -> list[tuple[int, ...]]:
    """Units, one by one, that pass something on to another candidate or get it from there."""
    where = found.assignment
    crossing = {
        end
        for number, unit in enumerate(problem.units)
        for other in unit.before
        if where[other] != where[number]
        for end in (number, other)
    }
    return [(unit,) for unit in sorted(crossing)[:MOST_MOVES]]


def _moves(
    problem: Problem, rules: Rules, found: Schedule, together: Sequence[tuple[int, ...]]
) -> Iterator[Assignment]:
    for units in together:
        for device in range(len(problem.candidates)):
            may = device == rules.primary or rules.movable.issuperset(units)
            if device != found.assignment[units[0]] and may:
                moved = list(found.assignment)
                for unit in units:
                    moved[unit] = device
                yield tuple(moved)
