"""Estimate the time of launches from arithmetic and memory traffic.

The model is accurate within a factor of two for most kernels, which is enough to decide whether to share a launch among
threads, or to wake another thread.
"""

from __future__ import annotations

import numpy as np

from weft.cost.roofline import Peak
from weft.ir.arrays import Array

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


class LaunchTimes:
    """Estimated times of the launches of a plan, each on one thread; infinite where the effort is unknown."""

    def __init__(self, blocks: Array, flops: Array, bytes: Array, times: Array, peak: Peak) -> None:
        """`times` says how often each launch is repeated."""
        self._blocks, self._flops, self._times = blocks, flops, times
        speed = np.where(bytes <= CACHED_BYTES, peak.bandwidth * CACHE_SPEED, peak.bandwidth)
        durations = LAUNCH_OVERHEAD + np.maximum(flops / (EFFICIENCY * peak.flops), bytes / speed)
        durations[(flops == 0) & (bytes == 0)] = np.inf
        durations[(blocks == 0) | (times == 0)] = 0.0
        self.seconds = durations
        self.is_worth_sharing = (blocks > 1) & (durations >= WORTH_SHARING)

    @property
    def is_worth_waking(self) -> bool:
        """Whether a run is long enough to wake other threads."""
        shared = self.is_worth_sharing
        return bool((self.seconds[shared] * self._times[shared]).sum() >= WORTH_WAKING)

    @property
    def is_long(self) -> bool:
        """Whether a run may take long enough, on one thread, that it must be interruptible."""
        busy = self.seconds > 0
        return bool((self.seconds[busy] * self._times[busy]).sum() >= LONG)

    @property
    def may_block(self) -> bool:
        """Whether a run, or a single block of it, takes so long that another thread should do it.

        Launches of unknown effort are not counted: their effort is that of another launch.
        """
        is_known = np.isfinite(self.seconds)
        most = np.where(self._flops > 0, BLOCKING_BLOCK, BLOCKING_BLOCK_TRAFFIC)
        is_slow = self.seconds > most * np.maximum(self._blocks, 1)
        return bool((is_slow & is_known).any() or (self.seconds[is_known] * self._times[is_known]).sum() >= BLOCKING)

    @property
    def blocks_between_checks(self) -> Array:
        """The blocks of each launch that a thread runs between two checks for an interrupt."""
        is_known = np.isfinite(self.seconds)
        blocks = np.where(is_known, self._blocks, self._blocks // FEWEST_CHECKS)
        is_long = is_known & (self.seconds > CHECK_INTERVAL)
        blocks[is_long] = (self._blocks[is_long] * CHECK_INTERVAL / self.seconds[is_long]).astype(np.int64)
        return np.maximum(blocks, 1)
