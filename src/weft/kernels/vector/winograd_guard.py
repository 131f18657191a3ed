"""Decide which tiles may be transformed: those that stay within float32, and whose values are of similar magnitude.

A tile's transform mixes values that plain sums keep apart. Let |x| be the root of the sum of squares over a tile, all
channels together, and |w| that over a feature's weights. The rounding error of each output is at most k g eps |x| |w|,
where k counts the operations, and g is the largest sum of |output| |kernel| |input| over the points: along an axis 2
for tiles of 2 outputs and 6.2 for tiles of 4, along two axes 4 and 38.4 (with 5 taps, in tiles of 2 outputs, about as
much as with 3 in tiles of 4). The error of plain sums is k eps |x| |w| with x over the output's own window. So the two
are comparable if no window is much weaker than its tile.

- Tiles of 2 outputs: a transformed value that an output reads contains only values of its own window (the factors of
  others are 0, and not multiplied), so other windows cannot spoil it.
- Tiles of 4 outputs: along an axis the windows of outputs 0 and 1 contain the positions 1 and 2, those of outputs 2
  and 3 the positions 3 and 4. A tile is safe if its squares are on average at most `MAX_UNEVENNESS` times those in its
  weakest block of such positions: |x| of a tile is then less than 100 times that of any of its windows. In activations
  of real networks the ratio is at most 16, except in about one of ten thousand tiles; a block of zeros beside other
  values is never safe.
- Values so large that a transform might overflow, or so small that it might underflow, are unsafe, as are NaN and
  infinity: comparisons with NaN fail. With weights below 2^32 no intermediate value of a safe tile exceeds
  2^70 (the sum of |x|) 28 (input's factors) 2^32 2 (weights) 68 (output's factors) < 2^116.

The decision depends on a tile's own values alone. Unsafe tiles are computed as plain sums.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import prod

import numpy as np

from weft.ir.arrays import Array
from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.ir.kernel import Across, Call, Code, Integer, Number, Statement
from weft.ir.target import VectorTarget
from weft.kernels.build.multiply_add import multiply_add
from weft.kernels.lower.kernel_builder import KernelBuilder, assign, define
from weft.kernels.lower.operations import logical_and, logical_not, logical_or

MAX_UNEVENNESS = 1024  # of the average square in a tile over that in its weakest block
SQUARES = (2.0**-120, 2.0**120)  # bounds of the sum of squares in a tile, unless it is 0
# first output, and the positions that all windows from there to the next block's first contain
_BLOCKS: dict[int, tuple[tuple[int, tuple[int, ...]], ...]] = {1: ((0, (0,)),), 4: ((0, (1, 2)), (2, (3, 4)))}


class TileGuard:
    """Builds the statements of the input's transform that decide whether a tile is safe."""

    def __init__(
        self,
        target: VectorTarget,
        builder: KernelBuilder,
        sizes: Sequence[int],
        sides: Sequence[int],
        dilations: Sequence[int],
    ) -> None:
        """`sizes` and `sides` are a tile's outputs and inputs along each axis, `dilations` apart in the image."""
        self.target = target
        self.builder = builder
        blocks = list(product(*(_BLOCKS[size] for size in sizes))) if all(size in _BLOCKS for size in sizes) else []
        self.firsts = [[first * apart for (first, _), apart in zip(block, dilations)] for block in blocks]
        self.places = [list(product(*(positions for _, positions in block))) for block in blocks]
        used = {place for places in self.places for place in places}
        self.other_places = [place for place in np.ndindex(*sides) if place not in used]
        self.max_ratios = [MAX_UNEVENNESS * prod(sides) / len(places) for places in self.places]
        self.strengths = builder.registers("strength", len(self.places) + 1, DType.float32)

    def begin(self) -> list[Statement]:
        """Clear the sums before a tile."""
        return [define(strength, _number(0)) for strength in self.strengths]

    def accumulate(self, tile: Array) -> list[Statement]:
        """Add the squares of some channels of a tile, an array of vectors."""
        statements: list[Statement] = []
        for total, places in zip(self.strengths, (*self.places, self.other_places)):
            values = [tile[place] for place in places]
            statements += [assign(total, multiply_add(self.target, value, value, total)) for value in values]
        return statements

    def finish(self, outputs: Sequence[Dim], sizes: Sequence[Dim]) -> tuple[list[Statement], Code]:
        """Return whether a tile is unsafe; its first output is at `outputs` in a result of these sizes.

        Blocks whose outputs are all outside the result are ignored.
        """
        registers = [self.builder.keep("strength_sum", Across("sum", strength)) for strength in self.strengths]
        statements: list[Statement] = [defined for defined, _ in registers]
        sums = [strength_sum for _, strength_sum in registers]
        strength_total: Code = sums[0]
        for strength_sum in sums[1:]:
            strength_total = Call("add", (strength_total, strength_sum), DType.float32)
        defined, total = self.builder.keep("total", strength_total)
        statements.append(defined)
        low, high = SQUARES
        safe = logical_or(_compare("greater_equal", total, _number(low)), _compare("less_equal", total, _number(0)))
        safe = logical_and(safe, _compare("less_equal", total, _number(high)))
        for strength, firsts, max_ratio in zip(sums, self.firsts, self.max_ratios):
            limit = Call("multiply", (_number(max_ratio), strength), DType.float32)
            even = _compare("less_equal", total, limit)
            for first, output, size in zip(firsts, outputs, sizes):
                if first:
                    outside = Call("less_equal", (Integer(size), Integer(output + first)), DType.bool)
                    even = logical_or(even, outside)
            safe = logical_and(safe, even)
        return statements, logical_not(safe)


def _number(value: float) -> Number:
    return Number(float(value), DType.float32)


def _compare(function: str, left: Code, right: Code) -> Code:
    return Call(function, (left, right), DType.bool)
