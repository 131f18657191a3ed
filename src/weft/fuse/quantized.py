"""Maps on quantized numbers, with fewer instructions and the same bits.

A number that is bounded, and so never NaN, needs no detour through an integer where it is quantized and dequantized
again. A target that cannot multiply and add at once gets its quotients back. Of quantized products that meet, all but
the last one are stored as bytes.
"""

from __future__ import annotations

from dataclasses import replace

from weft.ir.dtypes import DType
from weft.ir.magnitudes import BYTES, Magnitudes
from weft.ir.program import Contract, Convolve, Map, Step, TensorProgram, Value, tensor_dtype
from weft.ir.scalar import Apply, Literal, Scalar
from weft.ir.types import TensorType

FLOAT32 = DType.float32
_FAR = 6  # maps from a product on that are looked through


def simplify_quantized(program: TensorProgram, fused_multiply_add: bool) -> TensorProgram:
    """Every map in its simpler form."""
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


def kept_bytes(program: TensorProgram) -> set[Value]:
    """Quantized products that meet a later one: they are stored as the bytes that they are, not as their sums."""
    makers = {result: step for step in program.steps for result in step.results}
    order = {step.results[0]: place for place, step in enumerate(program.steps) if step.results}
    kept: set[Value] = set()
    for step in program.steps:
        if not isinstance(step.primitive, Map) or len(step.operands) < 2:
            continue
        found = {}
        for operand in step.operands:
            path = _path_to_product(operand, makers)
            if path is not None and (narrow := [value for value in path[1:] if _is_bytes(value)]):
                found[path[0]] = narrow[-1]
        for product in sorted(found, key=lambda value: order[value])[:-1]:
            kept.add(found[product])
    return kept


def _path_to_product(value: Value, makers: dict[Value, Step]) -> list[Value] | None:
    """From the sum that a product makes, through maps of it and constants, to a value."""
    path = [value]
    for _ in range(_FAR):
        step = makers.get(path[0])
        if step is None:
            return None
        if isinstance(step.primitive, (Contract, Convolve)):
            return path if _is_sum(path[0]) else None
        made = [operand for operand in step.operands if operand in makers]
        if not isinstance(step.primitive, Map) or len(made) != 1:
            return None
        path.insert(0, made[0])
    return None


class _Simplifier:
    """One expression's simpler copy; parts that stay the same stay the same objects."""

    def __init__(self, magnitudes: Magnitudes, fused_multiply_add: bool) -> None:
        self.magnitudes, self.fused_multiply_add = magnitudes, fused_multiply_add
        self.done: dict[int, Scalar] = {}
        self.alive: list[Scalar] = []  # keeps identities unique

    def copy(self, node: Scalar) -> Scalar:
        known = self.done.get(id(node))
        if known is None:
            known = self.simpler(node)
            self.done[id(node)] = known
            self.alive += [node, known]
        return known

    def simpler(self, node: Scalar) -> Scalar:
        if not isinstance(node, Apply):
            return node
        parts = tuple(map(self.copy, node.arguments))
        same = all(a is b for a, b in zip(parts, node.arguments))
        node = node if same else Apply(node.function, parts, node.dtype)
        match node:
            case Apply("cast", (Apply("subtract", (Apply("cast", (inner,)), Literal(int(zero)))),), DType.float32):
                return self.dequantized(inner, zero) or node
            case Apply("cast", (Apply("cast", (inner,), DType.int32),), DType.float32):
                return self.dequantized(inner, 0) or node
            case Apply("fma", (Apply("fma", (_, divisor, number)), _, _)) if not self.fused_multiply_add:
                return Apply("divide", (number, divisor), node.dtype)
        return node

    def dequantized(self, byte: Scalar, zero: int) -> Scalar | None:
        """A number that was just quantized, less its zero point, as a float."""
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
                        least, most = Literal(low - shift, FLOAT32), Literal(high - shift, FLOAT32)
                        return Apply("minimum", (Apply("maximum", (moved, least), FLOAT32), most), FLOAT32)
        return None

    def is_bounded(self, value: Scalar) -> bool:
        match value:
            case Apply("fma", (Apply("fma", (_, _, number)), _, _)):  # a quotient of a bounded number
                return self.is_bounded(number)
        return self.magnitudes.of(value) is not None


def _is_bytes(value: Value) -> bool:
    return isinstance(value.type, TensorType) and value.type.dtype in BYTES


def _is_sum(value: Value) -> bool:
    return isinstance(value.type, TensorType) and tensor_dtype(value) is DType.int32
