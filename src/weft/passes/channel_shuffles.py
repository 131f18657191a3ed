"""Move channel shuffles (reshape, transpose, reshape) down to the convolutions that read them.

A shuffle becomes one map that reorders channels. It moves past depthwise convolutions and per-channel maps, whose
constants are reordered instead, until a convolution reads it: one without groups absorbs the order into its weights; in
front of a grouped one the map stays, since that can read channels in any order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import count
from typing import Any

import numpy as np

from weft.ir import dims
from weft.ir.access import axes_of_shape
from weft.ir.arrays import Array
from weft.ir.dims import Axis, Dim
from weft.ir.program import Convolve, Map, Reshape, Step, TensorProgram, Value
from weft.ir.scalar import Apply, Index, Load, Scalar, identity_indices, walk
from weft.ir.types import Shape
from weft.opset.trace import Evaluator
from weft.passes.rewrite import count_uses, everywhere, next_number, redirect

CHANNEL = 1


def move_shuffles(program: TensorProgram, evaluator: Evaluator) -> TensorProgram:
    """Turn shuffles into maps, as close as possible to the convolutions that read them."""
    program = everywhere(move_shuffles, program, evaluator)
    makers = {result: step for step in program.steps for result in step.results}
    uses = count_uses(program)
    readers = {operand: step for step in program.steps for operand in step.operands if uses[operand] == 1}
    constants: dict[Value, Any] = dict(program.constants)
    numbers = count(next_number(program))
    changed: dict[Value, list[Step]] = {}  # replacements by the first result of a step
    for step in program.steps:
        shuffle = _match_shuffle(step, makers)
        if shuffle is not None:
            changed |= _move(shuffle, readers, constants, numbers)
    steps: list[Step] = []
    for step in program.steps:
        steps += changed[step.results[0]] if step.results and step.results[0] in changed else [step]
    return replace(program, steps=tuple(steps), constants=constants)


def _match_shuffle(step: Step, makers: Mapping[Value, Step]) -> Step | None:
    """Match reshape, transpose, reshape that end with this step, and return them as one map."""
    if not isinstance(step.primitive, Reshape):
        return None
    middle = makers.get(step.operands[0])
    if middle is None or not isinstance(middle.primitive, Map) or len(middle.operands) != 1:
        return None
    first = makers.get(middle.operands[0])
    if first is None or not isinstance(first.primitive, Reshape):
        return None
    source, result = first.operands[0], step.results[0]
    if source.type != result.type or source.rank < 3:
        return None
    order = _match_transpose(middle, source.shape[CHANNEL])
    if order is None or source.shape[0] != middle.results[0].shape[0]:
        return None
    return _build_shuffle(source, result, order, middle.origin)


def _build_shuffle(source: Value, result: Value, order: Dim, origin: str) -> Step:
    """Build the map that reads the channels of `source` in another order."""
    axes: list[Dim] = list(axes_of_shape(source.shape))
    axes[CHANNEL] = order
    return Step(Map(Load(0, tuple(map(Index, axes)), source.dtype)), (source,), (result,), origin)


def _match_transpose(step: Step, channels: Dim) -> Dim | None:
    """Return the source channel at position i1, if the map transposes factors of the channel axis; else None."""
    assert isinstance(step.primitive, Map)
    expression, shape = step.primitive.expression, step.results[0].shape
    if not isinstance(expression, Load) or not isinstance(channels, int):
        return None
    source = step.operands[0].shape
    indices = [index.value for index in expression.indices if isinstance(index, Index)]
    factor_count = _count_factors(shape, channels)
    if not factor_count or len(indices) != len(source) or _count_factors(source, channels) != factor_count:
        return None
    axes = axes_of_shape(shape)
    factors = range(1, 1 + factor_count)
    if any(index != axes[axis] for axis, index in enumerate(indices) if axis not in factors):
        return None
    if sorted(map(str, indices[1 : 1 + factor_count])) != sorted(map(str, axes[1 : 1 + factor_count])):
        return None
    digits: dict[int, Dim] = {}
    remaining = dims.axis(CHANNEL, channels)
    for axis in reversed(factors):
        digits[axis] = dims.mod(remaining, shape[axis])
        remaining = dims.floordiv(remaining, shape[axis])
    channel: Dim = 0
    for axis in factors:
        digit = dims.substitute(indices[axis], lambda atom: digits[atom.position] if isinstance(atom, Axis) else 0)
        channel = channel * source[axis] + digit
    return channel


def _count_factors(shape: Shape, channels: int) -> int:
    """Return how many axes after the first one multiply to the channels; 0 if none do."""
    total = 1
    for number, size in enumerate(shape[1:], 1):
        if not isinstance(size, int):
            return 0
        total *= size
        if total >= channels:
            return number if total == channels else 0
    return 0


def _move(
    shuffle: Step, readers: Mapping[Value, Step], constants: dict[Value, Any], numbers: Iterator[int]
) -> dict[Value, list[Step]]:
    """Return replacements, by first result, for the steps from the shuffle to the convolution that reads it."""
    value = shuffle.results[0]
    chain: list[tuple[Step, dict[Value, int]]] = []
    end = readers.get(value)
    while end is not None and (axes := _find_channel_axes(end, value, constants)) is not None:
        chain.append((end, axes))
        value = end.results[0]
        end = readers.get(value)
    if end is None or not _takes_order(end, value, constants):
        return {shuffle.results[0]: [shuffle]}
    assert isinstance(shuffle.primitive, Map) and isinstance(shuffle.primitive.expression, Load)
    channel = shuffle.primitive.expression.indices[CHANNEL]
    assert isinstance(channel, Index)
    order = channel.value
    source_channels = _evaluate_order(order, value.shape[CHANNEL])
    replacements: dict[Value, list[Step]] = {shuffle.results[0]: []}
    before, current = shuffle.results[0], shuffle.operands[0]
    for link, axes in chain:
        renamed = {old: _reorder(old, axis, source_channels, constants, numbers) for old, axis in axes.items()}
        renamed[before] = current
        before, current = link.results[0], Value(next(numbers), link.results[0].type)
        replacements[before] = [replace(redirect(link, renamed), results=(current,))]
    assert isinstance(end.primitive, Convolve)
    if end.primitive.groups == 1:
        weights = _reorder(end.operands[1], 0 if end.primitive.transposed else 1, source_channels, constants, numbers)
        replacements[end.results[0]] = [replace(end, operands=(current, weights))]
    else:
        replacements[value].append(_build_shuffle(current, value, order, shuffle.origin))
    return replacements


def _takes_order(step: Step, x: Value, constants: Mapping[Value, Any]) -> bool:
    """Whether a step is a convolution that can absorb an order of its input's channels."""
    if not isinstance(step.primitive, Convolve) or step.operands[0] != x:
        return False
    pointwise = all(size == 1 for size in step.operands[1].shape[2:])
    return step.operands[1] in constants if step.primitive.groups == 1 else pointwise


def _find_channel_axes(step: Step, x: Value, constants: Mapping[Value, Any]) -> dict[Value, int] | None:
    """Return the channel axis of each constant of a step, or None if the step mixes channels of x."""
    channels = x.shape[CHANNEL]
    match step.primitive:
        case Convolve(groups=groups):
            alone = groups == channels == step.results[0].shape[CHANNEL]
            return {step.operands[1]: 0} if alone and step.operands[1] in constants else None
        case Map(expression) if step.results[0].shape == x.shape:
            return _find_constant_axes(expression, step, x, constants)
    return None


def _find_constant_axes(
    expression: Scalar, step: Step, x: Value, constants: Mapping[Value, Any]
) -> dict[Value, int] | None:
    shape = x.shape
    own_indices = identity_indices(shape)
    axes: dict[Value, int] = {}
    for node in walk(expression):
        inner = (node,) if node is expression else node.arguments if isinstance(node, Apply) else ()
        if any(isinstance(part, Index) and _depends_on_channel(part) for part in inner):
            return None
        if not isinstance(node, Load):
            continue
        value = step.operands[node.operand]
        if value == x:
            if node.indices != own_indices:
                return None
            continue
        along = [axis for axis, index in enumerate(node.indices) if _depends_on_channel(index)]
        if not along:
            continue
        spans_channels = node.indices[along[0]] == own_indices[CHANNEL] and value.shape[along[0]] == shape[CHANNEL]
        if (
            value not in constants
            or len(along) > 1
            or not spans_channels
            or axes.setdefault(value, along[0]) != along[0]
        ):
            return None
    return axes


def _depends_on_channel(scalar: Scalar) -> bool:
    indices = [node.value for node in walk(scalar) if isinstance(node, Index)]
    return any(isinstance(atom, Axis) and atom.position == CHANNEL for value in indices for atom in dims.atoms(value))


def _reorder(
    value: Value, axis: int, source_channels: Array, constants: dict[Value, Any], numbers: Iterator[int]
) -> Value:
    """Reorder the channels of a constant as in the shuffle's source."""
    array = np.empty_like(constants[value], order="C")
    array[(slice(None),) * axis + (source_channels,)] = constants[value]
    reordered = Value(next(numbers), value.type)
    constants[reordered] = array
    return reordered


def _evaluate_order(order: Dim, channels: Dim) -> Array:
    assert isinstance(channels, int)
    place = dims.symbol("place", 0)
    named = dims.substitute(order, lambda _: place)
    return np.array([dims.evaluate(named, {"place": channel}) for channel in range(channels)])
