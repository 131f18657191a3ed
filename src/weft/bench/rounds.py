"""Runs in turns, and what their times amount to.

A machine's mood changes from second to second, so engines take turns in short blocks and share it. Before each block
there is a pause, in which the threads of the engine before fall asleep, and then runs that are not timed.
"""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from weft.records import dataclass

FEWEST_TURNS = 4
FEWEST_RUNS = 3  # in a block, unless they take longer than the longest one may
BLOCK_SECONDS = 0.1
LONGEST_BLOCK = 1.0
WARM_SECONDS = 0.005
PAUSE_SECONDS = 0.05  # an idle pool's threads spin for some milliseconds; two pools at once nearly halve the speed

Clock = Callable[[], float]
Block = Callable[[float], Sequence[float]]
"""Times of the runs in one block of so many seconds."""


@dataclass(frozen=True, slots=True)
class Spread:
    """Seconds: the median and the quartiles around it."""

    median: float
    lower: float
    upper: float
    runs: int


def order_of_turn(names: Sequence[str], turn: int) -> list[str]:
    """Who comes when: everybody is first equally often, and follows everybody equally often or nearly so."""
    start = turn // 2 % len(names)
    rotated = [*names[start:], *names[:start]]
    return rotated if turn % 2 == 0 else rotated[::-1]


def take_turns(
    blocks: Mapping[str, Block],
    seconds: float,
    clock: Clock = time.perf_counter,
    sleep: Callable[[float], None] = time.sleep,
) -> dict[str, list[float]]:
    """The times of every engine's runs; at least `FEWEST_TURNS` turns, and as many more as fit into the seconds."""
    names = list(blocks)
    times: dict[str, list[float]] = {name: [] for name in names}
    length = min(BLOCK_SECONDS, seconds / (FEWEST_TURNS * len(names)))
    end = clock() + seconds
    turn = 0
    while turn < FEWEST_TURNS or clock() < end:
        for name in order_of_turn(names, turn):
            sleep(PAUSE_SECONDS)
            times[name].extend(blocks[name](length))
        turn += 1
    return times


def time_block(run: Callable[[], object], seconds: float, clock: Clock = time.perf_counter) -> list[float]:
    """Times of single runs, after some that wake the engine up."""
    awake = clock() + WARM_SECONDS
    run()
    while clock() < awake:
        run()
    times: list[float] = []
    collecting = gc.isenabled()
    gc.disable()
    try:
        began = stop = clock()
        while stop - began < seconds or (len(times) < FEWEST_RUNS and stop - began < LONGEST_BLOCK):
            start = clock()
            run()
            stop = clock()
            times.append(stop - start)
    finally:
        if collecting:
            gc.enable()
    return times


def spread_of(times: Sequence[float]) -> Spread:
    ordered = sorted(times)
    return Spread(_quantile(ordered, 0.5), _quantile(ordered, 0.25), _quantile(ordered, 0.75), len(ordered))


def geometric_mean(ratios: Iterable[float]) -> float:
    """NaN of nothing."""
    logarithms = [math.log(ratio) for ratio in ratios]
    return math.exp(math.fsum(logarithms) / len(logarithms)) if logarithms else math.nan


def _quantile(ordered: Sequence[float], fraction: float) -> float:
    """Between the two nearest of sorted numbers."""
    position = fraction * (len(ordered) - 1)
    below = int(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)
