"""Constants that bodies of control flow capture become constants of the bodies, where they can be folded and packed."""

from __future__ import annotations

from dataclasses import replace

from weft.ir.program import Branch, Loop, Primitive, Scan, Step, TensorProgram, Value
from weft.opset.trace import Evaluator
from weft.passes.fold import fold_constants
from weft.passes.rewrite import everywhere


def embed_constants(program: TensorProgram, evaluator: Evaluator) -> TensorProgram:
    """Hand constants into bodies instead of passing them as operands, and fold there what depends on them."""
    steps = tuple(_embed(step, program, evaluator) for step in program.steps)
    return everywhere(embed_constants, replace(program, steps=steps), evaluator)


def _embed(step: Step, program: TensorProgram, evaluator: Evaluator) -> Step:
    match step.primitive:
        case Scan(_, carries, sequences):
            return _embed_in_one(step, step.primitive, carries + sequences, program, evaluator)
        case Loop(_, carries):
            return _embed_in_one(step, step.primitive, 2 + carries, program, evaluator)
        case Branch(then, otherwise):
            split = 1 + len(then.inputs)
            first, kept_first = _with_constants(then, step.operands[1:split], 0, program, evaluator)
            second, kept_second = _with_constants(otherwise, step.operands[split:], 0, program, evaluator)
            operands = (step.operands[0], *kept_first, *kept_second)
            return replace(step, primitive=Branch(first, second), operands=operands)
        case _:
            return step


def _embed_in_one(step: Step, primitive: Scan | Loop, own: int, program: TensorProgram, evaluator: Evaluator) -> Step:
    """The first `own` operands, and inputs of the body, are no captures."""
    new, kept = _with_constants(primitive.body, step.operands[own:], own, program, evaluator)
    changed: Primitive = replace(primitive, body=new)
    return replace(step, primitive=changed, operands=(*step.operands[:own], *kept))


def _with_constants(
    body: TensorProgram, captured: tuple[Value, ...], own_inputs: int, program: TensorProgram, evaluator: Evaluator
) -> tuple[TensorProgram, tuple[Value, ...]]:
    """The body with the constants among its captures embedded, and the captures that are left."""
    pairs = list(zip(body.inputs[own_inputs:], captured, strict=True))
    constants = {inner: program.constants[outer] for inner, outer in pairs if outer in program.constants}
    if not constants:
        return body, captured
    inputs = (*body.inputs[:own_inputs], *(inner for inner, _ in pairs if inner not in constants))
    embedded = replace(body, inputs=inputs, constants={**body.constants, **constants})
    return fold_constants(embedded, evaluator), tuple(outer for inner, outer in pairs if inner not in constants)
