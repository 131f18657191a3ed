"""Join the scales and shifts after a quantized product, including the divisor of the next quantization.

A quantized product ends in float(sum) * s[c]. A chain of maps after it, each with one reader, that scales and shifts
channels by constants is joined with that into float(sum) * a[c] + b[c]. If the last map quantizes, its divisor is
joined too; a ReLU in between stays, since it commutes with a division by a positive number. Constants are combined in
float64, so results are closer to the exact ones, but not bitwise equal.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from weft.ir.arrays import Array
from weft.ir.dtypes import DType
from weft.ir.program import Contract, Convolve, Map, Step, TensorProgram, Value, join_origins
from weft.ir.scalar import Apply, Literal, Load, Scalar, identity_indices, loads, rebuild
from weft.ir.types import TensorType
from weft.opset.trace import Evaluator
from weft.passes.rewrite import count_uses, everywhere, next_number
from weft.passes.scales import CHANNEL, depends_only_on_channel, evaluate_per_channel, match_affine
from weft.records import dataclass

FLOAT32 = DType.float32


@dataclass(frozen=True, slots=True)
class _Chain:
    """The maps that are joined, their total factor and shift, and the expression of the last one."""

    links: tuple[Step, ...]
    factor: Array
    shift: Array
    has_relu: bool
    last_expression: Scalar | None  # of the last link; the joined value replaces its subexpression `replaced`
    replaced: Scalar | None


def join_scales(program: TensorProgram, evaluator: Evaluator) -> TensorProgram:
    """Join the scales and shifts after sums of bytes."""
    program = everywhere(join_scales, program, evaluator)
    makers = {result: step for step in program.steps for result in step.results}
    uses = count_uses(program)
    readers = {operand: step for step in program.steps for operand in step.operands if uses[operand] == 1}
    constants: dict[Value, Any] = dict(program.constants)
    number = next_number(program)
    joined: dict[Value, Step] = {}  # by the result of the last link
    absorbed: set[Value] = set()
    for step in program.steps:
        axis = _find_channel_axis(step, makers)
        chain = None if axis is None else _find_chain(step, axis, readers, constants, evaluator)
        if chain is None or axis is None:
            continue
        factor, shift = (Value(number + n, TensorType(FLOAT32, (chain.factor.size,))) for n in range(2))
        number += 2
        constants[factor], constants[shift] = (part.astype(np.float32) for part in (chain.factor, chain.shift))
        if not all(np.isfinite(constants[part]).all() for part in (factor, shift)):
            continue
        links = (step, *chain.links)
        joined[links[-1].results[0]] = _build_joined_step(step, chain, axis, factor, shift)
        absorbed.update(link.results[0] for link in links[:-1])
    steps = [joined.get(step.results[0], step) if step.results else step for step in program.steps]
    remaining = tuple(step for step in steps if not (step.results and step.results[0] in absorbed))
    return replace(program, steps=remaining, constants=constants)


def _find_scaled_sum(step: Step) -> Apply | None:
    """Find the subexpression of a map that scales an int32 sum."""
    node: Scalar | None = step.primitive.expression if isinstance(step.primitive, Map) else None
    while isinstance(node, Apply):
        match node:
            case Apply("multiply", (Apply("cast", (Apply() | Load() as total,), _), _), DType.float32):
                return node if total.dtype is DType.int32 else None
        inside = [part for part in node.arguments if any(load.dtype is DType.int32 for load in loads(part))]
        node = inside[0] if len(inside) == 1 else None
    return None


def _find_channel_axis(step: Step, makers: Mapping[Value, Step]) -> int | None:
    """Return the axis along which the scales of a sum of bytes may differ, if the step applies them."""
    scaled = _find_scaled_sum(step)
    if scaled is None:
        return None
    pending = [step.operands[load.operand] for load in loads(scaled.arguments[0])]
    while pending:
        maker = makers.get(pending.pop())
        match None if maker is None else maker.primitive:
            case Convolve():
                axis = CHANNEL
            case Contract():
                axis = step.results[0].rank - 1
            case Map() if maker is not None and maker.results[0].dtype is DType.int32:
                pending += maker.operands
                continue
            case _:
                continue
        shape = step.results[0].shape
        return axis if 0 <= axis < len(shape) and isinstance(shape[axis], int) else None
    return None


def _find_chain(
    step: Step, axis: int, readers: Mapping[Value, Step], constants: dict[Value, Any], evaluator: Evaluator
) -> _Chain | None:
    head = _find_scaled_sum(step)
    assert head is not None and isinstance(step.primitive, Map)
    channels = step.results[0].shape[axis]
    scale = head.arguments[1]
    if not isinstance(channels, int) or not depends_only_on_channel(scale, step, constants, axis):
        return None
    is_head_result = head is step.primitive.expression
    factor = evaluate_per_channel(scale, step, channels, constants, evaluator, wide=is_head_result)
    shift = np.zeros(channels)
    if not is_head_result:  # the step quantizes: only evaluate its scale now, unrounded
        is_plain = isinstance(scale, Load)
        return None if is_plain else _Chain((), factor, shift, False, step.primitive.expression, head)
    links: list[Step] = []
    current, has_relu = step.results[0], False
    while current in readers:
        link = readers[current]
        if not isinstance(link.primitive, Map) or link.results[0].shape != current.shape:
            break
        expression = link.primitive.expression
        if not has_relu and _is_relu(expression, current):
            following = readers.get(link.results[0])
            part = None if following is None else _find_affine_part(following, link.results[0], axis, constants)
            if part is None or following is None or following.results[0].shape != current.shape:
                break
            scaled = match_affine(part, following, link.results[0], constants, axis)
            if scaled is None or scaled.a is None or scaled.b is not None:
                break
            if not (evaluate_per_channel(scaled.a, following, channels, constants, evaluator) > 0).all():
                break
            has_relu = True
            links.append(link)
            current = link.results[0]
            continue
        part = _find_affine_part(link, current, axis, constants)
        if part is None:
            break
        affine = match_affine(part, link, current, constants, axis)
        assert affine is not None and affine.a is not None
        a = evaluate_per_channel(affine.a, link, channels, constants, evaluator)
        b = 0.0 if affine.b is None else evaluate_per_channel(affine.b, link, channels, constants, evaluator)
        factor, shift = factor * a, shift * a + b
        links.append(link)
        current = link.results[0]
        if part is not expression:
            return _Chain(tuple(links), factor, shift, has_relu, expression, part)
        if has_relu:
            break
    return _Chain(tuple(links), factor, shift, has_relu, None, None) if links else None


def _is_relu(expression: Scalar, x: Value) -> bool:
    match expression:
        case Apply("maximum", (Load(0, indices), Literal(0.0)), DType.float32):
            return indices == identity_indices(x.shape)
    return False


def _find_affine_part(link: Step, x: Value, axis: int, constants: dict[Value, Any]) -> Scalar | None:
    """Find the largest subexpression of a map that has all its loads of x, and only scales and shifts them."""
    if not isinstance(link.primitive, Map):  # a product may follow a ReLU
        return None
    if not all(_reads_float(load) for load in loads(link.primitive.expression) if link.operands[load.operand] == x):
        return None
    node: Scalar = link.primitive.expression
    while isinstance(node, Apply):
        affine = match_affine(node, link, x, constants, axis) if node.dtype is FLOAT32 else None
        if affine is not None and affine.a is not None:
            return node
        inside = [part for part in node.arguments if any(link.operands[load.operand] == x for load in loads(part))]
        if len(inside) != 1:
            return None
        (node,) = inside
    return None


def _reads_float(load: Load) -> bool:
    return load.dtype is FLOAT32 and not load.checked


def _build_joined_step(step: Step, chain: _Chain, axis: int, factor: Value, shift: Value) -> Step:
    """Build the step that replaces a chain."""
    head = _find_scaled_sum(step)
    assert head is not None
    operands: list[Value] = []

    def load(value: Value, indices: tuple[Scalar, ...], checked: bool = False) -> Load:
        if value not in operands:
            operands.append(value)
        return Load(operands.index(value), indices, value.dtype, checked)

    def rebuild_for(owner: Step, scalar: Scalar) -> Scalar:
        return rebuild(scalar, lambda node: load(owner.operands[node.operand], node.indices, node.checked))

    channel = (identity_indices(step.results[0].shape)[axis],)
    value = rebuild_for(step, head.arguments[0])
    value = Apply("multiply", (value, load(factor, channel)), FLOAT32)
    if chain.shift.any():
        value = Apply("add", (value, load(shift, channel)), FLOAT32)
    if chain.has_relu:
        value = Apply("maximum", (value, Literal(0.0, FLOAT32)), FLOAT32)
    last = (step, *chain.links)[-1]
    expression = (
        value
        if chain.last_expression is None
        else _replace_subtree(chain.last_expression, chain.replaced, value, last, rebuild_for)
    )
    return Step(
        Map(expression), tuple(operands), last.results, join_origins(link.origin for link in (step, *chain.links))
    )


def _replace_subtree(
    node: Scalar, replaced: Scalar | None, value: Scalar, owner: Step, rebuild_for: Callable[[Step, Scalar], Scalar]
) -> Scalar:
    """Copy an expression with a subtree replaced by a value."""
    if node is replaced:
        return value
    if isinstance(node, Apply):
        parts = tuple(_replace_subtree(part, replaced, value, owner, rebuild_for) for part in node.arguments)
        return Apply(node.function, parts, node.dtype)
    return rebuild_for(owner, node)
