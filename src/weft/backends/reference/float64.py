"""The reference in float64: a model's results without rounding to the file's float types.

An eager run with this evaluator sees the types of the file, so that definitions, casts to integers and quantisation
keep their meaning. Every array of float16, bfloat16, float32 or complex64 is accompanied by its values in float64 (or
complex128), from which each step computes. Results are rounded only for definitions that look at them; `unrounded`
returns the values before that. Numbers of 8 bits and less are codes, whose rounding is part of the model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from weft.backends.reference.interpret import Interpreter
from weft.ir.arrays import Array
from weft.ir.dtypes import DType, from_numpy
from weft.ir.program import Host, Map, Primitive, Random, Scatter
from weft.ir.scalar import Apply, FlatLoad, Index, Literal, Load, Placeholder, Scalar, walk
from weft.ir.types import TensorType, Type

WIDE = {
    DType.float16: DType.float64,
    DType.bfloat16: DType.float64,
    DType.float32: DType.float64,
    DType.complex64: DType.complex128,
}


class RoundedArray(Array):
    """An array of the file's type, and the values that it was rounded from."""

    wide: Array | None = None  # unset in arrays that numpy derives from this one


def unrounded(content: Any) -> Any:
    """Return a value without rounding: arrays of floats in float64, also in sequences."""
    if isinstance(content, (list, tuple)):
        return [unrounded(item) for item in content]
    if not isinstance(content, np.ndarray):
        return content
    if isinstance(content, RoundedArray) and content.wide is not None:
        return content.wide
    plain = np.asarray(content)
    wide = None if plain.dtype == object else WIDE.get(from_numpy(plain.dtype))
    return plain if wide is None else plain.astype(wide.numpy)


class Float64Interpreter(Interpreter):
    """An evaluator for eager runs that computes in float64."""

    def evaluate(self, primitive: Primitive, operands: Sequence[Any], types: Sequence[Type]) -> list[Any]:
        if isinstance(primitive, (Random, Host)) or _reads_bits(primitive):  # depends on the bits of the file's types
            return super().evaluate(primitive, operands, types)
        wide_types = [_widen_type(type) for type in types]
        results = super().evaluate(
            _widen_primitive(primitive), [unrounded(operand) for operand in operands], wide_types
        )
        return [_round_to(content, type) for content, type in zip(results, types)]


def _round_to(content: Any, type: Type) -> Any:
    if not isinstance(content, np.ndarray) or type.dtype not in WIDE:
        return content
    with np.errstate(over="ignore", invalid="ignore"):
        array = content.astype(type.dtype.numpy).view(RoundedArray)
    array.wide = content
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


def _widen_primitive(primitive: Primitive) -> Primitive:
    match primitive:
        case Map(expression):
            return Map(_widen_scalar(expression, {}))
        case Scatter(indices=indices, update=update):
            done: dict[int, Scalar] = {}
            wide = tuple(_widen_scalar(index, done) for index in indices)
            return replace(primitive, indices=wide, update=_widen_scalar(update, done))
        case _:
            return primitive


def _widen_scalar(scalar: Scalar, done: dict[int, Scalar]) -> Scalar:
    """Rewrite an expression in wide types; shared subtrees stay shared."""
    widened = done.get(id(scalar))
    if widened is None:
        match scalar:
            case Literal(value, dtype):
                widened = Literal(value, WIDE.get(dtype, dtype))
            case Load(operand, indices, dtype, checked):
                places = tuple(_widen_scalar(index, done) for index in indices)
                widened = Load(operand, places, WIDE.get(dtype, dtype), checked)
            case Apply(function, arguments, dtype):
                wide = tuple(_widen_scalar(argument, done) for argument in arguments)
                widened = Apply(function, wide, WIDE.get(dtype, dtype))
            case Index() | Placeholder() | FlatLoad():
                widened = scalar
        done[id(scalar)] = widened
    return widened


def _widen_type(type: Type) -> Type:
    if type.dtype in WIDE:
        return TensorType(WIDE[type.dtype], type.shape)
    return type
