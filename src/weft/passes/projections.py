"""Products of one tensor with several constants whose columns are then split into heads, as one product.

Members of a family are products, each maybe with a map after it that combines columns with constants, and the reshape
that splits columns. They are written the same way, but for the constants: these are put side by side.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from weft.ir import dims
from weft.ir.dims import Axis, Dim, Symbol
from weft.ir.program import Contract, Map, Reshape, Step, TensorProgram, Value, tensor_dtype
from weft.ir.scalar import Index, Load, Scalar, loads, rebuild
from weft.ir.types import Shape, TensorType

LARGEST = 1 << 26  # bytes of constants that are worth a copy


@dataclass(frozen=True, slots=True, eq=False)
class Projection:
    """A product, the map of its elements if there is one, and the reshape; `expression` is that of the map.

    In it the product is operand 0, and others are `columns`: constants with an element for each column.
    """

    product: Step
    finish: Step | None
    split: Step
    expression: Scalar | None
    columns: tuple[Value, ...]

    @property
    def steps(self) -> tuple[Step, ...]:
        return (self.product, self.split) if self.finish is None else (self.product, self.finish, self.split)


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
            last = len(_shape(step.results[0])) - 1
            form = projection.expression
            form = None if form is None else _for_columns(form, last, dims.symbol("columns"))
            found.setdefault((step.operands[0], step.primitive, form), []).append(projection)
    return [family for family in found.values() if len(family) > 1 and _bytes(family, program.constants) <= LARGEST]


def _projection(step: Step, readers: Mapping[Value, list[Step]], program: TensorProgram) -> Projection | None:
    def only_reader(value: Value) -> Step | None:
        following = readers.get(value, [])
        return following[0] if len(following) == 1 and value not in program.outputs else None

    following = only_reader(step.results[0])
    finish = following if following is not None and isinstance(following.primitive, Map) else None
    found = None if finish is None else _finish(finish, step.results[0], program.constants)
    if finish is not None and found is None:
        return None
    split = following if finish is None else only_reader(finish.results[0])
    if split is None or not isinstance(split.primitive, Reshape):
        return None
    before, after = _shape(split.operands[0]), _shape(split.results[0])
    rows = len(before) - 1
    if len(after) <= len(before) or after[:rows] != before[:rows]:
        return None
    expression, columns = (None, ()) if found is None else found
    return Projection(step, finish, split, expression, columns)


def _finish(step: Step, product: Value, constants: Mapping[Value, Any]) -> tuple[Scalar, tuple[Value, ...]] | None:
    """The expression of a map of a product's elements, its operands in the order of their loads."""
    assert isinstance(step.primitive, Map)
    shape = _shape(product)
    if _shape(step.results[0]) != shape or tensor_dtype(step.results[0]) is not tensor_dtype(product):
        return None
    places = tuple(Index(dims.axis(axis, size)) for axis, size in enumerate(shape))
    order = [product]
    for load in loads(step.primitive.expression):
        value = step.operands[load.operand]
        if value == product:
            if load.indices != places:
                return None
            continue
        content = constants.get(value)
        if not isinstance(content, np.ndarray) or content.shape != shape[-1:] or load.indices != places[-1:]:
            return None
        if value not in order:
            order.append(value)
    numbers = [order.index(operand) if operand in order else None for operand in step.operands]

    def renumber(load: Load) -> Scalar:
        number = numbers[load.operand]
        assert number is not None
        return Load(number, load.indices, load.dtype, load.checked)

    return rebuild(step.primitive.expression, renumber), tuple(order[1:])


def _for_columns(expression: Scalar, last: int, columns: Dim) -> Scalar:
    """The expression for another number of columns, along axis `last`."""

    def atom(found: Symbol | Axis) -> Dim:
        if isinstance(found, Axis):
            return dims.axis(found.position, columns if found.position == last else found.size)
        return dims.symbol(found.name, found.low, found.high)

    return rebuild(expression, atom=atom)


def _bytes(family: Sequence[Projection], constants: Mapping[Value, Any]) -> int:
    return sum(int(constants[member.product.operands[1]].nbytes) for member in family)


def join_projections(family: Sequence[Projection], constants: dict[Value, Any], numbers: Iterator[int]) -> list[Step]:
    """One product with what follows it, and for each of the family the heads that are its own."""
    first = family[0].product
    assert isinstance(first.primitive, Contract)
    contract, left = first.primitive, first.operands[0]
    axis = contract.right.index(contract.output[-1])
    dtype = tensor_dtype(first.results[0])

    def side_by_side(values: Sequence[Value], along: int) -> Value:
        content = np.concatenate([constants[value] for value in values], along)
        joined = Value(next(numbers), TensorType(tensor_dtype(values[0]), content.shape))
        constants[joined] = content
        return joined

    weights = side_by_side([member.product.operands[1] for member in family], axis)
    rows = _shape(first.results[0])[:-1]
    widths = [_shape(member.product.results[0])[-1] for member in family]
    columns: Dim = sum(widths, start=0)
    whole = Value(next(numbers), TensorType(dtype, (*rows, columns)))
    steps = [Step(contract, (left, weights), (whole,), first.origin)]
    if family[0].expression is not None:
        others = [side_by_side(values, 0) for values in zip(*(member.columns for member in family))]
        expression = _for_columns(family[0].expression, len(rows), columns)
        finished = Value(next(numbers), TensorType(dtype, (*rows, columns)))
        steps.append(Step(Map(expression), (whole, *others), (finished,), first.origin))
        whole = finished
    start: Dim = 0
    for member, width in zip(family, widths):
        steps.append(_heads(member.split, whole, len(rows), start))
        start = start + width
    return steps


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
