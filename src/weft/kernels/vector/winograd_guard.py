"""Which tiles and weights may be transformed: those that stay within float32, and whose values are of one size.

A tile's transform mixes values that plain sums keep apart. Let |x| be the root of the sum of squares over a tile, all
channels together, and |w| that over a feature's weights. Rounding leaves at most k g eps |x| |w| in each output, where
k counts operations on the way, and g is the largest sum of |output| |kernel| |input| over the points: along an axis 2
for tiles of 2 outputs and 6.2 for tiles of 4, along two axes 4 and 38.4 (with 5 taps, in tiles of 2 outputs, about as
much as with 3 in tiles of 4). Plain sums leave k eps |x| |w| with x over the output's own window. So the two are alike
where no window is much weaker than its tile.

- Tiles of 2 outputs: a transformed value that an output takes has only values of its own window in it (the factors of
  others are 0, and not multiplied). Nothing can spoil what does not see it.
- Tiles of 4 outputs: along an axis the windows of outputs 0 and 1 hold the positions 1 and 2, those of outputs 2 and 3
  the positions 3 and 4. A tile is harmless if the squares in it are on average at most `MOST_UNEVEN` times those in its
  weakest block of such positions: |x| of a tile is then less than 100 times that of any of its windows. In activations
  of real networks it is 16 at most, but for some in ten thousand tiles; zeros alone beside others are never harmless.
- Values so large that a transform might overflow, or so small that it might underflow, are not harmless, NaN and
  infinity included: comparisons with a NaN fail. With weights that are tame nothing on the way of a harmless tile
  is larger than 2^70 (the sum of |x|) 28 (input's factors) 2^32 2 (weights) 68 (output's factors) < 2^116.

What is decided depends on a tile's own values alone. Tiles that are not harmless are computed as plain sums.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import prod
from typing import Any

import numpy as np

from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.ir.kernel import Across, Call, Code, Integer, Number, Statement
from weft.ir.target import VectorTarget
from weft.kernels.build.multiply_add import multiply_add
from weft.kernels.lower.kernel_builder import KernelBuilder, assign, define

Array = np.ndarray[Any, Any]
MOST_UNEVEN = 1024  # times the squares in its weakest block that those of a tile may be on average
SQUARES = (2.0**-120, 2.0**120)  # the sum of those in a tile, unless it is 0
# first output, and positions that all windows hold from there on to the next block's first
_BLOCKS: dict[int, tuple[tuple[int, tuple[int, ...]], ...]] = {1: ((0, (0,)),), 4: ((0, (1, 2)), (2, (3, 4)))}


class Watch:
    """Statements of the input's transform that find out whether a tile is harmless."""

    def __init__(
        self,
        target: VectorTarget,
        builder: KernelBuilder,
        sizes: Sequence[int],
        sides: Sequence[int],
        distances: Sequence[int],
    ) -> None:
        """`sizes` and `sides` are a tile's outputs and inputs along each axis, so far apart in the image."""
        self.target = target
        self.builder = builder
        blocks = list(product(*(_BLOCKS[size] for size in sizes))) if all(size in _BLOCKS for size in sizes) else []
        self.firsts = [[first * apart for (first, _), apart in zip(block, distances)] for block in blocks]
        self.places = [list(product(*(positions for _, positions in block))) for block in blocks]
        taken = {place for places in self.places for place in places}
        self.rest = [place for place in np.ndindex(*sides) if place not in taken]
        self.most = [MOST_UNEVEN * prod(sides) / len(places) for places in self.places]
        self.strengths = builder.registers("strength", len(self.places) + 1, DType.float32)

    def begin(self) -> list[Statement]:
        """Before a tile."""
        return [define(strength, _number(0)) for strength in self.strengths]

    def take(self, tile: Array) -> list[Statement]:
        """Some channels of a tile, as an array of vectors."""
        statements: list[Statement] = []
        for total, places in zip(self.strengths, (*self.places, self.rest)):
            values = [tile[place] for place in places]
            statements += [assign(total, multiply_add(self.target, value, value, total)) for value in values]
        return statements

    def end(self, outputs: Sequence[Dim], sizes: Sequence[Dim]) -> tuple[list[Statement], Code]:
        """After a tile whose first output lies at `outputs` in a result of these sizes: whether it is not harmless.

        A block whose outputs all lie outside of the result does not matter.
        """
        made = [self.builder.keep("strength_sum", Across("sum", strength)) for strength in self.strengths]
        statements: list[Statement] = [defined for defined, _ in made]
        sums = [found for _, found in made]
        whole: Code = sums[0]
        for found in sums[1:]:
            whole = Call("add", (whole, found), DType.float32)
        defined, total = self.builder.keep("total", whole)
        statements.append(defined)
        low, high = SQUARES
        harmless = _either(_compare("greater_equal", total, _number(low)), _compare("less_equal", total, _number(0)))
        harmless = _both(harmless, _compare("less_equal", total, _number(high)))
        for strength, firsts, most in zip(sums, self.firsts, self.most):
            even = _compare("less_equal", total, Call("multiply", (_number(most), strength), DType.float32))
            for first, output, size in zip(firsts, outputs, sizes):
                if first:
                    outside = Call("less_equal", (Integer(size), Integer(output + first)), DType.bool)
                    even = _either(even, outside)
            harmless = _both(harmless, even)
        return statements, Call("logical_not", (harmless,), DType.bool)


def _number(value: float) -> Number:
    return Number(float(value), DType.float32)


def _compare(function: str, left: Code, right: Code) -> Code:
    return Call(function, (left, right), DType.bool)


def _both(left: Code, right: Code) -> Code:
    return Call("logical_and", (left, right), DType.bool)


def _either(left: Code, right: Code) -> Code:
    return Call("logical_or", (left, right), DType.bool)
