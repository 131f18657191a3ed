"""Compute products of dequantized numbers as integer products that are scaled at the end.

A product of a[m, k] = s * (p[m, k] - y) with b[k, n] = t * (q[k, n] - z), with 8-bit p and q, becomes s * t * (sum(p *
q) - y * (sum(q) - depth * z) - z * sum(p)), with exact sums over k. Sums over constants are constants, and terms with a
zero point of 0 are dropped. If p and q are both signed or both unsigned, one of them and its zero point are shifted by
128.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from weft.ir import dims
from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.ir.program import Contract, Convolve, Map, Pool, Reduce, Reshape, Step, TensorProgram, Value
from weft.ir.quantized_operands import LabelledExpression, QuantizationParameter, QuantizedOperand, match_parameter
from weft.ir.scalar import Apply, Index, Literal, Load, Scalar, identity_indices
from weft.ir.types import Shape, TensorType
from weft.opset.trace import Evaluator
from weft.passes.rewrite import everywhere, next_number

BYTES = (DType.uint8, DType.int8)
INT32 = DType.int32
FLOAT32 = DType.float32
SIGN_SHIFT = 128  # the shift between uint8 and int8
LEAST_DEPTH = 8  # sums of fewer products do not gain
CHANNEL = 1  # the channel axis of a convolution's result
MOST_DEPTH = 33_000  # sums of more 8-bit products might overflow int32


_NO_ZERO = QuantizationParameter(Literal(0, INT32), None)


def use_integer_products(program: TensorProgram, evaluator: Evaluator) -> TensorProgram:
    """Turn products of dequantized numbers into integer products."""
    program = everywhere(use_integer_products, program, evaluator)
    rewriter = _Rewriter(program)
    for step in program.steps:
        match step.primitive:
            case Contract() as product if rewriter.rewrite_product(step, product):
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

    def rewrite_product(self, step: Step, primitive: Contract) -> bool:
        """Add the integer form of a product if its operands are quantized."""
        left = self.match_operand(step.operands[0], primitive.left)
        right = self.match_operand(step.operands[1], primitive.right)
        if left is None or right is None or not _is_supported(left, right, primitive):
            return False
        self.origin = step.origin
        left, right = self.make_signs_differ(left, right)
        shape = step.results[0].shape
        sums = self.add(primitive, (left.numbers, right.numbers), INT32, shape)
        result = LabelledExpression(primitive.output, shape)
        total: Scalar = result.load(sums, primitive.output)
        for correction in self.build_corrections(left, right, primitive, result):
            total = Apply("subtract", (total, correction), INT32)
        if left.scale is not None and right.scale is not None:
            scale = self.build_scale(left, right, result)
            total = Apply("multiply", (Apply("cast", (total,), FLOAT32), scale), FLOAT32)
        self.steps.append(Step(Map(total), tuple(result.operands), step.results, step.origin))
        return True

    def rewrite_convolution(self, step: Step, primitive: Convolve) -> bool:
        """Add the integer form of a convolution with constant weights."""
        rank = step.results[0].rank
        x = self.match_operand(step.operands[0], (-1,) * rank)
        w = self.match_operand(step.operands[1], (CHANNEL, *(-1,) * (rank - 1)))
        if x is None or w is None or primitive.transposed or primitive.groups != 1:
            return False
        if not self.fits_convolution(x, w):
            return False
        self.origin = step.origin
        x = x if x.numbers.dtype is DType.uint8 else self.shift_sign(x)
        w = w if w.numbers.dtype is DType.int8 else self.shift_sign(w)
        numbers, pads = x.numbers, primitive.pads
        if any(pad != 0 for pair in pads for pad in pair) and not self.is_zero(x.zero):
            numbers, pads = self.pad(x, pads), ((0, 0),) * len(pads)
        shape = step.results[0].shape
        primitive = replace(primitive, pads=pads)
        sums = self.add(primitive, (numbers, w.numbers), INT32, shape)
        result = LabelledExpression(tuple(range(rank)), shape)
        total: Scalar = result.load(sums, range(rank))
        if not self.is_zero(x.zero):
            totals, labels = self.sum_numbers(w, {-1})

            def zero_point_term(expression: LabelledExpression) -> Scalar:
                point = expression.parameter(x.zero, x.labels)
                return Apply("multiply", (expression.load(totals, labels), point), INT32)

            total = Apply("subtract", (total, self.add_term(zero_point_term, INT32, labels, set(), result)), INT32)
        if not self.is_zero(w.zero):
            windows, labels = self.sum_windows(numbers, primitive, w.numbers.shape[2:], shape)
            window_sum: Scalar = result.load(windows, labels)
            if not self.is_zero(x.zero):
                depth = Apply("cast", (Index(dims.product(w.numbers.shape[1:])),), INT32)
                zeros = Apply("multiply", (depth, result.parameter(x.zero, x.labels)), INT32)
                window_sum = Apply("subtract", (window_sum, zeros), INT32)
            correction = Apply("multiply", (window_sum, result.parameter(w.zero, w.labels)), INT32)
            total = Apply("subtract", (total, correction), INT32)
        if x.scale is not None and w.scale is not None:
            scale = self.build_scale(x, w, result)
            total = Apply("multiply", (Apply("cast", (total,), FLOAT32), scale), FLOAT32)
        self.steps.append(Step(Map(total), tuple(result.operands), step.results, step.origin))
        return True

    def fits_convolution(self, x: QuantizedOperand, w: QuantizedOperand) -> bool:
        if w.numbers not in self.constants or (x.scale is None) is not (w.scale is None) or x.zero.axes:
            return False
        along = w.zero.axes | (set() if w.scale is None else w.scale.axes)
        depth = dims.product(w.numbers.shape[1:])
        fits = isinstance(depth, int) and LEAST_DEPTH <= depth <= MOST_DEPTH
        return along <= {0} and not (x.scale is not None and x.scale.axes) and fits

    def pad(self, x: QuantizedOperand, pads: tuple[tuple[Dim, Dim], ...]) -> Value:
        """Pad the numbers with their zero point."""
        unpadded = x.numbers.shape
        befores = (0, 0, *(before for before, _ in pads))
        shape = (*unpadded[:2], *(size + before + after for size, (before, after) in zip(unpadded[2:], pads)))
        expression = LabelledExpression(tuple(range(len(shape))), shape)
        positions = [expression.axis(axis) - before for axis, before in enumerate(befores)]
        position = expression.position(x.numbers)
        value: Scalar = Load(position, tuple(map(Index, positions)), x.numbers.dtype)
        zero = Apply("cast", (expression.parameter(x.zero, x.labels),), x.numbers.dtype)
        for coordinate, size in zip(positions[2:], unpadded[2:]):
            for relation, limit in (("greater_equal", 0), ("less", size)):
                inside = Apply(relation, (Index(coordinate), Index(limit)), DType.bool)
                value = Apply("select", (inside, value, zero), zero.dtype)
        return self.add(Map(value), tuple(expression.operands), zero.dtype, shape)

    # -- operands ----------------------------------------------------------------------------------------------------

    def match_operand(self, value: Value, labels: tuple[int, ...]) -> QuantizedOperand | None:
        step = self.makers.get(value)
        if step is None or not isinstance(step.primitive, Map):
            return None
        centered = step.primitive.expression
        scale = None
        match centered:
            case Apply("multiply", (Apply("cast", (inner,)), factor), DType.float32):
                scale = match_parameter(factor, step)
                centered = inner
                if scale is None:
                    return None
        zero: QuantizationParameter | None = _NO_ZERO
        match centered:
            case Apply("subtract", (wide, point), DType.int32):
                zero = match_parameter(point, step)
                centered = wide
        match centered:
            case Apply("cast", (Load(operand, indices, dtype),), DType.int32) if dtype in BYTES and zero is not None:
                numbers = step.operands[operand]
                if indices == _element(numbers).indices and numbers.shape == value.shape:
                    return QuantizedOperand(numbers, zero, scale, labels)
        return None

    def make_signs_differ(
        self, left: QuantizedOperand, right: QuantizedOperand
    ) -> tuple[QuantizedOperand, QuantizedOperand]:
        """Shift one operand if both are signed or both unsigned."""
        if left.numbers.dtype is not right.numbers.dtype:
            return left, right
        constant = [operand.numbers in self.constants for operand in (left, right)]
        centered = [self.is_zero(_shifted_zero(operand)) for operand in (left, right)]
        if (constant[0] and centered[0]) or (constant[1] and not constant[0] and not centered[1]):
            return self.shift_sign(left), right
        return left, self.shift_sign(right)

    def shift_sign(self, operand: QuantizedOperand) -> QuantizedOperand:
        numbers = operand.numbers
        dtype = DType.int8 if numbers.dtype is DType.uint8 else DType.uint8
        if numbers in self.constants:
            flipped = np.bitwise_xor(np.asarray(self.constants[numbers]).view(np.uint8), np.uint8(SIGN_SHIFT))
            shifted_numbers = self.add_constant(flipped.view(dtype.numpy), dtype)
        else:
            bits = Apply("bitcast", (_element(numbers),), DType.uint8)
            shifted_bits = Apply("bit_xor", (bits, Literal(SIGN_SHIFT, DType.uint8)), DType.uint8)
            shifted_numbers = self.add(Map(Apply("bitcast", (shifted_bits,), dtype)), (numbers,), dtype, numbers.shape)
        return replace(operand, numbers=shifted_numbers, zero=_shifted_zero(operand))

    def is_zero(self, zero: QuantizationParameter) -> bool:
        """Whether a zero point is known to be 0 everywhere."""
        if isinstance(zero.scalar, Literal):
            return zero.scalar.value == -zero.offset
        content = self.find_constant(zero.source)
        return content is not None and bool((content.astype(np.int64) + zero.offset == 0).all())

    def find_constant(self, value: Value | None) -> Any:
        """Return the content of a constant, also through reshapes."""
        step = None if value is None else self.makers.get(value)
        if step is not None and isinstance(step.primitive, Reshape):
            return self.find_constant(step.operands[0])
        return None if value is None else self.constants.get(value)

    # -- zero points and scales --------------------------------------------------------------------------------------

    def build_corrections(
        self, left: QuantizedOperand, right: QuantizedOperand, primitive: Contract, result: LabelledExpression
    ) -> list[Scalar]:
        """Return the terms to subtract from the integer sums for zero points."""
        summed = {label for label in primitive.left if label not in primitive.output}
        depth = dims.product(size for label, size in zip(primitive.left, left.numbers.shape) if label in summed)
        terms: list[Scalar] = []
        if not self.is_zero(left.zero):
            totals, labels = self.sum_numbers(right, summed)

            def column_term(expression: LabelledExpression) -> Scalar:
                term: Scalar = expression.load(totals, labels)
                if not self.is_zero(right.zero):
                    depth_scalar = Apply("cast", (Index(depth),), INT32)
                    point = expression.parameter(right.zero, right.labels)
                    term = Apply("subtract", (term, Apply("multiply", (depth_scalar, point), INT32)), INT32)
                return Apply("multiply", (term, expression.parameter(left.zero, left.labels)), INT32)

            terms.append(self.add_term(column_term, INT32, labels, left.labels_of(left.zero), result))
        if not self.is_zero(right.zero):
            sums, rows = self.sum_numbers(left, summed)

            def row_term(expression: LabelledExpression) -> Scalar:
                point = expression.parameter(right.zero, right.labels)
                return Apply("multiply", (expression.load(sums, rows), point), INT32)

            terms.append(self.add_term(row_term, INT32, rows, right.labels_of(right.zero), result))
        return terms

    def sum_numbers(self, operand: QuantizedOperand, summed: set[int]) -> tuple[Value, tuple[int, ...]]:
        """Sum an operand's numbers; return the sums and their remaining labels."""
        axes = tuple(axis for axis, label in enumerate(operand.labels) if label in summed)
        labels = tuple(label for label in operand.labels if label not in summed)
        numbers = operand.numbers
        if numbers in self.constants:
            return self.add_constant(np.sum(self.constants[numbers], axis=axes, dtype=np.int32), INT32), labels
        shape = numbers.shape
        wide = self.add(Map(Apply("cast", (_element(numbers),), INT32)), (numbers,), INT32, shape)
        remaining = tuple(size for axis, size in enumerate(shape) if axis not in axes)
        return self.add(Reduce("sum", axes), (wide,), INT32, remaining), labels

    def sum_windows(
        self, numbers: Value, primitive: Convolve, kernel: Shape, shape: Shape
    ) -> tuple[Value, tuple[int, ...]]:
        """Sum the numbers that each position of a convolution's result reads; return the sums and their labels."""
        rank = len(shape)
        sums, labels = self.sum_numbers(QuantizedOperand(numbers, _NO_ZERO, None, tuple(range(rank))), {CHANNEL})
        windows = Pool("sum", kernel, primitive.strides, primitive.dilations, primitive.pads)
        single = self.add(Reshape(), (sums,), INT32, (numbers.shape[0], 1, *numbers.shape[2:]))
        pooled = self.add(windows, (single,), INT32, (shape[0], 1, *shape[2:]))
        return self.add(Reshape(), (pooled,), INT32, (shape[0], *shape[2:])), labels

    def build_scale(self, left: QuantizedOperand, right: QuantizedOperand, result: LabelledExpression) -> Scalar:
        assert left.scale is not None and right.scale is not None
        left_scale, right_scale = left.scale, right.scale
        used = left.labels_of(left_scale) | right.labels_of(right_scale)

        def multiply_scales(expression: LabelledExpression) -> Scalar:
            factors = (expression.parameter(left_scale, left.labels), expression.parameter(right_scale, right.labels))
            return Apply("multiply", factors, FLOAT32)

        order = tuple(label for label in result.labels if label in used)
        return self.add_term(multiply_scales, FLOAT32, order[:1], set(order), result)

    def add_term(
        self,
        make: Callable[[LabelledExpression], Scalar],
        dtype: DType,
        labels: tuple[int, ...],
        used: set[int],
        result: LabelledExpression,
    ) -> Scalar:
        """Compute a term in its own step if it depends only on `labels`, since it is small then."""
        if not used <= set(labels):
            return make(result)
        term = LabelledExpression(labels, tuple(result.size(label) for label in labels))
        scalar = make(term)
        return result.load(self.add(Map(scalar), tuple(term.operands), dtype, term.shape), labels)

    # -- steps and values --------------------------------------------------------------------------------------------

    def add(
        self,
        primitive: Contract | Convolve | Map | Pool | Reduce | Reshape,
        operands: tuple[Value, ...],
        dtype: DType,
        shape: Shape,
    ) -> Value:
        value = self.new_value(dtype, shape)
        self.steps.append(Step(primitive, operands, (value,), self.origin))
        return value

    def add_constant(self, array: Any, dtype: DType) -> Value:
        value = self.new_value(dtype, np.shape(array))
        self.constants[value] = np.asarray(array)
        return value

    def new_value(self, dtype: DType, shape: Shape) -> Value:
        self.number += 1
        return Value(self.number - 1, TensorType(dtype, shape))


def _shifted_zero(operand: QuantizedOperand) -> QuantizationParameter:
    """Return the zero point of an operand after its numbers are shifted to the other signedness."""
    unsigned = operand.numbers.dtype is DType.uint8
    return replace(operand.zero, offset=operand.zero.offset + (-SIGN_SHIFT if unsigned else SIGN_SHIFT))


def _is_supported(left: QuantizedOperand, right: QuantizedOperand, primitive: Contract) -> bool:
    """Whether sums fit int32, run over both operands, and zero points and scales are constant along them."""
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
    depth = dims.product(size for label, size in zip(primitive.left, left.numbers.shape) if label in summed)
    return left.scale is None or (isinstance(depth, int) and LEAST_DEPTH <= depth <= MOST_DEPTH)


def _element(value: Value) -> Load:
    """Load the element of a value at the result's position."""
    return Load(0, identity_indices(value.shape), value.dtype)
