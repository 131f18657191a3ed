"""Concatenations of what maps make as maps: a row is one map's or another's by its place.

Rotary embeddings are written so: half of a vector beside the negative of the other half. As a map it becomes a part of
what reads it; else each map would be a launch of its own, and the concatenation one more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from weft.fuse.elements import shape_of
from weft.fuse.grouping import OTHER_BUFFERS, single_group
from weft.fuse.inline import inline_maps
from weft.ir import dims
from weft.ir.dims import Axis, Dim, Symbol
from weft.ir.dtypes import DType
from weft.ir.groups import FusedProgram
from weft.ir.program import Concat, Map, Step, Value, join_origins, tensor_dtype
from weft.ir.scalar import Apply, Index, Load, Scalar, loads, rebuild, walk
from weft.ir.target import Target, ThreadTarget

MOST_PARTS = 4
MOST_NODES = 12  # of a part: all are computed, wherever one is


def join_concats(fused: FusedProgram, target: Target) -> FusedProgram:
    """Small concatenations as maps, where launches cost more than a choice for each element."""
    if not isinstance(target, ThreadTarget) or not target.tile_products:
        return fused
    if not any(isinstance(step.primitive, Concat) for step in fused.program.steps):
        return fused
    program = inline_maps(fused.program, target.most_buffers - OTHER_BUFFERS)  # what a choice reads stays by itself
    readers: dict[Value, int] = dict.fromkeys(program.outputs, 1)
    for step in program.steps:
        for operand in step.operands:
            readers[operand] = readers.get(operand, 0) + 1
    makers = {step.results[0]: step for step in program.steps if isinstance(step.primitive, Map)}
    steps: list[Step] = []
    gone: set[int] = set()
    for step in program.steps:
        parts = _parts(step, makers, readers)
        steps.append(step if parts is None else _as_map(step, parts))
        gone |= {id(part) for part in parts or ()}
    if not gone:
        return fused
    program = replace(program, steps=tuple(step for step in steps if id(step) not in gone))
    return FusedProgram(program, tuple(map(single_group, program.steps)))


def _parts(step: Step, makers: Mapping[Value, Step], readers: Mapping[Value, int]) -> list[Step] | None:
    """The maps whose results a concatenation alone reads."""
    if not isinstance(step.primitive, Concat) or len(step.operands) > MOST_PARTS:
        return None
    found: list[Step] = []
    for operand in step.operands:
        maker = makers.get(operand)
        if maker is None or readers[operand] != 1:
            return None
        assert isinstance(maker.primitive, Map)
        expression = maker.primitive.expression
        if len(list(walk(expression))) > MOST_NODES or any(load.checked for load in loads(expression)):
            return None
        found.append(maker)
    return found


def _as_map(step: Step, parts: list[Step]) -> Step:
    assert isinstance(step.primitive, Concat)
    axis, shape = step.primitive.axis, shape_of(step.results[0])
    place = dims.axis(axis, shape[axis])
    operands: list[Value] = []
    ends: list[Dim] = []
    expressions: list[Scalar] = []
    for part in parts:
        start: Dim = ends[-1] if ends else 0
        ends.append(start + shape_of(part.results[0])[axis])
        expressions.append(_moved(part, axis, place - start, operands))
    result = expressions[-1]
    for end, expression in zip(reversed(ends[:-1]), reversed(expressions[:-1])):
        before = Apply("less", (Index(place), Index(end)), DType.bool)
        result = Apply("select", (before, expression, result), tensor_dtype(step.results[0]))
    origin = join_origins([*(part.origin for part in parts), step.origin])
    return Step(Map(result), tuple(operands), step.results, origin)


def _moved(part: Step, axis: int, place: Dim, operands: list[Value]) -> Scalar:
    """A part's expression at another place along an axis, its operands added to those of all."""
    assert isinstance(part.primitive, Map)

    def renumber(load: Load) -> Scalar:
        value = part.operands[load.operand]
        if value not in operands:
            operands.append(value)
        return Load(operands.index(value), load.indices, load.dtype, load.checked)

    def atom(found: Symbol | Axis) -> Dim:
        if isinstance(found, Axis):
            return place if found.position == axis else dims.axis(found.position, found.size)
        return dims.symbol(found.name, found.low, found.high)

    return rebuild(part.primitive.expression, renumber, atom)
