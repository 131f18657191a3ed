"""Channel shuffles: a reshape, a transposition and a reshape that together put channels into another order.

Each becomes one map along the channels. It then moves down, past depthwise convolutions and maps that treat every
channel by itself, whose constants change their order instead, until a convolution reads it: one without groups takes
the order into its weights, and before one with groups the map stays, as it can be read in place there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import count
from typing import Any

import numpy as np

from weft.ir import dims
from weft.ir.dims import Axis, Dim
from weft.ir.program import Convolve, Map, Reshape, Step, TensorProgram, Value
from weft.ir.scalar import Apply, Index, Load, Scalar, walk
from weft.ir.types import Shape, TensorType
from weft.opset.trace import Evaluator
from weft.passes.rewrite import count_uses, everywhere, next_number, redirect

Array = np.ndarray[Any, Any]
CHANNEL = 1


def move_shuffles(program: TensorProgram, evaluator: Evaluator) -> TensorProgram:
    """Shuffles as maps of their own, as close as possible to the convolutions that read them."""
    program = everywhere(move_shuffles, program, evaluator)
    makers = {result: step for step in program.steps for result in step.results}
    uses = count_uses(program)
    readers = {operand: step for step in program.steps for operand in step.operands if uses[operand] == 1}
    constants: dict[Value, Any] = dict(program.constants)
    numbers = count(next_number(program))
    changed: dict[Value, list[Step]] = {}  # by the first result of the step that others take the place of
    for step in program.steps:
        shuffle = _shuffle(step, makers)
        if shuffle is not None:
            changed |= _moved(shuffle, readers, constants, numbers)
    steps: list[Step] = []
    for step in program.steps:
        steps += changed[step.results[0]] if step.results and step.results[0] in changed else [step]
    return replace(program, steps=tuple(steps), constants=constants)


def _shuffle(step: Step, makers: Mapping[Value, Step]) -> Step | None:
    """The map that a reshape is, together with the transposition and the reshape before it."""
    if not isinstance(step.primitive, Reshape):
        return None
    middle = makers.get(step.operands[0])
    if middle is None or not isinstance(middle.primitive, Map) or len(middle.operands) != 1:
        return None
    first = makers.get(middle.operands[0])
    if first is None or not isinstance(first.primitive, Reshape):
        return None
    source, result = first.operands[0], step.results[0]
    if source.type != result.type or len(_shape(source)) < 3:
        return None
    order = _order(middle, _shape(source)[CHANNEL])
    if order is None or _shape(source)[0] != _shape(middle.results[0])[0]:
        return None
    return _reading(source, result, order, middle.origin)


def _reading(source: Value, result: Value, order: Dim, origin: str) -> Step:
    """result = source with the channels in another order."""
    axes: list[Dim] = [dims.axis(axis, size) for axis, size in enumerate(_shape(source))]
    axes[CHANNEL] = order
    return Step(Map(Load(0, tuple(map(Index, axes)), _type(source).dtype)), (source,), (result,), origin)


def _order(step: Step, channels: Dim) -> Dim | None:
    """Which channel of its source a transposition of pieces of the channels puts at place i1; None if it is not one."""
    assert isinstance(step.primitive, Map)
    expression, shape = step.primitive.expression, _shape(step.results[0])
    if not isinstance(expression, Load) or not isinstance(channels, int):
        return None
    source = _shape(step.operands[0])
    indices = [index.value for index in expression.indices if isinstance(index, Index)]
    pieces = _pieces(shape, channels)
    if not pieces or len(indices) != len(source) or _pieces(source, channels) != pieces:
        return None
    plain = [dims.axis(axis, size) for axis, size in enumerate(shape)]
    within = range(1, 1 + pieces)
    if any(index != plain[axis] for axis, index in enumerate(indices) if axis not in within):
        return None
    if sorted(map(str, indices[1 : 1 + pieces])) != sorted(map(str, plain[1 : 1 + pieces])):
        return None
    digits: dict[int, Dim] = {}
    rest = dims.axis(CHANNEL, channels)
    for axis in reversed(within):
        digits[axis] = dims.mod(rest, shape[axis])
        rest = dims.floordiv(rest, shape[axis])
    place: Dim = 0
    for axis in within:
        digit = dims.substitute(indices[axis], lambda atom: digits[atom.position] if isinstance(atom, Axis) else 0)
        place = place * source[axis] + digit
    return place


def _pieces(shape: Shape, channels: int) -> int:
    """How many axes after the first one make up the channels; 0 where that cannot be said."""
    total = 1
    for number, size in enumerate(shape[1:], 1):
        if not isinstance(size, int):
            return 0
        total *= size
        if total >= channels:
            return number if total == channels else 0
    return 0


def _moved(
    shuffle: Step, readers: Mapping[Value, Step], constants: dict[Value, Any], numbers: Iterator[int]
) -> dict[Value, list[Step]]:
    """What takes the place of the steps from the shuffle to the convolution that reads it, by their first results."""
    value = shuffle.results[0]
    chain: list[tuple[Step, dict[Value, int]]] = []
    end = readers.get(value)
    while end is not None and (axes := _channel_by_channel(end, value, constants)) is not None:
        chain.append((end, axes))
        value = end.results[0]
        end = readers.get(value)
    if end is None or not _takes_order(end, value, constants):
        return {shuffle.results[0]: [shuffle]}
    assert isinstance(shuffle.primitive, Map) and isinstance(shuffle.primitive.expression, Load)
    channel = shuffle.primitive.expression.indices[CHANNEL]
    assert isinstance(channel, Index)
    order = channel.value
    places = _numbers(order, _shape(value)[CHANNEL])
    found: dict[Value, list[Step]] = {shuffle.results[0]: []}
    before, current = shuffle.results[0], shuffle.operands[0]
    for link, axes in chain:
        renamed = {old: _reordered(old, axis, places, constants, numbers) for old, axis in axes.items()}
        renamed[before] = current
        before, current = link.results[0], Value(next(numbers), link.results[0].type)
        found[before] = [replace(redirect(link, renamed), results=(current,))]
    assert isinstance(end.primitive, Convolve)
    if end.primitive.groups == 1:
        weights = _reordered(end.operands[1], 0 if end.primitive.transposed else 1, places, constants, numbers)
        found[end.results[0]] = [replace(end, operands=(current, weights))]
    else:
        found[value].append(_reading(current, value, order, shuffle.origin))
    return found


def _takes_order(step: Step, x: Value, constants: Mapping[Value, Any]) -> bool:
    """Whether a step is a convolution that does not mind the order of its input's channels."""
    if not isinstance(step.primitive, Convolve) or step.operands[0] != x:
        return False
    pointwise = all(size == 1 for size in _shape(step.operands[1])[2:])
    return step.operands[1] in constants if step.primitive.groups == 1 else pointwise


def _channel_by_channel(step: Step, x: Value, constants: Mapping[Value, Any]) -> dict[Value, int] | None:
    """The axis that the channels are for each constant that a step has beside x; None where it mixes channels."""
    channels = _shape(x)[CHANNEL]
    match step.primitive:
        case Convolve(groups=groups):
            alone = groups == channels == _shape(step.results[0])[CHANNEL]
            return {step.operands[1]: 0} if alone and step.operands[1] in constants else None
        case Map(expression) if _shape(step.results[0]) == _shape(x):
            return _constant_axes(expression, step, x, constants)
    return None


def _constant_axes(expression: Scalar, step: Step, x: Value, constants: Mapping[Value, Any]) -> dict[Value, int] | None:
    shape = _shape(x)
    plain = tuple(Index(dims.axis(axis, size)) for axis, size in enumerate(shape))
    found: dict[Value, int] = {}
    for node in walk(expression):
        inner = (node,) if node is expression else node.arguments if isinstance(node, Apply) else ()
        if any(isinstance(part, Index) and _along_channels(part) for part in inner):
            return None
        if not isinstance(node, Load):
            continue
        value = step.operands[node.operand]
        if value == x:
            if node.indices != plain:
                return None
            continue
        along = [axis for axis, index in enumerate(node.indices) if _along_channels(index)]
        if not along:
            continue
        whole = node.indices[along[0]] == plain[CHANNEL] and _shape(value)[along[0]] == shape[CHANNEL]
        if value not in constants or len(along) > 1 or not whole or found.setdefault(value, along[0]) != along[0]:
            return None
    return found


def _along_channels(scalar: Scalar) -> bool:
    indices = [node.value for node in walk(scalar) if isinstance(node, Index)]
    return any(isinstance(atom, Axis) and atom.position == CHANNEL for value in indices for atom in dims.atoms(value))


def _reordered(value: Value, axis: int, places: Array, constants: dict[Value, Any], numbers: Iterator[int]) -> Value:
    """A constant whose channels lie where those of the shuffle's source do."""
    array = np.empty_like(constants[value], order="C")
    array[(slice(None),) * axis + (places,)] = constants[value]
    moved = Value(next(numbers), value.type)
    constants[moved] = array
    return moved


def _numbers(order: Dim, channels: Dim) -> Array:
    assert isinstance(channels, int)
    place = dims.symbol("place", 0)
    named = dims.substitute(order, lambda _: place)
    return np.array([dims.evaluate(named, {"place": at}) for at in range(channels)])


def _type(value: Value) -> TensorType:
    assert isinstance(value.type, TensorType)
    return value.type


def _shape(value: Value) -> Shape:
    return value.type.shape or () if isinstance(value.type, TensorType) else ()
