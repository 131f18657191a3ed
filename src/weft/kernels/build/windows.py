"""Where a convolution's windows lie: along each spatial axis, which input positions meet which taps of the kernel.

A transposed convolution is several plain ones, one for each residue of the output position by the stride (a phase):
the outputs of a phase use the same taps, and step through the input one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product as cartesian
from math import gcd

from weft.ir import dims
from weft.ir.dims import Dim
from weft.ir.program import Convolve
from weft.records import dataclass


@dataclass(frozen=True, slots=True)
class Window:
    """Along one axis: output first + q * step, for q < count, takes input base + q * advance + t * dilation at tap t.

    Tap t, of `taps`, is the kernel's element tap_first + t * tap_step. Input positions may lie outside.
    """

    count: Dim
    base: Dim
    advance: int
    dilation: int
    taps: Dim
    first: int = 0
    step: int = 1
    tap_first: Dim = 0
    tap_step: int = 1

    @property
    def last(self) -> Dim:
        """The greatest input position."""
        return self.base + (self.count - 1) * self.advance + (self.taps - 1) * self.dilation


Phase = tuple[Window, ...]


def distances(primitive: Convolve) -> tuple[int, ...]:
    """How far apart the input's elements are to be put along each axis, with zeros between them.

    That is 1 but where a transposed convolution's phases depend on a padding that only the run will tell.
    """
    given = zip(primitive.strides, primitive.pads)
    return tuple(s if primitive.transposed and not isinstance(dims.mod(p, s), int) else 1 for s, (p, _) in given)


def phases(primitive: Convolve, kernel: Sequence[Dim], outputs: Sequence[Dim]) -> list[Phase]:
    """The plain convolutions, of the input with those distances, that together give the result."""
    along = []
    axes = zip(primitive.strides, distances(primitive), primitive.dilations, primitive.pads, kernel, outputs)
    for stride, distance, dilation, (pad, _), taps, count in axes:
        if not primitive.transposed:
            along.append([Window(count, -pad, stride, dilation, taps)])
        else:
            along.append(_transposed(stride // distance, dilation, pad, taps, count))
    return list(cartesian(*along))


def _transposed(stride: int, dilation: int, pad: Dim, kernel: Dim, outputs: Dim) -> list[Window]:
    """For output o and tap k the input is (o + pad - k * dilation) / stride, where that is whole."""
    common = gcd(stride, dilation)
    step = stride // common
    found = []
    for residue in range(stride):
        start, rest = dims.floordiv(residue + pad, stride), dims.mod(residue + pad, stride)
        assert isinstance(rest, int)
        count = dims.ceildiv(outputs - residue, stride)
        if count == 0:
            continue
        fitting = [k for k in range(step) if (rest - k * dilation) % stride == 0]
        if fitting and not dims.is_at_least(fitting[0], kernel):
            first = fitting[0]
            taps = dims.ceildiv(kernel - first, step)  # first < step: 0 where the run's kernel is smaller
            base = start + (rest - first * dilation) // stride
        else:  # no tap meets these outputs: they are 0
            first, taps, base = 0, 0, start
        spread = dilation // common
        last = taps - 1
        flipped = Window(count, base - last * spread, 1, spread, taps, residue, stride, first + last * step, -step)
        found.append(flipped if taps != 0 else Window(count, 0, 0, 1, 0, residue, stride))
    return found


def needed(group: Sequence[Phase], axis: int, size: Dim) -> tuple[Dim, Dim]:
    """(lowest, highest) input position along an axis over all phases, at least the input's own where undecided."""
    windows = [phase[axis] for phase in group if phase[axis].taps != 0]
    low: Dim = 0
    high: Dim = size - 1
    inside = all(dims.is_at_least(w.base, 0) and dims.is_at_least(size - 1, w.last) for w in windows)
    if inside:
        return low, high
    for window in windows:
        low = dims.minimum(low, window.base)
        high = dims.maximum(high, window.last)
    return low, high
