"""Verify the invariants of groups that kernel templates rely on."""

from __future__ import annotations

from weft.errors import InternalError
from weft.ir.groups import FusedProgram, Group, HeavyGroup, HostGroup, ReduceGroup, ScanGroup
from weft.ir.layout import Layout
from weft.ir.program import Step, Value
from weft.ir.scalar import loads


def verify_groups(fused: FusedProgram) -> None:
    """Raise InternalError unless the groups are valid.

    Every step is in one group, values are defined before use, values used elsewhere are results, and, once there are
    layouts, every value of a kernel has one that matches its rank.
    """
    program = fused.program
    group_of: dict[int, int] = {}
    for number, group in enumerate(fused.groups):
        for step in group.steps:
            if id(step) in group_of:
                raise InternalError("a step is in two groups", node=step.origin)
            group_of[id(step)] = number
    if len(group_of) != len(program.steps) or any(id(step) not in group_of for step in program.steps):
        missing = next((step.origin for step in program.steps if id(step) not in group_of), "")
        raise InternalError(f"{len(program.steps)} steps, {len(group_of)} of them in groups", node=missing)
    defined = {value.number for value in (*program.inputs, *program.constants)}
    for group in fused.groups:
        _verify_group(group, defined)
        defined.update([value.number for value in group.results])
        if fused.layouts and not isinstance(group, HostGroup):
            for value in (*group.operands, *group.results):
                _verify_layout(value, fused.layouts.get(value), group.steps[0])
    missing_outputs = [value for value in program.outputs if value.number not in defined]
    if missing_outputs:
        raise InternalError(f"no group computes the output {missing_outputs[0]}")


def _verify_group(group: Group, defined: set[int]) -> None:
    """Verify one group; `defined` are the numbers of the values defined before it."""
    origin = group.steps[0].origin
    inside: set[int] = set()
    for step in group.steps:
        for operand in step.operands:
            if operand.number in inside:
                continue
            if operand.number not in defined:
                raise InternalError(f"{operand} is read before it is defined", node=step.origin)
            if operand not in group.operands:
                raise InternalError(f"{operand} is not an operand of the group that reads it", node=step.origin)
        inside.update([value.number for value in step.results])
    if not inside.issuperset([value.number for value in group.results]):
        raise InternalError("a group does not compute one of its results", node=origin)
    if isinstance(group, (HostGroup, ScanGroup)):
        return
    if not set(group.inputs) <= set(group.operands):
        raise InternalError("an input of a group is not among its operands", node=origin)
    epilogue = group.epilogue if isinstance(group, (HeavyGroup, ReduceGroup)) else None
    if epilogue is not None and any(load.operand >= len(epilogue.operands) for load in loads(epilogue.expression)):
        raise InternalError("an epilogue reads an operand that it does not have", node=origin)


def _verify_layout(value: Value, layout: Layout | None, step: Step) -> None:
    if not value.has_shape:
        raise InternalError(f"a kernel cannot work on {value.type}", node=step.origin)
    if layout is None:
        raise InternalError(f"{value} has no layout", node=step.origin)
    if sorted(layout.order) != list(range(value.rank)):
        raise InternalError(f"the layout {layout.order} does not fit {value.type}", node=step.origin)
