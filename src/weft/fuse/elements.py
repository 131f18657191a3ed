"""Expand elements of values to expressions, through the maps and reshapes that define them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from weft.ir import dims
from weft.ir.dims import Axis, Dim, Symbol
from weft.ir.layout import offset, row_major
from weft.ir.program import Contract, Convolve, Map, Pool, Primitive, Reshape, Step, Value
from weft.ir.scalar import Index, Literal, Load, Scalar, rebuild
from weft.ir.types import Shape

HEAVY = (Contract, Convolve, Pool)
MOST_INLINED = 24  # limit on the steps that are inlined into one expression, counted with repetition


class NotFoundError(Exception):
    """Raised if a pattern does not match."""


class Definitions:
    """The definitions and readers of a program's values. Expanded expressions refer to values by number."""

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

    def primitive_of(self, value: Value) -> Primitive | None:
        step = self.makers.get(value)
        return None if step is None else step.primitive

    def step_of(self, number: int) -> Step | None:
        return self._numbers.get(number)

    def only_reader(self, value: Value) -> Step | None:
        readers = self.readers.get(value, [])
        return readers[0] if len(readers) == 1 else None

    def is_constant(self, value: Value) -> bool:
        """Whether a value is a constant, or decoded from constants as quantized weights are."""
        if value in self.constants:
            return True
        step = self.makers.get(value)
        if step is None or not isinstance(step.primitive, (Map, Reshape)) or not step.operands:
            return False
        return all(map(self.is_constant, step.operands))

    def find_dependents(self, first: Value) -> set[Value]:
        """Return a value and everything that is computed from it without heavy steps."""
        values, pending = {first}, [first]
        while pending:
            for step in self.readers.get(pending.pop(), ()):
                if step is not None and not isinstance(step.primitive, HEAVY):
                    pending += [value for value in step.results if value not in values]
                    values.update(step.results)
        return values

    def is_closed(self, steps: Sequence[Step], result: Value) -> bool:
        """Whether only these steps read what they compute, except for the result."""
        ids = {id(step) for step in steps}
        intermediate = [value for step in steps for value in step.results if value != result]
        return all(
            reader is not None and id(reader) in ids for value in intermediate for reader in self.readers.get(value, ())
        )

    def is_private(self, value: Value) -> bool:
        """Whether a value has one reader and comes from a map that is not a heavy step's epilogue."""
        step = self.makers.get(value)
        if step is None or self.only_reader(value) is None:
            return False
        match step.primitive:
            case Reshape():
                return self.is_private(step.operands[0])
            case Map():
                return not any(self._is_epilogue(step, operand) for operand in step.operands)
            case _:
                return False

    def _is_epilogue(self, step: Step, operand: Value) -> bool:
        same = require_shape(operand) == require_shape(step.results[0])
        return isinstance(self.primitive_of(operand), HEAVY) and same and self.only_reader(operand) is step

    def element(
        self, value: Value, positions: Sequence[Dim], can_inline: Callable[[Value], bool], inlined: list[Step]
    ) -> Scalar:
        """Expand the element at `positions`, inlining values if `can_inline`; their steps are added to `inlined`."""
        constant = self._as_literal(value)
        if constant is not None:
            return constant
        if not can_inline(value):
            return Load(value.number, tuple(map(Index, positions)), value.dtype)
        step = self.makers[value]
        inlined.append(step)
        if len(inlined) > MOST_INLINED:
            raise NotFoundError
        match step.primitive:
            case Reshape():
                source = step.operands[0]
                source_positions = unreshape_indices(positions, require_shape(value), require_shape(source))
                return self.element(source, source_positions, can_inline, inlined)
            case Map(expression):
                return self._expand(expression, step, positions, can_inline, inlined)
        raise NotFoundError

    def _expand(
        self,
        expression: Scalar,
        step: Step,
        positions: Sequence[Dim],
        can_inline: Callable[[Value], bool],
        inlined: list[Step],
    ) -> Scalar:
        def read_operand(load: Load) -> Scalar:
            operand = step.operands[load.operand]
            indices = [index.value for index in load.indices if isinstance(index, Index)]
            sizes = require_shape(operand)
            inside = len(indices) == len(sizes) and all(map(_is_inside, indices, sizes))
            if inside and not load.checked:
                return self.element(operand, indices, can_inline, inlined)
            if can_inline(operand):
                raise NotFoundError
            return Load(operand.number, load.indices, load.dtype, load.checked)

        def substitute(atom: Symbol | Axis) -> Dim:
            return positions[atom.position] if isinstance(atom, Axis) else dims.from_atom(atom)

        return rebuild(expression, read_operand, substitute)

    def expand_load(self, load: Load) -> Scalar:
        """Expand a load of a map's result to the map's expression, if possible."""
        step = self._numbers.get(load.operand)
        positions = [index.value for index in load.indices if isinstance(index, Index)]
        if step is None or not isinstance(step.primitive, Map) or len(positions) < len(load.indices):
            return load
        try:
            return self._expand(step.primitive.expression, step, positions, lambda _: False, [])
        except NotFoundError:
            return load

    def _as_literal(self, value: Value) -> Literal | None:
        """Return a constant of one element as a literal."""
        array = self.constants.get(value)
        if not isinstance(array, np.ndarray) or array.size != 1 or array.dtype.kind not in "bif":
            return None
        dtype = value.dtype
        return Literal(array.reshape(()).item(), dtype) if dtype.numpy == array.dtype else None


def unreshape_indices(positions: Sequence[Dim], shape: Shape, source: Shape) -> tuple[Dim, ...]:
    """Return the indices in the source of the element at `positions` of a reshaped tensor.

    Axes that a reshape neither splits nor merges keep their index, so that nothing is divided by sizes such as a sum.
    """
    indices: list[Dim] = []
    first = 0
    for stop, source_sizes in _align_axes(shape, source):
        sizes = shape[first:stop]
        flat = offset(row_major(len(sizes)).strides(sizes), positions[first:stop])
        part: list[Dim] = []
        for number in reversed(range(len(source_sizes))):
            part.insert(0, dims.mod(flat, source_sizes[number]) if number else flat)
            flat = dims.floordiv(flat, source_sizes[number])
        indices += part
        first = stop
    return tuple(indices)


def _align_axes(shape: Shape, source: Shape) -> list[tuple[int, Shape]]:
    """Split two shapes of a reshape where both have the same number of elements before an axis.

    Return the end of each range of axes of the first shape, and the sizes of the source there.
    """
    ranges: list[tuple[int, Shape]] = []
    first = 0
    for stop in range(1, len(shape)):
        count = dims.product(shape[:stop])
        ends = [end for end in range(first + 1, len(source)) if dims.product(source[:end]) == count]
        if ends:
            ranges.append((stop, source[first : ends[0]]))
            first = ends[0]
    return [*ranges, (len(shape), source[first:])]


def require_shape(value: Value) -> Shape:
    """Return a value's shape; raise NotFoundError if its rank is unknown."""
    if not value.has_shape:
        raise NotFoundError
    return value.shape


def _is_inside(index: Dim, size: Dim) -> bool:
    return dims.is_at_least(index, 0) and dims.is_at_least(size - 1, index)
