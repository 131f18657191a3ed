"""Counted loops: the number of iterations is a size, so they become scans.

In: a loop's traced body and its initial values. Out: the number of iterations as a dim, and for each carried value
whether it is constant or a counter; None where that is known only at run time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Union

import numpy as np

from weft.ir import dims
from weft.ir.dims import Dim, Expr
from weft.ir.dtypes import DType
from weft.ir.program import Map, Reshape, Step, Value
from weft.ir.scalar import Apply, Index, Literal, Load, Scalar
from weft.opset.tensor import Tensor
from weft.opset.trace import Trace, TracedBody
from weft.records import dataclass

_ITERATION = dims.symbol("iteration of a loop", 0, None)
_EXACT_FLOATS = {DType.float16: 1 << 11, DType.bfloat16: 1 << 8, DType.float32: 1 << 24, DType.float64: 1 << 53}
_UNLIMITED = 1 << 62


@dataclass(frozen=True, slots=True)
class Unchanged:
    """A carried value that the body does not change."""


@dataclass(frozen=True, slots=True)
class Counter:
    """A carried integer: `start` + `step` × iteration."""

    start: Dim
    step: int


@dataclass(frozen=True, slots=True)
class CountedLoop:
    length: Dim
    carries: tuple[Unchanged | Counter | None, ...]  # None: any other


@dataclass(frozen=True, slots=True)
class _Positive:
    """The condition that a number is above 0."""

    number: Dim


_SymbolicValue = Union[Dim, bool, _Positive, None]


def count_iterations(
    trace: Trace, trips: Tensor, condition: Tensor, carries: Sequence[Tensor], traced: TracedBody
) -> CountedLoop | None:
    """Count the iterations of a loop whose body takes iteration, condition, carries, captures; None if impossible."""
    body = traced.program
    outputs = body.outputs[1 : 1 + len(carries)]
    if not all(tensor.value.has_shape for tensor in (*carries, *traced.outputs)):
        return None
    outside = _Reader({step.results[0]: step for step in trace.steps if len(step.results) == 1}, trace)
    inside = _Reader({step.results[0]: step for step in body.steps if len(step.results) == 1}, None)
    inside.values |= {value: _read_constant(content) for value, content in body.constants.items()}
    inside.values |= {body.inputs[0]: _ITERATION, body.inputs[1]: True}
    inside.values |= dict(zip(body.inputs[2 + len(carries) :], map(outside.read_tensor, traced.captures)))
    kinds: list[Unchanged | Counter | None] = []
    for before, after, carry in zip(body.inputs[2:], outputs, carries):
        kinds.append(_classify_carry(before, after, outside.read_tensor(carry), inside))
        match kinds[-1]:
            case Unchanged():
                inside.values[before] = outside.read_tensor(carry)
            case Counter(start, step):
                inside.values[before] = start + step * _ITERATION
    again, first = inside.read(body.outputs[0]), outside.read_tensor(condition)
    length = _count_length(again, first, outside.read_tensor(trips))
    if length is None:
        return None
    for after, kind in zip(outputs, kinds):
        if isinstance(kind, Counter):
            inside.read(after)
    exact_limits = [(number, limit) for reader in (outside, inside) for number, limit in reader.exact_limits.items()]
    return CountedLoop(length, tuple(kinds)) if _stay_exact(trace, exact_limits, length) else None


def _classify_carry(before: Value, after: Value, start: _SymbolicValue, inside: _Reader) -> Unchanged | Counter | None:
    if before == after:
        return Unchanged()
    dtype = before.dtype if before.is_tensor else DType.bool
    if isinstance(start, (bool, _Positive)) or start is None or not dtype.is_integer:
        return None
    trial = _Reader(inside.steps, None)
    trial.values = {**inside.values, before: _ITERATION}
    new = trial.read(after)
    step = new - _ITERATION if isinstance(new, Expr) else None
    return Counter(start, step) if isinstance(step, int) else None


def _count_length(again: _SymbolicValue, first: _SymbolicValue, trips: _SymbolicValue) -> Dim | None:
    """Count the iterations: the first runs if `first` holds, the others if `again` held after the one before."""
    if isinstance(trips, (bool, _Positive)) or trips is None:
        return None
    most = dims.maximum(trips, 0)
    if first is False:
        return 0
    if again is True:
        return most if first is True and not _is_endless(trips) else None
    rate = _find_rate(again) if isinstance(again, _Positive) else None
    if not isinstance(again, _Positive) or rate is None:
        return None
    fall = -rate
    margin = _at_iteration(again.number, 0)
    if first is True:
        length = 1 + dims.maximum(dims.ceildiv(margin, fall), 0)
    elif isinstance(first, _Positive) and first.number == margin + fall:
        length = dims.maximum(dims.ceildiv(first.number, fall), 0)
    else:
        return None
    return length if _is_endless(trips) else dims.minimum(length, most)


def _find_rate(again: _Positive) -> int | None:
    """Return by how much the number changes per iteration, as a negative int; None if that is not constant."""
    rate = _at_iteration(again.number, 1) - _at_iteration(again.number, 0)
    if not isinstance(rate, int) or rate >= 0:
        return None
    return rate if again.number == _at_iteration(again.number, 0) + rate * _ITERATION else None


def _at_iteration(number: Dim, time: Dim) -> Dim:
    name = str(_ITERATION)
    return dims.substitute(number, lambda atom: time if str(atom) == name else Expr((((atom,), 1),)))


def _is_endless(trips: Dim) -> bool:
    return isinstance(trips, int) and trips >= _UNLIMITED


def _stay_exact(trace: Trace, exact_limits: Sequence[tuple[Dim, int]], length: Dim) -> bool:
    """Return whether all numbers stay in the exact range of their dtypes; add guards where that depends on sizes."""
    ends = [(_at_iteration(number, time), limit) for number, limit in exact_limits for time in (0, length)]
    bounds = [bound for number, limit in ends for bound in ((limit, number), (number, -limit))]
    if any(dims.is_at_least(right, left + 1) for left, right in bounds):
        return False
    for left, right in dict.fromkeys(bounds):
        trace.assume_at_least(left, right, "a loop counts in numbers of limited range")
    return True


def _read_constant(content: Any) -> _SymbolicValue:
    """Return a constant of one element as an integer or a truth value."""
    if not isinstance(content, np.ndarray) or content.size != 1:
        return None
    element = content.reshape(-1)[0]
    if isinstance(element, Expr):
        return element
    if isinstance(element, (bool, np.bool_)):
        return bool(element)
    try:
        return int(element) if int(element) == element else None
    except (TypeError, ValueError, OverflowError):
        return None


class _Reader:
    """Evaluates scalars symbolically, as functions of sizes and the iteration number."""

    def __init__(self, steps: dict[Value, Step], trace: Trace | None) -> None:
        self.steps = steps
        self.trace = trace
        self.values: dict[Value, _SymbolicValue] = {}
        self.exact_limits: dict[Dim, int] = {}  # number -> largest magnitude that its dtype holds exactly

    def read_tensor(self, tensor: Tensor) -> _SymbolicValue:
        constant = None if tensor.static_value is None else _read_constant(tensor.static_value)
        return self.read(tensor.value) if constant is None else constant

    def read(self, value: Value) -> _SymbolicValue:
        if value not in self.values:
            self.values[value] = self._read_step(value)
        return self.values[value]

    def _read_step(self, value: Value) -> _SymbolicValue:
        if self.trace is not None and value.number in self.trace.tensors:
            static_value = self.trace.tensors[value.number].static_value
            if static_value is not None and (constant := _read_constant(static_value)) is not None:
                return constant
        step = self.steps.get(value)
        if step is None or not value.has_shape or dims.product(value.shape) != 1:
            return None
        match step.primitive:
            case Reshape():
                return self.read(step.operands[0])
            case Map(expression):
                return self._read_scalar(expression, step.operands)
            case _:
                return None

    def _read_scalar(self, scalar: Scalar, operands: Sequence[Value]) -> _SymbolicValue:
        match scalar:
            case Literal(number):
                return _read_constant(np.asarray(number))
            case Index(number):
                return number
            case Load(operand):
                value = operands[operand]
                return self.read(value) if value.has_shape and dims.product(value.shape) == 1 else None
            case Apply(function, arguments, dtype):
                operand_values = [self._read_scalar(argument, operands) for argument in arguments]
                return self._read_apply(function, operand_values, (dtype, *(argument.dtype for argument in arguments)))
            case _:  # occurs only in kernels
                return None

    def _read_apply(
        self, function: str, operand_values: Sequence[_SymbolicValue], dtypes: Sequence[DType]
    ) -> _SymbolicValue:
        if function == "logical_and" and any(argument is True for argument in operand_values):
            return operand_values[1] if operand_values[0] is True else operand_values[0]
        if any(isinstance(argument, (bool, _Positive)) or argument is None for argument in operand_values):
            return operand_values[0] if function == "cast" and set(dtypes) == {DType.bool} else None
        if dtypes[0] is DType.bool and function == "cast":
            return None
        result: _SymbolicValue = self._compute(function, list(operand_values))
        for number, dtype in zip((result, *operand_values), dtypes):
            if number is not None and not isinstance(number, (bool, _Positive)):
                self.exact_limits[number] = min(self.exact_limits.get(number, _UNLIMITED), _largest_exact(dtype))
        return result

    def _compute(self, function: str, numbers: list[Any]) -> Any:
        match function, numbers:
            case "cast", [a]:
                return a
            case "add", [a, b]:
                return a + b
            case "subtract", [a, b]:
                return a - b
            case ("less", [a, b]) | ("greater", [b, a]):
                return _make_condition(b - a)
            case ("less_equal", [a, b]) | ("greater_equal", [b, a]):
                return _make_condition(b - a + 1)
        return None


def _largest_exact(dtype: DType) -> int:
    if dtype.is_integer:
        return int(dtype.limits[1])
    return _EXACT_FLOATS.get(dtype, 0)


def _make_condition(number: Dim) -> bool | _Positive:
    return number > 0 if isinstance(number, int) else _Positive(number)
