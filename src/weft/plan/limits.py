"""Whether a plan fits into the memory that it may take; where it does not, what takes most of it."""

from __future__ import annotations

from math import prod

from weft.errors import ExecutionError, OutOfMemoryError
from weft.ir.work import Allocation
from weft.plan.plan import Plan
from weft.records import dataclass

LARGEST_ARRAY = 2**63 - 1  # bytes that numpy can count
_NAMED = 4  # tensors that an error names


@dataclass(frozen=True, slots=True)
class MemoryBudget:
    """The bytes that a program may take in all, or None, and what of them is taken whatever the sizes are.

    `may_grow`: an arena may be larger than it has to be, where threads are busier then.
    """

    limit: int | None = None
    weights: int = 0
    workspace: int = 0
    may_grow: bool = False


def output_bytes(plan: Plan) -> int:
    return sum(prod(shape) * dtype.itemsize for shape, dtype in plan.outputs)


def check_fits(plan: Plan, budget: MemoryBudget, physical: int, beside: int | None = None) -> None:
    """Raise OutOfMemoryError unless a section can run; `beside` are the arrays beside the arena, else its outputs."""
    for shape, dtype in plan.outputs:
        if prod(max(size, 1) for size in shape) * dtype.itemsize > LARGEST_ARRAY:  # one of no elements may be, too
            raise ExecutionError(f"a result would have sizes that no array has: {dtype.name}{list(shape)}")
    arrays = output_bytes(plan) if beside is None else beside
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
    """What lies in the arena when most of it is in use, largest first."""
    most: list[Allocation] = []
    for step in sorted({allocation.first for allocation in plan.allocations}):
        alive = [one for one in plan.allocations if one.first <= step <= one.last]
        if sum(one.size for one in alive) > sum(one.size for one in most):
            most = alive
    return sorted(most, key=lambda one: (-one.size, one.offset))


def _advice(plan: Plan) -> str:
    largest = [f"{one.name} ({one.origin}) {one.size:,}" for one in alive_at_peak(plan)[:_NAMED]]
    if not largest:
        return "nearly all of it are weights and outputs: allow more"
    return f"allow more, or use smaller inputs; the peak is made by {', '.join(largest)}"
