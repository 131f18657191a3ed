"""The plan of a section for one set of sizes, as a value. plan/sections.py makes it, plan/verify.py proves it."""

from __future__ import annotations

from typing import Any

import numpy as np

from weft.ir.arrays import Array
from weft.ir.work import Allocation, PlannedLaunch, Repeated
from weft.records import dataclass

ALIGNMENT = 64  # bytes; blocks of memory start at multiples of it
ABSOLUTE, ARENA, ERRORS, FIRST_FREE = 0, 1, 2, 3
"""The regions of places: host addresses, the arena, the error flag, and from FIRST_FREE on inputs and outputs."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The launches and memory of a section. `constants` are arrays that launches point to, so they must live as long.

    `lower_bound` is the most bytes alive at any step, `sum_bytes` the size of an arena without reuse.
    """

    launches: tuple[PlannedLaunch | Repeated, ...]
    arena_bytes: int
    outputs: tuple[tuple[tuple[int, ...], np.dtype[Any]], ...]  # shape and dtype of each
    constants: tuple[Array, ...]
    allocations: tuple[Allocation, ...]  # of the section's own values and workspaces; a scan's body is one
    lower_bound: int
    sum_bytes: int
    steps: tuple[tuple[int, ...], ...]  # task numbers in order; those of one step may run in parallel
