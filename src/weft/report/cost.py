"""The arithmetic of a tensor program: floating-point operations as an expression over its dynamic dims.

What counts: every arithmetic function of a map once per element (equal subexpressions once, index arithmetic not at
all), one operation per element that a reduction, a pool or a running sum takes in, two per multiply-add of a
contraction or convolution. Moves, casts, selections, comparisons, sorting and host functions are free.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from weft.ir.dims import Dim, Expr, maximum, product, substitute
from weft.ir.program import (
    ArgReduce,
    Branch,
    Contract,
    Convolve,
    Cumulate,
    Late,
    Loop,
    Map,
    Pool,
    Reduce,
    Scan,
    Scatter,
    Step,
    TensorProgram,
    Value,
)
from weft.ir.scalar import FUNCTIONS, Apply, Scalar
from weft.ir.types import TensorType

FREE_FUNCTIONS = frozenset(
    name
    for name in FUNCTIONS
    if name.startswith(("is_", "bit_", "shift_", "logical_", "less", "greater"))
    or name in ("equal", "not_equal", "select", "cast", "bitcast")
)


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
        except _UnknownShapeError:
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
        except _UnknownShapeError:
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
            return Cost(_step_flops(step))


def at_sizes(dim: Dim, sizes: Mapping[str, int]) -> Dim:
    """`dim` with the given sizes put in; symbols without one stay."""
    return substitute(dim, lambda atom: sizes.get(str(atom), Expr((((atom,), 1),))))


class _UnknownShapeError(Exception):
    """A value of the step has a shape that only the run reveals."""


def _step_flops(step: Step) -> Dim:
    """The operations of a step that holds no program."""
    match step.primitive:
        case Map(expression):
            operations = _operations(expression)
            return operations * _elements(step.results[0]) if operations else 0
        case Reduce() | ArgReduce() | Cumulate():
            return _elements(step.operands[0])
        case Contract():
            return _contract_flops(step, step.primitive)
        case Convolve():
            return _convolve_flops(step, step.primitive)
        case Pool(_, window):
            return _elements(step.results[0]) * product(window)
        case Scatter(domain, _, update, reduction):
            return product(domain) * (_operations(update) + (reduction != "none"))
        case _:
            return 0


def _contract_flops(step: Step, contract: Contract) -> Dim:
    left, right = (_shape(value) for value in step.operands)
    sizes: dict[int, Dim] = {}
    for label, size in zip((*contract.left, *contract.right), (*left, *right), strict=True):
        if sizes.get(label, 1) == 1:
            sizes[label] = size
    return 2 * product(sizes.values())


def _convolve_flops(step: Step, convolve: Convolve) -> Dim:
    """Each point on the side with w's outer channels (input if transposed) meets one filter: C/groups times K."""
    points = step.operands[0] if convolve.transposed else step.results[0]
    return 2 * _elements(points) * product(_shape(step.operands[1])[1:])


@lru_cache(maxsize=4096)
def _operations(expression: Scalar) -> int:
    """Arithmetic functions evaluated for one element."""
    seen: set[Scalar] = set()
    pending = [expression]
    while pending:
        node = pending.pop()
        if isinstance(node, Apply) and node not in seen:
            seen.add(node)
            pending.extend(node.arguments)
    return sum(isinstance(node, Apply) and node.function not in FREE_FUNCTIONS for node in seen)


def _constant_trips(step: Step, body: TensorProgram, program: TensorProgram) -> int | None:
    """How often a loop runs, where its count is a constant and nothing can end it early."""
    trips, condition = step.operands[:2]
    count = program.constants.get(trips)
    kept = body.outputs[0] == body.inputs[1] or np.all(body.constants.get(body.outputs[0], False))
    if not isinstance(count, np.ndarray) or not kept or not np.all(program.constants.get(condition, False)):
        return None
    return max(int(count.reshape(-1)[0]), 0)


def _shape(value: Value) -> tuple[Dim, ...]:
    if isinstance(value.type, TensorType) and value.type.shape is not None:
        return value.type.shape
    raise _UnknownShapeError


def _elements(value: Value) -> Dim:
    return product(_shape(value))
