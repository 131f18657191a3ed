"""Renumber values so that numbers are unique across bodies: passes keep them unique only within a body."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import count

from weft.ir.program import Step, TensorProgram, Value, bodies, with_bodies
from weft.opset.trace import Evaluator


def number_values(program: TensorProgram, evaluator: Evaluator) -> TensorProgram:  # noqa: ARG001
    """Number all values in order, if the program has bodies."""
    if not any(bodies(step.primitive) for step in program.steps):
        return program
    return _renumber(program, count())


def _renumber(program: TensorProgram, numbers: Iterator[int]) -> TensorProgram:
    renumbered: dict[Value, Value] = {}

    def new(value: Value) -> Value:
        renumbered[value] = replace(value, number=next(numbers))
        return renumbered[value]

    inputs = tuple(map(new, program.inputs))
    constants = {new(value): content for value, content in program.constants.items()}
    steps: list[Step] = []
    for step in program.steps:
        primitive = with_bodies(step.primitive, lambda body: _renumber(body, numbers))
        operands = tuple(renumbered[operand] for operand in step.operands)
        steps.append(replace(step, primitive=primitive, operands=operands, results=tuple(map(new, step.results))))
    outputs = tuple(renumbered[output] for output in program.outputs)
    return replace(program, inputs=inputs, outputs=outputs, constants=constants, steps=tuple(steps))
