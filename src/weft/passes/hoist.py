"""Products that do not wait for the iteration before them leave the bodies of scans.

x[t] @ w for each time t is one product x @ w before the scan, whose rows the body then reads as slices. With a product
goes what it is made from, as long as that is made from slices, captures and constants alone, and the maps that only
follow it. What does not change from iteration to iteration is computed once. A scan that runs once is no scan: its body
takes its place.
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

LIFTED = (Map, Reshape, Reduce, Contract)
GROWTH = 16  # times that a product may be larger than what it is made from


def hoist_products(program: TensorProgram, evaluator: Evaluator) -> TensorProgram:  # noqa: ARG001
    """Move products out of scans, inner scans first, and put bodies that run once where their scans were."""
    return _hoist_everywhere(program, count(next_number(program)))


def _hoist_everywhere(program: TensorProgram, numbers: Iterator[int]) -> TensorProgram:
    constants: dict[Value, Any] = dict(program.constants)
    replaced: dict[Value, Value] = {}
    steps: list[Step] = []
    for step in program.steps:
        primitive = with_bodies(step.primitive, lambda body: _hoist_everywhere(body, numbers))
        step = step if primitive is step.primitive else replace(step, primitive=primitive)
        step = redirect(step, replaced)
        if not isinstance(primitive, Scan) or not _is_plain(primitive.body):
            steps.append(step)
        elif primitive.length == 1:
            steps += _open(step, primitive, constants, replaced, numbers)
        else:
            steps += _hoist(step, primitive, constants, numbers)
    return replace(program, steps=tuple(steps), constants=constants, outputs=redirect_outputs(program, replaced))


def _is_plain(body: TensorProgram) -> bool:
    """Whether a body leaves nothing to the host and assumes nothing about sizes."""
    values = [*body.inputs, *(value for step in body.steps for value in (*step.operands, *step.results))]
    tensors = all(isinstance(value.type, TensorType) and value.type.shape is not None for value in values)
    return tensors and not body.guards and not any(isinstance(step.primitive, HOST_STEPS) for step in body.steps)


# -- a body that runs once -------------------------------------------------------------------------------------------


def _open(
    step: Step, scan: Scan, constants: dict[Value, Any], replaced: dict[Value, Value], numbers: Iterator[int]
) -> Iterator[Step]:
    """The steps of the body, on the only slice of each sequence; outputs are reshaped to stacks of one."""
    own: dict[Value, Value] = {}
    sequences = range(scan.carries, scan.carries + scan.sequences)
    for number, (inner, outer) in enumerate(zip(scan.body.inputs, step.operands, strict=True)):
        own[inner] = Value(next(numbers), inner.type, inner.name) if number in sequences else outer
        if number in sequences:
            yield Step(Reshape(), (outer,), (own[inner],), step.origin)
    for value, content in scan.body.constants.items():
        own[value] = Value(next(numbers), value.type, value.name)
        constants[own[value]] = content
    for part in scan.body.steps:
        results = tuple(Value(next(numbers), value.type, value.name) for value in part.results)
        yield replace(redirect(part, own), results=results)
        own.update(zip(part.results, results))
    for number, (result, output) in enumerate(zip(step.results, scan.body.outputs, strict=True)):
        if number < scan.carries and own[output].type == result.type:
            replaced[result] = own[output]
        else:
            yield Step(Reshape(), (own[output],), (result,), step.origin)


# -- products before the scan ----------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Outside:
    """Where values of a body are outside of it; those `along` time have it as their first axis."""

    length: Dim
    values: dict[Value, Value] = field(default_factory=dict)
    along: set[Value] = field(default_factory=set)


def _hoist(step: Step, scan: Scan, constants: dict[Value, Any], numbers: Iterator[int]) -> Iterator[Step]:
    lifted = _choose(scan)
    if not lifted:
        yield step
        return
    outside = _Outside(scan.length)
    outside.values.update(zip(scan.body.inputs[scan.carries :], step.operands[scan.carries :], strict=True))
    outside.along.update(scan.body.inputs[scan.carries : scan.carries + scan.sequences])
    for part in scan.body.steps:
        if part.results[0] not in lifted:
            continue
        for operand in part.operands:
            if operand not in outside.values:
                outside.values[operand] = Value(next(numbers), operand.type, operand.name)
                constants[outside.values[operand]] = scan.body.constants[operand]
        yield _lift(part, outside, next(numbers))
    yield _without(step, scan, lifted, outside)


def _choose(scan: Scan) -> set[Value]:
    """The results of the steps that leave the body."""
    body = scan.body
    known = {*body.inputs[scan.carries :], *body.constants}
    along = set(body.inputs[scan.carries : scan.carries + scan.sequences])
    able: dict[Value, Step] = {}
    for step in body.steps:
        if _is_able(step, known, along, scan, body):
            able[step.results[0]] = step
            known.add(step.results[0])
            if along.intersection(step.operands):
                along.add(step.results[0])
    lifted: set[Value] = set()
    pending = [value for value, step in able.items() if _is_worthwhile(step, along)]
    while pending:
        value = pending.pop()
        if value in able and value not in lifted:
            lifted.add(value)
            pending += able[value].operands
    uses = count_uses(body)
    for value, step in able.items():  # in order, so that one follower brings the next
        if isinstance(step.primitive, Map) and any(uses[v] == 1 and v in lifted for v in step.operands):
            lifted.add(value)
            lifted |= _makers(step, able)
    return lifted


def _is_worthwhile(step: Step, along: set[Value]) -> bool:
    """A product that does not take much more memory for all times at once than what it is made from."""
    if not isinstance(step.primitive, Contract):
        return False
    given = [_size(operand) for operand in step.operands if operand in along]
    return not given or any(dims.is_at_least(GROWTH * size, _size(step.results[0])) for size in given)


def _makers(step: Step, able: Mapping[Value, Step]) -> set[Value]:
    """What a step is made from, as far as it can leave."""
    found: set[Value] = set()
    pending = list(step.operands)
    while pending:
        value = pending.pop()
        if value in able and value not in found:
            found.add(value)
            pending += able[value].operands
    return found


def _is_able(step: Step, known: set[Value], along: set[Value], scan: Scan, body: TensorProgram) -> bool:
    if not isinstance(step.primitive, LIFTED) or not known.issuperset(step.operands):
        return False
    if step.results[0] in body.outputs:
        return False
    if along.intersection(step.operands) or dims.is_at_least(scan.length, 1):
        return True
    checked = isinstance(step.primitive, Map) and any(load.checked for load in loads(step.primitive.expression))
    return not checked  # an error of data that is never read, where the scan does not run


def _lift(step: Step, outside: _Outside, number: int) -> Step:
    """The step outside of the body, for all times at once if one of its operands is different each time."""
    (result,) = step.results
    assert isinstance(result.type, TensorType) and result.type.shape is not None
    at_once = [operand in outside.along for operand in step.operands]
    type = result.type
    primitive = step.primitive
    if any(at_once):
        outside.along.add(result)
        type = TensorType(type.dtype, (outside.length, *result.type.shape))
        match primitive:
            case Map(expression):
                primitive = Map(_along_time(expression, at_once, outside.length))
            case Contract(left, right, output):
                time = (max((*left, *right, *output), default=-1) + 1,)
                first, second = at_once
                primitive = Contract(time + left if first else left, time + right if second else right, time + output)
            case Reduce(kind, axes):
                primitive = Reduce(kind, tuple(axis + 1 for axis in axes))
    outside.values[result] = Value(number, type, result.name)
    operands = tuple(outside.values[operand] for operand in step.operands)
    return Step(primitive, operands, (outside.values[result],), step.origin)


def _along_time(expression: Scalar, at_once: list[bool], length: Dim) -> Scalar:
    """The expression with time as the first axis of the result and of the operands that have it."""
    now = Index(dims.axis(0, length))

    def atom(atom: Symbol | Axis) -> Dim:
        if isinstance(atom, Axis):
            return dims.axis(atom.position + 1, atom.size)
        return dims.symbol(atom.name, atom.low, atom.high)

    def load(load: Load) -> Scalar:
        return replace(load, indices=(now, *load.indices)) if at_once[load.operand] else load

    return rebuild(expression, load, atom)


def _without(step: Step, scan: Scan, lifted: set[Value], outside: _Outside) -> Step:
    """The scan without the steps that left; it takes what is still needed of them, and nothing that is not."""
    body = scan.body
    kept = tuple(part for part in body.steps if part.results[0] not in lifted)
    needed = {*body.outputs, *(operand for part in kept for operand in part.operands)}
    taken = [value for part in body.steps for value in part.results if value in lifted and value in needed]
    given = [value for value in body.inputs[scan.carries :] if value in needed]
    sequences = [value for value in (*given, *taken) if value in outside.along]
    captures = [value for value in (*given, *taken) if value not in outside.along]
    inputs = (*body.inputs[: scan.carries], *sequences, *captures)
    operands = (*step.operands[: scan.carries], *(outside.values[value] for value in (*sequences, *captures)))
    constants = {value: content for value, content in body.constants.items() if value in needed}
    new = replace(body, inputs=inputs, steps=kept, constants=constants)
    return replace(step, primitive=replace(scan, body=new, sequences=len(sequences)), operands=operands)


def _size(value: Value) -> Dim:
    assert isinstance(value.type, TensorType) and value.type.shape is not None
    return dims.product(value.type.shape)
