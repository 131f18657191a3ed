"""Replace divisions by a constant before rounding to integers by multiplications, bitwise equal.

A number times the reciprocal, corrected by the remainder, is the correctly rounded quotient as long as nothing over- or
underflows in float32, which holds for quantized numbers, their sums and typical constants.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from weft.ir.dtypes import DType
from weft.ir.magnitudes import LARGEST, Magnitudes
from weft.ir.program import Concat, Map, Pool, Reshape, Step, TensorProgram, Value
from weft.ir.scalar import Apply, Load, Scalar
from weft.ir.types import TensorType
from weft.opset.trace import Evaluator
from weft.passes.rewrite import everywhere, next_number

FLOAT32 = DType.float32
_MANTISSA = (1 << 23) - 1


def multiply_by_reciprocals(program: TensorProgram, evaluator: Evaluator) -> TensorProgram:
    """Replace divisions whose results are rounded to integers."""
    program = everywhere(multiply_by_reciprocals, program, evaluator)
    rewriter = _Rewriter(program)
    steps = tuple(map(rewriter.visit, program.steps))
    return replace(program, steps=steps, constants=rewriter.constants)


class _Rewriter:
    def __init__(self, program: TensorProgram) -> None:
        self.constants: dict[Value, Any] = dict(program.constants)
        self.number = next_number(program)
        self.reciprocals: dict[Value, Value | None] = {}
        self.bounds: dict[Value, float] = {}

    def visit(self, step: Step) -> Step:
        match step.primitive:
            case Map(expression):
                magnitudes = Magnitudes(step.operands, self.constants, self.bounds)
                bound = magnitudes.of(expression)
                if bound is not None and expression.dtype is FLOAT32:
                    self.bounds[step.results[0]] = bound
                return self.rewrite_map(step, expression, magnitudes)
            case Concat() | Reshape() | Pool("maximum"):
                operand_bounds = [self.bounds.get(operand) for operand in step.operands]
                known_bounds = [bound for bound in operand_bounds if bound is not None]
                if len(known_bounds) == len(operand_bounds) and known_bounds and not isinstance(step.primitive, Pool):
                    self.bounds[step.results[0]] = max(known_bounds)
        return step

    def rewrite_map(self, step: Step, expression: Scalar, magnitudes: Magnitudes) -> Step:
        operands = list(step.operands)

        def copy(node: Scalar) -> Scalar:
            if not isinstance(node, Apply):
                return node
            match node:
                case Apply("round_half_even", (Apply("divide", (number, Load(operand, (), _, False))),), DType.float32):
                    reciprocal = self.reciprocal(step.operands[operand])
                    if reciprocal is not None and magnitudes.of(number) is not None:
                        if reciprocal not in operands:
                            operands.append(reciprocal)
                        factor = Load(operands.index(reciprocal), (), FLOAT32)
                        quotient = _divide(number, Load(operand, (), FLOAT32), factor)
                        return Apply("round_half_even", (quotient,), FLOAT32)
            parts = tuple(map(copy, node.arguments))
            same = all(a is b for a, b in zip(parts, node.arguments))
            return node if same else Apply(node.function, parts, node.dtype)

        changed = copy(expression)
        return step if changed is expression else replace(step, primitive=Map(changed), operands=tuple(operands))

    def reciprocal(self, divisor: Value) -> Value | None:
        if divisor not in self.constants:
            return None
        if divisor not in self.reciprocals:
            content = np.asarray(self.constants[divisor])
            self.reciprocals[divisor] = None
            if content.dtype == np.float32 and content.shape == () and _is_exact_divisor(content):
                value = Value(self.number, TensorType(FLOAT32, ()))
                self.number += 1
                self.constants[value] = np.asarray(np.float32(1.0) / content, np.float32)
                self.reciprocals[divisor] = value
        return self.reciprocals[divisor]


def _divide(number: Scalar, divisor: Scalar, reciprocal: Scalar) -> Scalar:
    near = Apply("multiply", (number, reciprocal), FLOAT32)
    remainder = Apply("fma", (Apply("negate", (near,), FLOAT32), divisor, number), FLOAT32)
    return Apply("fma", (remainder, reciprocal, near), FLOAT32)


def _is_exact_divisor(divisor: Any) -> bool:
    """Whether the corrected product is exact: not for the largest mantissa, nor for extreme exponents."""
    mantissa = int(np.float32(divisor).view(np.uint32)) & _MANTISSA
    return 1 / LARGEST <= abs(float(divisor)) <= LARGEST and mantissa != _MANTISSA
