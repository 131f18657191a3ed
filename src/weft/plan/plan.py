"""A plan: what a section is for one set of sizes, as a value. plan/sections.py makes it, plan/verify.py proves it."""

from __future__ import annotations

from typing import Any

import numpy as np

from weft.ir.work import Allocation, PlannedLaunch, Repeated
from weft.records import dataclass

Array = np.ndarray[Any, Any]
ALIGNMENT = 64  # bytes that pieces of memory start at a multiple of
ABSOLUTE, ARENA, ERRORS, FIRST_FREE = 0, 1, 2, 3
"""Regions of memory that places of launches name: addresses, the arena, the words for errors; inputs and outputs."""


@dataclass(frozen=True, slots=True)
class Plan:
    """`constants` are arrays that launches point to, and so must live as long.

    `lower_bound` is the most that lives in the arena at any step, `sum_bytes` what it would take without reuse.
    """

    launches: tuple[PlannedLaunch | Repeated, ...]
    arena_bytes: int
    outputs: tuple[tuple[tuple[int, ...], np.dtype[Any]], ...]  # shape and dtype of each
    constants: tuple[Array, ...]
    allocations: tuple[Allocation, ...]  # of what the section's own values and works need; a scan's inside is one
    lower_bound: int
    sum_bytes: int
    steps: tuple[tuple[int, ...], ...]  # numbers of tasks in order; those of one step may run side by side
