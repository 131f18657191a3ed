"""Join products of one tensor with several constant matrices into one product.

The gates of a recurrent cell that are computed separately (h @ u1, h @ u2, ...) become columns of one product, which
the following maps read as slices. This is done in the bodies of scans, and for products with few rows: other products
are large enough on their own, and can be fused with the map after them.

The projections of attention (x @ q, x @ k, x @ v, possibly with biases, then split into heads) become one product for
any number of rows, since readers of heads can read them in place.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Any

import numpy as np

from weft.ir import dims
from weft.ir.access import axes_of_shape
from weft.ir.dims import Dim
from weft.ir.program import Contract, Map, Scan, Step, TensorProgram, Value, join_origins, with_bodies
from weft.ir.scalar import Index, Load
from weft.ir.types import TensorType
from weft.opset.trace import Evaluator
from weft.passes.projections import find_projections, has_constant_columns, join_projections
from weft.passes.rewrite import next_number

FEW_ROWS = 4
MAX_BYTES = 1 << 24  # bytes of constants that may be copied


def join_parallel_products(program: TensorProgram, evaluator: Evaluator) -> TensorProgram:  # noqa: ARG001
    """Join products of the same left operand with constants, including in bodies."""
    return _join_products(program, count(next_number(program)), repeated=False)


def _join_products(program: TensorProgram, numbers: Iterator[int], *, repeated: bool) -> TensorProgram:
    """Join the products of a program; `repeated` says that it is the body of a scan."""

    def join_in_body(step: Step, body: TensorProgram) -> TensorProgram:
        return _join_products(body, numbers, repeated=repeated or isinstance(step.primitive, Scan))

    inner = [replace(s, primitive=with_bodies(s.primitive, partial(join_in_body, s))) for s in program.steps]
    program = replace(program, steps=tuple(inner))
    constants: dict[Value, Any] = dict(program.constants)
    families = {id(member): family for family in _find_families(program, repeated) for member in family}
    projections = find_projections(program, set(families))
    heads = {id(step): family for family in projections for member in family for step in member.steps}
    steps: list[Step] = []
    for step in program.steps:
        family, projected = families.get(id(step)), heads.get(id(step))
        if family is not None:
            steps += _join_family(family, constants, numbers) if step is family[0] else []
        elif projected is not None:
            steps += join_projections(projected, constants, numbers) if step is projected[0].product else []
        else:
            steps.append(step)
    return replace(program, steps=tuple(steps), constants=constants)


def _find_families(program: TensorProgram, repeated: bool) -> list[list[Step]]:
    maps_only = _find_values_read_by_maps(program)
    families: dict[Any, list[Step]] = {}
    for step in program.steps:
        joinable = step.results and step.results[0] in maps_only and has_constant_columns(step, program.constants)
        if joinable and (repeated or _has_few_rows(step)):
            families.setdefault((step.operands[0], step.primitive), []).append(step)
    return [
        family
        for family in families.values()
        if len(family) > 1 and _constant_bytes(family, program.constants) <= MAX_BYTES
    ]


def _find_values_read_by_maps(program: TensorProgram) -> set[Value]:
    """Return the results that only maps read, which can read a slice of a larger tensor instead."""
    others = {operand for step in program.steps if not isinstance(step.primitive, Map) for operand in step.operands}
    return {value for step in program.steps for value in step.results} - others - set(program.outputs)


def _has_few_rows(step: Step) -> bool:
    rows = dims.product(step.results[0].shape[:-1])
    return isinstance(rows, int) and rows <= FEW_ROWS


def _constant_bytes(family: Sequence[Step], constants: Mapping[Value, Any]) -> int:
    return sum(int(constants[step.operands[1]].nbytes) for step in family)


def _join_family(family: Sequence[Step], constants: dict[Value, Any], numbers: Iterator[int]) -> list[Step]:
    """Build one product, and a slice of it for each member of the family."""
    first = family[0]
    assert isinstance(first.primitive, Contract)
    contract, left = first.primitive, first.operands[0]
    axis = contract.right.index(contract.output[-1])
    stacked = np.concatenate([constants[step.operands[1]] for step in family], axis)
    weights = Value(next(numbers), TensorType(first.operands[1].dtype, stacked.shape))
    constants[weights] = stacked
    rows = first.results[0].shape[:-1]
    product = Value(next(numbers), TensorType(first.results[0].dtype, (*rows, stacked.shape[axis])))
    steps = [Step(contract, (left, weights), (product,), join_origins(step.origin for step in family))]
    start: Dim = 0
    for step in family:
        shape = step.results[0].shape
        axes = axes_of_shape(shape)
        indices = (*axes[:-1], axes[-1] + start)
        load = Load(0, tuple(map(Index, indices)), product.dtype)
        steps.append(Step(Map(load), (product,), step.results, step.origin))
        start = start + shape[-1]
    return steps
