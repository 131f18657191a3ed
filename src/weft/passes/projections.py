"""Products of one tensor with several constants whose columns are then split into heads, as one product.

Members of a family are products, each maybe with maps after it that add a constant to each column and scale it by a
power of two, and the reshape that splits columns. Constants are put side by side, scaled already, which is exact; a
member without any to add has zeros.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import frexp, isfinite
from typing import Any

import numpy as np

from weft.ir import dims
from weft.ir.dims import Dim
from weft.ir.program import Contract, Map, Reshape, Step, TensorProgram, Value, join_origins, tensor_dtype
from weft.ir.scalar import Apply, Index, Literal, Load, Scalar
from weft.ir.types import Shape, TensorType
from weft.records import dataclass

LARGEST = 1 << 26  # bytes of constants that are worth a copy
MOST_POWER = 8  # of two, by which constants are scaled


@dataclass(frozen=True, slots=True)
class Finish:
    """What becomes of an element of a product: (element + column[place]) * scale."""

    column: Value | None = None
    scale: float = 1.0


@dataclass(frozen=True, slots=True, eq=False)
class Projection:
    """A product, maps of its elements if there are any, and the reshape."""

    product: Step
    maps: tuple[Step, ...]
    split: Step
    finish: Finish

    @property
    def steps(self) -> tuple[Step, ...]:
        return (self.product, *self.maps, self.split)


def has_constant_columns(step: Step, constants: Mapping[Value, Any]) -> bool:
    """Whether the step is a product with a constant matrix whose columns are the last axis of the result."""
    if not isinstance(step.primitive, Contract):
        return False
    left, right, output = step.primitive.left, step.primitive.right, step.primitive.output
    free = [label for label in right if label not in left]
    weights = constants.get(step.operands[1])
    return (
        isinstance(weights, np.ndarray)
        and step.operands[0] not in constants
        and tensor_dtype(step.operands[0]) is tensor_dtype(step.operands[1])
        and len(free) == 1
        and output[-1:] == (free[0],)
        and not any(label in output for label in right if label != free[0])
    )


def find_projections(program: TensorProgram, taken: set[int]) -> list[list[Projection]]:
    """Families of more than one; steps that are `taken`, by identity, are none."""
    readers: dict[Value, list[Step]] = {}
    for step in program.steps:
        for operand in dict.fromkeys(step.operands):
            readers.setdefault(operand, []).append(step)
    found: dict[Any, list[Projection]] = {}
    for step in program.steps:
        if id(step) in taken or not has_constant_columns(step, program.constants):
            continue
        projection = _projection(step, readers, program)
        if projection is not None:
            found.setdefault((step.operands[0], step.primitive), []).append(projection)
    return [family for family in found.values() if len(family) > 1 and _bytes(family, program.constants) <= LARGEST]


def _projection(step: Step, readers: Mapping[Value, list[Step]], program: TensorProgram) -> Projection | None:
    def only_reader(value: Value) -> Step | None:
        following = readers.get(value, [])
        return following[0] if len(following) == 1 and value not in program.outputs else None

    finish = Finish()
    chain = [step]
    split = only_reader(step.results[0])
    while split is not None and isinstance(split.primitive, Map):
        then = _finish(split, chain[-1].results[0], program.constants)
        if then is None or (then.column is not None and finish != Finish()):
            return None
        finish = Finish(then.column or finish.column, finish.scale * then.scale)
        chain.append(split)
        split = only_reader(split.results[0])
    if split is None or not isinstance(split.primitive, Reshape):
        return None
    before, after = _shape(split.operands[0]), _shape(split.results[0])
    rows = len(before) - 1
    if len(after) <= len(before) or after[:rows] != before[:rows]:
        return None
    scaled = [step.operands[1], *([] if finish.column is None else [finish.column])]
    if not all(_scales_exactly(program.constants[each], finish) for each in scaled):
        return None
    return Projection(step, tuple(chain[1:]), split, finish)


def _finish(step: Step, product: Value, constants: Mapping[Value, Any]) -> Finish | None:
    """What a map does to elements of a product, if it is that."""
    assert isinstance(step.primitive, Map)
    shape = _shape(product)
    if _shape(step.results[0]) != shape or tensor_dtype(step.results[0]) is not tensor_dtype(product):
        return None
    places = tuple(Index(dims.axis(axis, size)) for axis, size in enumerate(shape))

    def found(expression: Scalar) -> Finish | None:
        match expression:
            case Load(operand, indices) if step.operands[operand] == product:
                return Finish() if indices == places else None
            case Apply("add", (one, other)):
                for inner, added in ((one, other), (other, one)):
                    known, column = found(inner), column_of(added)
                    if known == Finish() and column is not None:
                        return Finish(column)
            case Apply("multiply", (one, other)):
                for inner, by in ((one, other), (other, one)):
                    known, scale = found(inner), _scale(by, step, constants)
                    if known is not None and scale is not None:
                        return Finish(known.column, known.scale * scale)
        return None

    def column_of(added: Scalar) -> Value | None:
        if not isinstance(added, Load) or added.indices != places[-1:]:
            return None
        value = step.operands[added.operand]
        content = constants.get(value)
        return value if isinstance(content, np.ndarray) and content.shape == shape[-1:] else None

    return found(step.primitive.expression)


def _scale(expression: Scalar, step: Step, constants: Mapping[Value, Any]) -> float | None:
    """A number that is a power of two, and not so large or small that products with it are inexact."""
    number: float | None = None
    match expression:
        case Literal(float(value)):
            number = value
        case Load(operand, ()):
            content = constants.get(step.operands[operand])
            number = float(content) if isinstance(content, np.ndarray) and content.dtype.kind == "f" else None
    if number is None or not isfinite(number) or number <= 0:
        return None
    fraction, power = frexp(number)
    return number if fraction == 0.5 and abs(power) <= MOST_POWER else None


def _bytes(family: Sequence[Projection], constants: Mapping[Value, Any]) -> int:
    return sum(int(constants[member.product.operands[1]].nbytes) for member in family)


def join_projections(family: Sequence[Projection], constants: dict[Value, Any], numbers: Iterator[int]) -> list[Step]:
    """One product with what follows it, and for each of the family the heads that are its own."""
    first = family[0].product
    assert isinstance(first.primitive, Contract)
    contract, left = first.primitive, first.operands[0]
    axis = contract.right.index(contract.output[-1])
    dtype = tensor_dtype(first.results[0])

    def side_by_side(arrays: Sequence[Any], along: int) -> Value:
        content = np.concatenate(arrays, along)
        joined = Value(next(numbers), TensorType(tensor_dtype(first.operands[1]), content.shape))
        constants[joined] = content
        return joined

    weights = side_by_side([_scaled(constants[m.product.operands[1]], m.finish) for m in family], axis)
    rows = _shape(first.results[0])[:-1]
    widths = [_shape(member.product.results[0])[-1] for member in family]
    columns: Dim = sum(widths, start=0)
    whole = Value(next(numbers), TensorType(dtype, (*rows, columns)))
    origin = join_origins(member.product.origin for member in family)
    steps = [Step(contract, (left, weights), (whole,), origin)]
    if any(member.finish.column is not None for member in family):
        added = side_by_side([_added(member, constants) for member in family], 0)
        finished = Value(next(numbers), TensorType(dtype, (*rows, columns)))
        places = tuple(Index(dims.axis(number, size)) for number, size in enumerate((*rows, columns)))
        element = Apply("add", (Load(0, places, dtype), Load(1, places[-1:], dtype)), dtype)
        steps.append(
            Step(
                Map(element),
                (whole, added),
                (finished,),
                join_origins(step.origin for member in family for step in member.maps),
            )
        )
        whole = finished
    start: Dim = 0
    for member, width in zip(family, widths):
        steps.append(_heads(member.split, whole, len(rows), start))
        start = start + width
    return steps


def _scaled(array: Any, finish: Finish) -> Any:
    return array if finish.scale == 1 else array * array.dtype.type(finish.scale)


def _scales_exactly(array: Any, finish: Finish) -> bool:
    """Whether no element over- or underflows when it is scaled by a power of two."""
    with np.errstate(all="ignore"):
        return finish.scale == 1 or bool((_scaled(array, finish) / array.dtype.type(finish.scale) == array).all())


def _added(member: Projection, constants: Mapping[Value, Any]) -> Any:
    """What is added to each column."""
    if member.finish.column is not None:
        return _scaled(constants[member.finish.column], member.finish)
    axis = member.product.primitive.right.index(member.product.primitive.output[-1])  # type: ignore[union-attr]
    weights = constants[member.product.operands[1]]
    return np.zeros(weights.shape[axis], weights.dtype)


def _heads(split: Step, whole: Value, rows: int, start: Dim) -> Step:
    """Columns from `start` on, in the shape of a reshape's result."""
    shape = _shape(split.results[0])
    places = [dims.axis(number, size) for number, size in enumerate(shape)]
    column: Dim = 0
    for place, size in zip(places[rows:], shape[rows:]):
        column = column * size + place
    load = Load(0, tuple(map(Index, (*places[:rows], column + start))), tensor_dtype(whole))
    return Step(Map(load), (whole,), split.results, split.origin)


def _shape(value: Value) -> Shape:
    assert isinstance(value.type, TensorType)
    return value.type.shape or ()
