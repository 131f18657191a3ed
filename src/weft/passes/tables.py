"""What one byte decides is looked up, or is that byte; what only moves or compares numbers does so with bytes.

Between products, quantized networks dequantize a number, apply a function and quantize the outcome, over and over.
Where the first number decides the last one, the last one comes from a table of all 256 values if what lies between is
worth it, and it is the first one itself where nothing changes. Quantizing after a concatenation is done before it,
reshaping and the maximum of windows are done with the bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from weft.cost.expressions import cost
from weft.errors import WeftError
from weft.ir import dims
from weft.ir.dims import Axis, Dim, Symbol
from weft.ir.dtypes import DType
from weft.ir.program import Concat, Map, Pool, Reshape, Step, TensorProgram, Value
from weft.ir.scalar import AT_HAND, Apply, Held, Index, Literal, Load, Scalar, loads, rebuild, walk, with_held
from weft.ir.types import Shape, TensorType
from weft.opset.trace import Evaluator
from weft.passes.rewrite import count_uses, everywhere, next_number, redirect
from weft.records import dataclass

Array = np.ndarray[Any, Any]
BYTES = (DType.uint8, DType.int8)
WORD = DType.int32  # what the vectors of most machines can look up; bytes they cannot
VALUES = 256
LEAST_COST = 24  # instructions, from which on a table is quicker
LARGEST = 400  # nodes of what is put into a table


@dataclass(frozen=True, slots=True)
class _Function:
    """A function of one element of `source`, at a place that the axes of the result alone decide.

    The element is what is at hand in the expression; its loads are of constants with one element.
    """

    source: Value
    indices: tuple[Index, ...]
    expression: Scalar
    constants: tuple[Value, ...]

    def is_plain(self, value: Value) -> bool:
        """Whether a value that it gives has its elements where the source has them."""
        shape = _type(self.source).shape or ()
        return self.indices == _plain(shape) and shape == _type(value).shape


def look_up_bytes(program: TensorProgram, evaluator: Evaluator) -> TensorProgram:
    """Keep bytes where a program goes through floats from one to the next."""
    program = everywhere(look_up_bytes, program, evaluator)
    if not any(_is_bytes(result) for step in program.steps for result in step.results):
        return program
    rewriter = _Rewriter(program, evaluator)
    for step in program.steps:
        rewriter.visit(redirect(step, rewriter.same))
    return replace(program, steps=tuple(rewriter.steps), constants=rewriter.constants)


class _Rewriter:
    def __init__(self, program: TensorProgram, evaluator: Evaluator) -> None:
        self.evaluator = evaluator
        self.uses = count_uses(program)
        self.constants: dict[Value, Any] = dict(program.constants)
        self.number = next_number(program)
        self.known: dict[Value, _Function] = {}
        self.floats: dict[Value, _Function] = {}  # of the nearest bytes, for those that are none themselves
        self.joined: dict[Value, Step] = {}  # concatenations that only one step reads, by what they make
        self.same: dict[Value, Value] = {}  # bytes that are others
        self.outputs = set(program.outputs)
        self.steps: list[Step] = []

    def visit(self, step: Step) -> None:
        match step.primitive:
            case Map():
                self.map(step)
                return
            case Concat() if _type(step.results[0]).dtype.is_float and self.uses[step.results[0]] == 1:
                if any(operand in self.floats for operand in step.operands):
                    self.joined[step.results[0]] = step
            case Reshape() | Pool("maximum"):
                self.move(step)
        self.steps.append(step)

    def map(self, step: Step) -> None:
        near = self.function(step, self.floats)
        function = self.function(step, self.known) or near
        if near is not None and (self.is_identity(near, step.results[0]) or self.is_at_hand(near)):
            function = near
        if function is None:
            self.steps.append(step)
            return
        result = step.results[0]
        if not _is_bytes(result):
            self.known[result] = function
            if near is not None:
                self.floats[result] = near
            self.steps.append(step)
            return
        if function.is_plain(result) and result not in self.outputs and self.is_identity(function, result):
            self.same[result] = function.source
            return
        if function.source not in self.joined:
            self.steps.append(self.made(function, result, step))
            self.known[result] = function
            return
        if not function.is_plain(result):
            self.steps.append(step)
            return
        concat = self.joined[function.source]
        parts = []
        for operand in concat.operands:
            own = self.floats.get(operand, _itself(operand))
            part = self.value(_type(result).dtype, _type(operand).shape or ())
            self.steps.append(self.made(_after(function, own), part, step))
            parts.append(part)
        self.steps.append(Step(concat.primitive, tuple(parts), step.results, step.origin))

    def move(self, step: Step) -> None:
        """Remember a reshaped or pooled value as a function of bytes that go the same way."""
        function = self.floats.get(step.operands[0])
        if function is None or not _is_bytes(function.source) or not function.is_plain(step.operands[0]):
            return
        if isinstance(step.primitive, Pool) and not self.is_monotone(function):
            return
        shape = _type(step.results[0]).shape or ()
        moved = self.value(_type(function.source).dtype, shape)
        self.steps.append(Step(step.primitive, (function.source,), (moved,), step.origin))
        moved_function = replace(function, source=moved, indices=_plain(shape))
        self.known[step.results[0]] = self.floats[step.results[0]] = moved_function

    # -- functions ---------------------------------------------------------------------------------------------------

    def function(self, step: Step, known: Mapping[Value, _Function]) -> _Function | None:
        """A map as a function of one element of bytes, or of a concatenation, through functions before it."""
        assert isinstance(step.primitive, Map)
        expression = step.primitive.expression
        shape = _type(step.results[0]).shape
        if shape is None or not _is_tame(expression):
            return None
        places: set[tuple[Value, tuple[Index, ...]]] = set()
        for load in loads(expression):
            value = step.operands[load.operand]
            if value in self.constants:
                if load.checked or load.indices:
                    return None
                continue
            own = known.get(value)
            if load.checked or not _is_inside(load, value):
                return None
            indices = tuple(index for index in load.indices if isinstance(index, Index))
            places.add((value, indices) if own is None else (own.source, _placed(own.indices, indices)))
        if len(places) != 1:
            return None
        ((source, indices),) = places
        if not (_is_bytes(source) or source in self.joined):
            return None
        constants: list[Value] = []

        def position(value: Value) -> int:
            if value not in constants:
                constants.append(value)
            return constants.index(value)

        def through(load: Load) -> Scalar:
            value = step.operands[load.operand]
            if value in self.constants:
                return Load(position(value), (), load.dtype)
            inner = known.get(value)
            if inner is None:
                return Held(AT_HAND, load.dtype)
            return rebuild(inner.expression, lambda own: Load(position(inner.constants[own.operand]), (), own.dtype))

        whole = rebuild(expression, through)
        if sum(1 for _ in walk(whole)) > LARGEST:
            return None
        return _Function(source, indices, whole, tuple(constants))

    def made(self, function: _Function, result: Value, step: Step) -> Step:
        """The step that computes a function: a table, or where the byte stays the same, nothing but a load."""
        source, dtype = _type(function.source).dtype, _type(result).dtype
        element: Scalar = Load(0, function.indices, source)
        if self.is_identity(function, result):
            return Step(Map(element), (function.source,), (result,), step.origin)
        worthwhile = _is_bytes(function.source) and cost(function.expression) >= LEAST_COST
        outcome = self.outcomes(function, dtype) if worthwhile else None
        if outcome is not None:
            table = self.value(WORD, (VALUES,))
            self.constants[table] = outcome.astype(WORD.numpy)
            byte = element if source is DType.uint8 else Apply("bitcast", (element,), DType.uint8)
            found = Load(1, (Apply("cast", (byte,), DType.int64),), WORD)
            return Step(Map(Apply("cast", (found,), dtype)), (function.source, table), (result,), step.origin)
        moved = rebuild(function.expression, lambda load: Load(1 + load.operand, (), load.dtype))
        expression = with_held(moved, {AT_HAND: element})
        return Step(Map(expression), (function.source, *function.constants), (result,), step.origin)

    def is_at_hand(self, function: _Function) -> bool:
        """Whether a function is cheap, and its bytes are there for others anyway."""
        return self.uses[function.source] > 1 and cost(function.expression) < LEAST_COST

    def is_identity(self, function: _Function, result: Value) -> bool:
        dtype = _type(function.source).dtype
        if not _is_bytes(result) or _type(result).dtype is not dtype:
            return False
        found = self.outcomes(function, dtype)
        return found is not None and bool((found == _every(dtype)).all())

    def outcomes(self, function: _Function, dtype: DType) -> Array | None:
        """The outcome for all bytes, in the order of their bits as unsigned numbers."""
        source = _type(function.source).dtype
        place = (Index(dims.axis(0, VALUES)),)
        moved = rebuild(function.expression, lambda load: Load(1 + load.operand, (), load.dtype))
        expression = with_held(moved, {AT_HAND: Load(0, place, source)})
        operands = [_every(source), *(np.reshape(self.constants[value], ()) for value in function.constants)]
        try:
            (table,) = self.evaluator.evaluate(Map(expression), operands, [TensorType(dtype, (VALUES,))])
        except (WeftError, KeyError):
            return None
        return np.asarray(table)

    def is_monotone(self, function: _Function) -> bool:
        """Whether larger bytes never give smaller numbers."""
        found = self.outcomes(function, function.expression.dtype)
        if found is None:
            return False
        ordered = found[np.argsort(_every(_type(function.source).dtype), kind="stable")].astype(np.float64)
        return bool((np.diff(ordered) >= 0).all())

    def value(self, dtype: DType, shape: Shape) -> Value:
        self.number += 1
        return Value(self.number - 1, TensorType(dtype, shape))


def _itself(value: Value) -> _Function:
    type = _type(value)
    return _Function(value, _plain(type.shape or ()), Held(AT_HAND, type.dtype), ())


def _after(outer: _Function, inner: _Function) -> _Function:
    """The outer function of what the inner one gives, at the same place."""
    constants = list(dict.fromkeys((*inner.constants, *outer.constants)))

    def renumbered(function: _Function) -> Scalar:
        return rebuild(
            function.expression, lambda load: Load(constants.index(function.constants[load.operand]), (), load.dtype)
        )

    expression = with_held(renumbered(outer), {AT_HAND: renumbered(inner)})
    return _Function(inner.source, inner.indices, expression, tuple(constants))


def _is_tame(expression: Scalar) -> bool:
    """Whether an expression applies functions to numbers and loads at places that axes decide, and to no position."""
    match expression:
        case Literal():
            return True
        case Load(_, indices):
            return all(isinstance(index, Index) for index in indices)
        case Apply(_, arguments):
            return all(map(_is_tame, arguments))
    return False


def _is_inside(load: Load, value: Value) -> bool:
    return all(
        isinstance(index, Index) and dims.is_at_least(index.value, 0) and dims.is_at_least(size - 1, index.value)
        for index, size in zip(load.indices, _type(value).shape or ())
    )


def _placed(indices: Sequence[Index], places: Sequence[Index]) -> tuple[Index, ...]:
    """Indices over some axes, with other indices in the place of these axes."""

    def place(atom: Symbol | Axis) -> Dim:
        return places[atom.position].value if isinstance(atom, Axis) else dims.symbol(atom.name, atom.low, atom.high)

    return tuple(Index(dims.substitute(index.value, place)) for index in indices)


def _every(dtype: DType) -> Array:
    return np.arange(VALUES, dtype=np.uint8).view(dtype.numpy)


def _plain(shape: Shape) -> tuple[Index, ...]:
    return tuple(Index(dims.axis(axis, size)) for axis, size in enumerate(shape))


def _is_bytes(value: Value) -> bool:
    return isinstance(value.type, TensorType) and value.type.dtype in BYTES and value.type.shape is not None


def _type(value: Value) -> TensorType:
    assert isinstance(value.type, TensorType)
    return value.type
