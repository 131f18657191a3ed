"""Arithmetic whose outcome is plain: on sizes and positions, and with neutral elements.

Integers that depend on sizes and positions alone become one index each, so that loads at computed places (a gather at a
loop's counter) are seen to be slices, and checks of indices that are always in range vanish. Results stay the same to
the bit: integers are only joined where they provably stay within their type. No arithmetic on integers alone is
left to a device's compiler, which may refuse to (WGSL has neither constants that overflow nor all conversions of them).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from weft.cost.expressions import divides
from weft.ir import dims
from weft.ir.dims import Axis, Dim, Symbol
from weft.ir.dtypes import DType
from weft.ir.program import Map, Step, TensorProgram, Value
from weft.ir.scalar import Apply, Index, Literal, Load, Scalar, rebuild
from weft.ir.types import Shape, TensorType
from weft.opset.trace import Evaluator
from weft.passes.rewrite import compact, everywhere

_WRAPPING = frozenset({"cast", "negate", "add", "subtract", "multiply"})


def simplify_arithmetic(program: TensorProgram, evaluator: Evaluator) -> TensorProgram:
    """Work out what is plain in every map, through maps that are only numbers or positions."""
    program = everywhere(simplify_arithmetic, program, evaluator)
    numbers = {value: found for value, content in program.constants.items() if (found := _single(value, content))}
    plain: dict[Value, Scalar] = {value: number for value, number in numbers.items() if number.dtype.is_integer}
    steps: list[Step] = []
    for step in program.steps:
        if isinstance(step.primitive, Map):
            simplifier = _Simplifier(step.operands, numbers, plain, evaluator)
            expression = simplifier.copy(step.primitive.expression)
            if expression is not step.primitive.expression:
                step = compact(replace(step, primitive=Map(expression)))
            dim = _dim(expression)
            if isinstance(expression, Literal) or (dim is not None and not divides(dim)):
                plain[step.results[0]] = expression
        steps.append(step)
    return replace(program, steps=tuple(steps))


def _single(value: Value, content: Any) -> Literal | None:
    """A constant of one element as a number."""
    type = value.type
    if not isinstance(type, TensorType) or not isinstance(content, np.ndarray) or content.size != 1:
        return None
    if not (type.dtype.is_integer or type.dtype.is_float):
        return None
    element = content.reshape(-1)[0]
    return Literal(int(element) if type.dtype.is_integer else float(element), type.dtype)


class _Simplifier:
    """One expression's simpler copy; parts that stay the same stay the same objects."""

    def __init__(
        self,
        operands: Sequence[Value],
        numbers: Mapping[Value, Literal],
        plain: Mapping[Value, Scalar],
        evaluator: Evaluator,
    ) -> None:
        self.evaluator = evaluator
        self.operands = operands
        self.numbers = numbers
        self.plain = plain
        self.done: dict[int, Scalar] = {}

    def copy(self, node: Scalar) -> Scalar:
        known = self.done.get(id(node))
        if known is None:
            known = self.done[id(node)] = self._simpler(node)
        return known

    def _simpler(self, node: Scalar) -> Scalar:
        match node:
            case Load(operand, indices, dtype, checked):
                new = tuple(map(_as_index, map(self.copy, indices)))
                inside = _is_inside(new, self.operands[operand])
                plain = self.plain.get(self.operands[operand])
                if inside and plain is not None:
                    return _read_at(plain, new)
                checked = checked and not inside
                return node if _same(new, indices) and checked == node.checked else Load(operand, new, dtype, checked)
            case Apply(function, arguments, dtype):
                new = tuple(map(self.copy, arguments))
                found = self._neutral(function, new, dtype) or _integer(function, new, dtype)
                found = found or self._number_of(function, new, dtype)
                if found is not None:
                    return found
                return node if _same(new, arguments) else Apply(function, new, dtype)
            case _:
                return node

    def _neutral(self, function: str, arguments: Sequence[Scalar], dtype: DType) -> Scalar | None:
        """What is left of a function one of whose arguments makes no difference; its other argument, mostly."""
        if len(arguments) != 2 or not (dtype.is_float or dtype.is_integer):
            return None
        left, right = arguments
        first, second = self._number(left), self._number(right)
        match function:
            case "multiply" if first == 1:
                return right
            case "multiply" | "divide" | "power" if second == 1:
                return left
            case "power" if second == 2 and dtype.is_float:
                return Apply("multiply", (left, left), dtype)
            case "subtract" if second == 0 and repr(second) != "-0.0":
                return left
            case "add" if dtype.is_integer and second == 0:
                return left
            case "add" if dtype.is_integer and first == 0:
                return right
        return None

    def _number_of(self, function: str, arguments: Sequence[Scalar], dtype: DType) -> Literal | None:
        """The outcome of integers that are all numbers, whatever it is in their type."""
        exact = _WRAPPING if dtype.is_integer else {"cast"} if dtype in (DType.float32, DType.float64) else ()
        if function not in exact or not all(isinstance(a, Literal) and a.dtype.is_integer for a in arguments):
            return None
        (result,) = self.evaluator.evaluate(Map(Apply(function, tuple(arguments), dtype)), [], [TensorType(dtype, ())])
        return Literal(int(result) if dtype.is_integer else float(result), dtype)

    def _number(self, scalar: Scalar) -> Any:
        if isinstance(scalar, Load) and not scalar.checked:
            scalar = self.numbers.get(self.operands[scalar.operand], scalar)
        return scalar.value if isinstance(scalar, Literal) else None


def _integer(function: str, arguments: Sequence[Scalar], dtype: DType) -> Scalar | None:
    """The outcome where the arguments are known as sizes and positions."""
    if function == "select":
        condition, first, second = arguments
        return (first if condition.value else second) if isinstance(condition, Literal) else None
    found = [_dim(argument) for argument in arguments]
    known = [dim for dim in found if dim is not None]
    if len(known) < len(found):
        return None
    if dtype is DType.bool:
        outcome = _decide(function, known)
        return None if outcome is None else Literal(outcome, DType.bool)
    dim = _combine(function, known) if dtype.is_integer else None
    return None if dim is None or not _fits(dim, dtype) else _as_scalar(dim, dtype)


def _combine(function: str, known: Sequence[Dim]) -> Dim | None:
    match function, known:
        case "cast", [a]:
            return a
        case "negate", [a]:
            return -a
        case "add", [a, b]:
            return a + b
        case "subtract", [a, b]:
            return a - b
        case "multiply", [a, b]:
            return a * b
        case "minimum", [a, b]:
            return dims.minimum(a, b)
        case "maximum", [a, b]:
            return dims.maximum(a, b)
    return None


def _decide(function: str, known: Sequence[Dim]) -> bool | None:
    try:
        match function, known:
            case ("less", [a, b]) | ("greater", [b, a]):
                return dims.decide_less(a, b)
            case ("less_equal", [a, b]) | ("greater_equal", [b, a]):
                return not dims.decide_less(b, a)
            case "equal", [a, b]:
                return dims.decide_equal(a, b)
            case "not_equal", [a, b]:
                return not dims.decide_equal(a, b)
    except dims.UndecidedError:
        return None
    return None


def _fits(dim: Dim, dtype: DType) -> bool:
    """Whether an integer is sure to stay within a type, and within that of indices."""
    low, high = dims.bounds(dim)
    limits = [type.limits for type in (dtype, DType.int64)]
    return low is not None and high is not None and all(least <= low and high <= most for least, most in limits)


def _dim(scalar: Scalar) -> Dim | None:
    """The integer that a scalar is, as far as sizes and positions tell."""
    match scalar:
        case Index(value):
            return value
        case Literal(int(value), dtype) if dtype.is_integer:
            return value
        case Apply("cast", (Index(value),), dtype) if dtype.is_integer and _fits(value, dtype):
            return value
        case _:
            return None


def _as_scalar(dim: Dim, dtype: DType) -> Scalar:
    if isinstance(dim, int):
        return Literal(dim, dtype)
    return Index(dim) if dtype is DType.int64 else Apply("cast", (Index(dim),), dtype)


def _as_index(scalar: Scalar) -> Scalar:
    dim = None if isinstance(scalar, Index) else _dim(scalar)
    return scalar if dim is None else Index(dim)


def _is_inside(indices: Sequence[Scalar], source: Value) -> bool:
    return all(
        isinstance(index, Index) and dims.is_at_least(index.value, 0) and dims.is_at_least(size - 1, index.value)
        for index, size in zip(indices, _shape(source))
    )


def _read_at(plain: Scalar, indices: Sequence[Scalar]) -> Scalar:
    """A number or position with other positions in the place of its axes."""
    places = [index.value for index in indices if isinstance(index, Index)]

    def place(atom: Symbol | Axis) -> Dim:
        return places[atom.position] if isinstance(atom, Axis) else dims.symbol(atom.name, atom.low, atom.high)

    return rebuild(plain, atom=place)


def _same(new: Sequence[Scalar], old: Sequence[Scalar]) -> bool:
    return all(a is b for a, b in zip(new, old))


def _shape(value: Value) -> Shape:
    assert isinstance(value.type, TensorType)
    return value.type.shape or ()
