"""Loops that only count: how often they run is a size, so they are scans.

In: a loop's traced body and what it starts from. Out: the number of iterations as a dim, and for each carried value
whether it stays as it is or counts along; None where only running the loop can tell.
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
from weft.ir.types import TensorType
from weft.opset.tensor import Tensor
from weft.opset.trace import Trace, TracedBody
from weft.records import dataclass

_TIME = dims.symbol("iteration of a loop", 0, None)
_EXACT_FLOATS = {DType.float16: 1 << 11, DType.bfloat16: 1 << 8, DType.float32: 1 << 24, DType.float64: 1 << 53}
_UNLIMITED = 1 << 62


@dataclass(frozen=True, slots=True)
class Stays:
    """A carried value that the body hands on unchanged."""


@dataclass(frozen=True, slots=True)
class Counts:
    """A carried integer: `start` + `step` × iteration."""

    start: Dim
    step: int


@dataclass(frozen=True, slots=True)
class Counted:
    length: Dim
    carries: tuple[Stays | Counts | None, ...]  # None: any other


@dataclass(frozen=True, slots=True)
class _Positive:
    """The condition that a number is above 0."""

    number: Dim


_Known = Union[Dim, bool, _Positive, None]


def count_iterations(
    trace: Trace, trips: Tensor, condition: Tensor, carries: Sequence[Tensor], traced: TracedBody
) -> Counted | None:
    """What is known of a loop whose body takes iteration, condition, carries, captures."""
    body = traced.program
    outputs = body.outputs[1 : 1 + len(carries)]
    if not all(_is_static(tensor) for tensor in (*carries, *traced.outputs)):
        return None
    outside = _Reader({step.results[0]: step for step in trace.steps if len(step.results) == 1}, trace)
    inside = _Reader({step.results[0]: step for step in body.steps if len(step.results) == 1}, None)
    inside.known |= {value: _content(content) for value, content in body.constants.items()}
    inside.known |= {body.inputs[0]: _TIME, body.inputs[1]: True}
    inside.known |= dict(zip(body.inputs[2 + len(carries) :], map(outside.of_tensor, traced.captures)))
    kinds: list[Stays | Counts | None] = []
    for before, after, carry in zip(body.inputs[2:], outputs, carries):
        kinds.append(_kind(before, after, outside.of_tensor(carry), inside))
        match kinds[-1]:
            case Stays():
                inside.known[before] = outside.of_tensor(carry)
            case Counts(start, step):
                inside.known[before] = start + step * _TIME
    again, first = inside.of(body.outputs[0]), outside.of_tensor(condition)
    length = _length(again, first, outside.of_tensor(trips))
    if length is None:
        return None
    for after, kind in zip(outputs, kinds):
        if isinstance(kind, Counts):
            inside.of(after)
    met = [(number, limit) for reader in (outside, inside) for number, limit in reader.met.items()]
    return Counted(length, tuple(kinds)) if _stay_exact(trace, met, length) else None


def _kind(before: Value, after: Value, start: _Known, inside: _Reader) -> Stays | Counts | None:
    if before == after:
        return Stays()
    dtype = before.type.dtype if isinstance(before.type, TensorType) else DType.bool
    if isinstance(start, (bool, _Positive)) or start is None or not dtype.is_integer:
        return None
    trial = _Reader(inside.steps, None)
    trial.known = {**inside.known, before: _TIME}
    new = trial.of(after)
    step = new - _TIME if isinstance(new, Expr) else None
    return Counts(start, step) if isinstance(step, int) else None


def _length(again: _Known, first: _Known, trips: _Known) -> Dim | None:
    """Iterations that run: the first if `first` holds, each other if `again` held after the one before it."""
    if isinstance(trips, (bool, _Positive)) or trips is None:
        return None
    most = dims.maximum(trips, 0)
    if first is False:
        return 0
    if again is True:
        return most if first is True and not _is_endless(trips) else None
    if not isinstance(again, _Positive) or _rate(again) is None:
        return None
    fall = -_rate(again)
    margin = _at(again.number, 0)
    if first is True:
        length = 1 + dims.maximum(dims.ceildiv(margin, fall), 0)
    elif isinstance(first, _Positive) and first.number == margin + fall:
        length = dims.maximum(dims.ceildiv(first.number, fall), 0)
    else:
        return None
    return length if _is_endless(trips) else dims.minimum(length, most)


def _rate(again: _Positive) -> Any:
    """By how much the number falls in each iteration, as a negative int; None where it does not, or not evenly."""
    rate = _at(again.number, 1) - _at(again.number, 0)
    even = isinstance(rate, int) and rate < 0 and again.number == _at(again.number, 0) + rate * _TIME
    return rate if even else None


def _at(number: Dim, time: Dim) -> Dim:
    name = str(_TIME)
    return dims.substitute(number, lambda atom: time if str(atom) == name else Expr((((atom,), 1),)))


def _is_endless(trips: Dim) -> bool:
    return isinstance(trips, int) and trips >= _UNLIMITED


def _stay_exact(trace: Trace, met: Sequence[tuple[Dim, int]], length: Dim) -> bool:
    """Whether the numbers stay where their dtypes are exact, from the first iteration to the last; guarded if open."""
    ends = [(_at(number, time), limit) for number, limit in met for time in (0, length)]
    bounds = [bound for number, limit in ends for bound in ((limit, number), (number, -limit))]
    if any(dims.is_at_least(right, left + 1) for left, right in bounds):
        return False
    for left, right in dict.fromkeys(bounds):
        trace.assume_at_least(left, right, "a loop counts in numbers of limited range")
    return True


def _is_static(tensor: Tensor) -> bool:
    return isinstance(tensor.type, TensorType) and tensor.type.shape is not None


def _content(content: Any) -> _Known:
    """A constant of one element as an integer or a truth value."""
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
    """What single elements are, as far as arithmetic on sizes and the iteration's number tells."""

    def __init__(self, steps: dict[Value, Step], trace: Trace | None) -> None:
        self.steps = steps
        self.trace = trace
        self.known: dict[Value, _Known] = {}
        self.met: dict[Dim, int] = {}  # numbers, and up to where their dtype is exact

    def of_tensor(self, tensor: Tensor) -> _Known:
        found = None if tensor.known is None else _content(tensor.known)
        return self.of(tensor.value) if found is None else found

    def of(self, value: Value) -> _Known:
        if value not in self.known:
            self.known[value] = self._read(value)
        return self.known[value]

    def _read(self, value: Value) -> _Known:
        if self.trace is not None and value.number in self.trace.tensors:
            known = self.trace.tensors[value.number].known
            if known is not None and (found := _content(known)) is not None:
                return found
        step = self.steps.get(value)
        if step is None or not isinstance(value.type, TensorType):
            return None
        if value.type.shape is None or dims.product(value.type.shape) != 1:
            return None
        match step.primitive:
            case Reshape():
                return self.of(step.operands[0])
            case Map(expression):
                return self._scalar(expression, step.operands)
            case _:
                return None

    def _scalar(self, scalar: Scalar, operands: Sequence[Value]) -> _Known:
        match scalar:
            case Literal(number):
                return _content(np.asarray(number))
            case Index(number):
                return number
            case Load(operand):
                type = operands[operand].type
                single = isinstance(type, TensorType) and type.shape is not None and dims.product(type.shape) == 1
                return self.of(operands[operand]) if single else None
            case Apply(function, arguments, dtype):
                given = [self._scalar(argument, operands) for argument in arguments]
                return self._apply(function, given, (dtype, *(argument.dtype for argument in arguments)))
            case _:  # of a kernel alone
                return None

    def _apply(self, function: str, given: Sequence[_Known], dtypes: Sequence[DType]) -> _Known:
        if function == "logical_and" and any(argument is True for argument in given):
            return given[1] if given[0] is True else given[0]
        if any(isinstance(argument, (bool, _Positive)) or argument is None for argument in given):
            return given[0] if function == "cast" and set(dtypes) == {DType.bool} else None
        if dtypes[0] is DType.bool and function == "cast":
            return None
        result: _Known = self._arithmetic(function, list(given))
        for number, dtype in zip((result, *given), dtypes):
            if number is not None and not isinstance(number, (bool, _Positive)):
                self.met[number] = min(self.met.get(number, _UNLIMITED), _largest_exact(dtype))
        return result

    def _arithmetic(self, function: str, numbers: list[Any]) -> Any:
        match function, numbers:
            case "cast", [a]:
                return a
            case "add", [a, b]:
                return a + b
            case "subtract", [a, b]:
                return a - b
            case ("less", [a, b]) | ("greater", [b, a]):
                return _condition(b - a)
            case ("less_equal", [a, b]) | ("greater_equal", [b, a]):
                return _condition(b - a + 1)
        return None


def _largest_exact(dtype: DType) -> int:
    if dtype.is_integer:
        return int(dtype.limits[1])
    return _EXACT_FLOATS.get(dtype, 0)


def _condition(number: Dim) -> bool | _Positive:
    return number > 0 if isinstance(number, int) else _Positive(number)
