"""Multiply bytes of equal signedness on tensor cores that can.

Products of bytes were shifted to operands of different signedness (`passes/quantized_products.py`), with a correction
in the map after them. Where a target multiplies the numbers as they were, neither the shift is needed nor a copy of a
convolution's input that is padded with the shifted 0. Results are equal.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from weft.fuse.grouping import Readers, find_readers, single_group
from weft.fuse.inline import drop_unread_maps
from weft.ir import dims
from weft.ir.arrays import Array
from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.ir.groups import FusedProgram
from weft.ir.program import Contract, Convolve, Map, Step, TensorProgram, Value
from weft.ir.scalar import Apply, Index, Literal, Load, Scalar, identity_indices, loads, rebuild
from weft.ir.target import Target, ThreadTarget
from weft.records import dataclass

_SHIFT = 128  # between uint8 and int8
_SPATIAL = 2  # the first spatial axis of an image
_Pads = tuple[tuple[Dim, Dim], ...]


@dataclass(frozen=True, slots=True)
class _ShiftedProduct:
    """A product of shifted numbers with constants, and the map after it, which subtracts a constant correction."""

    step: Step
    place: int  # of the shifted operand
    numbers: Value  # before the shift
    pads: _Pads | None  # of numbers, in place of those of a convolution
    shifts: tuple[Step, ...]  # the maps that shift and pad
    reader: Step
    correction: Value


def multiply_equal_signs(fused: FusedProgram, target: Target) -> FusedProgram:
    """Multiply numbers without a shift of their sign where the target has such tile products."""
    if not isinstance(target, ThreadTarget) or target.tile_product(DType.int8, DType.int8) is None:
        return fused
    program = fused.program
    products = _find_products(program, target)
    if not products:
        return fused
    results = [result for step in program.steps for result in step.results]
    number = max(value.number for value in (*program.inputs, *program.constants, *results))
    constants: dict[Value, Any] = dict(program.constants)
    changed_steps: dict[int, Step] = {}
    for product in products:
        operands = list(product.step.operands)
        operands[product.place] = product.numbers
        primitive = product.step.primitive
        if product.pads is not None:
            assert isinstance(primitive, Convolve)
            primitive = replace(primitive, pads=product.pads)
        changed_steps[id(product.step)] = replace(product.step, primitive=primitive, operands=tuple(operands))
        correction = constants[product.correction] - _sum_shifts(product, constants)
        number += 1
        value = Value(number, product.correction.type)
        constants[value] = correction
        reader = changed_steps.get(id(product.reader), product.reader)
        changed_steps[id(product.reader)] = _correct(product, reader, value, is_needed=bool(correction.any()))
    steps = drop_unread_maps([changed_steps.get(id(step), step) for step in program.steps], program.outputs)
    program = replace(program, steps=steps, constants=constants)
    return FusedProgram(program, tuple(map(single_group, program.steps)))


def _find_products(program: TensorProgram, target: ThreadTarget) -> list[_ShiftedProduct]:
    """Find the products after which no step reads shifted numbers."""
    makers = {result: step for step in program.steps for result in step.results}
    readers = find_readers(program)
    products = [
        product for step in program.steps if (product := _match_product(step, makers, readers, program)) is not None
    ]
    products = [product for product in products if _has_tile_product(product, target)]
    while True:
        changed_steps = {id(product.step) for product in products}
        changed_steps |= {id(shift) for product in products for shift in product.shifts}
        remaining = [
            product
            for product in products
            if all(
                id(reader) in changed_steps for shift in product.shifts for reader in readers.get(shift.results[0], ())
            )
        ]
        if len(remaining) == len(products):
            return products
        products = remaining


def _has_tile_product(product: _ShiftedProduct, target: ThreadTarget) -> bool:
    types = [operand.dtype for operand in product.step.operands]
    types[product.place] = product.numbers.dtype
    return target.tile_product(types[0], types[1]) is not None


def _match_product(
    step: Step, makers: Mapping[Value, Step], readers: Readers, program: TensorProgram
) -> _ShiftedProduct | None:
    match step.primitive:
        case Contract():
            is_image = False
        case Convolve(groups=1, transposed=False, pads=pads) if all(pad == 0 for pair in pads for pad in pair):
            is_image = True
        case _:
            return None
    is_constant = [operand in program.constants for operand in step.operands]
    (result,) = step.results
    if is_constant.count(True) != 1 or (is_image and is_constant[0]) or result.dtype is not DType.int32:
        return None
    place = is_constant.index(False)
    maker = makers.get(step.operands[place])
    padding = _match_padding(maker) if is_image and maker is not None else None
    shift = maker if padding is None else makers.get(padding.source)
    numbers = None if shift is None else _match_shift(shift)
    if maker is None or shift is None or numbers is None:
        return None
    if padding is not None and padding.value != _shift_of(numbers):
        return None
    step_readers = readers.get(result, ())
    reader = step_readers[0] if len(step_readers) == 1 else None
    column = _find_column(step, 1 - place)
    if reader is None or column is None:
        return None
    correction = _match_correction(reader, result, column, program.constants)
    if correction is None:
        return None
    shifts = (shift,) if padding is None else (maker, shift)
    return _ShiftedProduct(step, place, numbers, None if padding is None else padding.pads, shifts, reader, correction)


def _shift_of(numbers: Value) -> int:
    """Return what the shift adds to numbers."""
    return _SHIFT if numbers.dtype is DType.int8 else -_SHIFT


def _match_shift(step: Step) -> Value | None:
    """Match a map that shifts bytes to the other signedness, and return the bytes."""
    if not isinstance(step.primitive, Map) or len(step.operands) != 1:
        return None
    source, indices = step.operands[0], identity_indices(step.results[0].shape)
    match step.primitive.expression:
        case Apply("bitcast", (Apply("bit_xor", (Apply("bitcast", (Load(0, place, dtype),)), Literal(value))),)):
            pass
        case Apply("bitcast", (Apply("bit_xor", (Load(0, place, dtype), Literal(value))),)):
            pass
        case _:
            return None
    is_shift = value == _SHIFT and {dtype, step.results[0].dtype} == {DType.uint8, DType.int8}
    return source if is_shift and place == indices and source.known_shape == step.results[0].shape else None


@dataclass(frozen=True, slots=True)
class _Padding:
    """The pads of an image's spatial axes, and the number around it."""

    source: Value
    pads: _Pads
    value: Any


def _match_padding(step: Step) -> _Padding | None:
    """Match a map that pads the spatial axes of an image with a number."""
    if not isinstance(step.primitive, Map) or len(step.operands) != 1:
        return None
    source, shape = step.operands[0], step.results[0].shape
    element: Scalar = step.primitive.expression
    tests: list[Scalar] = []
    values: set[Scalar] = set()
    while isinstance(element, Apply) and element.function == "select":
        test, element, value = element.arguments
        tests.append(test)
        values.add(value)
    if len(values) != 1 or not isinstance(element, Load):
        return None
    (value,) = values
    pads: list[tuple[Dim, Dim]] = []
    bounds_tests: list[Scalar] = []
    for axis, (index, size, padded_size) in enumerate(zip(element.indices, source.shape, shape)):
        if not isinstance(index, Index):
            return None
        before = dims.axis(axis, padded_size) - index.value
        if not isinstance(before, int) or (axis < _SPATIAL and (before != 0 or size != padded_size)):
            return None
        if axis >= _SPATIAL:
            pads.append((before, padded_size - size - before))
            bounds_tests.append(Apply("greater_equal", (index, Index(0)), DType.bool))
            bounds_tests.append(Apply("less", (index, Index(size)), DType.bool))
    is_padding = isinstance(value, Literal) and all(test in bounds_tests for test in tests)
    return _Padding(source, tuple(pads), value.value) if isinstance(value, Literal) and is_padding else None


def _find_column(step: Step, place: int) -> int | None:
    """Return the axis of the result along which the constant operand varies, if that is one."""
    if isinstance(step.primitive, Convolve):
        return 1
    assert isinstance(step.primitive, Contract)
    labels = step.primitive.right if place else step.primitive.left
    remaining = [label for label in labels if label in step.primitive.output]
    return step.primitive.output.index(remaining[0]) if len(remaining) == 1 and len(set(labels)) == 2 else None


def _match_correction(reader: Step, sums: Value, column: int, constants: Mapping[Value, Any]) -> Value | None:
    """Return the constant for each column that a map subtracts from sums, which it reads nowhere else."""
    if not isinstance(reader.primitive, Map) or reader.operands.count(sums) != 1:
        return None
    shape = sums.shape
    if reader.results[0].shape != shape:
        return None
    difference = _find_difference(reader.primitive.expression, reader.operands.index(sums))
    if difference is None:
        return None
    own, subtracted = difference
    all_loads = loads(reader.primitive.expression)
    correction = reader.operands[subtracted.operand]
    is_only = sum(load.operand in (own.operand, subtracted.operand) for load in all_loads) == 2
    fits = own.indices == identity_indices(shape) and subtracted.indices == (identity_indices(shape)[column],)
    is_whole = correction in constants and correction.known_shape == (shape[column],)
    return correction if is_only and fits and is_whole and correction.dtype is DType.int32 else None


def _find_difference(node: Scalar, operand: int) -> tuple[Load, Load] | None:
    """Find the difference of an operand and another load."""
    match node:
        case Apply("subtract", (Load() as own, Load() as subtracted)) if own.operand == operand:
            return own, subtracted
        case Apply():
            differences = (_find_difference(argument, operand) for argument in node.arguments)
            return next((difference for difference in differences if difference is not None), None)
    return None


def _sum_shifts(product: _ShiftedProduct, constants: Mapping[Value, Any]) -> Array:
    """Return what the shift adds to the sums of each column."""
    weights = np.asarray(constants[product.step.operands[1 - product.place]])
    if isinstance(product.step.primitive, Convolve):
        axes = tuple(range(1, weights.ndim))
    else:
        assert isinstance(product.step.primitive, Contract)
        labels = product.step.primitive.left if product.place else product.step.primitive.right
        axes = tuple(axis for axis, label in enumerate(labels) if label not in product.step.primitive.output)
    shifts: Array = np.asarray(np.sum(weights, axis=axes, dtype=np.int32) * np.int32(_shift_of(product.numbers)))
    return shifts


def _correct(product: _ShiftedProduct, reader: Step, correction: Value, *, is_needed: bool) -> Step:
    """Return the map after a product with another correction, or without one."""
    assert isinstance(reader.primitive, Map)
    if is_needed:
        operands = tuple(correction if value == product.correction else value for value in reader.operands)
        return replace(reader, operands=operands)
    (result,) = product.step.results
    position = reader.operands.index(result)
    operands = tuple(value for value in reader.operands if value != product.correction)

    def drop(node: Scalar) -> Scalar:
        match node:
            case Apply("subtract", (Load() as own, Load())) if own.operand == position:
                return own
            case Apply(function, arguments, dtype):
                return Apply(function, tuple(map(drop, arguments)), dtype)
        return node

    def renumber(load: Load) -> Scalar:
        return replace(load, operand=operands.index(reader.operands[load.operand]))

    return replace(reader, primitive=Map(rebuild(drop(reader.primitive.expression), renumber)), operands=operands)
