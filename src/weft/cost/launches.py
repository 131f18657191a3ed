"""How long launches take, by a model: arithmetic and memory traffic at the rates of a device, and what sharing costs.

It is right within a factor of two for most kernels, which is enough to tell what is worth dividing, or waking another
thread for.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import inf

from weft.cost.roofline import Peak
from weft.ir.work import PlannedLaunch, Repeated

EFFICIENCY = 0.6  # of the arithmetic that a device can do, about what kernels reach
CACHED_BYTES = 1 << 20  # of a launch, up to which they come from caches
CACHE_SPEED = 4.0  # of caches, in that of memory
START = 1e-7  # seconds before a kernel does anything

WORTH_SHARING = 2e-6  # seconds that a launch must take to be spread over threads
WORTH_WAKING = 30e-6  # seconds that launches worth sharing must take in all, for a run to ask for other threads
LONG = 5e-3  # seconds of a run that somebody may want to end before
IN_ONE_GO = 0.5e-3  # seconds that a thread may be at a launch before it looks whether that is so
BLOCKING = 0.5  # seconds of a run that is left to another thread, whatever its pieces are expected to take
ONE_BLOCK = 2e-3  # seconds of a single block with which it is, too: some take many times what is expected
ONE_BLOCK_OF_TRAFFIC = 20e-6  # the same where only the traffic is known, which tells little of a sort
FEWEST_PIECES = 64  # of a launch of which nothing is known
MOST_JOINED = 10e-6  # seconds that launches may take which one thread runs in a row


def seconds(flops: float, bytes: float, peak: Peak) -> float:
    """How long one thread, whose peak is given, takes for so much work."""
    speed = peak.bandwidth * (CACHE_SPEED if bytes <= CACHED_BYTES else 1.0)
    return START + max(flops / (EFFICIENCY * peak.flops), bytes / speed)


def launch_seconds(launch: PlannedLaunch, peak: Peak) -> float:
    """How long one thread takes for a launch; infinite where nothing is known of it."""
    if launch.blocks == 0:
        return 0.0
    return seconds(launch.flops, launch.bytes, peak) if launch.flops or launch.bytes else inf


def is_worth_sharing(launch: PlannedLaunch, peak: Peak) -> bool:
    return launch.blocks > 1 and launch_seconds(launch, peak) >= WORTH_SHARING


def is_worth_waking(launches: Iterable[PlannedLaunch | Repeated], peak: Peak) -> bool:
    """Whether a run is long enough for other threads to be of help."""
    total = 0.0
    for entry in launches:
        inside, times = (entry.launches, entry.count) if isinstance(entry, Repeated) else ((entry,), 1)
        total += times * sum(launch_seconds(launch, peak) for launch in inside if is_worth_sharing(launch, peak))
    return total >= WORTH_WAKING


def is_long(launches: Iterable[PlannedLaunch | Repeated], peak: Peak) -> bool:
    """Whether a run may take long enough for somebody to lose patience, by one thread's time."""
    total = 0.0
    for entry in launches:
        inside, times = (entry.launches, entry.count) if isinstance(entry, Repeated) else ((entry,), 1)
        total += times * sum(launch_seconds(launch, peak) for launch in inside)
    return total >= LONG


def may_block(launches: Iterable[PlannedLaunch | Repeated], peak: Peak) -> bool:
    """Whether a run takes so long in all, or a single block of it, that nobody should be kept waiting inside of it."""
    total = 0.0
    for entry in launches:
        inside, times = (entry.launches, entry.count) if isinstance(entry, Repeated) else ((entry,), 1)
        for launch in inside:
            taken = launch_seconds(launch, peak)
            if taken == inf:  # a part of work that is told of another launch
                continue
            total += times * taken
            if taken / max(launch.blocks, 1) > (ONE_BLOCK if launch.flops else ONE_BLOCK_OF_TRAFFIC):
                return True
    return total >= BLOCKING


def blocks_in_one_go(launch: PlannedLaunch, peak: Peak) -> int:
    """How many blocks of a launch a thread may run before it looks whether the run is to end."""
    taken = launch_seconds(launch, peak)
    if taken == inf:
        return max(1, launch.blocks // FEWEST_PIECES)
    return launch.blocks if taken <= IN_ONE_GO else max(1, int(launch.blocks * IN_ONE_GO / taken))


def joined(launches: Iterable[PlannedLaunch | Repeated], peak: Peak) -> list[bool]:
    """Which launches one thread should run right after the one before: short ones that need its result."""
    result: list[bool] = []
    row = inf  # seconds of the present row
    for number, entry in enumerate(launches):
        if isinstance(entry, Repeated) or is_worth_sharing(entry, peak):
            row = inf
            result.append(False)
            continue
        taken = launch_seconds(entry, peak)
        follows = entry.after is None or number - 1 in entry.after
        result.append(follows and row + taken <= MOST_JOINED)
        row = row + taken if result[-1] else taken
    return result
