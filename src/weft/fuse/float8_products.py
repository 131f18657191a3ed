"""Multiply quantized floats of 8 bits on tensor cores, and scale their products.

A product of s * p[m, k] with t * q[k, n] becomes s * t * sum(p * q). All these numbers are exact in float16, whose
products tensor cores add in float32. They are multiplied as they are where operands may be rounded to float16, since
tensor cores keep fewer bits of the sums of products of 8-bit floats.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from weft.fuse.grouping import single_group
from weft.fuse.inline import drop_unread_maps
from weft.ir.dtypes import DType
from weft.ir.float8_products import Float8Product, match_float8_product
from weft.ir.groups import FusedProgram
from weft.ir.program import Contract, Convolve, Map, Step, TensorProgram, Value
from weft.ir.quantized_operands import LabelledExpression, QuantizedOperand
from weft.ir.scalar import Apply, Load, Scalar, identity_indices
from weft.ir.target import Float32Products, Target, ThreadTarget
from weft.ir.types import TensorType

_FLOAT32, _FLOAT16 = DType.float32, DType.float16
_CHANNEL = 1  # the channel axis of a convolution's result


def multiplies_float8(target: Target) -> bool:
    """Whether a target has tensor cores for floats of 8 bits or, in their place, float16."""
    return isinstance(target, ThreadTarget) and target.tile_product(_FLOAT16, _FLOAT16) is not None


def multiply_float8(fused: FusedProgram, target: Target) -> FusedProgram:
    """Turn products of dequantized numbers into scaled products of numbers."""
    if not isinstance(target, ThreadTarget) or not multiplies_float8(target):
        return fused
    rewriter = _Rewriter(fused.program, target)
    program = rewriter.run()
    return fused if program is fused.program else FusedProgram(program, tuple(map(single_group, program.steps)))


class _Rewriter:
    def __init__(self, program: TensorProgram, target: ThreadTarget) -> None:
        self.program, self.target = program, target
        self.makers = {result: step for step in program.steps for result in step.results}
        self.constants: dict[Value, Any] = dict(program.constants)
        self.number = max((value.number for value in (*program.inputs, *program.constants, *self.makers)), default=0)
        self.steps: list[Step] = []
        self.wide: dict[Value, Value] = {}  # numbers as float16

    def run(self) -> TensorProgram:
        products = {
            id(step): product
            for step in self.program.steps
            if (product := match_float8_product(step, self.makers, self.program.constants)) is not None
        }
        if not products:
            return self.program
        for step in self.program.steps:
            product = products.get(id(step))
            if product is None:
                self.steps.append(step)
            else:
                self.rewrite(step, product)
        steps = drop_unread_maps(self.steps, self.program.outputs)
        return replace(self.program, steps=steps, constants=self.constants)

    def rewrite(self, step: Step, product: Float8Product) -> None:
        operands = product.left, product.right
        result = step.results[0]
        primitive, labels = step.primitive, tuple(range(result.rank))
        if isinstance(primitive, Contract):
            left, right = product.left.labels, product.right.labels
            primitive, labels = Contract(left, right, primitive.output), primitive.output
        assert isinstance(primitive, (Contract, Convolve))
        numbers = tuple(operand.numbers for operand in operands)
        if not self.has_narrow_product(*numbers):
            numbers = tuple(self.widen(value, step.origin) for value in numbers)
        sums = self.add_value(_FLOAT32, result.shape)
        self.steps.append(Step(primitive, numbers, (sums,), step.origin))
        expression = LabelledExpression(labels, result.shape)
        total: Scalar = expression.load(sums, labels)
        scale = _build_scale(operands, expression)
        if scale is not None:
            total = Apply("multiply", (total, scale), _FLOAT32)
        if result.dtype is not _FLOAT32:
            total = Apply("cast", (total,), result.dtype)
        self.steps.append(Step(Map(total), tuple(expression.operands), step.results, step.origin))

    def has_narrow_product(self, left: Value, right: Value) -> bool:
        """Whether numbers may be multiplied as they are."""
        allows_rounding = self.target.float32_products is Float32Products.HALVES
        return allows_rounding and self.target.tile_product(left.dtype, right.dtype) is not None

    def widen(self, value: Value, origin: str) -> Value:
        """Return numbers as float16."""
        if value not in self.wide:
            wide = self.add_value(_FLOAT16, value.shape)
            if value in self.constants:
                self.constants[wide] = np.asarray(self.constants[value]).astype(np.float16)
            else:
                element = Load(0, identity_indices(value.shape), value.dtype)
                self.steps.append(Step(Map(Apply("cast", (element,), _FLOAT16)), (value,), (wide,), origin))
            self.wide[value] = wide
        return self.wide[value]

    def add_value(self, dtype: DType, shape: Any) -> Value:
        self.number += 1
        return Value(self.number, TensorType(dtype, shape))


def _build_scale(operands: tuple[QuantizedOperand, ...], expression: LabelledExpression) -> Scalar | None:
    """Build the product of both scales; None where neither operand has one."""
    factors: list[Scalar] = []
    for operand in operands:
        if operand.scale is not None:
            factor = expression.parameter(operand.scale, operand.labels)
            factors.append(factor)
    if len(factors) == 2:
        return Apply("multiply", tuple(factors), _FLOAT32)
    return factors[0] if factors else None
