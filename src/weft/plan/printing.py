"""Format a program's plan: for each section its launches with their places, and the allocations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from weft.ir.work import Allocation, Place, PlannedLaunch, Repeated
from weft.plan.plan import ABSOLUTE, ARENA, ERRORS, FIRST_FREE, Plan
from weft.plan.program import ProgramPlan

_REGIONS = {ABSOLUTE: "weights", ARENA: "arena", ERRORS: "errors"}


def format_plan(plan: ProgramPlan, sizes: Mapping[str, int]) -> str:
    """Format the totals and all planned sections."""
    return "\n".join(_format_lines(plan, sizes))


def _format_lines(plan: ProgramPlan, sizes: Mapping[str, int]) -> Iterator[str]:
    if sizes:
        yield f"sizes: {', '.join(f'{name} = {size}' for name, size in sizes.items())}"
    yield f"weights {plan.weights:,}, arena {plan.arena:,}, workspace {plan.workspace:,} bytes"
    yield f"inputs {plan.inputs:,}, outputs {plan.outputs:,} bytes"
    if plan.unplanned:
        yield f"nodes with data-dependent sizes: {', '.join(plan.unplanned)}"
    for number, part in enumerate(plan.sections):
        yield f"section {number}: arena of {part.plan.arena_bytes:,} bytes, lower bound {part.plan.lower_bound:,}"
        yield from _format_launches(part.plan)
        yield "  memory: offsets, and the first and last launch that use it"
        yield from (f"    {_format_allocation(allocation)}" for allocation in part.plan.allocations)


def _format_launches(plan: Plan) -> Iterator[str]:
    for number, entry in enumerate(plan.launches):
        if isinstance(entry, Repeated):
            yield f"  {number:4}: {entry.count} times:"
            for launch, shifts in zip(entry.launches, entry.shifts):
                yield f"          {_format_launch(launch)}; each iteration moves buffers by {list(shifts)} bytes"
        else:
            yield f"  {number:4}: {_format_launch(entry)}"


def _format_launch(launch: PlannedLaunch) -> str:
    waits = "all before it" if launch.after is None else ", ".join(map(str, launch.after)) or "nothing"
    places = ", ".join(map(_format_place, launch.buffers))
    return f"{launch.kernel.name} on {launch.blocks} blocks [{places}], after {waits}  # {launch.origin}"


def _format_place(place: Place) -> str:
    if place.region >= FIRST_FREE:
        region = f"value {place.region - FIRST_FREE}"
    else:
        region = _REGIONS[place.region]
    return region if place.region in (ABSOLUTE, ERRORS) or not place.offset else f"{region} + {place.offset:,}"


def _format_allocation(block: Allocation) -> str:
    span = f"{block.offset:12,} .. {block.offset + block.size:12,}  {block.first:4} to {block.last:4}"
    return f"{span}  {block.name}  # {block.origin}"
