"""Check that groups keep the rules that the builders of kernels rely on."""

from __future__ import annotations

from weft.errors import InternalError
from weft.ir.groups import FusedProgram, Group, HeavyGroup, HostGroup, ReduceGroup, ScanGroup, is_tensor
from weft.ir.layout import Layout
from weft.ir.program import Step, Value
from weft.ir.scalar import loads
from weft.ir.types import TensorType


def verify_groups(fused: FusedProgram) -> None:
    """Raise InternalError unless every step is in one group, operands are made before they are read, whatever others
    read is a result, and, once there are layouts, every value of a kernel has one that fits its rank.
    """
    program = fused.program
    where: dict[int, int] = {}
    for number, group in enumerate(fused.groups):
        for step in group.steps:
            if id(step) in where:
                raise InternalError("a step is in two groups", node=step.origin)
            where[id(step)] = number
    if len(where) != len(program.steps) or any(id(step) not in where for step in program.steps):
        missing = next((step.origin for step in program.steps if id(step) not in where), "")
        raise InternalError(f"{len(program.steps)} steps, {len(where)} of them in groups", node=missing)
    made = {value.number for value in (*program.inputs, *program.constants)}
    for group in fused.groups:
        _verify_group(group, made)
        made.update([value.number for value in group.results])
        if fused.layouts and not isinstance(group, HostGroup):
            for value in (*group.operands, *group.results):
                _verify_layout(value, fused.layouts.get(value), group.steps[0])
    unmade = [value for value in program.outputs if value.number not in made]
    if unmade:
        raise InternalError(f"no group makes the output {unmade[0]}")


def _verify_group(group: Group, made: set[int]) -> None:
    """`made` are the numbers of the values that there are before it."""
    origin = group.steps[0].origin
    inside: set[int] = set()
    for step in group.steps:
        for operand in step.operands:
            if operand.number in inside:
                continue
            if operand.number not in made:
                raise InternalError(f"{operand} is read before a group makes it", node=step.origin)
            if operand not in group.operands:
                raise InternalError(f"{operand} is no operand of the group that reads it", node=step.origin)
        inside.update([value.number for value in step.results])
    if not inside.issuperset([value.number for value in group.results]):
        raise InternalError("a group does not make one of its results", node=origin)
    if isinstance(group, (HostGroup, ScanGroup)):
        return
    if not set(group.inputs) <= set(group.operands):
        raise InternalError("a group counts what is none of its operands", node=origin)
    epilogue = group.epilogue if isinstance(group, (HeavyGroup, ReduceGroup)) else None
    if epilogue is not None and any(load.operand >= len(epilogue.operands) for load in loads(epilogue.expression)):
        raise InternalError("an epilogue reads what is none of its operands", node=origin)


def _verify_layout(value: Value, layout: Layout | None, step: Step) -> None:
    if not is_tensor(value) or not isinstance(value.type, TensorType):
        raise InternalError(f"a kernel on {value.type}", node=step.origin)
    if layout is None:
        raise InternalError(f"{value} has no layout", node=step.origin)
    if sorted(layout.order) != list(range(len(value.type.shape or ()))):
        raise InternalError(f"the layout {layout.order} is none of {value.type}", node=step.origin)
