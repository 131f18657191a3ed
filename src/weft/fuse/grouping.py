"""Which steps become one piece of work: a row group; a heavy step with the map after it; a reduction with the map
before it too, and a 1 x 1 convolution with one that puts channels into another order; or a step alone.

TensorProgram -> groups in an order that the data allows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from weft.fuse.attention import Attention, find_attention
from weft.fuse.channel_order import read_in_place
from weft.fuse.row_groups import find_row_groups
from weft.ir import dims
from weft.ir.program import ArgReduce, Contract, Convolve, Map, Pool, Reduce, Step, TensorProgram, Value
from weft.ir.scalar import Index, Load, walk
from weft.ir.types import TensorType

TAKE_EPILOGUE = (Contract, Convolve, Pool, Reduce, ArgReduce)


@dataclass(frozen=True, slots=True)
class Group:
    """Steps done together; `operands` come from outside, `results` are seen outside.

    Row groups (`rows`) are any maps and reductions along the same rows, an `attention` is what its record says;
    others are one step with maps around it.
    """

    steps: tuple[Step, ...]
    operands: tuple[Value, ...]
    results: tuple[Value, ...]
    rows: bool = False
    attention: Attention | None = None


def group_steps(program: TensorProgram, *, streams: bool = True) -> tuple[Group, ...]:
    """Every step in exactly one group; a group stands where its last step stood.

    `streams`: attention is to be one group, whose kernel goes over the keys.
    """
    readers: dict[Value, list[Step | None]] = {}
    for step in program.steps:
        for operand in set(step.operands):
            readers.setdefault(operand, []).append(step)
    for output in program.outputs:
        readers.setdefault(output, []).append(None)
    owner: dict[int, tuple[Step, ...]] = {}
    attentions = find_attention(program) if streams else []
    for members, _ in attentions:
        owner.update((id(step), members) for step in members)
    in_attention = set(owner)
    last = {id(members[-1]): attention for members, attention in attentions}
    for members in find_row_groups(program, in_attention):
        owner.update((id(step), members) for step in members)
    in_rows = owner.keys() - in_attention
    makers = {step.results[0]: step for step in program.steps if isinstance(step.primitive, Map)}
    in_place = read_in_place(program)
    for step in program.steps:
        if id(step) in owner or not isinstance(step.primitive, TAKE_EPILOGUE):
            continue
        members = (step,)
        users = readers.get(step.results[0], [])
        if len(users) == 1 and users[0] is not None and id(users[0]) not in owner and _follows(step, users[0]):
            members = (step, users[0])
        takes = isinstance(step.primitive, (Reduce, ArgReduce)) or step.operands[0] in in_place
        before = makers.get(step.operands[0]) if takes else None
        if before is not None and id(before) not in owner and len(readers[step.operands[0]]) == 1:
            members = (before, *members)
        for member in members:
            owner[id(member)] = members
    groups: list[Group] = []
    for step in program.steps:
        members = owner.get(id(step), (step,))
        if step is members[-1]:
            group = _group(members, readers, rows=id(step) in in_rows)
            groups.append(replace(group, attention=last.get(id(step))))
    return tuple(groups)


def single_groups(group: Group) -> tuple[Group, ...]:
    """The steps of a group, each alone."""
    return tuple(Group((step,), tuple(dict.fromkeys(step.operands)), step.results) for step in group.steps)


def _follows(heavy: Step, step: Step) -> bool:
    """Whether a map reads the heavy result only at the place that it writes."""
    if not isinstance(step.primitive, Map):
        return False
    source, result = heavy.results[0], step.results[0]
    assert isinstance(source.type, TensorType)
    assert isinstance(result.type, TensorType)
    if source.type.shape != result.type.shape or source.type.shape is None:
        return False
    position = step.operands.index(source)
    plain = tuple(Index(dims.axis(axis, size)) for axis, size in enumerate(source.type.shape))
    own = [n for n in walk(step.primitive.expression) if isinstance(n, Load) and n.operand == position]
    return all(load.indices == plain for load in own)


def _group(members: tuple[Step, ...], readers: dict[Value, list[Step | None]], *, rows: bool) -> Group:
    inside = {result for step in members for result in step.results}
    operands: dict[Value, None] = {}
    for step in members:
        for operand in step.operands:
            if operand not in inside:
                operands[operand] = None
    own = {id(step) for step in members}
    results = tuple(
        value
        for step in members
        for value in step.results
        if any(reader is None or id(reader) not in own for reader in readers.get(value, ())) or step is members[-1]
    )
    return Group(members, tuple(operands), results, rows)
