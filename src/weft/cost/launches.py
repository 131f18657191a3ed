"""Estimate the time of launches from arithmetic and memory traffic.

The model is accurate within a factor of two for most kernels, which is enough to decide whether to share a launch among
threads, or to wake another thread.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import inf

from weft.cost.roofline import Peak
from weft.ir.work import PlannedLaunch, Repeated

EFFICIENCY = 0.6  # fraction of peak arithmetic that kernels reach
CACHED_BYTES = 1 << 20  # of a launch that fit in caches
CACHE_SPEED = 4.0  # cache bandwidth relative to memory
LAUNCH_OVERHEAD = 1e-7  # overhead of a launch in seconds

WORTH_SHARING = 2e-6  # seconds from which on a launch is shared among threads
WORTH_WAKING = 30e-6  # seconds of shared launches from which on a run wakes other threads
LONG = 5e-3  # seconds from which on a run must be interruptible
CHECK_INTERVAL = 0.5e-3  # seconds between two checks for an interrupt
BLOCKING = 0.5  # seconds from which on a run is left to another thread
BLOCKING_BLOCK = 2e-3  # the same for a single block: some take much longer than estimated
BLOCKING_BLOCK_TRAFFIC = 20e-6  # the same if only the traffic is known, which underestimates sorts
FEWEST_CHECKS = 64  # of a launch of unknown cost
LONGEST_SEQUENCE = 10e-6  # limit on the seconds of launches that one thread runs in sequence


def seconds(flops: float, bytes: float, peak: Peak) -> float:
    """Estimate the time of some work on one thread with this peak."""
    speed = peak.bandwidth * (CACHE_SPEED if bytes <= CACHED_BYTES else 1.0)
    return LAUNCH_OVERHEAD + max(flops / (EFFICIENCY * peak.flops), bytes / speed)


def launch_seconds(launch: PlannedLaunch, peak: Peak) -> float:
    """Estimate the time of a launch on one thread; infinite if its effort is unknown."""
    if launch.blocks == 0:
        return 0.0
    return seconds(launch.flops, launch.bytes, peak) if launch.flops or launch.bytes else inf


def is_worth_sharing(launch: PlannedLaunch, peak: Peak) -> bool:
    return launch.blocks > 1 and launch_seconds(launch, peak) >= WORTH_SHARING


def is_worth_waking(launches: Iterable[PlannedLaunch | Repeated], peak: Peak) -> bool:
    """Whether a run is long enough to wake other threads."""
    total = 0.0
    for entry in launches:
        inner, times = (entry.launches, entry.count) if isinstance(entry, Repeated) else ((entry,), 1)
        total += times * sum(launch_seconds(launch, peak) for launch in inner if is_worth_sharing(launch, peak))
    return total >= WORTH_WAKING


def is_long(launches: Iterable[PlannedLaunch | Repeated], peak: Peak) -> bool:
    """Whether a run may take long enough, on one thread, that it must be interruptible."""
    total = 0.0
    for entry in launches:
        inner, times = (entry.launches, entry.count) if isinstance(entry, Repeated) else ((entry,), 1)
        total += times * sum(launch_seconds(launch, peak) for launch in inner)
    return total >= LONG


def may_block(launches: Iterable[PlannedLaunch | Repeated], peak: Peak) -> bool:
    """Whether a run, or a single block of it, takes so long that another thread should do it."""
    total = 0.0
    for entry in launches:
        inner, times = (entry.launches, entry.count) if isinstance(entry, Repeated) else ((entry,), 1)
        for launch in inner:
            duration = launch_seconds(launch, peak)
            if duration == inf:  # its effort is counted with another launch
                continue
            total += times * duration
            if duration / max(launch.blocks, 1) > (BLOCKING_BLOCK if launch.flops else BLOCKING_BLOCK_TRAFFIC):
                return True
    return total >= BLOCKING


def blocks_between_checks(launch: PlannedLaunch, peak: Peak) -> int:
    """Return how many blocks of a launch a thread runs between two checks for an interrupt."""
    duration = launch_seconds(launch, peak)
    if duration == inf:
        return max(1, launch.blocks // FEWEST_CHECKS)
    return launch.blocks if duration <= CHECK_INTERVAL else max(1, int(launch.blocks * CHECK_INTERVAL / duration))


def find_sequences(launches: Iterable[PlannedLaunch | Repeated], peak: Peak) -> list[bool]:
    """Decide which launches the same thread runs right after the previous one: short ones that depend on it."""
    result: list[bool] = []
    sequence = inf  # seconds of the current sequence
    for number, entry in enumerate(launches):
        if isinstance(entry, Repeated) or is_worth_sharing(entry, peak):
            sequence = inf
            result.append(False)
            continue
        duration = launch_seconds(entry, peak)
        follows = entry.after is None or number - 1 in entry.after
        result.append(follows and sequence + duration <= LONGEST_SEQUENCE)
        sequence = sequence + duration if result[-1] else duration
    return result
