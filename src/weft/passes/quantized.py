"""Products of quantized numbers are summed up as integers, and scaled once at the end.

A product of a[m, k] = s * (p[m, k] - y) with b[k, n] = t * (q[k, n] - z), where p and q are of 8 bits, becomes
s * t * (sum(p * q) - y * (sum(q) - depth * z) - z * sum(p)), with sums over k. They are exact. The sum over constant
numbers is a constant, and what is multiplied by a zero point of 0 is left out. Where both p and q are signed, or
neither is, one of them is shifted by 128, and its zero point with it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from weft.ir import dims
from weft.ir.dims import Axis, Dim, Symbol
from weft.ir.dtypes import DType
from weft.ir.program import Contract, Convolve, Map, Reduce, Reshape, Step, TensorProgram, Value, tensor_dtype
from weft.ir.scalar import Apply, Index, Literal, Load, Scalar, loads, rebuild
from weft.ir.types import Shape, TensorType
from weft.opset.trace import Evaluator
from weft.passes.rewrite import everywhere, next_number
from weft.records import dataclass

BYTES = (DType.uint8, DType.int8)
INT32 = DType.int32
FLOAT32 = DType.float32
HALF = 128  # what a shift between uint8 and int8 is
SHALLOW = 8  # sums that are too short to gain
CHANNEL = 1  # the axis of a convolution's result along which its weights differ
DEEP = 33_000  # sums of more products of 8 bits might leave int32


@dataclass(frozen=True, slots=True)
class QuantizationParameter:
    """A zero point or a scale: a scalar over the operand's axes that loads from `source` alone, plus a number."""

    scalar: Scalar
    source: Value | None
    offset: int = 0

    @property
    def axes(self) -> set[int]:
        indices = [index.value for load in loads(self.scalar) for index in load.indices if isinstance(index, Index)]
        return {atom.position for index in indices for atom in dims.atoms(index) if isinstance(atom, Axis)}


@dataclass(frozen=True, slots=True)
class QuantizedOperand:
    """scale * (numbers - zero), with a label for each axis of the numbers."""

    numbers: Value
    zero: QuantizationParameter
    scale: QuantizationParameter | None
    labels: tuple[int, ...]

    def labels_of(self, parameter: QuantizationParameter) -> set[int]:
        return {self.labels[axis] for axis in parameter.axes}


def multiply_bytes(program: TensorProgram, evaluator: Evaluator) -> TensorProgram:
    """Turn products of dequantized numbers into products of the numbers."""
    program = everywhere(multiply_bytes, program, evaluator)
    rewriter = _Rewriter(program)
    for step in program.steps:
        match step.primitive:
            case Contract() as product if rewriter.rewrite(step, product):
                pass
            case Convolve() as convolution if rewriter.rewrite_convolution(step, convolution):
                pass
            case _:
                rewriter.steps.append(step)
    return replace(program, steps=tuple(rewriter.steps), constants=rewriter.constants)


class _Rewriter:
    def __init__(self, program: TensorProgram) -> None:
        self.makers = {result: step for step in program.steps for result in step.results}
        self.constants: dict[Value, Any] = dict(program.constants)
        self.steps: list[Step] = []
        self.number = next_number(program)
        self.origin = ""

    def rewrite(self, step: Step, primitive: Contract) -> bool:
        """Add the steps that do the same as a product, if it is one of quantized numbers."""
        left = self.recognise(step.operands[0], primitive.left)
        right = self.recognise(step.operands[1], primitive.right)
        if left is None or right is None or not _fits(left, right, primitive):
            return False
        self.origin = step.origin
        left, right = self.opposite(left, right)
        shape = _shape(step.results[0])
        sums = self.add(primitive, (left.numbers, right.numbers), INT32, shape)
        result = _Expression(primitive.output, shape)
        total: Scalar = result.load(sums, primitive.output)
        for correction in self.corrections(left, right, primitive, result):
            total = Apply("subtract", (total, correction), INT32)
        if left.scale is not None and right.scale is not None:
            scale = self.scale(left, right, result)
            total = Apply("multiply", (Apply("cast", (total,), FLOAT32), scale), FLOAT32)
        self.steps.append(Step(Map(total), tuple(result.operands), step.results, step.origin))
        return True

    def rewrite_convolution(self, step: Step, primitive: Convolve) -> bool:
        """The same for a convolution whose weights have no zero point, once they are signed."""
        rank = len(_shape(step.results[0]))
        x = self.recognise(step.operands[0], (-1,) * rank)
        w = self.recognise(step.operands[1], (CHANNEL, *(-1,) * (rank - 1)))
        if x is None or w is None or primitive.transposed or primitive.groups != 1:
            return False
        if not self.fits_convolution(x, w):
            return False
        self.origin = step.origin
        x = x if tensor_dtype(x.numbers) is DType.uint8 else self.shifted(x)
        w = w if tensor_dtype(w.numbers) is DType.int8 else self.shifted(w)
        numbers, pads = x.numbers, primitive.pads
        if any(pad != 0 for pair in pads for pad in pair) and not self.vanishes(x.zero):
            numbers, pads = self.padded(x, pads), ((0, 0),) * len(pads)
        shape = _shape(step.results[0])
        sums = self.add(replace(primitive, pads=pads), (numbers, w.numbers), INT32, shape)
        result = _Expression(tuple(range(rank)), shape)
        total: Scalar = result.load(sums, range(rank))
        if not self.vanishes(x.zero):
            totals, labels = self.totals(w, {-1})

            def moved(expression: _Expression) -> Scalar:
                point = expression.parameter(x.zero, x.labels)
                return Apply("multiply", (expression.load(totals, labels), point), INT32)

            total = Apply("subtract", (total, self.apart(moved, INT32, labels, set(), result)), INT32)
        if x.scale is not None and w.scale is not None:
            scale = self.scale(x, w, result)
            total = Apply("multiply", (Apply("cast", (total,), FLOAT32), scale), FLOAT32)
        self.steps.append(Step(Map(total), tuple(result.operands), step.results, step.origin))
        return True

    def fits_convolution(self, x: QuantizedOperand, w: QuantizedOperand) -> bool:
        if w.numbers not in self.constants or (x.scale is None) is not (w.scale is None) or x.zero.axes:
            return False
        zero = w.zero if tensor_dtype(w.numbers) is DType.int8 else _shifted_zero(w)
        along = {0} if w.scale is None else w.scale.axes | {0}
        depth = dims.product(_shape(w.numbers)[1:])
        fits = isinstance(depth, int) and SHALLOW <= depth <= DEEP
        return self.vanishes(zero) and along == {0} and not (x.scale is not None and x.scale.axes) and fits

    def padded(self, x: QuantizedOperand, pads: tuple[tuple[Dim, Dim], ...]) -> Value:
        """The numbers with their zero point around them."""
        given = _shape(x.numbers)
        befores = (0, 0, *(before for before, _ in pads))
        shape = (*given[:2], *(size + before + after for size, (before, after) in zip(given[2:], pads)))
        expression = _Expression(tuple(range(len(shape))), shape)
        places = [expression.place(axis) - before for axis, before in enumerate(befores)]
        position = expression.position(x.numbers)
        value: Scalar = Load(position, tuple(map(Index, places)), tensor_dtype(x.numbers))
        zero = Apply("cast", (expression.parameter(x.zero, x.labels),), tensor_dtype(x.numbers))
        for place, size in zip(places[2:], given[2:]):
            for relation, limit in (("greater_equal", 0), ("less", size)):
                inside = Apply(relation, (Index(place), Index(limit)), DType.bool)
                value = Apply("select", (inside, value, zero), zero.dtype)
        return self.add(Map(value), tuple(expression.operands), zero.dtype, shape)

    # -- operands ----------------------------------------------------------------------------------------------------

    def recognise(self, value: Value, labels: tuple[int, ...]) -> QuantizedOperand | None:
        step = self.makers.get(value)
        if step is None or not isinstance(step.primitive, Map):
            return None
        centered = step.primitive.expression
        scale = None
        match centered:
            case Apply("multiply", (Apply("cast", (inner,)), factor), DType.float32):
                scale = _parameter(factor, step)
                centered = inner
                if scale is None:
                    return None
        zero: QuantizationParameter | None = QuantizationParameter(Literal(0, INT32), None)
        match centered:
            case Apply("subtract", (wide, point), DType.int32):
                zero = _parameter(point, step)
                centered = wide
        match centered:
            case Apply("cast", (Load(operand, indices, dtype),), DType.int32) if dtype in BYTES and zero is not None:
                numbers = step.operands[operand]
                if indices == _element(numbers).indices and _shape(numbers) == _shape(value):
                    return QuantizedOperand(numbers, zero, scale, labels)
        return None

    def opposite(self, left: QuantizedOperand, right: QuantizedOperand) -> tuple[QuantizedOperand, QuantizedOperand]:
        """The operands with one of them unsigned and the other signed."""
        if tensor_dtype(left.numbers) is not tensor_dtype(right.numbers):
            return left, right
        constant = [operand.numbers in self.constants for operand in (left, right)]
        centered = [self.vanishes(_shifted_zero(operand)) for operand in (left, right)]
        if (constant[0] and centered[0]) or (constant[1] and not constant[0] and not centered[1]):
            return self.shifted(left), right
        return left, self.shifted(right)

    def shifted(self, operand: QuantizedOperand) -> QuantizedOperand:
        numbers = operand.numbers
        dtype = DType.int8 if tensor_dtype(numbers) is DType.uint8 else DType.uint8
        if numbers in self.constants:
            flipped = np.bitwise_xor(np.asarray(self.constants[numbers]).view(np.uint8), np.uint8(HALF))
            moved = self.constant(flipped.view(dtype.numpy), dtype)
        else:
            bits = Apply("bitcast", (_element(numbers),), DType.uint8)
            moved_bits = Apply("bit_xor", (bits, Literal(HALF, DType.uint8)), DType.uint8)
            moved = self.add(Map(Apply("bitcast", (moved_bits,), dtype)), (numbers,), dtype, _shape(numbers))
        return replace(operand, numbers=moved, zero=_shifted_zero(operand))

    def vanishes(self, zero: QuantizationParameter) -> bool:
        """Whether a zero point is certainly 0 everywhere."""
        match zero.scalar:
            case Literal(value):
                return int(value) + zero.offset == 0  # type: ignore[arg-type]
        known = self.known(zero.source)
        return known is not None and bool((known.astype(np.int64) + zero.offset == 0).all())

    def known(self, value: Value | None) -> Any:
        """A constant, also where its shape was changed."""
        step = None if value is None else self.makers.get(value)
        if step is not None and isinstance(step.primitive, Reshape):
            return self.known(step.operands[0])
        return None if value is None else self.constants.get(value)

    # -- what the zero points and scales add -------------------------------------------------------------------------

    def corrections(
        self, left: QuantizedOperand, right: QuantizedOperand, primitive: Contract, result: _Expression
    ) -> list[Scalar]:
        """What the integer sums have too much."""
        summed = {label for label in primitive.left if label not in primitive.output}
        depth = dims.product(size for label, size in zip(primitive.left, _shape(left.numbers)) if label in summed)
        found: list[Scalar] = []
        if not self.vanishes(left.zero):
            totals, labels = self.totals(right, summed)

            def columns(expression: _Expression) -> Scalar:
                rest: Scalar = expression.load(totals, labels)
                if not self.vanishes(right.zero):
                    every = Apply("cast", (Index(depth),), INT32)
                    point = expression.parameter(right.zero, right.labels)
                    rest = Apply("subtract", (rest, Apply("multiply", (every, point), INT32)), INT32)
                return Apply("multiply", (rest, expression.parameter(left.zero, left.labels)), INT32)

            found.append(self.apart(columns, INT32, labels, left.labels_of(left.zero), result))
        if not self.vanishes(right.zero):
            sums, rows = self.totals(left, summed)

            def each(expression: _Expression) -> Scalar:
                point = expression.parameter(right.zero, right.labels)
                return Apply("multiply", (expression.load(sums, rows), point), INT32)

            found.append(self.apart(each, INT32, rows, right.labels_of(right.zero), result))
        return found

    def totals(self, operand: QuantizedOperand, summed: set[int]) -> tuple[Value, tuple[int, ...]]:
        """The sums of an operand's numbers, and the labels that they still have."""
        axes = tuple(axis for axis, label in enumerate(operand.labels) if label in summed)
        labels = tuple(label for label in operand.labels if label not in summed)
        numbers = operand.numbers
        if numbers in self.constants:
            return self.constant(np.sum(self.constants[numbers], axis=axes, dtype=np.int32), INT32), labels
        shape = _shape(numbers)
        wide = self.add(Map(Apply("cast", (_element(numbers),), INT32)), (numbers,), INT32, shape)
        rest = tuple(size for axis, size in enumerate(shape) if axis not in axes)
        return self.add(Reduce("sum", axes), (wide,), INT32, rest), labels

    def scale(self, left: QuantizedOperand, right: QuantizedOperand, result: _Expression) -> Scalar:
        assert left.scale is not None and right.scale is not None
        one, other = left.scale, right.scale
        used = left.labels_of(one) | right.labels_of(other)

        def both(expression: _Expression) -> Scalar:
            factors = (expression.parameter(one, left.labels), expression.parameter(other, right.labels))
            return Apply("multiply", factors, FLOAT32)

        order = tuple(label for label in result.labels if label in used)
        return self.apart(both, FLOAT32, order[:1], set(order), result)

    def apart(
        self,
        make: Callable[[_Expression], Scalar],
        dtype: DType,
        labels: tuple[int, ...],
        used: set[int],
        result: _Expression,
    ) -> Scalar:
        """A part of the result as a step of its own where `labels` are all that it depends on, for it is small then."""
        if not used <= set(labels):
            return make(result)
        own = _Expression(labels, tuple(result.size(label) for label in labels))
        scalar = make(own)
        return result.load(self.add(Map(scalar), tuple(own.operands), dtype, own.shape), labels)

    # -- steps and values --------------------------------------------------------------------------------------------

    def add(
        self, primitive: Contract | Convolve | Map | Reduce, operands: tuple[Value, ...], dtype: DType, shape: Shape
    ) -> Value:
        value = self.value(dtype, shape)
        self.steps.append(Step(primitive, operands, (value,), self.origin))
        return value

    def constant(self, array: Any, dtype: DType) -> Value:
        value = self.value(dtype, np.shape(array))
        self.constants[value] = np.asarray(array)
        return value

    def value(self, dtype: DType, shape: Shape) -> Value:
        self.number += 1
        return Value(self.number - 1, TensorType(dtype, shape))


class _Expression:
    """A scalar in the making, over axes with labels, and the values that it loads from."""

    def __init__(self, labels: tuple[int, ...], shape: Shape) -> None:
        self.labels, self.shape = labels, shape
        self.operands: list[Value] = []

    def size(self, label: int) -> Dim:
        return self.shape[self.labels.index(label)]

    def place(self, label: int) -> Dim:
        return dims.axis(self.labels.index(label), self.size(label))

    def load(self, value: Value, labels: Sequence[int]) -> Load:
        indices = tuple(Index(self.place(label)) for label in labels)
        return Load(self.position(value), indices, tensor_dtype(value))

    def position(self, value: Value) -> int:
        if value not in self.operands:
            self.operands.append(value)
        return self.operands.index(value)

    def parameter(self, parameter: QuantizationParameter, labels: tuple[int, ...]) -> Scalar:
        """A zero point or scale of the operand whose axes have these labels."""

        def moved(load: Load) -> Scalar:
            assert parameter.source is not None
            return Load(self.position(parameter.source), load.indices, load.dtype)

        def placed(atom: Symbol | Axis) -> Dim:
            return (
                self.place(labels[atom.position])
                if isinstance(atom, Axis)
                else dims.symbol(atom.name, atom.low, atom.high)
            )

        scalar = rebuild(parameter.scalar, moved, placed)
        return Apply("add", (scalar, Literal(parameter.offset, INT32)), INT32) if parameter.offset else scalar


def _parameter(scalar: Scalar, step: Step) -> QuantizationParameter | None:
    """A scalar of a map as a parameter: an element, or its conversion, at a place that axes alone decide."""
    found = loads(scalar)
    match scalar:
        case Literal() | Load() | Apply("cast", (Load(),)):
            if all(isinstance(index, Index) for load in found for index in load.indices):
                return QuantizationParameter(scalar, step.operands[found[0].operand] if found else None)
    return None


def _shifted_zero(operand: QuantizedOperand) -> QuantizationParameter:
    """The zero point of an operand whose numbers are shifted to the other signedness."""
    unsigned = tensor_dtype(operand.numbers) is DType.uint8
    return replace(operand.zero, offset=operand.zero.offset + (-HALF if unsigned else HALF))


def _fits(left: QuantizedOperand, right: QuantizedOperand, primitive: Contract) -> bool:
    """Whether sums fit int32, all of them are of products, and zero points and scales do not change along them."""
    if (left.scale is None) is not (right.scale is None):
        return False
    if len({*primitive.left}) != len(primitive.left) or len({*primitive.right}) != len(primitive.right):
        return False
    summed = {label for label in (*primitive.left, *primitive.right) if label not in primitive.output}
    if not summed <= {*primitive.left} & {*primitive.right}:
        return False
    parts = [(operand, part) for operand in (left, right) for part in (operand.zero, operand.scale) if part is not None]
    if any(operand.labels_of(part) & summed for operand, part in parts):
        return False
    depth = dims.product(size for label, size in zip(primitive.left, _shape(left.numbers)) if label in summed)
    return left.scale is None or (isinstance(depth, int) and SHALLOW <= depth <= DEEP)


def _shape(value: Value) -> Shape:
    return (value.type.shape or ()) if isinstance(value.type, TensorType) else ()


def _element(value: Value) -> Load:
    """The element of a value where the result's is."""
    return Load(0, tuple(Index(dims.axis(axis, size)) for axis, size in enumerate(_shape(value))), tensor_dtype(value))
