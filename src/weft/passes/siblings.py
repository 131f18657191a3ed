"""Products of one tensor with several constants are one product with the constants side by side.

The gates of a recurrent cell that are written one by one (h @ u1, h @ u2, ...) become columns of one product, which the
maps after them read as slices. In the bodies of scans, and where the product has few rows: elsewhere each product is
large enough alone, and can take in the map after it.

What attention projects into heads (x @ q, x @ k, x @ v, each maybe with constants added, its columns then split into
heads) becomes one product for any number of rows: whoever reads heads reads them in place.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Any

import numpy as np

from weft.ir import dims
from weft.ir.dims import Dim
from weft.ir.program import Contract, Map, Scan, Step, TensorProgram, Value, join_origins, tensor_dtype, with_bodies
from weft.ir.scalar import Index, Load
from weft.ir.types import Shape, TensorType
from weft.opset.trace import Evaluator
from weft.passes.projections import find_projections, has_constant_columns, join_projections
from weft.passes.rewrite import next_number

FEW_ROWS = 4
LARGEST = 1 << 24  # bytes of constants that are worth a copy


def join_siblings(program: TensorProgram, evaluator: Evaluator) -> TensorProgram:  # noqa: ARG001
    """Join products of the same left operand with constants, in bodies too."""
    return _join(program, count(next_number(program)), repeated=False)


def _join(program: TensorProgram, numbers: Iterator[int], *, repeated: bool) -> TensorProgram:
    """`repeated`: the program is what a scan does again and again."""

    def inside(step: Step, body: TensorProgram) -> TensorProgram:
        return _join(body, numbers, repeated=repeated or isinstance(step.primitive, Scan))

    inner = [replace(s, primitive=with_bodies(s.primitive, partial(inside, s))) for s in program.steps]
    program = replace(program, steps=tuple(inner))
    constants: dict[Value, Any] = dict(program.constants)
    families = {id(member): family for family in _families(program, repeated) for member in family}
    projections = find_projections(program, set(families))
    heads = {id(step): family for family in projections for member in family for step in member.steps}
    steps: list[Step] = []
    for step in program.steps:
        family, projected = families.get(id(step)), heads.get(id(step))
        if family is not None:
            steps += _joined(family, constants, numbers) if step is family[0] else []
        elif projected is not None:
            steps += join_projections(projected, constants, numbers) if step is projected[0].product else []
        else:
            steps.append(step)
    return replace(program, steps=tuple(steps), constants=constants)


def _families(program: TensorProgram, repeated: bool) -> list[list[Step]]:
    maps_only = _read_by_maps_only(program)
    found: dict[Any, list[Step]] = {}
    for step in program.steps:
        able = step.results and step.results[0] in maps_only and has_constant_columns(step, program.constants)
        if able and (repeated or _has_few_rows(step)):
            found.setdefault((step.operands[0], step.primitive), []).append(step)
    return [family for family in found.values() if len(family) > 1 and _bytes(family, program.constants) <= LARGEST]


def _read_by_maps_only(program: TensorProgram) -> set[Value]:
    """Results whose every reader can read a slice of a larger tensor instead."""
    others = {operand for step in program.steps if not isinstance(step.primitive, Map) for operand in step.operands}
    return {value for step in program.steps for value in step.results} - others - set(program.outputs)


def _has_few_rows(step: Step) -> bool:
    rows = dims.product(_shape(step.results[0])[:-1])
    return isinstance(rows, int) and rows <= FEW_ROWS


def _bytes(family: Sequence[Step], constants: Mapping[Value, Any]) -> int:
    return sum(int(constants[step.operands[1]].nbytes) for step in family)


def _joined(family: Sequence[Step], constants: dict[Value, Any], numbers: Iterator[int]) -> list[Step]:
    """One product, and a slice of it for each of the family."""
    first = family[0]
    assert isinstance(first.primitive, Contract)
    contract, left = first.primitive, first.operands[0]
    axis = contract.right.index(contract.output[-1])
    side_by_side = np.concatenate([constants[step.operands[1]] for step in family], axis)
    weights = Value(next(numbers), TensorType(tensor_dtype(first.operands[1]), side_by_side.shape))
    constants[weights] = side_by_side
    rows = _shape(first.results[0])[:-1]
    whole = Value(next(numbers), TensorType(tensor_dtype(first.results[0]), (*rows, side_by_side.shape[axis])))
    steps = [Step(contract, (left, weights), (whole,), join_origins(step.origin for step in family))]
    start: Dim = 0
    for step in family:
        shape = _shape(step.results[0])
        place = [dims.axis(number, size) for number, size in enumerate(shape)]
        indices = (*place[:-1], place[-1] + start)
        load = Load(0, tuple(map(Index, indices)), tensor_dtype(whole))
        steps.append(Step(Map(load), (whole,), step.results, step.origin))
        start = start + shape[-1]
    return steps


def _shape(value: Value) -> Shape:
    assert isinstance(value.type, TensorType)
    return value.type.shape or ()
