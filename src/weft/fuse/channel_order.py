"""Match maps that only reorder channels, which 1 x 1 convolutions can read through.

A 1 x 1 convolution reads its input channel by channel, in any order. So channel shuffles before grouped convolutions
and slices of channels need no copy.
"""

from __future__ import annotations

from weft.ir import dims
from weft.ir.dims import Axis, Dim
from weft.ir.program import Convolve, Map, Step, TensorProgram, Value
from weft.ir.scalar import Index, Load, identity_indices

CHANNEL = 1
MOST_PERIOD = 16  # limit on the channels after which an order repeats


def find_channel_reorderings(program: TensorProgram) -> set[Value]:
    """Find the results of channel reorderings whose only reader is a convolution that can read through them."""
    makers = {step.results[0]: step for step in program.steps if isinstance(step.primitive, Map)}
    uses: dict[Value, int] = {}
    for value in (*program.outputs, *(operand for step in program.steps for operand in step.operands)):
        uses[value] = uses.get(value, 0) + 1
    return {
        step.operands[0]
        for step in program.steps
        if isinstance(step.primitive, Convolve) and _reads_any_channel_order(step.primitive, step)
        if step.operands[0] in makers and uses[step.operands[0]] == 1
        if match_channel_order(makers[step.operands[0]]) is not None
    }


def _reads_any_channel_order(primitive: Convolve, step: Step) -> bool:
    """Whether the convolution is 1 x 1, without padding, and sums over several channels."""
    x, w = step.operands
    if primitive.transposed or any(pad != (0, 0) for pad in primitive.pads):
        return False
    if x.dtype is not w.dtype and not x.dtype.is_float:
        return False
    return w.shape[1] != 1 and all(size == 1 for size in w.shape[2:])


def match_channel_order(step: Step) -> Dim | None:
    """Return the source channel of channel i1 if a map of [N, C, *S] only reorders channels, else None."""
    assert isinstance(step.primitive, Map)
    load, shape = step.primitive.expression, step.results[0].shape
    if not isinstance(load, Load) or load.checked or len(load.indices) != len(shape) or len(shape) < 3:
        return None
    own_indices = identity_indices(shape)
    if any(
        index != expected for axis, (index, expected) in enumerate(zip(load.indices, own_indices)) if axis != CHANNEL
    ):
        return None
    source, index = step.operands[0].shape, load.indices[CHANNEL]
    if not isinstance(index, Index) or source[:1] + source[2:] != shape[:1] + shape[2:]:
        return None
    others = [atom for atom in dims.atoms(index.value) if isinstance(atom, Axis) and atom.position != CHANNEL]
    inside = dims.is_at_least(index.value, 0) and dims.is_at_least(source[CHANNEL] - 1, index.value)
    is_periodic = inside and not others and not dims.symbols(index.value) and find_period(index.value)[0]
    return index.value if is_periodic else None


def find_period(order: Dim) -> tuple[int, int]:
    """Return the period of an order and its advance per period; (0, 0) if there is no short period."""
    repetition = dims.symbol("repetition", 0)

    def at(channel: Dim) -> Dim:
        return dims.substitute(order, lambda _: channel)

    for period in range(1, MOST_PERIOD + 1):
        advance = at(period) - at(0)
        if isinstance(advance, int) and all(
            at(repetition * period + channel) == at(channel) + repetition * advance for channel in range(period)
        ):
            return period, advance
    return 0, 0
