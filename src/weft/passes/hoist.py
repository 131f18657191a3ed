"""Hoist products out of scans and loops if they do not depend on the previous iteration.

x[t] @ w for each step t becomes one product x @ w before the scan, whose rows the body reads as slices. The steps that
compute its operands from slices, captures and constants are hoisted with it, and so are maps that only follow it.
Loop-invariant steps are computed once; for a product, a carry to which each iteration adds 0 is invariant, too. A scan
of length 1 is replaced by its body.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from itertools import count
from typing import Any

import numpy as np

from weft.ir import dims
from weft.ir.dims import Axis, Dim, Symbol
from weft.ir.program import (
    HOST_STEPS,
    Contract,
    Loop,
    Map,
    Reduce,
    Reshape,
    Scan,
    Step,
    TensorProgram,
    Value,
    with_bodies,
)
from weft.ir.scalar import Apply, Index, Load, Scalar, loads, rebuild
from weft.ir.types import TensorType
from weft.opset.trace import Evaluator
from weft.passes.dead_code import guard_symbols, step_symbols, type_symbols
from weft.passes.rewrite import count_uses, next_number, redirect, redirect_outputs
from weft.records import dataclass

HOISTABLE = (Map, Reshape, Reduce, Contract)
GROWTH = 16  # limit on the size of a hoisted product relative to its operands


def hoist_products(program: TensorProgram, evaluator: Evaluator) -> TensorProgram:  # noqa: ARG001
    """Move products out of scans and loops, inner ones first, and inline bodies that run once."""
    return _hoist_everywhere(program, count(next_number(program)))


def _hoist_everywhere(program: TensorProgram, numbers: Iterator[int]) -> TensorProgram:
    constants: dict[Value, Any] = dict(program.constants)
    replacements: dict[Value, Value] = {}
    steps: list[Step] = []
    for step in program.steps:
        primitive = with_bodies(step.primitive, lambda body: _hoist_everywhere(body, numbers))
        step = step if primitive is step.primitive else replace(step, primitive=primitive)
        step = redirect(step, replacements)
        if isinstance(primitive, Loop):
            steps += _hoist_products(step, primitive, constants, numbers)
        elif not isinstance(primitive, Scan) or not _is_simple(primitive.body):
            steps.append(step)
        elif primitive.length == 1:
            steps += _inline_body(step, primitive, constants, replacements, numbers)
        else:
            steps += _hoist_products(step, primitive, constants, numbers)
    return replace(program, steps=tuple(steps), constants=constants, outputs=redirect_outputs(program, replacements))


def _is_simple(body: TensorProgram) -> bool:
    """Whether a body has no host steps, no guards and no values of unknown rank."""
    values = [*body.inputs, *(value for step in body.steps for value in (*step.operands, *step.results))]
    tensors = all(value.has_shape for value in values)
    return tensors and not body.guards and not any(isinstance(step.primitive, HOST_STEPS) for step in body.steps)


# -- scans of length 1 -----------------------------------------------------------------------------------------------


def _inline_body(
    step: Step, scan: Scan, constants: dict[Value, Any], replacements: dict[Value, Value], numbers: Iterator[int]
) -> Iterator[Step]:
    """Yield the steps of the body on the only slice of each sequence, and reshapes of its outputs."""
    outer_values: dict[Value, Value] = {}
    sequences = range(scan.carries, scan.carries + scan.sequences)
    for number, (inner, outer) in enumerate(zip(scan.body.inputs, step.operands, strict=True)):
        outer_values[inner] = Value(next(numbers), inner.type, inner.name) if number in sequences else outer
        if number in sequences:
            yield Step(Reshape(), (outer,), (outer_values[inner],), step.origin)
    for value, content in scan.body.constants.items():
        outer_values[value] = Value(next(numbers), value.type, value.name)
        constants[outer_values[value]] = content
    for inner_step in scan.body.steps:
        results = tuple(Value(next(numbers), value.type, value.name) for value in inner_step.results)
        yield replace(redirect(inner_step, outer_values), results=results)
        outer_values.update(zip(inner_step.results, results))
    for number, (result, output) in enumerate(zip(step.results, scan.body.outputs, strict=True)):
        if number < scan.carries and outer_values[output].type == result.type:
            replacements[result] = outer_values[output]
        else:
            yield Step(Reshape(), (outer_values[output],), (result,), step.origin)


# -- products before the scan or loop --------------------------------------------------------------------------------


@dataclass(slots=True)
class _Outside:
    """Maps values of a body to values outside; those of `with_time_axis` have time as their first axis there."""

    length: Dim
    values: dict[Value, Value] = field(default_factory=dict)
    with_time_axis: set[Value] = field(default_factory=set)


def _count_varying(primitive: Scan | Loop) -> int:
    """Return the number of a body's first inputs that each iteration computes: carries, number, condition."""
    return primitive.carries if isinstance(primitive, Scan) else 2 + primitive.carries


def _slices(primitive: Scan | Loop) -> tuple[Value, ...]:
    return primitive.body.inputs[primitive.carries :][: primitive.sequences] if isinstance(primitive, Scan) else ()


def _hoist_products(
    step: Step, primitive: Scan | Loop, constants: dict[Value, Any], numbers: Iterator[int]
) -> Iterator[Step]:
    hoisted = _choose_hoisted(primitive, step.operands)
    if not hoisted:
        yield step
        return
    body = primitive.body
    outside = _Outside(primitive.length if isinstance(primitive, Scan) else 0)
    outside.values.update(zip(body.inputs, step.operands, strict=True))
    outside.with_time_axis.update(_slices(primitive))
    for part in body.steps:
        if not part.results or part.results[0] not in hoisted:
            continue
        for operand in part.operands:
            if operand not in outside.values:
                outside.values[operand] = Value(next(numbers), operand.type, operand.name)
                constants[outside.values[operand]] = body.constants[operand]
        yield _hoist_step(part, outside, next(numbers))
    yield _remove_hoisted(step, primitive, hoisted, outside)


def _choose_hoisted(primitive: Scan | Loop, operands: Sequence[Value]) -> set[Value]:
    """Choose the steps to hoist; return their results."""
    body = primitive.body
    available = {*body.inputs[_count_varying(primitive) :], *body.constants}
    with_time_axis = set(_slices(primitive))
    runs = isinstance(primitive, Scan) and dims.is_at_least(primitive.length, 1)
    symbols = _find_outer_symbols(operands, body) if isinstance(primitive, Loop) else None
    factors = _find_unchanged_factors(primitive) if isinstance(primitive, Loop) else set()
    hoistable: dict[Value, Step] = {}
    for step in body.steps:
        if symbols is not None and not (_has_shapes(step) and step_symbols(step) <= symbols):
            continue
        invariant = available | factors if isinstance(step.primitive, Contract) else available
        if _is_hoistable(step, invariant, with_time_axis, runs=runs, outputs=body.outputs):
            hoistable[step.results[0]] = step
            available.add(step.results[0])
            if with_time_axis.intersection(step.operands):
                with_time_axis.add(step.results[0])
    hoisted: set[Value] = set()
    pending = [value for value, step in hoistable.items() if _is_worthwhile(step, with_time_axis)]
    while pending:
        value = pending.pop()
        if value in hoistable and value not in hoisted:
            hoisted.add(value)
            pending += hoistable[value].operands
    uses = count_uses(body)
    for value, step in hoistable.items():  # in order, so that chains of maps follow
        if isinstance(step.primitive, Map) and any(uses[v] == 1 and v in hoisted for v in step.operands):
            hoisted.add(value)
            hoisted |= _find_dependencies(step, hoistable)
    return hoisted


def _find_unchanged_factors(loop: Loop) -> set[Value]:
    """Return the carries that change at most from -0 to 0: as factors, they are the same in each iteration."""
    makers = {result: step for step in loop.body.steps for result in step.results}
    carries = zip(loop.body.inputs[2:], loop.body.outputs[1 : 1 + loop.carries])
    return {before for before, after in carries if _skip_additions_of_zero(after, makers, loop.body) == before}


def _skip_additions_of_zero(value: Value, makers: Mapping[Value, Step], body: TensorProgram) -> Value:
    """Follow a value back through reshapes and additions of 0."""
    while (step := makers.get(value)) is not None:
        match step.primitive:
            case Reshape():
                pass
            case Map(Apply("add", (Load(0, indices), Load(1)))) if (
                step.operands[0].shape == value.shape
                and all(_is_position(index, axis, size) for axis, (index, size) in enumerate(zip(indices, value.shape)))
                and not np.any(body.constants.get(step.operands[1], 1))
            ):
                pass
            case _:
                return value
        value = step.operands[0]
    return value


def _is_position(index: Scalar, axis: int, size: Dim) -> bool:
    """Whether an index is the position along an axis, which is 0 where the size is 1."""
    return isinstance(index, Index) and index.value in (dims.axis(axis, size), 0 if size == 1 else None)


def _find_outer_symbols(operands: Iterable[Value], body: TensorProgram) -> set[str]:
    """Return the sizes of a loop's operands that no guard of its body restricts."""
    symbols: set[str] = set().union(*(type_symbols(value.type) for value in operands))
    return symbols.difference(*map(guard_symbols, body.guards))


def _has_shapes(step: Step) -> bool:
    return all(value.has_shape for value in (*step.operands, *step.results))


def _is_worthwhile(step: Step, with_time_axis: set[Value]) -> bool:
    """Whether a step is a product whose result for all iterations is not much larger than its operands."""
    if not isinstance(step.primitive, Contract):
        return False
    sizes = [dims.product(operand.shape) for operand in step.operands if operand in with_time_axis]
    return not sizes or any(dims.is_at_least(GROWTH * size, dims.product(step.results[0].shape)) for size in sizes)


def _find_dependencies(step: Step, hoistable: Mapping[Value, Step]) -> set[Value]:
    """Return the hoistable values that a step depends on."""
    values: set[Value] = set()
    pending = list(step.operands)
    while pending:
        value = pending.pop()
        if value in hoistable and value not in values:
            values.add(value)
            pending += hoistable[value].operands
    return values


def _is_hoistable(
    step: Step, available: set[Value], with_time_axis: set[Value], *, runs: bool, outputs: Sequence[Value]
) -> bool:
    """Whether a step can be hoisted; `runs`: whether the body runs at least once."""
    if not isinstance(step.primitive, HOISTABLE) or not available.issuperset(step.operands):
        return False
    if step.results[0] in outputs:
        return False
    if with_time_axis.intersection(step.operands) or runs:
        return True
    checked = isinstance(step.primitive, Map) and any(load.checked for load in loads(step.primitive.expression))
    return not checked  # if the body does not run, a hoisted check could fail


def _hoist_step(step: Step, outside: _Outside, number: int) -> Step:
    """Build the hoisted step, for all iterations at once if an operand has time as its first axis."""
    (result,) = step.results
    has_time_axis = [operand in outside.with_time_axis for operand in step.operands]
    type, primitive = result.type, step.primitive
    if any(has_time_axis):
        outside.with_time_axis.add(result)
        type = TensorType(result.dtype, (outside.length, *result.shape))
        match primitive:
            case Map(expression):
                primitive = Map(_add_time_axis(expression, has_time_axis, outside.length))
            case Contract(left, right, output):
                time = (max((*left, *right, *output), default=-1) + 1,)
                first, second = has_time_axis
                primitive = Contract(time + left if first else left, time + right if second else right, time + output)
            case Reduce(kind, axes):
                primitive = Reduce(kind, tuple(axis + 1 for axis in axes))
    outside.values[result] = Value(number, type, result.name)
    operands = tuple(outside.values[operand] for operand in step.operands)
    return Step(primitive, operands, (outside.values[result],), step.origin)


def _add_time_axis(expression: Scalar, has_time_axis: list[bool], length: Dim) -> Scalar:
    """Add time as the first axis of the result, and of the operands that have it."""
    now = Index(dims.axis(0, length))

    def shift(atom: Symbol | Axis) -> Dim:
        return dims.axis(atom.position + 1, atom.size) if isinstance(atom, Axis) else dims.from_atom(atom)

    def index_time(load: Load) -> Scalar:
        return replace(load, indices=(now, *load.indices)) if has_time_axis[load.operand] else load

    return rebuild(expression, index_time, shift)


def _remove_hoisted(step: Step, primitive: Scan | Loop, hoisted: set[Value], outside: _Outside) -> Step:
    """Remove the hoisted steps from a body; their results that it still needs become sequences or captures."""
    body, first = primitive.body, _count_varying(primitive)
    steps = tuple(part for part in body.steps if hoisted.isdisjoint(part.results))
    needed = {*body.outputs, *(operand for part in steps for operand in part.operands)}
    hoisted_values = [value for part in body.steps for value in part.results if value in hoisted and value in needed]
    used_inputs = [value for value in body.inputs[first:] if value in needed]
    sequences = [value for value in (*used_inputs, *hoisted_values) if value in outside.with_time_axis]
    captures = [value for value in (*used_inputs, *hoisted_values) if value not in outside.with_time_axis]
    inputs = (*body.inputs[:first], *sequences, *captures)
    operands = (*step.operands[:first], *(outside.values[value] for value in (*sequences, *captures)))
    constants = {value: content for value, content in body.constants.items() if value in needed}
    new = replace(body, inputs=inputs, steps=steps, constants=constants)
    if isinstance(primitive, Loop):
        return replace(step, primitive=replace(primitive, body=new), operands=operands)
    return replace(step, primitive=replace(primitive, body=new, sequences=len(sequences)), operands=operands)
