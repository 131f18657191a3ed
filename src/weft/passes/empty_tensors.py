"""Fold steps on empty tensors, so that kernels never see a static size of 0.

A result without elements is a constant, and so is a reduction over no elements; a load from an empty tensor can only be
one whose value is never used.
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


def fold_empty_tensors(program: TensorProgram, evaluator: Evaluator) -> TensorProgram:
    """Replace steps with empty results, and drop empty operands."""
    program = everywhere(fold_empty_tensors, program, evaluator)
    values = (value for step in program.steps for value in (*step.operands, *step.results))
    if not any(map(_is_empty, values)):
        return program
    constants: dict[Value, Any] = dict(program.constants)
    steps: list[Step] = []
    for step in program.steps:
        if _has_no_effect(step):
            for result in step.results:
                shape = _static_shape(result)
                if shape is None:
                    steps.append(_fill(step, _zero(result.dtype), result))
                else:
                    constants[result] = np.empty(shape, result.dtype.numpy)
        else:
            steps.append(_drop_empty_operands(step, evaluator))
    return replace(program, steps=tuple(steps), constants=constants)


def _has_no_effect(step: Step) -> bool:
    """Whether all results of a step are empty and it has no other effect."""
    if isinstance(step.primitive, (Scan, *HOST_STEPS)):
        return False
    if isinstance(step.primitive, Scatter) and not _has_zero_size(step.primitive.domain):
        return False  # there are indices to check
    return all(map(_is_empty, step.results))


def _drop_empty_operands(step: Step, evaluator: Evaluator) -> Step:
    """Return an equivalent step without empty operands."""
    primitive = step.primitive
    match primitive:
        case Scatter(domain) if _has_zero_size(domain):
            return replace(step, primitive=Reshape(), operands=step.operands[:1])
        case Map():
            return _drop_empty_loads(step, primitive)
        case Concat() if any(map(_is_empty, step.operands)):
            nonempty = tuple(operand for operand in step.operands if not _is_empty(operand))
            return replace(step, primitive=primitive if len(nonempty) > 1 else Reshape(), operands=nonempty)
        case Contract() | Convolve() if any(map(_is_empty, step.operands)):
            return _fill(step, _zero(step.results[0].dtype), step.results[0])
        case Reduce(kind, _) if _is_empty(step.operands[0]):
            dtype = step.results[0].dtype
            try:
                neutral = evaluator.evaluate(Reduce(kind, (0,)), [np.empty(0, dtype.numpy)], [TensorType(dtype, ())])
            except WeftError:
                return step
            return _fill(step, Literal(neutral[0].item(), dtype), step.results[0])
    return step


def _drop_empty_loads(step: Step, primitive: Map) -> Step:
    def fill(load: Load) -> Scalar:
        return _zero(load.dtype) if not load.checked and _is_empty(step.operands[load.operand]) else load

    if all(load.checked or not _is_empty(step.operands[load.operand]) for load in loads(primitive.expression)):
        return step
    return compact(replace(step, primitive=Map(rebuild(primitive.expression, fill))))


def _fill(step: Step, literal: Literal, result: Value) -> Step:
    return replace(step, primitive=Map(literal), operands=(), results=(result,))


def _zero(dtype: DType) -> Literal:
    if dtype is DType.string:
        return Literal("", dtype)
    if dtype is DType.bool:
        return Literal(False, dtype)
    return Literal(0 if dtype.is_integer else 0j if dtype.is_complex else 0.0, dtype)


def _is_empty(value: Value) -> bool:
    return _has_zero_size(value.known_shape or ())


def _has_zero_size(shape: Iterable[Dim]) -> bool:
    return any(isinstance(size, int) and size == 0 for size in shape)


def _static_shape(value: Value) -> tuple[int, ...] | None:
    static = tuple(size for size in value.shape if isinstance(size, int))
    return static if len(static) == value.rank else None
