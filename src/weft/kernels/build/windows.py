"""Windows of a convolution: which input positions meet which taps of the kernel along each spatial axis.

A transposed convolution is split into plain ones (phases), one for each residue of the output position modulo the
stride: the outputs of a phase use the same taps, and step through the input one by one.
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
    """Along one axis: output first + q * step, for q < count, reads input base + q * advance + t * dilation at tap t.

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


def input_dilations(primitive: Convolve) -> tuple[int, ...]:
    """Return the input dilation of each axis: how far apart input elements are placed, with zeros between them.

    It is 1 except for transposed convolutions whose phases depend on padding that is known only at run time.
    """
    axes = zip(primitive.strides, primitive.pads)
    return tuple(s if primitive.transposed and not isinstance(dims.mod(p, s), int) else 1 for s, (p, _) in axes)


def find_phases(primitive: Convolve, kernel: Sequence[Dim], outputs: Sequence[Dim]) -> list[Phase]:
    """Split a convolution of the dilated input into plain convolutions that together give the result."""
    along = []
    axes = zip(primitive.strides, input_dilations(primitive), primitive.dilations, primitive.pads, kernel, outputs)
    for stride, distance, dilation, (pad, _), taps, count in axes:
        if not primitive.transposed:
            along.append([Window(count, -pad, stride, dilation, taps)])
        else:
            along.append(_split_transposed(stride // distance, dilation, pad, taps, count))
    return list(cartesian(*along))


def _split_transposed(stride: int, dilation: int, pad: Dim, kernel: Dim, outputs: Dim) -> list[Window]:
    """Return a window per residue: output o and tap k read input (o + pad - k * dilation) / stride, if integral."""
    common = gcd(stride, dilation)
    step = stride // common
    windows = []
    for residue in range(stride):
        start, rest = dims.floordiv(residue + pad, stride), dims.mod(residue + pad, stride)
        assert isinstance(rest, int)
        count = dims.ceildiv(outputs - residue, stride)
        if count == 0:
            continue
        fitting = [k for k in range(step) if (rest - k * dilation) % stride == 0]
        if fitting and not dims.is_at_least(fitting[0], kernel):
            first = fitting[0]
            taps = dims.ceildiv(kernel - first, step)  # first < step: 0 if the kernel turns out smaller at run time
            base = start + (rest - first * dilation) // stride
        else:  # no tap meets these outputs: they are 0
            first, taps, base = 0, 0, start
        spacing = dilation // common
        last = taps - 1
        flipped = Window(count, base - last * spacing, 1, spacing, taps, residue, stride, first + last * step, -step)
        windows.append(flipped if taps != 0 else Window(count, 0, 0, 1, 0, residue, stride))
    return windows


def find_input_range(group: Sequence[Phase], axis: int, size: Dim) -> tuple[Dim, Dim]:
    """Return the (lowest, highest) input position along an axis over all phases; it covers the whole input."""
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
