"""Constant folding: compute now what depends on constants alone.

A result much larger than what it is made from stays a step, so that folding never blows up memory, unless weights of a
product are made of it; one that merely repeats an element costs nothing, since its array has stride 0. Weights of few
bits stay so, since there are devices that multiply them as they are; for the others `fold_weights` comes after.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from weft.errors import WeftError
from weft.ir import dims
from weft.ir.dtypes import DType
from weft.ir.program import HOST_STEPS, Contract, Convolve, Map, Random, Scan, Step, TensorProgram, Value
from weft.ir.scalar import Literal
from weft.ir.types import TensorType
from weft.ir.unpacking import unpacked_weights
from weft.opset.trace import Evaluator
from weft.passes.rewrite import everywhere

SMALL = 1 << 20  # bytes that are always worth folding
LARGE = 1 << 25  # bytes that are, where products have them as weights
LEAST_WEIGHTS = 1 << 16  # bytes of numbers for which it pays to keep them in few bits
GROWTH = 4  # otherwise a result may be this many times larger than its operands: bytes may become float32


def fold_constants(program: TensorProgram, evaluator: Evaluator) -> TensorProgram:
    """Turn steps with constant operands into constants, but for weights of few bits."""
    program = everywhere(fold_constants, program, evaluator)
    return _folded(program, evaluator, _readers(program))


def fold_weights(program: TensorProgram, evaluator: Evaluator) -> TensorProgram:
    """The same with those weights."""
    return _folded(everywhere(fold_weights, program, evaluator), evaluator, {})


def fold_bytes(program: TensorProgram, evaluator: Evaluator) -> TensorProgram:
    """The steps of this program alone that make bytes."""
    constants: dict[Value, Any] = dict(program.constants)
    steps: list[Step] = []
    for step in program.steps:
        results = _compute(step, constants, evaluator) if all(map(is_bytes, step.results)) else None
        if results is None:
            steps.append(step)
        else:
            constants.update(zip(step.results, results))
    return replace(program, steps=tuple(steps), constants=constants)


def is_bytes(value: Value) -> bool:
    return isinstance(value.type, TensorType) and value.type.dtype in (DType.uint8, DType.int8)


def _readers(program: TensorProgram) -> dict[Value, list[Step | None]]:
    """Who reads each value; None stands for the world outside."""
    readers: dict[Value, list[Step | None]] = {}
    for step in program.steps:
        for operand in step.operands:
            readers.setdefault(operand, []).append(step)
    for output in program.outputs:
        readers.setdefault(output, []).append(None)
    return readers


def _folded(program: TensorProgram, evaluator: Evaluator, readers: dict[Value, list[Step | None]]) -> TensorProgram:
    constants: dict[Value, Any] = dict(program.constants)
    weights = _weights(program)
    steps: list[Step] = []
    for step in program.steps:
        kept = len(step.results) == 1 and _stays_packed(step, readers.get(step.results[0], []), constants)
        small = LARGE if not weights.isdisjoint(step.results) else SMALL
        results = None if kept else _compute(step, constants, evaluator, small)
        if results is None:
            steps.append(step)
        else:
            constants.update(zip(step.results, results))
    return replace(program, steps=tuple(steps), constants=constants)


def _weights(program: TensorProgram) -> set[Value]:
    """What weights of products are made of, by steps on constants alone."""
    fixed = set(program.constants)
    for step in program.steps:
        if fixed.issuperset(step.operands):
            fixed.update(step.results)
    weights: set[Value] = set()
    for step in reversed(program.steps):
        heavy = isinstance(step.primitive, (Contract, Convolve)) and not fixed.issuperset(step.operands)
        if heavy or not weights.isdisjoint(step.results):
            weights.update(fixed.intersection(step.operands))
    return weights


def _stays_packed(step: Step, readers: list[Step | None], constants: dict[Value, Any]) -> bool:
    """Whether a step makes numbers of weights for a product that can take them as they are."""
    if not isinstance(step.primitive, Map) or len(readers) != 1 or (_bytes(step.results[0]) or 0) < LEAST_WEIGHTS:
        return False
    (reader,) = readers
    if reader is None or not isinstance(reader.primitive, Contract):
        return False
    return unpacked_weights(reader, step, constants) is not None


def _compute(step: Step, constants: dict[Value, Any], evaluator: Evaluator, small: int = SMALL) -> list[Any] | None:
    if isinstance(step.primitive, (Random, Scan, *HOST_STEPS)):
        return None
    if not all(operand in constants for operand in step.operands) or not _is_worthwhile(step, small):
        return None
    try:
        return evaluator.evaluate(step.primitive, [constants[operand] for operand in step.operands], _types(step))
    except (WeftError, KeyError):  # an error of the data belongs to the run, and only if the step is needed
        return None


def _is_worthwhile(step: Step, small: int) -> bool:
    sizes = [_bytes(value) for value in step.results]
    if any(size is None for size in sizes):
        return False
    if isinstance(step.primitive, Map) and isinstance(step.primitive.expression, Literal):
        return True
    given = sum(_bytes(value) or 0 for value in step.operands)
    return all(size is not None and size <= max(small, GROWTH * given) for size in sizes)


def _bytes(value: Value) -> int | None:
    if not isinstance(value.type, TensorType) or value.type.shape is None:
        return None
    size = dims.product(value.type.shape)
    return size * value.type.dtype.numpy.itemsize if isinstance(size, int) else None


def _types(step: Step) -> list[Any]:
    return [value.type for value in step.results]
