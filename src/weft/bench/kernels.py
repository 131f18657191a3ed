"""Time per kernel against the roofline, for devices that can time their kernels.

Such a device's models have `profile_kernels(inputs)`, which runs the model and gives one `ProfiledKernel` per launch,
in order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from weft.bench.peak import Peak
from weft.errors import DeviceError


class ProfiledKernel(Protocol):
    """One launch: what it is called, how long it took, and what it had to do at least."""

    @property
    def name(self) -> str: ...
    @property
    def seconds(self) -> float: ...
    @property
    def flops(self) -> float: ...
    @property
    def bytes(self) -> float: ...


@dataclass(frozen=True, slots=True)
class KernelShare:
    name: str
    seconds: float
    share_of_run: float
    share_of_roofline: float  # above 1 where the data was in a cache, or the algorithm needs less arithmetic
    bound: str  # "arithmetic" or "memory"


def profile(model: Any, inputs: Mapping[str, Any]) -> Sequence[ProfiledKernel]:
    """What the model's device says of its kernels."""
    profiler = getattr(model, "profile_kernels", None)
    if profiler is None:
        raise DeviceError(
            f"device {model.device!r} cannot time its kernels one by one",
            hint="leave --kernels out to time the whole model, or choose another --device",
        )
    kernels: Sequence[ProfiledKernel] = profiler(inputs)
    return kernels


def shares(kernels: Sequence[ProfiledKernel], peak: Peak) -> list[KernelShare]:
    """The kernels in the order they ran, with their part of the whole and of what the machine could do."""
    total = sum(kernel.seconds for kernel in kernels) or 1.0
    return [
        KernelShare(
            kernel.name,
            kernel.seconds,
            kernel.seconds / total,
            peak.roofline(kernel.flops, kernel.bytes) / kernel.seconds if kernel.seconds else 0.0,
            "arithmetic" if kernel.flops / peak.flops >= kernel.bytes / peak.bandwidth else "memory",
        )
        for kernel in kernels
    ]
