"""Sizes that a model computes beyond what dims express: from other sizes in floating point, or from small inputs.

They are known before a run, as what they come from is: an input of a few numbers that decides sizes is given with the
sizes. So what computes them is taken out of the program, as small programs of their own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod

from weft.ir import dims
from weft.ir.dims import Symbol
from weft.ir.program import HOST_STEPS, Observe, Scan, Step, TensorProgram, Value
from weft.records import dataclass

MOST_DECIDING = 64  # elements of an input that sizes may come from
USUAL_SIZE = 64
"""What memory is laid out for, where only a run knows the size."""


@dataclass(frozen=True, slots=True, eq=False)
class ObservedSizes:
    """Symbols, and the program whose only output, an integer tensor, has their values."""

    symbols: tuple[Symbol, ...]
    program: TensorProgram
    origin: str


def take_out(program: TensorProgram) -> tuple[TensorProgram, list[ObservedSizes]]:
    """The program without the observations that depend on small inputs or none, and these in order."""
    makers = {value: step for step in program.steps for value in step.results}
    order = {id(step): place for place, step in enumerate(program.steps)}
    found: list[ObservedSizes] = []
    gone: set[int] = set()
    for step in program.steps:
        if not isinstance(step.primitive, Observe):
            continue
        (operand,) = step.operands
        needed = _needed(operand, makers, program)
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
        found.append(
            ObservedSizes(tuple(symbols), TensorProgram(inputs, (operand,), tuple(steps), constants), step.origin)
        )
        gone.add(id(step))
    return replace(program, steps=_used(program, gone)), found


def _needed(value: Value, makers: Mapping[Value, Step], program: TensorProgram) -> dict[int, Step] | None:
    """The steps that a value comes from; None where large inputs are needed, or what only the host can do."""
    steps: dict[int, Step] = {}
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if one in program.constants or (one in program.inputs and _is_small(one)):
            continue
        step = makers.get(one)
        if step is None or isinstance(step.primitive, (*HOST_STEPS, Scan)):
            return None
        if id(step) not in steps:
            steps[id(step)] = step
            waiting += step.operands
    return steps


def _is_small(value: Value) -> bool:
    return _has_size(value) and prod(value.shape) <= MOST_DECIDING


def _has_size(value: Value) -> bool:
    return value.has_shape and all(isinstance(dim, int) for dim in value.shape)


def _used(program: TensorProgram, gone: set[int]) -> tuple[Step, ...]:
    """The steps that are left, without those whose results nobody reads any more."""
    if not gone:
        return program.steps
    read = set(program.outputs)
    kept: list[Step] = []
    for step in reversed(program.steps):
        if id(step) in gone or (step.results and read.isdisjoint(step.results)):
            continue
        read.update(step.operands)
        kept.append(step)
    return tuple(reversed(kept))


def deciding_inputs(observed: Sequence[ObservedSizes]) -> list[Value]:
    """The inputs that sizes come from."""
    return list(dict.fromkeys(value for one in observed for value in one.program.inputs))


def symbols_of(observed: Sequence[ObservedSizes]) -> tuple[Symbol, ...]:
    return tuple(symbol for one in observed for symbol in one.symbols)
