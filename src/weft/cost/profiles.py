"""Profiles of classes of devices, and what a measurement makes of one.

Kernels are chosen by these, and so the bits of results depend on them: they are either the same for all devices of a
kind, or scaled by powers of two, so that a device comes out as the same class whenever it is measured.
"""

from __future__ import annotations

from dataclasses import replace
from math import log2

from weft.cost.roofline import Peak
from weft.ir.target import Rates

CORE = Rates(  # of a CPU with 512-bit vectors; others are taken for it, so that all cut work into the same blocks
    compute_units=1,
    unit_flops=1e11,
    memory_bandwidth=1e11 / 9,
    workspace_bandwidth=1e11 / 6,
    unit_bandwidth=1e11,
    launch_seconds=2e-7,
    latency_seconds=1e-7,
)
LARGE_GPU = Rates(  # what kernels reach of an NVIDIA H200, and what a GPU of which nothing was measured is taken for
    compute_units=132,
    unit_flops=4.5e11,
    memory_bandwidth=2.5e12,
    workspace_bandwidth=2e12,
    unit_bandwidth=6e10,
    launch_seconds=2e-6,
    latency_seconds=3.5e-7,
)
SOFTWARE_GPU = Rates(  # threads that some cores of a CPU do one vector after the other
    compute_units=8,
    unit_flops=1.25e9,
    memory_bandwidth=1e10,
    workspace_bandwidth=1e10,
    unit_bandwidth=1e10,
    launch_seconds=2e-6,
    latency_seconds=1e-7,
)
REACHED_BANDWIDTH = 0.6  # of what a loop that only reads is measured to do, about what kernels reach
_SMALLEST, _LARGEST = -8, 3  # powers of two between which devices lie


def scale_of(measured: Peak, profile: Rates) -> tuple[int, int]:
    """Which powers of two a device's arithmetic and bandwidth are of a profile's."""
    arithmetic = measured.flops / (profile.compute_units * profile.unit_flops)
    bandwidth = REACHED_BANDWIDTH * measured.bandwidth / profile.memory_bandwidth
    return _power(arithmetic), _power(bandwidth)


def scaled(profile: Rates, scale: tuple[int, int]) -> Rates:
    """A device of as fast units, but more or fewer of them, and with another bandwidth."""
    units, bandwidth = (2.0**power for power in scale)
    return replace(
        profile,
        compute_units=max(int(profile.compute_units * units), 1),
        memory_bandwidth=profile.memory_bandwidth * bandwidth,
        workspace_bandwidth=profile.workspace_bandwidth * bandwidth,
    )


def _power(ratio: float) -> int:
    return max(_SMALLEST, min(round(log2(max(ratio, 2.0**_SMALLEST))), _LARGEST))
