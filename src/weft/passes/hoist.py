"""Hoist products out of scans if they do not depend on the previous iteration.

x[t] @ w for each step t becomes one product x @ w before the scan, whose rows the body reads as slices. The steps that
compute its operands from slices, captures and constants are hoisted with it, and so are maps that only follow it.
Loop-invariant steps are computed once. A scan of length 1 is replaced by its body.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field, replace
from itertools import count
from typing import Any

from weft.ir import dims
from weft.ir.dims import Axis, Dim, Symbol
from weft.ir.program import HOST_STEPS, Contract, Map, Reduce, Reshape, Scan, Step, TensorProgram, Value, with_bodies
from weft.ir.scalar import Index, Load, Scalar, loads, rebuild
from weft.ir.types import TensorType
from weft.opset.trace import Evaluator
from weft.passes.rewrite import count_uses, next_number, redirect, redirect_outputs
from weft.records import dataclass

HOISTABLE = (Map, Reshape, Reduce, Contract)
GROWTH = 16  # limit on the size of a hoisted product relative to its operands


def hoist_products(program: TensorProgram, evaluator: Evaluator) -> TensorProgram:  # noqa: ARG001
    """Move products out of scans, inner scans first, and inline bodies that run once."""
    return _hoist_everywhere(program, count(next_number(program)))


def _hoist_everywhere(program: TensorProgram, numbers: Iterator[int]) -> TensorProgram:
    constants: dict[Value, Any] = dict(program.constants)
    replacements: dict[Value, Value] = {}
    steps: list[Step] = []
    for step in program.steps:
        primitive = with_bodies(step.primitive, lambda body: _hoist_everywhere(body, numbers))
        step = step if primitive is step.primitive else replace(step, primitive=primitive)
        step = redirect(step, replacements)
        if not isinstance(primitive, Scan) or not _is_simple(primitive.body):
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


# -- products before the scan ----------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Outside:
    """Maps values of a scan's body to values outside; those of `with_time_axis` have time as their first axis there."""

    length: Dim
    values: dict[Value, Value] = field(default_factory=dict)
    with_time_axis: set[Value] = field(default_factory=set)


def _hoist_products(step: Step, scan: Scan, constants: dict[Value, Any], numbers: Iterator[int]) -> Iterator[Step]:
    hoisted = _choose_hoisted(scan)
    if not hoisted:
        yield step
        return
    outside = _Outside(scan.length)
    outside.values.update(zip(scan.body.inputs[scan.carries :], step.operands[scan.carries :], strict=True))
    outside.with_time_axis.update(scan.body.inputs[scan.carries : scan.carries + scan.sequences])
    for part in scan.body.steps:
        if part.results[0] not in hoisted:
            continue
        for operand in part.operands:
            if operand not in outside.values:
                outside.values[operand] = Value(next(numbers), operand.type, operand.name)
                constants[outside.values[operand]] = scan.body.constants[operand]
        yield _hoist_step(part, outside, next(numbers))
    yield _remove_hoisted(step, scan, hoisted, outside)


def _choose_hoisted(scan: Scan) -> set[Value]:
    """Choose the steps to hoist; return their results."""
    body = scan.body
    available = {*body.inputs[scan.carries :], *body.constants}
    with_time_axis = set(body.inputs[scan.carries : scan.carries + scan.sequences])
    hoistable: dict[Value, Step] = {}
    for step in body.steps:
        if _is_hoistable(step, available, with_time_axis, scan, body):
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
    step: Step, available: set[Value], with_time_axis: set[Value], scan: Scan, body: TensorProgram
) -> bool:
    if not isinstance(step.primitive, HOISTABLE) or not available.issuperset(step.operands):
        return False
    if step.results[0] in body.outputs:
        return False
    if with_time_axis.intersection(step.operands) or dims.is_at_least(scan.length, 1):
        return True
    checked = isinstance(step.primitive, Map) and any(load.checked for load in loads(step.primitive.expression))
    return not checked  # if the scan does not run, a hoisted check could fail


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


def _remove_hoisted(step: Step, scan: Scan, hoisted: set[Value], outside: _Outside) -> Step:
    """Remove the hoisted steps from a scan; their results that it still needs become sequences or captures."""
    body = scan.body
    steps = tuple(part for part in body.steps if part.results[0] not in hoisted)
    needed = {*body.outputs, *(operand for part in steps for operand in part.operands)}
    hoisted_values = [value for part in body.steps for value in part.results if value in hoisted and value in needed]
    used_inputs = [value for value in body.inputs[scan.carries :] if value in needed]
    sequences = [value for value in (*used_inputs, *hoisted_values) if value in outside.with_time_axis]
    captures = [value for value in (*used_inputs, *hoisted_values) if value not in outside.with_time_axis]
    inputs = (*body.inputs[: scan.carries], *sequences, *captures)
    operands = (*step.operands[: scan.carries], *(outside.values[value] for value in (*sequences, *captures)))
    constants = {value: content for value, content in body.constants.items() if value in needed}
    new = replace(body, inputs=inputs, steps=steps, constants=constants)
    return replace(step, primitive=replace(scan, body=new, sequences=len(sequences)), operands=operands)
