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


def estimation_limits(peak: Peak) -> Array:
    """Return the rates of one thread with this peak, and all limits above, as native code reads them (tapes.ll)."""
    return np.array(
        [
            EFFICIENCY * peak.flops,
            CACHE_SPEED * peak.bandwidth,
            peak.bandwidth,
            CACHED_BYTES,
            LAUNCH_OVERHEAD,
            WORTH_SHARING,
            WORTH_WAKING,
            LONG,
            CHECK_INTERVAL,
            BLOCKING,
            BLOCKING_BLOCK,
            BLOCKING_BLOCK_TRAFFIC,
            FEWEST_CHECKS,
            LONGEST_SEQUENCE,
        ],
        np.float64,
    )
