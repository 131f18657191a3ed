"""Elements of values as expressions, through the maps and reshapes that make them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from weft.ir import dims
from weft.ir.dims import Axis, Dim, Symbol
from weft.ir.layout import offset, row_major
from weft.ir.program import Contract, Convolve, Map, Pool, Primitive, Reshape, Step, Value, tensor_dtype
from weft.ir.scalar import Index, Literal, Load, Scalar, rebuild
from weft.ir.types import Shape, TensorType

HEAVY = (Contract, Convolve, Pool)
MOST_PASSED = 24  # steps that one expression may take in, each as often as it does


class NotFoundError(Exception):
    """A value is not what was looked for."""


class Program:
    """Steps, with who makes and who reads each value. Loads of expressions made here name values by number."""

    def __init__(self, steps: Sequence[Step], outputs: Iterable[Value], constants: Mapping[Value, Any]) -> None:
        self.constants = constants
        self.makers = {value: step for step in steps for value in step.results}
        self._numbers = {value.number: step for value, step in self.makers.items()}
        self.readers: dict[Value, list[Step | None]] = {}
        for step in steps:
            for operand in dict.fromkeys(step.operands):
                self.readers.setdefault(operand, []).append(step)
        for output in outputs:
            self.readers.setdefault(output, []).append(None)

    def maker(self, value: Value) -> Primitive | None:
        step = self.makers.get(value)
        return None if step is None else step.primitive

    def maker_of(self, number: int) -> Step | None:
        return self._numbers.get(number)

    def only_reader(self, value: Value) -> Step | None:
        readers = self.readers.get(value, [])
        return readers[0] if len(readers) == 1 else None

    def made_from(self, first: Value) -> set[Value]:
        """A value, and all that is made from it without heavy steps."""
        found, pending = {first}, [first]
        while pending:
            for step in self.readers.get(pending.pop(), ()):
                if step is not None and not isinstance(step.primitive, HEAVY):
                    pending += [value for value in step.results if value not in found]
                    found.update(step.results)
        return found

    def is_closed(self, steps: Sequence[Step], result: Value) -> bool:
        """Whether nobody else reads what the steps make, but for the result."""
        own = {id(step) for step in steps}
        made = [value for step in steps for value in step.results if value != result]
        return all(reader is not None and id(reader) in own for value in made for reader in self.readers.get(value, ()))

    def is_private(self, value: Value) -> bool:
        """Whether a value is made for one reader alone, by a map that is no heavy step's epilogue."""
        step = self.makers.get(value)
        if step is None or self.only_reader(value) is None:
            return False
        match step.primitive:
            case Reshape():
                return self.is_private(step.operands[0])
            case Map():
                return not any(self._finishes(step, operand) for operand in step.operands)
            case _:
                return False

    def _finishes(self, step: Step, operand: Value) -> bool:
        same = shape_of(operand) == shape_of(step.results[0])
        return isinstance(self.maker(operand), HEAVY) and same and self.only_reader(operand) is step

    def element(
        self, value: Value, places: Sequence[Dim], passed_by: Callable[[Value], bool], passed: list[Step]
    ) -> Scalar:
        """The element at `places`, through the values that may be `passed_by`, whose steps are added to `passed`."""
        constant = self._single(value)
        if constant is not None:
            return constant
        if not passed_by(value):
            return Load(value.number, tuple(map(Index, places)), tensor_dtype(value))
        step = self.makers[value]
        passed.append(step)
        if len(passed) > MOST_PASSED:
            raise NotFoundError
        match step.primitive:
            case Reshape():
                source = step.operands[0]
                moved = reshaped(places, shape_of(value), shape_of(source))
                return self.element(source, moved, passed_by, passed)
            case Map(expression):
                return self._expand(expression, step, places, passed_by, passed)
        raise NotFoundError

    def _expand(
        self,
        expression: Scalar,
        step: Step,
        places: Sequence[Dim],
        passed_by: Callable[[Value], bool],
        passed: list[Step],
    ) -> Scalar:
        def through(load: Load) -> Scalar:
            operand = step.operands[load.operand]
            indices = [index.value for index in load.indices if isinstance(index, Index)]
            sizes = shape_of(operand)
            inside = len(indices) == len(sizes) and all(map(_is_inside, indices, sizes))
            if inside and not load.checked:
                return self.element(operand, indices, passed_by, passed)
            if passed_by(operand):
                raise NotFoundError
            return Load(operand.number, load.indices, load.dtype, load.checked)

        def place(atom: Symbol | Axis) -> Dim:
            return places[atom.position] if isinstance(atom, Axis) else dims.symbol(atom.name, atom.low, atom.high)

        return rebuild(expression, through, place)

    def inside_map(self, load: Load) -> Scalar:
        """What a load of a map's result would compute, where that can be said."""
        step = self._numbers.get(load.operand)
        places = [index.value for index in load.indices if isinstance(index, Index)]
        if step is None or not isinstance(step.primitive, Map) or len(places) < len(load.indices):
            return load
        try:
            return self._expand(step.primitive.expression, step, places, lambda _: False, [])
        except NotFoundError:
            return load

    def _single(self, value: Value) -> Literal | None:
        """A constant of one element as a number."""
        array = self.constants.get(value)
        if not isinstance(array, np.ndarray) or array.size != 1 or array.dtype.kind not in "bif":
            return None
        dtype = tensor_dtype(value)
        return Literal(array.reshape(()).item(), dtype) if dtype.numpy == array.dtype else None


def reshaped(places: Sequence[Dim], shape: Shape, source: Shape) -> tuple[Dim, ...]:
    """Where an element of a reshaped tensor lies in what it was made from."""
    flat = offset(row_major(len(shape)).strides(shape), places)
    found: list[Dim] = []
    for number in reversed(range(len(source))):
        found.insert(0, dims.mod(flat, source[number]) if number else flat)
        flat = dims.floordiv(flat, source[number])
    return tuple(found)


def shape_of(value: Value) -> Shape:
    if not isinstance(value.type, TensorType) or value.type.shape is None:
        raise NotFoundError
    return value.type.shape


def _is_inside(index: Dim, size: Dim) -> bool:
    return dims.is_at_least(index, 0) and dims.is_at_least(size - 1, index)
