"""Time engines in turns, and summarize the times.

The speed of a machine changes from second to second, so engines take turns in short blocks. Before each block comes a
pause, in which the threads of the previous engine go to sleep, and then warm-up runs that are not timed.
"""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from weft.records import dataclass

FEWEST_TURNS = 4
FEWEST_RUNS = 3  # in a block, unless that exceeds LONGEST_BLOCK
BLOCK_SECONDS = 0.1
LONGEST_BLOCK = 1.0
WARM_SECONDS = 0.005
PAUSE_SECONDS = 0.05  # an idle pool's threads spin for some milliseconds; two pools at once nearly halve the speed

Clock = Callable[[], float]
Block = Callable[[float], Sequence[float]]
"""Takes the seconds of a block and returns the times of its runs."""


@dataclass(frozen=True, slots=True)
class Spread:
    """The median and the quartiles, in seconds."""

    median: float
    lower: float
    upper: float
    runs: int


def turn_order(names: Sequence[str], turn: int) -> list[str]:
    """Return the order of engines in a turn: over all turns, each is first and last equally often."""
    start = turn // 2 % len(names)
    rotated = [*names[start:], *names[:start]]
    return rotated if turn % 2 == 0 else rotated[::-1]


def take_turns(
    blocks: Mapping[str, Block],
    seconds: float,
    clock: Clock = time.perf_counter,
    sleep: Callable[[float], None] = time.sleep,
) -> dict[str, list[float]]:
    """Return the times of every engine's runs: at least `FEWEST_TURNS` turns, more if they fit into the seconds."""
    names = list(blocks)
    times: dict[str, list[float]] = {name: [] for name in names}
    length = min(BLOCK_SECONDS, seconds / (FEWEST_TURNS * len(names)))
    end = clock() + seconds
    turn = 0
    while turn < FEWEST_TURNS or clock() < end:
        for name in turn_order(names, turn):
            sleep(PAUSE_SECONDS)
            times[name].extend(blocks[name](length))
        turn += 1
    return times


def time_block(run: Callable[[], object], seconds: float, clock: Clock = time.perf_counter) -> list[float]:
    """Return the times of single runs, after warm-up runs."""
    warm_until = clock() + WARM_SECONDS
    run()
    while clock() < warm_until:
        run()
    times: list[float] = []
    gc_enabled = gc.isenabled()
    gc.disable()
    try:
        began = stop = clock()
        while stop - began < seconds or (len(times) < FEWEST_RUNS and stop - began < LONGEST_BLOCK):
            start = clock()
            run()
            stop = clock()
            times.append(stop - start)
    finally:
        if gc_enabled:
            gc.enable()
    return times


def summarize_times(times: Sequence[float]) -> Spread:
    lower, median, upper = np.quantile(times, (0.25, 0.5, 0.75)).tolist()
    return Spread(median, lower, upper, len(times))


def geometric_mean(ratios: Iterable[float]) -> float:
    """Return the geometric mean; NaN without ratios."""
    logarithms = [math.log(ratio) for ratio in ratios]
    return math.exp(math.fsum(logarithms) / len(logarithms)) if logarithms else math.nan
