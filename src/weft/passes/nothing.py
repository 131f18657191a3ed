"""Steps on nothing: what a size of 0 decides before the run.

A result without elements is a constant, and so is what sums, products and extremes give over no elements at all; a load
from a tensor without elements can only be one that is never used. So kernels see no size that is the number 0.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from weft.errors import WeftError
from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.ir.program import (
    HOST_STEPS,
    Concat,
    Contract,
    Convolve,
    Map,
    Reduce,
    Reshape,
    Scan,
    Scatter,
    Step,
    TensorProgram,
    Value,
)
from weft.ir.scalar import Literal, Load, Scalar, loads, rebuild
from weft.ir.types import TensorType
from weft.opset.trace import Evaluator
from weft.passes.rewrite import compact, everywhere


def settle_nothing(program: TensorProgram, evaluator: Evaluator) -> TensorProgram:
    """Replace what sizes of 0 decide."""
    program = everywhere(settle_nothing, program, evaluator)
    values = (value for step in program.steps for value in (*step.operands, *step.results))
    if not any(map(_is_empty, values)):
        return program
    constants: dict[Value, Any] = dict(program.constants)
    steps: list[Step] = []
    for step in program.steps:
        if _is_for_nothing(step):
            for result in step.results:
                shape = _static_shape(result)
                if shape is None:
                    steps.append(_filled(step, _zero(_dtype(result)), result))
                else:
                    constants[result] = np.empty(shape, _dtype(result).numpy)
        else:
            steps.append(_settled(step, evaluator))
    return replace(program, steps=tuple(steps), constants=constants)


def _is_for_nothing(step: Step) -> bool:
    """Whether none of a step's results has elements, nor has it any other effect."""
    if isinstance(step.primitive, (Scan, *HOST_STEPS)):
        return False
    if isinstance(step.primitive, Scatter) and not _is_nothing(step.primitive.domain):
        return False  # there are indices to check
    return all(map(_is_empty, step.results))


def _settled(step: Step, evaluator: Evaluator) -> Step:
    """The step, or one with the same result that does without operands that hold nothing."""
    primitive = step.primitive
    match primitive:
        case Scatter(domain) if _is_nothing(domain):
            return replace(step, primitive=Reshape(), operands=step.operands[:1])
        case Map():
            return _without_loads(step, primitive)
        case Concat() if any(map(_is_empty, step.operands)):
            kept = tuple(operand for operand in step.operands if not _is_empty(operand))
            return replace(step, primitive=primitive if len(kept) > 1 else Reshape(), operands=kept)
        case Contract() | Convolve() if any(map(_is_empty, step.operands)):
            return _filled(step, _zero(_dtype(step.results[0])), step.results[0])
        case Reduce(kind, _) if _is_empty(step.operands[0]):
            dtype = _dtype(step.results[0])
            try:
                neutral = evaluator.evaluate(Reduce(kind, (0,)), [np.empty(0, dtype.numpy)], [TensorType(dtype, ())])
            except WeftError:
                return step
            return _filled(step, Literal(neutral[0].item(), dtype), step.results[0])
    return step


def _without_loads(step: Step, primitive: Map) -> Step:
    def fill(load: Load) -> Scalar:
        return _zero(load.dtype) if not load.checked and _is_empty(step.operands[load.operand]) else load

    if all(load.checked or not _is_empty(step.operands[load.operand]) for load in loads(primitive.expression)):
        return step
    return compact(replace(step, primitive=Map(rebuild(primitive.expression, fill))))


def _filled(step: Step, literal: Literal, result: Value) -> Step:
    return replace(step, primitive=Map(literal), operands=(), results=(result,))


def _zero(dtype: DType) -> Literal:
    if dtype is DType.string:
        return Literal("", dtype)
    if dtype is DType.bool:
        return Literal(False, dtype)
    return Literal(0 if dtype.is_integer else 0j if dtype.is_complex else 0.0, dtype)


def _is_empty(value: Value) -> bool:
    return isinstance(value.type, TensorType) and _is_nothing(value.type.shape or ())


def _is_nothing(shape: Iterable[Dim]) -> bool:
    return any(isinstance(size, int) and size == 0 for size in shape)


def _static_shape(value: Value) -> tuple[int, ...] | None:
    assert isinstance(value.type, TensorType)
    shape = value.type.shape or ()
    static = tuple(size for size in shape if isinstance(size, int))
    return static if len(static) == len(shape) else None


def _dtype(value: Value) -> DType:
    assert isinstance(value.type, TensorType)
    return value.type.dtype
