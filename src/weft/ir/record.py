"""What a device says of one run: when each launch and each host step ran, and on which memory.

All times are nanoseconds of one monotonic clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Union

import numpy as np

from weft.ir.work import Allocation, PlannedLaunch
from weft.records import dataclass

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True, eq=False)
class NativeRecord:
    """Launches, as they ran: `times` is int64 [launch, thread, (start, end)], 0 for a thread without work."""

    section: int  # the same number for the same stretch of a program
    launches: Sequence[PlannedLaunch]
    times: Array
    allocations: Sequence[Allocation]
    arena_bytes: int
    start: int
    end: int


@dataclass(frozen=True, slots=True, eq=False)
class HostRecord:
    """A step that ran in Python; `inside` is the part of its time that other records show."""

    origin: str
    step: str
    start: int
    end: int
    inside: int


@dataclass(frozen=True, slots=True, eq=False)
class RunRecord:
    start: int
    end: int
    parts: tuple[Union[NativeRecord, HostRecord], ...]
