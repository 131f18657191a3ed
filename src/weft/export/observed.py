"""Sizes that dims cannot express: those computed from other sizes in floating point, or from small inputs.

They are computed before a run: the caller passes small inputs that determine sizes together with the sizes. The steps
that compute them are extracted from the program as small programs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod

from weft.ir import dims
from weft.ir.dims import Symbol
from weft.ir.program import HOST_STEPS, Observe, Scan, Step, TensorProgram, Value
from weft.records import dataclass

MOST_ELEMENTS = 64  # of an input that may determine sizes
USUAL_SIZE = 64
"""The size that memory is laid out for if only a run knows it."""


@dataclass(frozen=True, slots=True, eq=False)
class ObservedSizes:
    """Symbols, and the program whose only output is an integer tensor with their values."""

    symbols: tuple[Symbol, ...]
    program: TensorProgram
    origin: str


def extract_sizes(program: TensorProgram) -> tuple[TensorProgram, list[ObservedSizes]]:
    """Extract the observations that depend on small inputs or none; return the remaining program and these."""
    makers = {value: step for step in program.steps for value in step.results}
    order = {id(step): position for position, step in enumerate(program.steps)}
    observed: list[ObservedSizes] = []
    extracted: set[int] = set()
    for step in program.steps:
        if not isinstance(step.primitive, Observe):
            continue
        (operand,) = step.operands
        needed = _find_steps(operand, makers, program)
        symbols = [symbol for symbol in map(dims.as_symbol, step.primitive.symbols) if symbol is not None]
        if needed is None or len(symbols) != len(step.primitive.symbols) or not _has_size(operand):
            continue
        steps = sorted(needed.values(), key=lambda one: order[id(one)])
        read = {operand, *(value for one in steps for value in one.operands)}
        inputs = tuple(value for value in program.inputs if value in read)
        constants = {
            value: program.constants[value]
            for value in (operand, *(value for one in steps for value in one.operands))
            if value in program.constants
        }
        observed.append(
            ObservedSizes(tuple(symbols), TensorProgram(inputs, (operand,), tuple(steps), constants), step.origin)
        )
        extracted.add(id(step))
    return replace(program, steps=_remaining_steps(program, extracted)), observed


def _find_steps(value: Value, makers: Mapping[Value, Step], program: TensorProgram) -> dict[int, Step] | None:
    """Return the steps that compute a value; None if they need large inputs, or only the host can do them."""
    steps: dict[int, Step] = {}
    pending = [value]
    while pending:
        current = pending.pop()
        if current in program.constants or (current in program.inputs and _is_small(current)):
            continue
        step = makers.get(current)
        if step is None or isinstance(step.primitive, (*HOST_STEPS, Scan)):
            return None
        if id(step) not in steps:
            steps[id(step)] = step
            pending += step.operands
    return steps


def _is_small(value: Value) -> bool:
    return _has_size(value) and prod(value.shape) <= MOST_ELEMENTS


def _has_size(value: Value) -> bool:
    return value.has_shape and all(isinstance(dim, int) for dim in value.shape)


def _remaining_steps(program: TensorProgram, extracted: set[int]) -> tuple[Step, ...]:
    """Return the other steps, without those whose results are not used any more."""
    if not extracted:
        return program.steps
    read = set(program.outputs)
    steps: list[Step] = []
    for step in reversed(program.steps):
        if id(step) in extracted or (step.results and read.isdisjoint(step.results)):
            continue
        read.update(step.operands)
        steps.append(step)
    return tuple(reversed(steps))


def find_size_inputs(observed: Sequence[ObservedSizes]) -> list[Value]:
    """Return the inputs that determine sizes."""
    return list(dict.fromkeys(value for one in observed for value in one.program.inputs))


def observed_symbols(observed: Sequence[ObservedSizes]) -> tuple[Symbol, ...]:
    return tuple(symbol for one in observed for symbol in one.symbols)
