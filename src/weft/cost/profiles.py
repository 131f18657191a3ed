"""Static profiles of device classes.

Profiles determine which kernels are chosen, and so the bits of results. They are the same for all devices of a kind, or
scaled by powers of two, so that repeated measurements of a device give the same class.
"""

from __future__ import annotations

from dataclasses import replace
from math import log2

from weft.cost.roofline import Peak
from weft.ir.target import Rates

CORE = Rates(  # of a CPU with 512-bit vectors; used for all CPUs, so that they split work into the same blocks
    compute_units=1,
    unit_flops=1e11,
    memory_bandwidth=1e11 / 9,
    workspace_bandwidth=1e11 / 6,
    unit_bandwidth=1e11,
    launch_seconds=2e-7,
    latency_seconds=1e-7,
)
LARGE_GPU = Rates(  # what kernels reach on an NVIDIA H200; the default for GPUs
    compute_units=132,
    unit_flops=4.5e11,
    memory_bandwidth=2.5e12,
    workspace_bandwidth=2e12,
    unit_bandwidth=6e10,
    launch_seconds=2e-6,
    latency_seconds=3.5e-7,
)
SOFTWARE_GPU = Rates(  # a software rasteriser on a few CPU cores
    compute_units=8,
    unit_flops=1.25e9,
    memory_bandwidth=1e10,
    workspace_bandwidth=1e10,
    unit_bandwidth=1e10,
    launch_seconds=2e-6,
    latency_seconds=1e-7,
)
REACHED_BANDWIDTH = 0.6  # of the measured read bandwidth, which kernels reach
_SMALLEST, _LARGEST = -8, 3  # range of the exponents


def find_scale(measured: Peak, profile: Rates) -> tuple[int, int]:
    """Return the exponents by which a device's arithmetic and bandwidth differ from a profile's."""
    arithmetic = measured.flops / (profile.compute_units * profile.unit_flops)
    bandwidth = REACHED_BANDWIDTH * measured.bandwidth / profile.memory_bandwidth
    return _round_exponent(arithmetic), _round_exponent(bandwidth)


def scale_profile(profile: Rates, scale: tuple[int, int]) -> Rates:
    """Scale a profile: units of the same speed, but more or fewer of them, and another bandwidth."""
    units, bandwidth = (2.0**power for power in scale)
    return replace(
        profile,
        compute_units=max(int(profile.compute_units * units), 1),
        memory_bandwidth=profile.memory_bandwidth * bandwidth,
        workspace_bandwidth=profile.workspace_bandwidth * bandwidth,
    )


def _round_exponent(ratio: float) -> int:
    return max(_SMALLEST, min(round(log2(max(ratio, 2.0**_SMALLEST))), _LARGEST))
