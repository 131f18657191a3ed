"""Records of one run: when each launch and host step ran, and on which memory.

All times are nanoseconds of one monotonic clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Union

from weft.ir.arrays import Array
from weft.ir.work import Allocation, PlannedLaunch
from weft.records import dataclass


@dataclass(frozen=True, slots=True, eq=False)
class NativeRecord:
    """The launches of a section; `times` is int64 [launch, thread, (start, end)], 0 for an idle thread."""

    section: int  # the section's index in the program
    launches: Sequence[PlannedLaunch]
    times: Array
    allocations: Sequence[Allocation]
    arena_bytes: int
    start: int
    end: int


@dataclass(frozen=True, slots=True, eq=False)
class HostRecord:
    """A step that ran in Python; `inside` is the part of its time that nested records cover."""

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
