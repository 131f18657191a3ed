"""Check whether a plan fits into memory, and name the largest tensors if it does not."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from typing import Any

import numpy as np

from weft.errors import ExecutionError, OutOfMemoryError
from weft.ir.work import Allocation
from weft.plan.plan import Plan
from weft.records import dataclass

LARGEST_ARRAY = 2**63 - 1  # bytes of numpy's largest array
_MOST_NAMED = 4  # tensors in an error message


@dataclass(frozen=True, slots=True)
class MemoryBudget:
    """The memory limit of a program in bytes, or None, and its parts that do not depend on sizes.

    `may_grow`: an arena may be larger than necessary if that keeps more threads busy.
    """

    limit: int | None = None
    weights: int = 0
    workspace: int = 0
    may_grow: bool = False


def choose_capacity(size: int, alignment: int = 1) -> int:
    """Round up the bytes of a buffer, by at most 1/8 beyond its alignment, so that many sizes have few capacities."""
    step = max(1 << max(size.bit_length() - 4, 0), alignment)
    return -(-size // step) * step


def output_bytes(plan: Plan) -> int:
    return sum(prod(shape) * dtype.itemsize for shape, dtype in plan.outputs)


def surely_fits(
    arena_bytes: int, outputs: Iterable[tuple[tuple[int, ...], np.dtype[Any]]], budget: MemoryBudget, physical: int
) -> bool:
    """Whether the arena and the outputs of a section fit; if not, `check_fits` decides, and says why."""
    needed = arena_bytes
    for shape, dtype in outputs:
        needed += prod([size or 1 for size in shape]) * dtype.itemsize  # numpy refuses a large shape without elements
    limit = budget.limit
    return needed <= physical and (limit is None or budget.weights + needed + budget.workspace <= limit)


def check_fits(plan: Plan, budget: MemoryBudget, physical: int) -> None:
    """Raise OutOfMemoryError unless the arena and the outputs of a section fit."""
    for shape, dtype in plan.outputs:
        if (
            prod(max(size, 1) for size in shape) * dtype.itemsize > LARGEST_ARRAY
        ):  # numpy refuses such a shape even without elements
            raise ExecutionError(f"a result is larger than the largest array: {dtype.name}{list(shape)}")
    arrays = output_bytes(plan)
    if plan.arena_bytes + arrays > physical:
        raise OutOfMemoryError(
            f"a run for these sizes needs {plan.arena_bytes + arrays:,} bytes, more than this machine's memory of "
            f"{physical:,}",
            hint="check the sizes of the inputs and the shapes in the model",
        )
    needed = budget.weights + plan.arena_bytes + budget.workspace + arrays
    if budget.limit is not None and needed > budget.limit:
        raise OutOfMemoryError(
            f"a run for these sizes needs {needed:,} bytes, more than the memory_limit of {budget.limit:,}: "
            f"{budget.weights:,} of weights, {plan.arena_bytes + budget.workspace:,} of arena and workspace, "
            f"{arrays:,} of outputs",
            hint=_advice(plan),
        )


def alive_at_peak(plan: Plan) -> list[Allocation]:
    """List the allocations at the step with the most bytes in use, largest first."""
    peak: list[Allocation] = []
    for step in sorted({allocation.first for allocation in plan.allocations}):
        alive = [allocation for allocation in plan.allocations if allocation.first <= step <= allocation.last]
        if sum(allocation.size for allocation in alive) > sum(allocation.size for allocation in peak):
            peak = alive
    return sorted(peak, key=lambda allocation: (-allocation.size, allocation.offset))


def _advice(plan: Plan) -> str:
    largest = [f"{block.name} ({block.origin}) {block.size:,}" for block in alive_at_peak(plan)[:_MOST_NAMED]]
    if not largest:
        return "raise the limit: nearly all of it is weights and outputs"
    return f"raise the limit, or use smaller inputs; the largest tensors at the peak are {', '.join(largest)}"
