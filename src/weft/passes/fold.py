"""Constant folding: evaluate steps whose operands are all constants.

A result much larger than its operands is not folded, to save memory, unless it becomes the weights of a product. A
result that repeats one element is always folded, since its array has stride 0. Block-quantized weights stay packed,
since some devices multiply them directly; for other devices `fold_weights` dequantizes them. The same holds for weights
of 16 bits that are cast to float32 (`fold_half_weights`), and for floats of 8 bits (`fold_float8_weights`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from weft.errors import WeftError
from weft.ir.block_weights import match_block_weights
from weft.ir.dtypes import DType
from weft.ir.float8_products import find_float8_weights
from weft.ir.half_weights import widens_weights
from weft.ir.program import HOST_STEPS, Contract, Convolve, Map, Random, Scan, Step, TensorProgram, Value
from weft.ir.scalar import Literal
from weft.opset.trace import Evaluator
from weft.passes.rewrite import everywhere

SMALL = 1 << 20  # bytes; results up to this size are always folded
LARGE = 1 << 25  # the same limit for weights of products
LEAST_HALVES = 1 << 22  # bytes of float32 weights from which on it pays to keep them in 16 bits
LEAST_WEIGHTS = 1 << 16  # bytes of dequantized weights from which on it pays to keep them packed
GROWTH = 4  # limit on the size of other results, relative to operands: bytes may become float32


def fold_constants(program: TensorProgram, evaluator: Evaluator) -> TensorProgram:
    """Fold steps with constant operands, except weights that devices may dequantize or widen."""
    program = everywhere(fold_constants, program, evaluator)
    return _fold(program, evaluator, _find_readers(program))


def fold_weights(program: TensorProgram, evaluator: Evaluator) -> TensorProgram:
    """Fold steps with constant operands, including block-quantized weights and those of 16 bits."""
    return _fold(everywhere(fold_weights, program, evaluator), evaluator, {})


def fold_half_weights(program: TensorProgram, evaluator: Evaluator) -> TensorProgram:
    """Fold steps with constant operands, including weights of 16 bits, but not block-quantized ones."""
    program = everywhere(fold_half_weights, program, evaluator)
    return _fold(program, evaluator, _find_readers(program), halves=True)


def fold_float8_weights(program: TensorProgram, evaluator: Evaluator) -> TensorProgram:
    """Fold the steps that dequantize floats of 8 bits for products."""
    program = everywhere(fold_float8_weights, program, evaluator)
    weight_maps = {id(step) for step in find_float8_weights(program)}
    if not weight_maps:
        return program
    constants: dict[Value, Any] = dict(program.constants)
    steps: list[Step] = []
    for step in program.steps:
        results = _compute(step, constants, evaluator, LARGE) if id(step) in weight_maps else None
        if results is None:
            steps.append(step)
        else:
            constants.update(zip(step.results, results))
    return replace(program, steps=tuple(steps), constants=constants)


def fold_bytes(program: TensorProgram, evaluator: Evaluator) -> TensorProgram:
    """Fold the steps of this program (not of its bodies) whose results are bytes."""
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
    return value.is_tensor and value.dtype in (DType.uint8, DType.int8)


def _find_readers(program: TensorProgram) -> dict[Value, list[Step | None]]:
    """Return the readers of each value; None stands for a program output."""
    readers: dict[Value, list[Step | None]] = {}
    for step in program.steps:
        for operand in step.operands:
            readers.setdefault(operand, []).append(step)
    for output in program.outputs:
        readers.setdefault(output, []).append(None)
    return readers


def _fold(
    program: TensorProgram, evaluator: Evaluator, readers: dict[Value, list[Step | None]], *, halves: bool = False
) -> TensorProgram:
    constants: dict[Value, Any] = dict(program.constants)
    weight_sources = _find_weight_sources(program)
    float8_maps = {id(step) for step in find_float8_weights(program)} if readers else set()
    steps: list[Step] = []
    for step in program.steps:
        stays_packed = id(step) in float8_maps or (
            len(step.results) == 1 and _stays_packed(step, readers.get(step.results[0], []), constants, halves=halves)
        )
        small = LARGE if not weight_sources.isdisjoint(step.results) else SMALL
        results = None if stays_packed else _compute(step, constants, evaluator, small)
        if results is None:
            steps.append(step)
        else:
            constants.update(zip(step.results, results))
    return replace(program, steps=tuple(steps), constants=constants)


def _find_weight_sources(program: TensorProgram) -> set[Value]:
    """Return the values from which constant steps compute the weights of products."""
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


def _stays_packed(step: Step, readers: list[Step | None], constants: dict[Value, Any], *, halves: bool) -> bool:
    """Whether a step dequantizes or, unless `halves` are folded, widens weights for a product that can do so itself."""
    if (
        not isinstance(step.primitive, Map)
        or len(readers) != 1
        or (_static_bytes(step.results[0]) or 0) < LEAST_WEIGHTS
    ):
        return False
    (reader,) = readers
    if reader is None or not isinstance(reader.primitive, Contract):
        return False
    if match_block_weights(reader, step, constants) is not None:
        return True
    large = (_static_bytes(step.results[0]) or 0) >= LEAST_HALVES
    return not halves and large and widens_weights(reader, step, constants)


def _compute(step: Step, constants: dict[Value, Any], evaluator: Evaluator, small: int = SMALL) -> list[Any] | None:
    if isinstance(step.primitive, (Random, Scan, *HOST_STEPS)):
        return None
    if not all(operand in constants for operand in step.operands) or not _is_worthwhile(step, small):
        return None
    try:
        return evaluator.evaluate(
            step.primitive, [constants[operand] for operand in step.operands], [value.type for value in step.results]
        )
    except (WeftError, KeyError):  # errors are raised at run time, if the step is needed
        return None


def _is_worthwhile(step: Step, small: int) -> bool:
    sizes = [_static_bytes(value) for value in step.results]
    if any(size is None for size in sizes):
        return False
    if isinstance(step.primitive, Map) and isinstance(step.primitive.expression, Literal):
        return True
    operand_bytes = sum(_static_bytes(value) or 0 for value in step.operands)
    return all(size is not None and size <= max(small, GROWTH * operand_bytes) for size in sizes)


def _static_bytes(value: Value) -> int | None:
    return value.nbytes if value.has_shape and isinstance(value.nbytes, int) else None
