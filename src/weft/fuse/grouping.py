"""The stages that put steps together: an attention, a row group, a heavy step with the maps around it, or a step alone.

Each takes a program whose steps are in groups and gives one with larger groups. A group stands where its last step
stood; whoever else reads its values comes later.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from weft.fuse.attention import find_attention, numbered, sought_by
from weft.fuse.channel_order import channel_order, read_in_place
from weft.fuse.host import computed_types
from weft.fuse.row_groups import find_row_groups, row_frame
from weft.ir import dims
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
    is_tensor,
)
from weft.ir.program import ArgReduce, Contract, Convolve, Map, Pool, Reduce, Reshape, Step, TensorProgram, Value
from weft.ir.scalar import AT_HAND, Held, Index, Load, Scalar, loads, rebuild
from weft.ir.target import Target, ThreadTarget
from weft.ir.types import TensorType

REDUCTIONS = (Reduce, ArgReduce)
TAKE_EPILOGUE = (Contract, Convolve, Pool, *REDUCTIONS)
OTHER_BUFFERS = 4  # of a kernel, beside the operands of a map in it
Readers = Mapping[Value, Sequence[Step | None]]


def group_attention(fused: FusedProgram, target: Target) -> FusedProgram:
    """Attentions as groups, whose kernels go over the keys, where the target has such kernels."""
    if not streams_attention(target):
        return fused
    program = fused.program
    readers = readers_of(program)
    found: list[Group] = []
    for members, attention in find_attention(program, sought_by(target)):
        operands, results = _ends(members, readers)
        found.append(AttentionGroup(members, operands, results, numbered(attention, operands)))
    return _joined(fused, found)


def streams_attention(target: Target) -> bool:
    """Whether there is an attention in one piece. Threads that share no memory are better at products."""
    return not isinstance(target, ThreadTarget) or target.sharing_pays


def group_rows(fused: FusedProgram, _: Target) -> FusedProgram:
    """Maps and reductions along the same rows as groups."""
    readers = readers_of(fused.program)
    found: list[Group] = []
    for members in find_row_groups(fused.program, _taken(fused)):
        frame = row_frame(members)
        assert frame is not None
        found.append(RowGroup(members, *_ends(members, readers), frame))
    return _joined(fused, found)


def group_heavy(fused: FusedProgram, _: Target) -> FusedProgram:
    """A heavy step with the map after it; a reduction with the map before it too, and a 1 x 1 convolution with one that
    only puts channels into another order.
    """
    program = fused.program
    readers, taken = readers_of(program), _taken(fused)
    makers = {step.results[0]: step for step in program.steps if isinstance(step.primitive, Map)}
    in_place = read_in_place(program)
    found: list[Group] = []
    for step in program.steps:
        if id(step) in taken or not isinstance(step.primitive, TAKE_EPILOGUE) or not is_tensor(step.operands[0]):
            continue
        users = readers.get(step.results[0], [])
        after = users[0] if len(users) == 1 else None
        after = after if after is not None and id(after) not in taken and _follows(step, after) else None
        takes = isinstance(step.primitive, REDUCTIONS) or step.operands[0] in in_place
        before = makers.get(step.operands[0]) if takes else None
        if before is not None and (id(before) in taken or len(readers[step.operands[0]]) > 1):
            before = None
        group = _heavy_group(before, step, after, readers)
        taken |= {id(member) for member in group.steps}
        found.append(group)
    return _joined(fused, found)


def split_wide(fused: FusedProgram, target: Target) -> FusedProgram:
    """Groups with more buffers than a kernel may have as single steps."""
    groups: list[Group] = []
    for group in fused.groups:
        wide = len(group.operands) + len(group.results) + OTHER_BUFFERS > target.most_buffers
        groups += map(single_group, group.steps) if wide and len(group.steps) > 1 else (group,)
    return replace(fused, groups=tuple(groups))


def single_group(step: Step) -> Group:
    """A step alone."""
    operands = tuple(dict.fromkeys(step.operands))
    match step.primitive:
        case Map():
            return MapGroup((step,), operands, step.results)
        case Reshape():
            return ReshapeGroup((step,), operands, step.results)
        case Reduce() | ArgReduce() if is_tensor(step.operands[0]):
            return ReduceGroup((step,), operands, step.results, step, _plain_element(step), None)
        case Contract() | Convolve() | Pool():
            return HeavyGroup((step,), operands, step.results, step, step.operands, None)
        case _:
            return StepGroup((step,), operands, step.results)


def readers_of(program: TensorProgram) -> Readers:
    """Who reads each value; None stands for the world outside."""
    readers: dict[Value, list[Step | None]] = {}
    for step in program.steps:
        for operand in set(step.operands):
            readers.setdefault(operand, []).append(step)
    for output in program.outputs:
        readers.setdefault(output, []).append(None)
    return readers


# -- parts -----------------------------------------------------------------------------------------------------------


def _heavy_group(before: Step | None, heavy: Step, after: Step | None, readers: Readers) -> Group:
    members = tuple(step for step in (before, heavy, after) if step is not None)
    if len(members) == 1:
        return single_group(heavy)
    operands, results = _ends(members, readers)
    epilogue = None if after is None else _epilogue(heavy, after)
    if isinstance(heavy.primitive, REDUCTIONS):
        element = _plain_element(heavy)
        if before is not None:
            assert isinstance(before.primitive, Map)
            element = FusedMap(before.primitive.expression, before.operands)
        return ReduceGroup(members, operands, results, heavy, element, epilogue)
    sources, order = heavy.operands, None
    if before is not None:
        sources, order = (before.operands[0], *heavy.operands[1:]), channel_order(before)
    return HeavyGroup(members, operands, results, heavy, sources, epilogue, order)


def _plain_element(step: Step) -> FusedMap:
    """What a reduction combines where no map before it says more: the elements of its operand."""
    source = step.operands[0]
    assert isinstance(source.type, TensorType) and source.type.shape is not None
    plain = tuple(Index(dims.axis(axis, size)) for axis, size in enumerate(source.type.shape))
    return FusedMap(Load(0, plain, source.type.dtype), step.operands)


def _epilogue(heavy: Step, after: Step) -> FusedMap:
    assert isinstance(after.primitive, Map)
    result = heavy.results[0]
    others = tuple(value for value in after.operands if value != result)

    def renumber(load: Load) -> Scalar:
        value = after.operands[load.operand]
        if value == result:
            return Held(AT_HAND, load.dtype)
        return Load(others.index(value), load.indices, load.dtype, load.checked)

    return FusedMap(rebuild(after.primitive.expression, renumber), others)


def _follows(heavy: Step, step: Step) -> bool:
    """Whether a map reads the heavy result only at the place that it writes."""
    if not isinstance(step.primitive, Map) or DType.string in computed_types(step):
        return False
    source, result = heavy.results[0], step.results[0]
    assert isinstance(source.type, TensorType)
    assert isinstance(result.type, TensorType)
    if source.type.shape != result.type.shape or source.type.shape is None:
        return False
    position = step.operands.index(source)
    plain = tuple(Index(dims.axis(axis, size)) for axis, size in enumerate(source.type.shape))
    return all(load.indices == plain for load in loads(step.primitive.expression) if load.operand == position)


# -- groups of a program ---------------------------------------------------------------------------------------------


def _taken(fused: FusedProgram) -> set[int]:
    """The ids of steps that are in groups with others."""
    return {id(step) for group in fused.groups if len(group.steps) > 1 for step in group.steps}


def _joined(fused: FusedProgram, found: Iterable[Group]) -> FusedProgram:
    """The program with groups in place of those of their steps, each where its last step stood."""
    owner = {id(step): group for group in found for step in group.steps}
    groups: list[Group] = []
    for group in fused.groups:
        larger = owner.get(id(group.steps[-1]))
        if larger is None:
            groups.append(group)
        elif group.steps[-1] is larger.steps[-1]:
            groups.append(larger)
    return replace(fused, groups=tuple(groups))


def _ends(members: Sequence[Step], readers: Readers) -> tuple[Values, Values]:
    """The operands that come from outside, and the results that are seen there."""
    inside = {result for step in members for result in step.results}
    operands = dict.fromkeys(operand for step in members for operand in step.operands if operand not in inside)
    own = {id(step) for step in members}
    results = tuple(
        value
        for step in members
        for value in step.results
        if any(reader is None or id(reader) not in own for reader in readers.get(value, ())) or step is members[-1]
    )
    return tuple(operands), results
