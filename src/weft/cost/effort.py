"""The minimum cost of steps, independent of kernels: floating-point operations, and bytes read and written.

Both are dims, so one estimate serves all sizes. Operations are: every arithmetic function of a map per element (equal
subexpressions once, without index arithmetic), one per element of a reduction, pool window or running sum, two per
multiply-add of a contraction or convolution. Moves, casts, selects, comparisons, sorting and host functions are free.
Bytes are those that are read of the operands, and those of the results, each once; values between the steps of a group
are free.
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
from weft.ir.work import Effort

FREE_FUNCTIONS = frozenset(
    name
    for name in FUNCTIONS
    if name.startswith(("is_", "bit_", "shift_", "logical_", "less", "greater"))
    or name in ("equal", "not_equal", "select", "cast", "bitcast")
)


class UnknownShapeError(Exception):
    """Raised if the rank of a value is known only at run time."""


def estimate_effort(steps: Sequence[Step], operands: Sequence[Value], results: Sequence[Value]) -> Effort:
    """Estimate the effort of a group; `operands` come from outside, `results` are used outside."""
    flops: Dim = 0
    for step in steps:
        flops = flops + count_step_flops(step)
    return Effort(flops, count_bytes_moved(steps, operands, results))


def count_bytes_moved(steps: Sequence[Step], operands: Sequence[Value], results: Sequence[Value]) -> Dim:
    """Return the bytes that a group reads and writes."""
    moved: Dim = 0
    first = steps[0].primitive
    if isinstance(first, Scatter) and first.in_place:
        operands, results = operands[1:], ()
        moved = product(first.domain) * steps[0].results[0].itemsize
    for value in operands:
        moved = moved + value.itemsize * _elements_read(value, steps)
    for value in results:
        moved = moved + value.itemsize * count_elements(value)
    return moved


def copy_effort(value: Value) -> Effort:
    """Return the effort of copying a value."""
    return Effort(0, 2 * value.itemsize * count_elements(value))


def count_step_flops(step: Step) -> Dim:
    """Return the operations of a step, without its bodies."""
    match step.primitive:
        case Map(expression):
            operations = _count_operations(expression)
            return operations * count_elements(step.results[0]) if operations else 0
        case Reduce() | ArgReduce() | Cumulate():
            return count_elements(step.operands[0])
        case Contract():
            return _contract_flops(step, step.primitive)
        case Convolve():
            return _convolve_flops(step, step.primitive)
        case Pool(_, window):
            return count_elements(step.results[0]) * product(window)
        case Scatter(domain, _, update, reduction):
            return product(domain) * (_count_operations(update) + (reduction != "none"))
        case _:
            return 0


def count_elements(value: Value) -> Dim:
    return product(_require_shape(value))


def _contract_flops(step: Step, contract: Contract) -> Dim:
    left, right = (_require_shape(value) for value in step.operands)
    sizes: dict[int, Dim] = {}
    for label, size in zip((*contract.left, *contract.right), (*left, *right), strict=True):
        if sizes.get(label, 1) == 1:
            sizes[label] = size
    return 2 * product(sizes.values())


def _convolve_flops(step: Step, convolve: Convolve) -> Dim:
    """Count operations: each point of the result (input if transposed) takes one filter of C/groups times K."""
    points = step.operands[0] if convolve.transposed else step.results[0]
    return 2 * count_elements(points) * product(_require_shape(step.operands[1])[1:])


@lru_cache(maxsize=4096)
def _count_operations(expression: Scalar) -> int:
    """Count the arithmetic functions evaluated for one element."""
    visited: set[Scalar] = set()
    pending = [expression]
    while pending:
        node = pending.pop()
        if isinstance(node, Apply) and node not in visited:
            visited.add(node)
            pending.extend(node.arguments)
    return sum(isinstance(node, Apply) and node.function not in FREE_FUNCTIONS for node in visited)


def _elements_read(value: Value, steps: Sequence[Step]) -> Dim:
    """Return how many elements of a value the steps read; a map reads at most one per load and result element."""
    elements: Dim = 0
    for step in steps:
        if value not in step.operands:
            continue
        all_elements = count_elements(value)
        if not isinstance(step.primitive, Map):
            return all_elements
        number = step.operands.index(value)
        count = sum(load.operand == number for load in loads(step.primitive.expression))
        elements = maximum(elements, minimum(all_elements, count * count_elements(step.results[0])))
    return elements


def _require_shape(value: Value) -> tuple[Dim, ...]:
    if not value.has_shape:
        raise UnknownShapeError
    return value.shape
