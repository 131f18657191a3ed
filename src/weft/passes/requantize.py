"""Scales and shifts after a sum of bytes are one scale and one shift, with what the next quantization divides by.

A product of quantized numbers ends in float(sum) * s[c]. A chain of maps after it, each used once, that scales and
shifts channels by constants is joined with that: float(sum) * a[c] + b[c]. Where the last one quantizes, what it
divides by is joined too; a ReLU in between stays, for a division by a positive number commutes with it. What is joined
is worked out in float64, so the outcome is nearer to the exact one, not the same to the last bit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from weft.ir import dims
from weft.ir.dtypes import DType
from weft.ir.program import Contract, Convolve, Map, Step, TensorProgram, Value, join_origins, tensor_dtype
from weft.ir.scalar import Apply, Index, Literal, Load, Scalar, loads, rebuild
from weft.ir.types import Shape, TensorType
from weft.opset.trace import Evaluator
from weft.passes.rewrite import count_uses, everywhere, next_number
from weft.passes.scales import CHANNEL, affine_of, depends_on_channel_alone, values_per_channel
from weft.records import dataclass

Array = np.ndarray[Any, Any]
FLOAT32 = DType.float32


@dataclass(frozen=True, slots=True)
class _Chain:
    """The steps that are joined, what they do to a sum, and the part of the last one that stays."""

    links: tuple[Step, ...]
    factor: Array
    shift: Array
    rectified: bool
    rest: Scalar | None  # of the last link, with `replaced` to be put in
    replaced: Scalar | None


def join_scales(program: TensorProgram, evaluator: Evaluator) -> TensorProgram:
    """Join what follows sums of bytes."""
    program = everywhere(join_scales, program, evaluator)
    makers = {result: step for step in program.steps for result in step.results}
    uses = count_uses(program)
    readers = {operand: step for step in program.steps for operand in step.operands if uses[operand] == 1}
    constants: dict[Value, Any] = dict(program.constants)
    number = next_number(program)
    joined: dict[Value, Step] = {}  # by the result of the last link
    gone: set[Value] = set()
    for step in program.steps:
        axis = _channel_axis(step, makers)
        chain = None if axis is None else _follow(step, axis, readers, constants, evaluator)
        if chain is None or axis is None:
            continue
        factor, shift = (Value(number + n, TensorType(FLOAT32, (chain.factor.size,))) for n in range(2))
        number += 2
        constants[factor], constants[shift] = (part.astype(np.float32) for part in (chain.factor, chain.shift))
        if not all(np.isfinite(constants[part]).all() for part in (factor, shift)):
            continue
        links = (step, *chain.links)
        joined[links[-1].results[0]] = _joined(step, chain, axis, factor, shift)
        gone.update(link.results[0] for link in links[:-1])
    steps = [joined.get(step.results[0], step) if step.results else step for step in program.steps]
    kept = tuple(step for step in steps if not (step.results and step.results[0] in gone))
    return replace(program, steps=kept, constants=constants)


def _scaled_sum(step: Step) -> Apply | None:
    """The part of a map that is a scaled integer."""
    node: Scalar | None = step.primitive.expression if isinstance(step.primitive, Map) else None
    while isinstance(node, Apply):
        match node:
            case Apply("multiply", (Apply("cast", (Apply() | Load() as total,), _), _), DType.float32):
                return node if total.dtype is DType.int32 else None
        inside = [part for part in node.arguments if any(load.dtype is DType.int32 for load in loads(part))]
        node = inside[0] if len(inside) == 1 else None
    return None


def _channel_axis(step: Step, makers: Mapping[Value, Step]) -> int | None:
    """The axis along which the scales of a sum of bytes may differ, if the step applies them."""
    scaled = _scaled_sum(step)
    if scaled is None:
        return None
    pending = [step.operands[load.operand] for load in loads(scaled.arguments[0])]
    while pending:
        maker = makers.get(pending.pop())
        match None if maker is None else maker.primitive:
            case Convolve():
                axis = CHANNEL
            case Contract():
                axis = len(_shape(step.results[0])) - 1
            case Map() if maker is not None and tensor_dtype(maker.results[0]) is DType.int32:
                pending += maker.operands
                continue
            case _:
                continue
        shape = _shape(step.results[0])
        return axis if 0 <= axis < len(shape) and isinstance(shape[axis], int) else None
    return None


def _follow(
    step: Step, axis: int, readers: Mapping[Value, Step], constants: dict[Value, Any], evaluator: Evaluator
) -> _Chain | None:
    head = _scaled_sum(step)
    assert head is not None and isinstance(step.primitive, Map)
    channels = _shape(step.results[0])[axis]
    scale = head.arguments[1]
    if not isinstance(channels, int) or not depends_on_channel_alone(scale, step, constants, axis):
        return None
    whole = head is step.primitive.expression
    factor = values_per_channel(scale, step, channels, constants, evaluator, wide=whole)
    shift = np.zeros(channels)
    if not whole:  # the scale of a step that quantizes itself is only worked out beforehand, with all its bits
        is_plain = isinstance(scale, Load)
        return None if is_plain else _Chain((), factor, shift, False, step.primitive.expression, head)
    links: list[Step] = []
    current, rectified = step.results[0], False
    while current in readers:
        link = readers[current]
        if not isinstance(link.primitive, Map) or _shape(link.results[0]) != _shape(current):
            break
        expression = link.primitive.expression
        if not rectified and _is_rectifier(expression, current):
            following = readers.get(link.results[0])
            part = None if following is None else _affine_part(following, link.results[0], axis, constants)
            if part is None or following is None or _shape(following.results[0]) != _shape(current):
                break
            scaled = affine_of(part, following, link.results[0], constants, axis)
            if scaled is None or scaled.a is None or scaled.b is not None:
                break
            if not (values_per_channel(scaled.a, following, channels, constants, evaluator) > 0).all():
                break
            rectified = True
            links.append(link)
            current = link.results[0]
            continue
        part = _affine_part(link, current, axis, constants)
        if part is None:
            break
        affine = affine_of(part, link, current, constants, axis)
        assert affine is not None and affine.a is not None
        a = values_per_channel(affine.a, link, channels, constants, evaluator)
        b = 0.0 if affine.b is None else values_per_channel(affine.b, link, channels, constants, evaluator)
        factor, shift = factor * a, shift * a + b
        links.append(link)
        current = link.results[0]
        if part is not expression:
            return _Chain(tuple(links), factor, shift, rectified, expression, part)
        if rectified:
            break
    return _Chain(tuple(links), factor, shift, rectified, None, None) if links else None


def _is_rectifier(expression: Scalar, x: Value) -> bool:
    match expression:
        case Apply("maximum", (Load(0, indices), Literal(0.0)), DType.float32):
            return indices == _plain(_shape(x))
    return False


def _affine_part(link: Step, x: Value, axis: int, constants: dict[Value, Any]) -> Scalar | None:
    """The largest part of a map that holds all its loads of x, and only scales and shifts them."""
    if not isinstance(link.primitive, Map):  # a product may follow a rectifier
        return None
    if not all(_reads_float(load) for load in loads(link.primitive.expression) if link.operands[load.operand] == x):
        return None
    node: Scalar = link.primitive.expression
    while isinstance(node, Apply):
        affine = affine_of(node, link, x, constants, axis) if node.dtype is FLOAT32 else None
        if affine is not None and affine.a is not None:
            return node
        inside = [part for part in node.arguments if any(link.operands[load.operand] == x for load in loads(part))]
        if len(inside) != 1:
            return None
        (node,) = inside
    return None


def _reads_float(load: Load) -> bool:
    return load.dtype is FLOAT32 and not load.checked


def _joined(step: Step, chain: _Chain, axis: int, factor: Value, shift: Value) -> Step:
    """The step that does all of it."""
    head = _scaled_sum(step)
    assert head is not None
    operands: list[Value] = []

    def load(value: Value, indices: tuple[Scalar, ...], checked: bool = False) -> Load:
        if value not in operands:
            operands.append(value)
        return Load(operands.index(value), indices, tensor_dtype(value), checked)

    def of(owner: Step, scalar: Scalar) -> Scalar:
        return rebuild(scalar, lambda own: load(owner.operands[own.operand], own.indices, own.checked))

    channel = (_plain(_shape(step.results[0]))[axis],)
    value = of(step, head.arguments[0])
    value = Apply("multiply", (value, load(factor, channel)), FLOAT32)
    if chain.shift.any():
        value = Apply("add", (value, load(shift, channel)), FLOAT32)
    if chain.rectified:
        value = Apply("maximum", (value, Literal(0.0, FLOAT32)), FLOAT32)
    last = (step, *chain.links)[-1]
    expression = value if chain.rest is None else _put(chain.rest, chain.replaced, value, last, of)
    return Step(
        Map(expression), tuple(operands), last.results, join_origins(link.origin for link in (step, *chain.links))
    )


def _put(node: Scalar, replaced: Scalar | None, value: Scalar, owner: Step, of: Any) -> Scalar:
    """A tree with a value in the place of one of its parts."""
    if node is replaced:
        return value
    if isinstance(node, Apply):
        parts = tuple(_put(part, replaced, value, owner, of) for part in node.arguments)
        return Apply(node.function, parts, node.dtype)
    return of(owner, node)  # type: ignore[no-any-return]


def _plain(shape: Shape) -> tuple[Index, ...]:
    return tuple(Index(dims.axis(axis, size)) for axis, size in enumerate(shape))


def _shape(value: Value) -> Shape:
    return (value.type.shape or ()) if isinstance(value.type, TensorType) else ()
