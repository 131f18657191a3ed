"""Simplify maps on quantized numbers, bitwise equal.

A bounded number, which is never NaN, need not be converted to an integer to be quantized and dequantized. On targets
without fused multiply-add, divisions are restored. Of quantized products that one map combines, all but the last are
stored as bytes.
"""

from __future__ import annotations

from dataclasses import replace

from weft.ir.dtypes import DType
from weft.ir.magnitudes import BYTES, Magnitudes
from weft.ir.program import Contract, Convolve, Map, Step, TensorProgram, Value
from weft.ir.scalar import Apply, Literal, Scalar

FLOAT32 = DType.float32
_LONGEST_PATH = 6  # limit on the maps between a product and its use


def simplify_quantized(program: TensorProgram, fused_multiply_add: bool) -> TensorProgram:
    """Simplify the expression of every map on quantized numbers."""
    if not any(_is_bytes(operand) or _is_sum(operand) for step in program.steps for operand in step.operands):
        return program
    steps: list[Step] = []
    for step in program.steps:
        if isinstance(step.primitive, Map):
            simplifier = _Simplifier(Magnitudes(step.operands, program.constants), fused_multiply_add)
            expression = simplifier.copy(step.primitive.expression)
            if expression is not step.primitive.expression:
                step = replace(step, primitive=Map(expression))
        steps.append(step)
    return replace(program, steps=tuple(steps))


def find_stored_bytes(program: TensorProgram) -> set[Value]:
    """Find quantized products that a map combines with a later one: they are stored as bytes, not as sums."""
    makers = {result: step for step in program.steps for result in step.results}
    order = {step.results[0]: number for number, step in enumerate(program.steps) if step.results}
    stored: set[Value] = set()
    for step in program.steps:
        if not isinstance(step.primitive, Map) or len(step.operands) < 2:
            continue
        narrow_values = {}
        for operand in step.operands:
            path = _find_path_to_product(operand, makers)
            if path is not None and (narrow := [value for value in path[1:] if _is_bytes(value)]):
                narrow_values[path[0]] = narrow[-1]
        for product in sorted(narrow_values, key=lambda value: order[value])[:-1]:
            stored.add(narrow_values[product])
    return stored


def _find_path_to_product(value: Value, makers: dict[Value, Step]) -> list[Value] | None:
    """Return the path from the int32 sum of a product through maps to a value."""
    path = [value]
    for _ in range(_LONGEST_PATH):
        step = makers.get(path[0])
        if step is None:
            return None
        if isinstance(step.primitive, (Contract, Convolve)):
            return path if _is_sum(path[0]) else None
        computed = [operand for operand in step.operands if operand in makers]
        if not isinstance(step.primitive, Map) or len(computed) != 1:
            return None
        path.insert(0, computed[0])
    return None


class _Simplifier:
    """Simplifies one expression; unchanged subtrees stay the same objects."""

    def __init__(self, magnitudes: Magnitudes, fused_multiply_add: bool) -> None:
        self.magnitudes, self.fused_multiply_add = magnitudes, fused_multiply_add
        self.copies: dict[int, Scalar] = {}
        self.alive: list[Scalar] = []  # keeps ids unique

    def copy(self, node: Scalar) -> Scalar:
        simplified = self.copies.get(id(node))
        if simplified is None:
            simplified = self.simplify(node)
            self.copies[id(node)] = simplified
            self.alive += [node, simplified]
        return simplified

    def simplify(self, node: Scalar) -> Scalar:
        if not isinstance(node, Apply):
            return node
        parts = tuple(map(self.copy, node.arguments))
        same = all(a is b for a, b in zip(parts, node.arguments))
        node = node if same else Apply(node.function, parts, node.dtype)
        match node:
            case Apply("cast", (Apply("subtract", (Apply("cast", (inner,)), Literal(int(zero)))),), DType.float32):
                return self.requantize_as_float(inner, zero) or node
            case Apply("cast", (Apply("cast", (inner,), DType.int32),), DType.float32):
                return self.requantize_as_float(inner, 0) or node
            case Apply("fma", (Apply("fma", (_, divisor, number)), _, _)) if not self.fused_multiply_add:
                return Apply("divide", (number, divisor), node.dtype)
        return node

    def requantize_as_float(self, byte: Scalar, zero: int) -> Scalar | None:
        """Return a number that was just quantized, minus its zero point, as a float."""
        match byte:
            case Apply("cast", (Apply("minimum", (Apply("maximum", (moved, Literal(low))), Literal(high))),), dtype):
                if dtype not in BYTES or not isinstance(low, float) or not isinstance(high, float):
                    return None
                shift = 0.0
                match moved:
                    case Apply("add", (rounded, Literal(float(number)))):
                        moved, shift = rounded, number
                match moved:
                    case Apply("round_half_even", (value,), DType.float32) if shift == zero and (
                        (low, high) == tuple(map(float, dtype.limits)) and self.is_bounded(value)
                    ):
                        lower, upper = Literal(low - shift, FLOAT32), Literal(high - shift, FLOAT32)
                        return Apply("minimum", (Apply("maximum", (moved, lower), FLOAT32), upper), FLOAT32)
        return None

    def is_bounded(self, value: Scalar) -> bool:
        match value:
            case Apply("fma", (Apply("fma", (_, _, number)), _, _)):  # a division of a bounded number
                return self.is_bounded(number)
        return self.magnitudes.of(value) is not None


def _is_bytes(value: Value) -> bool:
    return value.is_tensor and value.dtype in BYTES


def _is_sum(value: Value) -> bool:
    return value.is_tensor and value.dtype is DType.int32
