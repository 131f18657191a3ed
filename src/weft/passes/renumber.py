"""Every value a number of its own, in bodies too: passes that make values in a body know only that body's numbers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import count

from weft.ir.program import Step, TensorProgram, Value, bodies, with_bodies
from weft.opset.trace import Evaluator


def number_values(program: TensorProgram, evaluator: Evaluator) -> TensorProgram:  # noqa: ARG001
    """The program with its values numbered in order."""
    if not any(bodies(step.primitive) for step in program.steps):
        return program
    return _numbered(program, count())


def _numbered(program: TensorProgram, numbers: Iterator[int]) -> TensorProgram:
    known: dict[Value, Value] = {}

    def new(value: Value) -> Value:
        known[value] = replace(value, number=next(numbers))
        return known[value]

    inputs = tuple(map(new, program.inputs))
    constants = {new(value): content for value, content in program.constants.items()}
    steps: list[Step] = []
    for step in program.steps:
        primitive = with_bodies(step.primitive, lambda body: _numbered(body, numbers))
        operands = tuple(known[operand] for operand in step.operands)
        steps.append(replace(step, primitive=primitive, operands=operands, results=tuple(map(new, step.results))))
    outputs = tuple(known[output] for output in program.outputs)
    return replace(program, inputs=inputs, outputs=outputs, constants=constants, steps=tuple(steps))
