"""The reference in float64: what a model means when no float is rounded to the type that the file gives it.

An eager run with this evaluator sees the types of the file, so that definitions, casts to integers and quantisation
mean what they mean. Beside every array of float16, bfloat16, float32 or complex64 goes the same in float64 (or
complex128), and each step computes from those. What comes out is rounded only for definitions that look at it; `exact`
gives the numbers before that. Numbers of 8 bits and less are codes, whose rounding is part of the model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from weft.backends.reference.interpret import Interpreter
from weft.ir.dtypes import DType, from_numpy
from weft.ir.program import Host, Map, Primitive, Random, Scatter
from weft.ir.scalar import Apply, FlatLoad, Held, Index, Literal, Load, Scalar, walk
from weft.ir.types import TensorType, Type

Array = np.ndarray[Any, Any]

WIDE = {
    DType.float16: DType.float64,
    DType.bfloat16: DType.float64,
    DType.float32: DType.float64,
    DType.complex64: DType.complex128,
}


class RoundedArray(Array):
    """An array of the file's type, and the numbers that it was rounded from."""

    unrounded: Array | None = None  # an array that numpy makes from this one is not rounded from the same numbers


def exact(content: Any) -> Any:
    """What a value is without rounding: arrays of floats in float64, those in sequences too."""
    if isinstance(content, (list, tuple)):
        return [exact(item) for item in content]
    if not isinstance(content, np.ndarray):
        return content
    if isinstance(content, RoundedArray) and content.unrounded is not None:
        return content.unrounded
    plain = np.asarray(content)
    wide = None if plain.dtype == object else WIDE.get(from_numpy(plain.dtype))
    return plain if wide is None else plain.astype(wide.numpy)


class WideInterpreter(Interpreter):
    """An evaluator for eager runs that computes in float64."""

    def evaluate(self, primitive: Primitive, operands: Sequence[Any], types: Sequence[Type]) -> list[Any]:
        if isinstance(primitive, (Random, Host)) or _reads_bits(primitive):  # of numbers as the file's types have them
            return super().evaluate(primitive, operands, types)
        wide_types = [_widened_type(type) for type in types]
        results = super().evaluate(_widened(primitive), [exact(operand) for operand in operands], wide_types)
        return [_rounded(content, type) for content, type in zip(results, types)]


def _rounded(content: Any, type: Type) -> Any:
    if not isinstance(content, np.ndarray) or not isinstance(type, TensorType) or type.dtype not in WIDE:
        return content
    with np.errstate(over="ignore", invalid="ignore"):
        array = content.astype(type.dtype.numpy).view(RoundedArray)
    array.unrounded = content
    return array


def _reads_bits(primitive: Primitive) -> bool:
    return any(isinstance(node, Apply) and node.function == "bitcast" for s in _scalars(primitive) for node in walk(s))


def _scalars(primitive: Primitive) -> tuple[Scalar, ...]:
    match primitive:
        case Map(expression):
            return (expression,)
        case Scatter(indices=indices, update=update):
            return (*indices, update)
        case _:
            return ()


def _widened(primitive: Primitive) -> Primitive:
    match primitive:
        case Map(expression):
            return Map(_widened_scalar(expression, {}))
        case Scatter(indices=indices, update=update):
            done: dict[int, Scalar] = {}
            wide = tuple(_widened_scalar(index, done) for index in indices)
            return replace(primitive, indices=wide, update=_widened_scalar(update, done))
        case _:
            return primitive


def _widened_scalar(scalar: Scalar, done: dict[int, Scalar]) -> Scalar:
    """The expression in wide types; subtrees that are one object in several places stay so."""
    known = done.get(id(scalar))
    if known is None:
        match scalar:
            case Literal(value, dtype):
                known = Literal(value, WIDE.get(dtype, dtype))
            case Load(operand, indices, dtype, checked):
                places = tuple(_widened_scalar(index, done) for index in indices)
                known = Load(operand, places, WIDE.get(dtype, dtype), checked)
            case Apply(function, arguments, dtype):
                wide = tuple(_widened_scalar(argument, done) for argument in arguments)
                known = Apply(function, wide, WIDE.get(dtype, dtype))
            case Index() | Held() | FlatLoad():
                known = scalar
        done[id(scalar)] = known
    return known


def _widened_type(type: Type) -> Type:
    if isinstance(type, TensorType) and type.dtype in WIDE:
        return TensorType(WIDE[type.dtype], type.shape)
    return type
