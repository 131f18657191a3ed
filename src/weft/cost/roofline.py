"""The roofline: what a device was measured to do at most, and the fewest seconds that this leaves for some work."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Peak:
    """What a device was measured to do at most, with all its threads: float32 operations and bytes read, per second.

    Up to `cache_bytes` that are read over and over come faster; 0 where that was not measured.
    """

    flops: float
    bandwidth: float
    cache_bytes: float = 0.0
    cache_bandwidth: float = 0.0

    def roofline(self, flops: float, bytes: float) -> float:
        """The fewest seconds that so much work can take."""
        return max(flops / self.flops, bytes / self.bandwidth)

    def bound(self, flops: float, bytes: float) -> str:
        """What keeps so much work from taking less: "arithmetic" or "memory"."""
        return "arithmetic" if flops / self.flops >= bytes / self.bandwidth else "memory"
