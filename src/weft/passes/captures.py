"""Embed captured constants in the bodies of control flow, where they can be folded and packed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from weft.ir.program import Branch, Loop, Primitive, Scan, Step, TensorProgram, Value, bodies
from weft.opset.trace import Evaluator
from weft.passes.fold import fold_bytes, fold_constants, is_bytes
from weft.passes.rewrite import everywhere


def embed_constants(program: TensorProgram, evaluator: Evaluator) -> TensorProgram:
    """Move captured constants into bodies, and fold constants there."""
    steps = tuple(_embed(step, program, lambda body: fold_constants(body, evaluator)) for step in program.steps)
    return everywhere(embed_constants, replace(program, steps=steps), evaluator)


def embed_bytes(program: TensorProgram, evaluator: Evaluator) -> TensorProgram:
    """Move only 8-bit constants into bodies, so that quantized products there are recognised."""
    if any(bodies(step.primitive) for step in program.steps):
        program = fold_bytes(program, evaluator)
        content = {value: content for value, content in program.constants.items() if is_bytes(value)}
        outer = replace(program, constants=content)
        steps = tuple(_embed(step, outer, lambda body: fold_bytes(body, evaluator)) for step in program.steps)
        program = replace(program, steps=steps)
    return everywhere(embed_bytes, program, evaluator)


def _embed(step: Step, program: TensorProgram, fold: Callable[[TensorProgram], TensorProgram]) -> Step:
    match step.primitive:
        case Scan(_, carries, sequences):
            return _embed_in_body(step, step.primitive, carries + sequences, program, fold)
        case Loop(_, carries):
            return _embed_in_body(step, step.primitive, 2 + carries, program, fold)
        case Branch(then, otherwise):
            split = 1 + len(then.inputs)
            first, first_captures = _embed_captures(then, step.operands[1:split], 0, program, fold)
            second, second_captures = _embed_captures(otherwise, step.operands[split:], 0, program, fold)
            operands = (step.operands[0], *first_captures, *second_captures)
            return replace(step, primitive=Branch(first, second), operands=operands)
        case _:
            return step


def _embed_in_body(
    step: Step,
    primitive: Scan | Loop,
    input_count: int,
    program: TensorProgram,
    fold: Callable[[TensorProgram], TensorProgram],
) -> Step:
    """Embed constants in one body, whose first `input_count` inputs are not captures."""
    new, captures = _embed_captures(primitive.body, step.operands[input_count:], input_count, program, fold)
    changed: Primitive = replace(primitive, body=new)
    return replace(step, primitive=changed, operands=(*step.operands[:input_count], *captures))


def _embed_captures(
    body: TensorProgram,
    captured: tuple[Value, ...],
    input_count: int,
    program: TensorProgram,
    fold: Callable[[TensorProgram], TensorProgram],
) -> tuple[TensorProgram, tuple[Value, ...]]:
    """Return the body with constant captures embedded, and the remaining captures."""
    pairs = list(zip(body.inputs[input_count:], captured, strict=True))
    constants = {inner: program.constants[outer] for inner, outer in pairs if outer in program.constants}
    if not constants:
        return body, captured
    inputs = (*body.inputs[:input_count], *(inner for inner, _ in pairs if inner not in constants))
    embedded = replace(body, inputs=inputs, constants={**body.constants, **constants})
    return fold(embedded), tuple(outer for inner, outer in pairs if inner not in constants)
