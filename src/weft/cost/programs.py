"""Count the floating-point operations of a program, as an expression over its dynamic dims (see `weft.cost.effort`)."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from weft.cost.effort import UnknownShapeError, count_step_flops
from weft.ir.dims import Dim, from_atom, maximum, substitute
from weft.ir.program import Branch, Late, Loop, Scan, Step, TensorProgram
from weft.records import dataclass


@dataclass(frozen=True, slots=True)
class Cost:
    """The operations of one run.

    `unknown` names the nodes whose cost is known only at run time; such a loop counts as one iteration, other nodes as
    0.
    """

    flops: Dim
    unknown: tuple[str, ...] = ()


def program_cost(program: TensorProgram) -> Cost:
    """Return the cost of running all steps once."""
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
    """Return the operations of each ONNX node for which they are known."""
    totals: dict[str, Dim] = {}
    for step in program.steps:
        try:
            flops = step_cost(step, program).flops
        except UnknownShapeError:
            continue
        totals[step.origin] = totals.get(step.origin, 0) + flops
    return totals


def step_cost(step: Step, program: TensorProgram) -> Cost:
    """Return the cost of one step of `program`, including its bodies."""
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
            return Cost(count_step_flops(step))


def at_sizes(dim: Dim, sizes: Mapping[str, int]) -> Dim:
    """Substitute sizes in `dim`; symbols without one stay."""
    return substitute(dim, lambda atom: sizes.get(str(atom), from_atom(atom)))


def _constant_trips(step: Step, body: TensorProgram, program: TensorProgram) -> int | None:
    """Return the iterations of a loop with a constant count and no early exit."""
    trips, condition = step.operands[:2]
    count = program.constants.get(trips)
    continues = body.outputs[0] == body.inputs[1] or np.all(body.constants.get(body.outputs[0], False))
    if not isinstance(count, np.ndarray) or not continues or not np.all(program.constants.get(condition, False)):
        return None
    return max(int(count.reshape(-1)[0]), 0)
