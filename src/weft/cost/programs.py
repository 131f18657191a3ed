"""The arithmetic of a tensor program: floating-point operations as an expression over its dynamic dims.

What counts as one is said in `weft.cost.effort`.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from weft.cost.effort import UnknownShapeError, step_flops
from weft.ir.dims import Dim, Expr, maximum, substitute
from weft.ir.program import Branch, Late, Loop, Scan, Step, TensorProgram
from weft.records import dataclass


@dataclass(frozen=True, slots=True)
class Cost:
    """`flops` of one run. `unknown` names the nodes whose work only the run reveals; of a loop among them one trip
    is counted, of anything else nothing.
    """

    flops: Dim
    unknown: tuple[str, ...] = ()


def program_cost(program: TensorProgram) -> Cost:
    """The cost of running all steps once."""
    total: Dim = 0
    unknown: list[str] = []
    for step in program.steps:
        try:
            cost = step_cost(step, program)
        except UnknownShapeError:
            cost = Cost(0, (step.origin,))
        total = total + cost.flops
        unknown.extend(cost.unknown)
    return Cost(total, tuple(dict.fromkeys(unknown)))


def costs_by_origin(program: TensorProgram) -> dict[str, Dim]:
    """The operations that each ONNX node stands for, where they are known."""
    totals: dict[str, Dim] = {}
    for step in program.steps:
        try:
            flops = step_cost(step, program).flops
        except UnknownShapeError:
            continue
        totals[step.origin] = totals.get(step.origin, 0) + flops
    return totals


def step_cost(step: Step, program: TensorProgram) -> Cost:
    """The cost of one step of `program`, the programs inside it included."""
    match step.primitive:
        case Scan(body, _, _, length):
            inner = program_cost(body)
            return Cost(length * inner.flops, inner.unknown)
        case Branch(then, otherwise):
            sides = program_cost(then), program_cost(otherwise)
            return Cost(maximum(sides[0].flops, sides[1].flops), sides[0].unknown + sides[1].unknown)
        case Loop(body):
            inner = program_cost(body)
            trips = _constant_trips(step, body, program)
            if trips is None:
                return Cost(inner.flops, (step.origin, *inner.unknown))
            return Cost(trips * inner.flops, inner.unknown)
        case Late():
            return Cost(0, (step.origin,))
        case _:
            return Cost(step_flops(step))


def at_sizes(dim: Dim, sizes: Mapping[str, int]) -> Dim:
    """`dim` with the given sizes put in; symbols without one stay."""
    return substitute(dim, lambda atom: sizes.get(str(atom), Expr((((atom,), 1),))))


def _constant_trips(step: Step, body: TensorProgram, program: TensorProgram) -> int | None:
    """How often a loop runs, where its count is a constant and nothing can end it early."""
    trips, condition = step.operands[:2]
    count = program.constants.get(trips)
    kept = body.outputs[0] == body.inputs[1] or np.all(body.constants.get(body.outputs[0], False))
    if not isinstance(count, np.ndarray) or not kept or not np.all(program.constants.get(condition, False)):
        return None
    return max(int(count.reshape(-1)[0]), 0)
