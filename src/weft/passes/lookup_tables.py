"""Replace functions from one byte to another by lookup tables, and keep data movement in bytes.

Between products, quantized networks dequantize a number, apply a function and quantize the result. A result that
depends on one byte is read from a table of 256 values if the function is expensive enough, or is the byte itself if the
function is the identity. Quantization moves before concatenations; reshapes and max pooling work on bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from weft.cost.expressions import cost
from weft.errors import WeftError
from weft.ir import dims
from weft.ir.arrays import Array
from weft.ir.dims import Axis, Dim, Symbol
from weft.ir.dtypes import DType
from weft.ir.program import Concat, Map, Pool, Reshape, Step, TensorProgram, Value
from weft.ir.scalar import (
    ELEMENT,
    Apply,
    Index,
    Literal,
    Load,
    Placeholder,
    Scalar,
    bind_placeholders,
    identity_indices,
    loads,
    rebuild,
    walk,
)
from weft.ir.types import Shape, TensorType
from weft.opset.trace import Evaluator
from weft.passes.rewrite import count_uses, everywhere, next_number, redirect
from weft.records import dataclass

BYTES = (DType.uint8, DType.int8)
WORD = DType.int32  # most CPUs can gather words, but not bytes
BYTE_VALUES = 256
LEAST_COST = 24  # instructions from which on a table is faster
LARGEST_EXPRESSION = 400  # nodes of an expression that is evaluated for a table


@dataclass(frozen=True, slots=True)
class _Function:
    """A function of one element of `source`, at indices that depend only on the axes of the result.

    The placeholder `ELEMENT` in the expression is this element; loads read constants of one element.
    """

    source: Value
    indices: tuple[Index, ...]
    expression: Scalar
    constants: tuple[Value, ...]

    def is_elementwise(self, value: Value) -> bool:
        """Whether `value` has the shape of the source and the function is applied elementwise."""
        shape = self.source.shape
        return self.indices == identity_indices(shape) and shape == value.shape


def use_lookup_tables(program: TensorProgram, evaluator: Evaluator) -> TensorProgram:
    """Avoid floats between bytes in a quantized program."""
    program = everywhere(use_lookup_tables, program, evaluator)
    if not any(_is_bytes(result) for step in program.steps for result in step.results):
        return program
    rewriter = _Rewriter(program, evaluator)
    for step in program.steps:
        rewriter.visit(redirect(step, rewriter.equal_bytes))
    return replace(program, steps=tuple(rewriter.steps), constants=rewriter.constants)


class _Rewriter:
    def __init__(self, program: TensorProgram, evaluator: Evaluator) -> None:
        self.evaluator = evaluator
        self.uses = count_uses(program)
        self.constants: dict[Value, Any] = dict(program.constants)
        self.number = next_number(program)
        self.functions: dict[Value, _Function] = {}
        self.floats: dict[Value, _Function] = {}  # functions of the nearest bytes, for values that are not bytes
        self.concats: dict[Value, Step] = {}  # concatenations with a single reader, by result
        self.equal_bytes: dict[Value, Value] = {}  # bytes that equal others
        self.outputs = set(program.outputs)
        self.steps: list[Step] = []

    def visit(self, step: Step) -> None:
        match step.primitive:
            case Map():
                self.visit_map(step)
                return
            case Concat() if step.results[0].dtype.is_float and self.uses[step.results[0]] == 1:
                if any(operand in self.floats for operand in step.operands):
                    self.concats[step.results[0]] = step
            case Reshape() | Pool("maximum"):
                self.visit_movement(step)
        self.steps.append(step)

    def visit_map(self, step: Step) -> None:
        near = self.match_function(step, self.floats)
        function = self.match_function(step, self.functions) or near
        if near is not None and (self.is_identity(near, step.results[0]) or self.is_available(near)):
            function = near
        if function is None:
            self.steps.append(step)
            return
        result = step.results[0]
        if not _is_bytes(result):
            self.functions[result] = function
            if near is not None:
                self.floats[result] = near
            self.steps.append(step)
            return
        if function.is_elementwise(result) and result not in self.outputs and self.is_identity(function, result):
            self.equal_bytes[result] = function.source
            return
        if function.source not in self.concats:
            self.steps.append(self.build_step(function, result, step))
            self.functions[result] = function
            return
        if not function.is_elementwise(result):
            self.steps.append(step)
            return
        concat = self.concats[function.source]
        parts = []
        for operand in concat.operands:
            part_function = self.floats.get(operand, _identity_function(operand))
            part = self.new_value(result.dtype, operand.shape)
            self.steps.append(self.build_step(_compose(function, part_function), part, step))
            parts.append(part)
        self.steps.append(Step(concat.primitive, tuple(parts), step.results, step.origin))

    def visit_movement(self, step: Step) -> None:
        """Reshape or pool the bytes too, and remember the result as a function of these."""
        function = self.floats.get(step.operands[0])
        if function is None or not _is_bytes(function.source) or not function.is_elementwise(step.operands[0]):
            return
        if isinstance(step.primitive, Pool) and not self.is_monotone(function):
            return
        shape = step.results[0].shape
        moved_bytes = self.new_value(function.source.dtype, shape)
        self.steps.append(Step(step.primitive, (function.source,), (moved_bytes,), step.origin))
        moved_function = replace(function, source=moved_bytes, indices=identity_indices(shape))
        self.functions[step.results[0]] = self.floats[step.results[0]] = moved_function

    # -- functions ---------------------------------------------------------------------------------------------------

    def match_function(self, step: Step, functions: Mapping[Value, _Function]) -> _Function | None:
        """Match a map as a function of one byte or one element of a concatenation, composed with earlier functions."""
        assert isinstance(step.primitive, Map)
        expression = step.primitive.expression
        if not _is_simple(expression):
            return None
        sources: set[tuple[Value, tuple[Index, ...]]] = set()
        for load in loads(expression):
            value = step.operands[load.operand]
            if value in self.constants:
                if load.checked or load.indices:
                    return None
                continue
            function = functions.get(value)
            if load.checked or not _is_inside(load, value):
                return None
            indices = tuple(index for index in load.indices if isinstance(index, Index))
            sources.add(
                (value, indices) if function is None else (function.source, _substitute(function.indices, indices))
            )
        if len(sources) != 1:
            return None
        ((source, indices),) = sources
        if not (_is_bytes(source) or source in self.concats):
            return None
        constants: list[Value] = []

        def position(value: Value) -> int:
            if value not in constants:
                constants.append(value)
            return constants.index(value)

        def read_source(load: Load) -> Scalar:
            value = step.operands[load.operand]
            if value in self.constants:
                return Load(position(value), (), load.dtype)
            inner = functions.get(value)
            if inner is None:
                return Placeholder(ELEMENT, load.dtype)
            return rebuild(inner.expression, lambda load: Load(position(inner.constants[load.operand]), (), load.dtype))

        composed = rebuild(expression, read_source)
        if sum(1 for _ in walk(composed)) > LARGEST_EXPRESSION:
            return None
        return _Function(source, indices, composed, tuple(constants))

    def build_step(self, function: _Function, result: Value, step: Step) -> Step:
        """Build the step that computes a function: a table lookup, a plain load for the identity, or the expression."""
        source, dtype = function.source.dtype, result.dtype
        element: Scalar = Load(0, function.indices, source)
        if self.is_identity(function, result):
            return Step(Map(element), (function.source,), (result,), step.origin)
        worthwhile = _is_bytes(function.source) and cost(function.expression) >= LEAST_COST
        outcome = self.evaluate_all(function, dtype) if worthwhile else None
        if outcome is not None:
            table = self.new_value(WORD, (BYTE_VALUES,))
            self.constants[table] = outcome.astype(WORD.numpy)
            byte = element if source is DType.uint8 else Apply("bitcast", (element,), DType.uint8)
            entry = Load(1, (Apply("cast", (byte,), DType.int64),), WORD)
            return Step(Map(Apply("cast", (entry,), dtype)), (function.source, table), (result,), step.origin)
        moved = rebuild(function.expression, lambda load: Load(1 + load.operand, (), load.dtype))
        expression = bind_placeholders(moved, {ELEMENT: element})
        return Step(Map(expression), (function.source, *function.constants), (result,), step.origin)

    def is_available(self, function: _Function) -> bool:
        """Whether a function is cheap, and its bytes are stored for other readers anyway."""
        return self.uses[function.source] > 1 and cost(function.expression) < LEAST_COST

    def is_identity(self, function: _Function, result: Value) -> bool:
        dtype = function.source.dtype
        if not _is_bytes(result) or result.dtype is not dtype:
            return False
        results = self.evaluate_all(function, dtype)
        return results is not None and bool((results == _all_bytes(dtype)).all())

    def evaluate_all(self, function: _Function, dtype: DType) -> Array | None:
        """Evaluate a function for all bytes, in the order of their bits as unsigned numbers."""
        source = function.source.dtype
        indices = (Index(dims.axis(0, BYTE_VALUES)),)
        moved = rebuild(function.expression, lambda load: Load(1 + load.operand, (), load.dtype))
        expression = bind_placeholders(moved, {ELEMENT: Load(0, indices, source)})
        operands = [_all_bytes(source), *(np.reshape(self.constants[value], ()) for value in function.constants)]
        try:
            (table,) = self.evaluator.evaluate(Map(expression), operands, [TensorType(dtype, (BYTE_VALUES,))])
        except (WeftError, KeyError):
            return None
        return np.asarray(table)

    def is_monotone(self, function: _Function) -> bool:
        """Whether a function is monotonically increasing."""
        results = self.evaluate_all(function, function.expression.dtype)
        if results is None:
            return False
        ordered = results[np.argsort(_all_bytes(function.source.dtype), kind="stable")].astype(np.float64)
        return bool((np.diff(ordered) >= 0).all())

    def new_value(self, dtype: DType, shape: Shape) -> Value:
        self.number += 1
        return Value(self.number - 1, TensorType(dtype, shape))


def _identity_function(value: Value) -> _Function:
    return _Function(value, identity_indices(value.shape), Placeholder(ELEMENT, value.dtype), ())


def _compose(outer: _Function, inner: _Function) -> _Function:
    """Compose two functions; the outer one is elementwise."""
    constants = list(dict.fromkeys((*inner.constants, *outer.constants)))

    def renumber_loads(function: _Function) -> Scalar:
        return rebuild(
            function.expression, lambda load: Load(constants.index(function.constants[load.operand]), (), load.dtype)
        )

    expression = bind_placeholders(renumber_loads(outer), {ELEMENT: renumber_loads(inner)})
    return _Function(inner.source, inner.indices, expression, tuple(constants))


def _is_simple(expression: Scalar) -> bool:
    """Whether an expression consists of functions, literals, and loads at indices that depend only on axes."""
    match expression:
        case Literal():
            return True
        case Load(_, indices):
            return all(isinstance(index, Index) for index in indices)
        case Apply(_, arguments):
            return all(map(_is_simple, arguments))
    return False


def _is_inside(load: Load, value: Value) -> bool:
    return all(
        isinstance(index, Index) and dims.is_at_least(index.value, 0) and dims.is_at_least(size - 1, index.value)
        for index, size in zip(load.indices, value.shape)
    )


def _substitute(indices: Sequence[Index], replacements: Sequence[Index]) -> tuple[Index, ...]:
    """Substitute the axes in indices by other indices."""

    def replace_axis(atom: Symbol | Axis) -> Dim:
        return replacements[atom.position].value if isinstance(atom, Axis) else dims.from_atom(atom)

    return tuple(Index(dims.substitute(index.value, replace_axis)) for index in indices)


def _all_bytes(dtype: DType) -> Array:
    return np.arange(BYTE_VALUES, dtype=np.uint8).view(dtype.numpy)


def _is_bytes(value: Value) -> bool:
    return value.has_shape and value.dtype in BYTES
