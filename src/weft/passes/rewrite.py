"""Helpers for passes: replace values in steps, and reach into bodies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace

from weft.ir.program import Map, Step, TensorProgram, Value, bodies, with_bodies
from weft.ir.scalar import Load, Scalar, rebuild
from weft.opset.trace import Evaluator

Pass = Callable[[TensorProgram, Evaluator], TensorProgram]


def everywhere(apply: Pass, program: TensorProgram, evaluator: Evaluator) -> TensorProgram:
    """Apply a pass to the bodies of a program's steps; the pass itself reaches the bodies inside these."""

    def change(body: TensorProgram) -> TensorProgram:
        return apply(body, evaluator)

    changed = [with_bodies(step.primitive, change) for step in program.steps]
    if all(primitive is step.primitive for primitive, step in zip(changed, program.steps)):
        return program
    steps = (
        step if primitive is step.primitive else replace(step, primitive=primitive)
        for primitive, step in zip(changed, program.steps)
    )
    return replace(program, steps=tuple(steps))


def redirect(step: Step, replaced: Mapping[Value, Value]) -> Step:
    """Replace operands of a step."""
    if not any(operand in replaced for operand in step.operands):
        return step
    return replace(step, operands=tuple(replaced.get(operand, operand) for operand in step.operands))


def redirect_outputs(program: TensorProgram, replaced: Mapping[Value, Value]) -> tuple[Value, ...]:
    return tuple(replaced.get(output, output) for output in program.outputs)


def count_uses(program: TensorProgram) -> Counter[Value]:
    """Count the uses of each value; an output counts as a use."""
    uses = Counter(operand for step in program.steps for operand in step.operands)
    uses.update(program.outputs)
    return uses


def next_number(program: TensorProgram) -> int:
    """Return a value number above all those in use, including those in bodies."""
    highest = -1
    pending = [program]
    while pending:
        current = pending.pop()
        values = [*current.inputs, *current.constants, *(value for step in current.steps for value in step.results)]
        highest = max([highest, *(value.number for value in values)])
        pending += [body for step in current.steps for body in bodies(step.primitive)]
    return highest + 1


def compact(step: Step) -> Step:
    """Drop the operands that no load reads, and renumber the others."""
    assert isinstance(step.primitive, Map)
    order: list[int] = []

    def renumber(load: Load) -> Scalar:
        if load.operand not in order:
            order.append(load.operand)
        return Load(order.index(load.operand), load.indices, load.dtype, load.checked)

    expression = rebuild(step.primitive.expression, renumber)
    return replace(step, primitive=Map(expression), operands=tuple(step.operands[number] for number in order))
