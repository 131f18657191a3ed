"""What steps cost at least, whatever kernels do them: floating-point operations, and bytes read and written.

Both are dims, so one estimate serves all sizes. What counts as an operation: every arithmetic function of a map once
per element (equal subexpressions once, index arithmetic not at all), one per element that a reduction, a pool or a
running sum takes in, two per multiply-add of a contraction or convolution. Moves, casts, selections, comparisons,
sorting and host functions are free. Bytes are those of the operands, as far as a step reads them, and of the results,
each once; what passes between the steps of a group stays in registers and caches.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from weft.ir.dims import Dim, maximum, minimum, product
from weft.ir.program import (
    ArgReduce,
    Contract,
    Convolve,
    Cumulate,
    Map,
    Pool,
    Reduce,
    Scatter,
    Step,
    Value,
)
from weft.ir.scalar import FUNCTIONS, Apply, Scalar, loads
from weft.ir.types import TensorType
from weft.ir.work import Effort

FREE_FUNCTIONS = frozenset(
    name
    for name in FUNCTIONS
    if name.startswith(("is_", "bit_", "shift_", "logical_", "less", "greater"))
    or name in ("equal", "not_equal", "select", "cast", "bitcast")
)


class UnknownShapeError(Exception):
    """A value of the step has a shape that only the run reveals."""


def effort(steps: Sequence[Step], operands: Sequence[Value], results: Sequence[Value]) -> Effort:
    """What steps done together cost: `operands` come from outside, `results` are seen outside."""
    flops: Dim = 0
    for step in steps:
        flops = flops + step_flops(step)
    return Effort(flops, bytes_moved(steps, operands, results))


def bytes_moved(steps: Sequence[Step], operands: Sequence[Value], results: Sequence[Value]) -> Dim:
    """The bytes that steps done together read and write."""
    moved: Dim = 0
    for value in operands:
        moved = moved + _bytes(value, _elements_read(value, steps))
    for value in results:
        moved = moved + _bytes(value, elements(value))
    return moved


def copy_effort(value: Value) -> Effort:
    """What it costs to move a value."""
    return Effort(0, 2 * _bytes(value, elements(value)))


def step_flops(step: Step) -> Dim:
    """The operations of a step; the programs inside it count nothing."""
    match step.primitive:
        case Map(expression):
            operations = _operations(expression)
            return operations * elements(step.results[0]) if operations else 0
        case Reduce() | ArgReduce() | Cumulate():
            return elements(step.operands[0])
        case Contract():
            return _contract_flops(step, step.primitive)
        case Convolve():
            return _convolve_flops(step, step.primitive)
        case Pool(_, window):
            return elements(step.results[0]) * product(window)
        case Scatter(domain, _, update, reduction):
            return product(domain) * (_operations(update) + (reduction != "none"))
        case _:
            return 0


def elements(value: Value) -> Dim:
    return product(_shape(value))


def _contract_flops(step: Step, contract: Contract) -> Dim:
    left, right = (_shape(value) for value in step.operands)
    sizes: dict[int, Dim] = {}
    for label, size in zip((*contract.left, *contract.right), (*left, *right), strict=True):
        if sizes.get(label, 1) == 1:
            sizes[label] = size
    return 2 * product(sizes.values())


def _convolve_flops(step: Step, convolve: Convolve) -> Dim:
    """Each point on the side with w's outer channels (input if transposed) meets one filter: C/groups times K."""
    points = step.operands[0] if convolve.transposed else step.results[0]
    return 2 * elements(points) * product(_shape(step.operands[1])[1:])


@lru_cache(maxsize=4096)
def _operations(expression: Scalar) -> int:
    """Arithmetic functions evaluated for one element."""
    seen: set[Scalar] = set()
    pending = [expression]
    while pending:
        node = pending.pop()
        if isinstance(node, Apply) and node not in seen:
            seen.add(node)
            pending.extend(node.arguments)
    return sum(isinstance(node, Apply) and node.function not in FREE_FUNCTIONS for node in seen)


def _elements_read(value: Value, steps: Sequence[Step]) -> Dim:
    """How much of a value the steps read: a map that slices or gathers, no more than it has elements to make."""
    most: Dim = 0
    for step in steps:
        if value not in step.operands:
            continue
        whole = elements(value)
        if not isinstance(step.primitive, Map):
            return whole
        number = step.operands.index(value)
        count = sum(load.operand == number for load in loads(step.primitive.expression))
        most = maximum(most, minimum(whole, count * elements(step.results[0])))
    return most


def _bytes(value: Value, count: Dim) -> Dim:
    assert isinstance(value.type, TensorType)
    return value.type.dtype.numpy.itemsize * count


def _shape(value: Value) -> tuple[Dim, ...]:
    if isinstance(value.type, TensorType) and value.type.shape is not None:
        return value.type.shape
    raise UnknownShapeError
