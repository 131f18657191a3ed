"""Move maps from behind a reshape before it, where they can share a kernel with the step that makes its operand.

Attention in float16 computes in float32, and its result is reshaped to rows before it is rounded. Rows that are rounded
to few bits in blocks are reshaped from blocks to rows before they are scaled back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import count

from weft.fuse.elements import HEAVY, unreshape_indices
from weft.fuse.grouping import Readers, find_readers
from weft.ir.access import axes_of_shape, find_nonlinear_axes, substitute_axes
from weft.ir.program import Map, Reshape, Step, TensorProgram, Value
from weft.ir.scalar import Index, Load, Scalar, identity_indices, loads, rebuild, walk
from weft.ir.types import TensorType


def move_maps_before_reshapes(program: TensorProgram, *, of_maps: bool) -> TensorProgram:
    """Compute maps of reshaped values before the reshape, and reshape what they compute.

    The reshape has no other reader, and the value is the result of a heavy step or, with `of_maps`, of a map. Maps
    before a reshape that only splits axes are left to `inline_maps`.
    """
    makers = {value: step for step in program.steps for value in step.results}
    readers = find_readers(program)
    numbers = count(max((value.number for value in (*program.inputs, *program.constants, *makers)), default=0) + 1)
    changed: dict[int, tuple[Step, ...]] = {}
    for step in program.steps:
        reshape = _find_reshape(step, makers, readers, (*HEAVY, Map) if of_maps else HEAVY)
        if reshape is None or id(reshape) in changed:
            continue
        (source,), (result,) = reshape.operands, step.results
        expression = _read_source(step, reshape)
        if expression is None:
            continue
        moved = Value(next(numbers), TensorType(result.dtype, source.shape))
        operands = tuple(source if operand == reshape.results[0] else operand for operand in step.operands)
        moved_step = replace(step, primitive=Map(expression), operands=operands, results=(moved,))
        changed[id(reshape)] = ()
        changed[id(step)] = moved_step, Step(Reshape(), (moved,), (result,), reshape.origin)
    if not changed:
        return program
    return replace(program, steps=tuple(new for step in program.steps for new in changed.get(id(step), (step,))))


def _find_reshape(step: Step, makers: Mapping[Value, Step], readers: Readers, kinds: tuple[type, ...]) -> Step | None:
    """Return the reshape that a map reads, if neither its operand nor its result has another reader."""
    if not isinstance(step.primitive, Map):
        return None
    for operand in step.operands:
        reshape = makers.get(operand)
        if reshape is None or not isinstance(reshape.primitive, Reshape) or len(readers[operand]) > 1:
            continue
        (source,) = reshape.operands
        maker = makers.get(source)
        if maker is None or not isinstance(maker.primitive, kinds) or len(readers[source]) > 1:
            continue
        if not isinstance(maker.primitive, Map) or _merges_axes(reshape):
            return reshape
    return None


def _merges_axes(reshape: Step) -> bool:
    (source,), (result,) = reshape.operands, reshape.results
    indices = unreshape_indices(axes_of_shape(result.shape), result.shape, source.shape)
    return any(map(find_nonlinear_axes, indices))


def _read_source(step: Step, reshape: Step) -> Scalar | None:
    """Return a map's expression over the shape before the reshape; None unless all of its indices are linear there."""
    assert isinstance(step.primitive, Map)
    (source,), (value,), (result,) = reshape.operands, reshape.results, step.results
    position, own = step.operands.index(value), identity_indices(value.shape)
    own_loads = [load for load in loads(step.primitive.expression) if load.operand == position]
    if value.shape != result.shape or any(load.indices != own for load in own_loads):
        return None
    read = Load(position, identity_indices(source.shape), source.dtype)
    axes = unreshape_indices(axes_of_shape(source.shape), source.shape, value.shape)
    moved = rebuild(
        substitute_axes(step.primitive.expression, axes), lambda load: read if load.operand == position else load
    )
    indices = [node.value for node in walk(moved) if isinstance(node, Index)]
    return None if any(map(find_nonlinear_axes, indices)) else moved
