"""The stages that merge groups: attention, row groups, and heavy steps with the maps around them.

A merged group takes the position of its last step; all other readers of its values come later.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from weft.fuse.attention import attention_support, find_attention, number_loads
from weft.fuse.channel_order import find_channel_reorderings, match_channel_order
from weft.fuse.host import computed_types
from weft.fuse.row_groups import find_row_frame, find_row_groups
from weft.ir.dtypes import DType
from weft.ir.groups import (
    AttentionGroup,
    FusedMap,
    FusedProgram,
    Group,
    HeavyGroup,
    MapGroup,
    ReduceGroup,
    ReshapeGroup,
    RowGroup,
    StepGroup,
    Values,
)
from weft.ir.program import ArgReduce, Contract, Convolve, Map, Pool, Reduce, Reshape, Step, TensorProgram, Value
from weft.ir.scalar import ELEMENT, Load, Placeholder, Scalar, identity_indices, loads, rebuild
from weft.ir.target import Target, ThreadTarget

REDUCTIONS = (Reduce, ArgReduce)
TAKE_EPILOGUE = (Contract, Convolve, Pool, *REDUCTIONS)
OTHER_BUFFERS = 4  # buffers of a kernel besides the operands of its map
Readers = Mapping[Value, Sequence[Step | None]]


def group_attention(fused: FusedProgram, target: Target) -> FusedProgram:
    """Group attentions, on targets with kernels that stream over the keys."""
    if not streams_attention(target):
        return fused
    program = fused.program
    readers = find_readers(program)
    merged: list[Group] = []
    for members, attention in find_attention(program, attention_support(target)):
        operands, results = find_boundary(members, readers)
        merged.append(AttentionGroup(members, operands, results, number_loads(attention, operands)))
    return _merge_groups(fused, merged)


def streams_attention(target: Target) -> bool:
    """Whether a target has a fused attention kernel; without shared memory, separate products are faster."""
    return not isinstance(target, ThreadTarget) or target.sharing_pays


def group_rows(fused: FusedProgram, _: Target) -> FusedProgram:
    """Group maps and reductions along the same rows."""
    readers = find_readers(fused.program)
    merged: list[Group] = []
    for members in find_row_groups(fused.program, _grouped_steps(fused)):
        frame = find_row_frame(members)
        assert frame is not None
        merged.append(RowGroup(members, *find_boundary(members, readers), frame))
    return _merge_groups(fused, merged)


def group_heavy(fused: FusedProgram, _: Target) -> FusedProgram:
    """Group heavy steps with the map after them.

    A reduction also takes the map before it, and a 1 x 1 convolution a map that only reorders channels.
    """
    program = fused.program
    readers, grouped = find_readers(program), _grouped_steps(fused)
    makers = {step.results[0]: step for step in program.steps if isinstance(step.primitive, Map)}
    in_place = find_channel_reorderings(program)
    merged: list[Group] = []
    for step in program.steps:
        if id(step) in grouped or not isinstance(step.primitive, TAKE_EPILOGUE) or not step.operands[0].has_shape:
            continue
        users = readers.get(step.results[0], [])
        after = users[0] if len(users) == 1 else None
        after = after if after is not None and id(after) not in grouped and _is_epilogue(step, after) else None
        takes = isinstance(step.primitive, REDUCTIONS) or step.operands[0] in in_place
        before = makers.get(step.operands[0]) if takes else None
        if before is not None and (id(before) in grouped or len(readers[step.operands[0]]) > 1):
            before = None
        group = _build_heavy_group(before, step, after, readers)
        grouped |= {id(member) for member in group.steps}
        merged.append(group)
    return _merge_groups(fused, merged)


def split_wide(fused: FusedProgram, target: Target) -> FusedProgram:
    """Split groups that need more buffers than a kernel may have into single steps."""
    groups: list[Group] = []
    for group in fused.groups:
        wide = len(group.operands) + len(group.results) + OTHER_BUFFERS > target.most_buffers
        groups += map(single_group, group.steps) if wide and len(group.steps) > 1 else (group,)
    return replace(fused, groups=tuple(groups))


def single_group(step: Step) -> Group:
    """Make a group of one step."""
    operands = tuple(dict.fromkeys(step.operands))
    match step.primitive:
        case Map():
            return MapGroup((step,), operands, step.results)
        case Reshape():
            return ReshapeGroup((step,), operands, step.results)
        case Reduce() | ArgReduce() if step.operands[0].has_shape:
            return ReduceGroup((step,), operands, step.results, step, _identity_element(step), None)
        case Contract() | Convolve() | Pool():
            return HeavyGroup((step,), operands, step.results, step, step.operands, None)
        case _:
            return StepGroup((step,), operands, step.results)


def find_readers(program: TensorProgram) -> Readers:
    """Return the readers of each value; None stands for a program output."""
    readers: dict[Value, list[Step | None]] = {}
    for step in program.steps:
        for operand in set(step.operands):
            readers.setdefault(operand, []).append(step)
    for output in program.outputs:
        readers.setdefault(output, []).append(None)
    return readers


# -- members ---------------------------------------------------------------------------------------------------------


def _build_heavy_group(before: Step | None, heavy: Step, after: Step | None, readers: Readers) -> Group:
    members = tuple(step for step in (before, heavy, after) if step is not None)
    if len(members) == 1:
        return single_group(heavy)
    operands, results = find_boundary(members, readers)
    epilogue = None if after is None else _build_epilogue(heavy, after)
    if isinstance(heavy.primitive, REDUCTIONS):
        element = _identity_element(heavy)
        if before is not None:
            assert isinstance(before.primitive, Map)
            element = FusedMap(before.primitive.expression, before.operands)
        return ReduceGroup(members, operands, results, heavy, element, epilogue)
    sources, order = heavy.operands, None
    if before is not None:
        sources, order = (before.operands[0], *heavy.operands[1:]), match_channel_order(before)
    return HeavyGroup(members, operands, results, heavy, sources, epilogue, order)


def _identity_element(step: Step) -> FusedMap:
    """Return the element of a reduction without a map before it: that of its operand."""
    source = step.operands[0]
    return FusedMap(Load(0, identity_indices(source.shape), source.dtype), step.operands)


def _build_epilogue(heavy: Step, after: Step) -> FusedMap:
    assert isinstance(after.primitive, Map)
    result = heavy.results[0]
    others = tuple(value for value in after.operands if value != result)

    def renumber(load: Load) -> Scalar:
        value = after.operands[load.operand]
        if value == result:
            return Placeholder(ELEMENT, load.dtype)
        return Load(others.index(value), load.indices, load.dtype, load.checked)

    return FusedMap(rebuild(after.primitive.expression, renumber), others)


def _is_epilogue(heavy: Step, step: Step) -> bool:
    """Whether a map reads the heavy result elementwise."""
    if not isinstance(step.primitive, Map) or DType.string in computed_types(step):
        return False
    source, result = heavy.results[0], step.results[0]
    if not source.has_shape or source.shape != result.shape:
        return False
    position = step.operands.index(source)
    own_indices = identity_indices(source.shape)
    return all(load.indices == own_indices for load in loads(step.primitive.expression) if load.operand == position)


# -- groups of a program ---------------------------------------------------------------------------------------------


def _grouped_steps(fused: FusedProgram) -> set[int]:
    """Return the ids of steps in groups of several."""
    return {id(step) for group in fused.groups if len(group.steps) > 1 for step in group.steps}


def _merge_groups(fused: FusedProgram, merged: Iterable[Group]) -> FusedProgram:
    """Replace the groups of some steps by larger ones, at the position of their last step."""
    owner = {id(step): group for group in merged for step in group.steps}
    groups: list[Group] = []
    for group in fused.groups:
        larger = owner.get(id(group.steps[-1]))
        if larger is None:
            groups.append(group)
        elif group.steps[-1] is larger.steps[-1]:
            groups.append(larger)
    return replace(fused, groups=tuple(groups))


def find_boundary(members: Sequence[Step], readers: Readers) -> tuple[Values, Values]:
    """Return the operands from outside and the results used outside."""
    inside = {result for step in members for result in step.results}
    operands = dict.fromkeys(operand for step in members for operand in step.operands if operand not in inside)
    member_ids = {id(step) for step in members}
    results = tuple(
        value
        for step in members
        for value in step.results
        if any(reader is None or id(reader) not in member_ids for reader in readers.get(value, ()))
        or step is members[-1]
    )
    return tuple(operands), results
