"""Turn small concatenations of maps into maps that select by position.

Rotary embeddings concatenate half of a vector and the negated other half, or the two halves of their result. As a map
this is inlined into its reader; otherwise each operand and the concatenation would be separate launches.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from weft.fuse.grouping import OTHER_BUFFERS, single_group
from weft.fuse.inline import inline_maps
from weft.ir import dims
from weft.ir.dims import Axis, Dim, Symbol
from weft.ir.dtypes import DType
from weft.ir.groups import FusedProgram
from weft.ir.program import Concat, Map, Step, Value, join_origins
from weft.ir.scalar import Apply, Index, Load, Scalar, loads, rebuild, walk
from weft.ir.target import Target, ThreadTarget

MOST_PARTS = 4
MOST_NODES = 32  # of a part: all parts are evaluated for every element


def inline_concats(fused: FusedProgram, target: Target) -> FusedProgram:
    """Turn small concatenations into maps, on targets where a launch costs more than a select per element."""
    if not isinstance(target, ThreadTarget) or not target.tile_products:
        return fused
    if not any(isinstance(step.primitive, Concat) for step in fused.program.steps):
        return fused
    program = inline_maps(
        fused.program, target.most_buffers - OTHER_BUFFERS
    )  # afterwards, inlining no longer crosses selects
    readers: dict[Value, int] = dict.fromkeys(program.outputs, 1)
    for step in program.steps:
        for operand in step.operands:
            readers[operand] = readers.get(operand, 0) + 1
    makers = {step.results[0]: step for step in program.steps if isinstance(step.primitive, Map)}
    steps: list[Step] = []
    absorbed: set[int] = set()
    for step in program.steps:
        parts = _match_parts(step, makers, readers)
        steps.append(step if parts is None else _as_map(step, parts))
        absorbed |= {id(part) for part in parts or ()}
    if not absorbed:
        return fused
    program = replace(program, steps=tuple(step for step in steps if id(step) not in absorbed))
    return FusedProgram(program, tuple(map(single_group, program.steps)))


def _match_parts(step: Step, makers: Mapping[Value, Step], readers: Mapping[Value, int]) -> list[Step] | None:
    """Return the maps whose results only a concatenation reads."""
    if not isinstance(step.primitive, Concat) or len(step.operands) > MOST_PARTS:
        return None
    parts: list[Step] = []
    for operand in step.operands:
        maker = makers.get(operand)
        if maker is None or readers[operand] != 1:
            return None
        assert isinstance(maker.primitive, Map)
        expression = maker.primitive.expression
        if len(list(walk(expression))) > MOST_NODES or any(load.checked for load in loads(expression)):
            return None
        parts.append(maker)
    return parts


def _as_map(step: Step, parts: list[Step]) -> Step:
    assert isinstance(step.primitive, Concat)
    axis, shape = step.primitive.axis, step.results[0].shape
    position = dims.axis(axis, shape[axis])
    operands: list[Value] = []
    ends: list[Dim] = []
    expressions: list[Scalar] = []
    for part in parts:
        start: Dim = ends[-1] if ends else 0
        ends.append(start + part.results[0].shape[axis])
        expressions.append(_shift_part(part, axis, position - start, operands))
    result = expressions[-1]
    for end, expression in zip(reversed(ends[:-1]), reversed(expressions[:-1])):
        before = Apply("less", (Index(position), Index(end)), DType.bool)
        result = Apply("select", (before, expression, result), step.results[0].dtype)
    origin = join_origins([*(part.origin for part in parts), step.origin])
    return Step(Map(result), tuple(operands), step.results, origin)


def _shift_part(part: Step, axis: int, position: Dim, operands: list[Value]) -> Scalar:
    """Rewrite a part's expression at another position along an axis; add its operands to those of the result."""
    assert isinstance(part.primitive, Map)

    def renumber(load: Load) -> Scalar:
        value = part.operands[load.operand]
        if value not in operands:
            operands.append(value)
        return Load(operands.index(value), load.indices, load.dtype, load.checked)

    def substitute(atom: Symbol | Axis) -> Dim:
        return position if isinstance(atom, Axis) and atom.position == axis else dims.from_atom(atom)

    return rebuild(part.primitive.expression, renumber, substitute)
