"""What passes share: replacing values in steps, and reaching into bodies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace

from weft.ir.program import Map, Step, TensorProgram, Value, bodies, with_bodies
from weft.ir.scalar import Load, Scalar, rebuild
from weft.opset.trace import Evaluator

Pass = Callable[[TensorProgram, Evaluator], TensorProgram]


def everywhere(apply: Pass, program: TensorProgram, evaluator: Evaluator) -> TensorProgram:
    """The program with a pass applied to the bodies inside its steps (which apply it to theirs)."""

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
    """The step with its operands replaced."""
    if not any(operand in replaced for operand in step.operands):
        return step
    return replace(step, operands=tuple(replaced.get(operand, operand) for operand in step.operands))


def redirect_outputs(program: TensorProgram, replaced: Mapping[Value, Value]) -> tuple[Value, ...]:
    return tuple(replaced.get(output, output) for output in program.outputs)


def count_uses(program: TensorProgram) -> Counter[Value]:
    """How often each value is read; an output counts as a reader."""
    uses = Counter(operand for step in program.steps for operand in step.operands)
    uses.update(program.outputs)
    return uses


def next_number(program: TensorProgram) -> int:
    """A value number above all in use, in bodies too."""
    highest = -1
    pending = [program]
    while pending:
        current = pending.pop()
        values = [*current.inputs, *current.constants, *(value for step in current.steps for value in step.results)]
        highest = max([highest, *(value.number for value in values)])
        pending += [body for step in current.steps for body in bodies(step.primitive)]
    return highest + 1


def compact(step: Step) -> Step:
    """Drop the operands that no load names any more."""
    assert isinstance(step.primitive, Map)
    order: list[int] = []

    def renumber(load: Load) -> Scalar:
        if load.operand not in order:
            order.append(load.operand)
        return Load(order.index(load.operand), load.indices, load.dtype, load.checked)

    expression = rebuild(step.primitive.expression, renumber)
    return replace(step, primitive=Map(expression), operands=tuple(step.operands[number] for number in order))
