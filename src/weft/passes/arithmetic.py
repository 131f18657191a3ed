"""Simplify arithmetic on sizes and positions, and with neutral elements.

Integers that depend only on sizes and positions become one index each. Then loads at computed positions (a gather at a
loop's counter) are recognised as slices, and bounds checks that always hold disappear. Results stay bitwise the same:
integers are combined only if they provably stay within their type. Integer arithmetic on constants is always folded,
since a device's compiler may reject it (WGSL has neither constants that overflow nor all conversions of them).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from weft.cost.expressions import divides
from weft.ir import dims
from weft.ir.access import substitute_axes
from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.ir.program import Map, Step, TensorProgram, Value
from weft.ir.scalar import Apply, Index, Literal, Load, Scalar
from weft.ir.types import TensorType
from weft.opset.trace import Evaluator
from weft.passes.rewrite import compact, everywhere

_WRAPPING = frozenset({"cast", "negate", "add", "subtract", "multiply"})


def simplify_arithmetic(program: TensorProgram, evaluator: Evaluator) -> TensorProgram:
    """Simplify the expression of every map, and inline maps that are just numbers or positions."""
    program = everywhere(simplify_arithmetic, program, evaluator)
    literals = {
        value: literal for value, content in program.constants.items() if (literal := _as_literal(value, content))
    }
    scalars: dict[Value, Scalar] = {value: literal for value, literal in literals.items() if literal.dtype.is_integer}
    steps: list[Step] = []
    for step in program.steps:
        if isinstance(step.primitive, Map):
            simplifier = _Simplifier(step.operands, literals, scalars, evaluator)
            expression = simplifier.copy(step.primitive.expression)
            if expression is not step.primitive.expression:
                step = compact(replace(step, primitive=Map(expression)))
            dim = _as_dim(expression)
            if isinstance(expression, Literal) or (dim is not None and not divides(dim)):
                scalars[step.results[0]] = expression
        steps.append(step)
    return replace(program, steps=tuple(steps))


def _as_literal(value: Value, content: Any) -> Literal | None:
    """Return a constant of one element as a literal."""
    if not value.is_tensor or not isinstance(content, np.ndarray) or content.size != 1:
        return None
    if not (value.dtype.is_integer or value.dtype.is_float):
        return None
    element = content.reshape(-1)[0]
    return Literal(int(element) if value.dtype.is_integer else float(element), value.dtype)


class _Simplifier:
    """Simplifies one expression; unchanged subtrees stay the same objects."""

    def __init__(
        self,
        operands: Sequence[Value],
        literals: Mapping[Value, Literal],
        scalars: Mapping[Value, Scalar],
        evaluator: Evaluator,
    ) -> None:
        self.evaluator = evaluator
        self.operands = operands
        self.literals = literals
        self.scalars = scalars
        self.copies: dict[int, Scalar] = {}

    def copy(self, node: Scalar) -> Scalar:
        simplified = self.copies.get(id(node))
        if simplified is None:
            simplified = self.copies[id(node)] = self._simplify(node)
        return simplified

    def _simplify(self, node: Scalar) -> Scalar:
        match node:
            case Load(operand, indices, dtype, checked):
                new = tuple(map(_as_index, map(self.copy, indices)))
                inside = _is_inside(new, self.operands[operand])
                scalar = self.scalars.get(self.operands[operand])
                if inside and scalar is not None:
                    return substitute_axes(scalar, [index.value for index in new if isinstance(index, Index)])
                checked = checked and not inside
                return (
                    node
                    if _is_unchanged(new, indices) and checked == node.checked
                    else Load(operand, new, dtype, checked)
                )
            case Apply(function, arguments, dtype):
                new = tuple(map(self.copy, arguments))
                simpler = self._drop_neutral(function, new, dtype) or _fold_dims(function, new, dtype)
                simpler = simpler or self._fold_literals(function, new, dtype)
                if simpler is not None:
                    return simpler
                return node if _is_unchanged(new, arguments) else Apply(function, new, dtype)
            case _:
                return node

    def _drop_neutral(self, function: str, arguments: Sequence[Scalar], dtype: DType) -> Scalar | None:
        """Simplify a function with a neutral argument, mostly to its other argument."""
        if len(arguments) != 2 or not (dtype.is_float or dtype.is_integer):
            return None
        left, right = arguments
        first, second = self._literal_value(left), self._literal_value(right)
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

    def _fold_literals(self, function: str, arguments: Sequence[Scalar], dtype: DType) -> Literal | None:
        """Evaluate a function of integer literals, with the overflow behaviour of their type."""
        exact = _WRAPPING if dtype.is_integer else {"cast"} if dtype in (DType.float32, DType.float64) else ()
        if function not in exact or not all(isinstance(a, Literal) and a.dtype.is_integer for a in arguments):
            return None
        (result,) = self.evaluator.evaluate(Map(Apply(function, tuple(arguments), dtype)), [], [TensorType(dtype, ())])
        return Literal(int(result) if dtype.is_integer else float(result), dtype)

    def _literal_value(self, scalar: Scalar) -> Any:
        if isinstance(scalar, Load) and not scalar.checked:
            scalar = self.literals.get(self.operands[scalar.operand], scalar)
        return scalar.value if isinstance(scalar, Literal) else None


def _fold_dims(function: str, arguments: Sequence[Scalar], dtype: DType) -> Scalar | None:
    """Evaluate a function whose arguments are sizes and positions."""
    if function == "select":
        condition, first, second = arguments
        return (first if condition.value else second) if isinstance(condition, Literal) else None
    dims_or_none = [_as_dim(argument) for argument in arguments]
    known_dims = [dim for dim in dims_or_none if dim is not None]
    if len(known_dims) < len(dims_or_none):
        return None
    if dtype is DType.bool:
        outcome = _decide(function, known_dims)
        return None if outcome is None else Literal(outcome, DType.bool)
    dim = _combine(function, known_dims) if dtype.is_integer else None
    return None if dim is None or not _fits(dim, dtype) else _as_scalar(dim, dtype)


def _combine(function: str, arguments: Sequence[Dim]) -> Dim | None:
    match function, arguments:
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


def _decide(function: str, arguments: Sequence[Dim]) -> bool | None:
    try:
        match function, arguments:
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
    """Whether an integer is certain to fit a type and int64, the type of indices."""
    low, high = dims.bounds(dim)
    limits = [type.limits for type in (dtype, DType.int64)]
    return (
        low is not None
        and high is not None
        and all(smallest <= low and high <= largest for smallest, largest in limits)
    )


def _as_dim(scalar: Scalar) -> Dim | None:
    """Return a scalar as a dim if it is one."""
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
    dim = None if isinstance(scalar, Index) else _as_dim(scalar)
    return scalar if dim is None else Index(dim)


def _is_inside(indices: Sequence[Scalar], source: Value) -> bool:
    return all(
        isinstance(index, Index) and dims.is_at_least(index.value, 0) and dims.is_at_least(size - 1, index.value)
        for index, size in zip(indices, source.shape)
    )


def _is_unchanged(new: Sequence[Scalar], old: Sequence[Scalar]) -> bool:
    return all(a is b for a, b in zip(new, old))
