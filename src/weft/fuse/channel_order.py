"""Orders of channels: maps that only say which channel of a value lies where.

A 1 x 1 convolution reads its input channel by channel, and so takes each from where it lies without such a map being
done: channel shuffles before convolutions with groups, and slices of channels, cost nothing then.
"""

from __future__ import annotations

from weft.ir import dims
from weft.ir.dims import Axis, Dim
from weft.ir.program import Convolve, Map, Step, TensorProgram, Value, tensor_dtype
from weft.ir.scalar import Index, Load
from weft.ir.types import Shape, TensorType

CHANNEL = 1
MOST_PERIOD = 16  # channels after which an order must repeat itself


def read_in_place(program: TensorProgram) -> set[Value]:
    """What convolutions read, each its only reader, from maps that give channels an order."""
    makers = {step.results[0]: step for step in program.steps if isinstance(step.primitive, Map)}
    uses: dict[Value, int] = {}
    for value in (*program.outputs, *(operand for step in program.steps for operand in step.operands)):
        uses[value] = uses.get(value, 0) + 1
    return {
        step.operands[0]
        for step in program.steps
        if isinstance(step.primitive, Convolve) and _takes_any_order(step.primitive, step)
        if step.operands[0] in makers and uses[step.operands[0]] == 1
        if channel_order(makers[step.operands[0]]) is not None
    }


def _takes_any_order(primitive: Convolve, step: Step) -> bool:
    """Whether the kernel is 1 x 1, without padding, and sums up several channels."""
    x, w = step.operands
    if primitive.transposed or any(pad != (0, 0) for pad in primitive.pads) or tensor_dtype(x) is not tensor_dtype(w):
        return False
    return _shape(w)[1] != 1 and all(size == 1 for size in _shape(w)[2:])


def channel_order(step: Step) -> Dim | None:
    """Which channel of its operand a map puts at place i1 of [N, C, *S]; None where that is not all that it does."""
    assert isinstance(step.primitive, Map)
    load, shape = step.primitive.expression, _shape(step.results[0])
    if not isinstance(load, Load) or load.checked or len(load.indices) != len(shape) or len(shape) < 3:
        return None
    plain = [Index(dims.axis(axis, size)) for axis, size in enumerate(shape)]
    if any(index != place for axis, (index, place) in enumerate(zip(load.indices, plain)) if axis != CHANNEL):
        return None
    source, index = _shape(step.operands[0]), load.indices[CHANNEL]
    if not isinstance(index, Index) or source[:1] + source[2:] != shape[:1] + shape[2:]:
        return None
    others = [atom for atom in dims.atoms(index.value) if isinstance(atom, Axis) and atom.position != CHANNEL]
    inside = dims.is_at_least(index.value, 0) and dims.is_at_least(source[CHANNEL] - 1, index.value)
    known = inside and not others and not dims.symbols(index.value) and period_of(index.value)[0]
    return index.value if known else None


def period_of(order: Dim) -> tuple[int, int]:
    """After how many channels an order goes on as before, and how much further along; (0, 0) if it does not soon."""
    turn = dims.symbol("turn", 0)

    def at(place: Dim) -> Dim:
        return dims.substitute(order, lambda _: place)

    for period in range(1, MOST_PERIOD + 1):
        advance = at(period) - at(0)
        if isinstance(advance, int) and all(
            at(turn * period + place) == at(place) + turn * advance for place in range(period)
        ):
            return period, advance
    return 0, 0


def _shape(value: Value) -> Shape:
    return (value.type.shape or ()) if isinstance(value.type, TensorType) else ()
