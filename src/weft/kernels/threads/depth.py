"""The reduction axes of a product, cut into depth tiles of a fixed length.

Where the innermost loop axis is long, a depth tile lies within it, and positions along the other axes are the same for
all its elements. Otherwise a depth tile is a range of all loop axes flattened, and every element has its own position
along each.
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.ir import dims
from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.ir.kernel import Call, Code, Integer, Statement
from weft.kernels.build.loop_axes import LoopAxis, unravel_index
from weft.kernels.lower.kernel_builder import KernelBuilder, let, repeat
from weft.records import dataclass

_LONG = 8  # with this many depth tiles along a loop axis, a partial last one costs little


@dataclass(frozen=True, slots=True)
class DepthTile:
    """A depth tile: its number along the innermost loop axis (or all of them), and positions along the others."""

    number: Dim
    sums: tuple[Dim, ...]


class Depth:
    """`tiles` depth tiles of `depth` elements. With `literal`, constant divisors are literals, not parameters."""

    def __init__(
        self, loop_axes: Sequence[LoopAxis], builder: KernelBuilder, depth: int, *, literal: bool = False
    ) -> None:
        self.depth, self.builder = depth, builder
        sizes = [loop_axis.size for loop_axis in loop_axes]
        self.is_nested = len(sizes) > 1 and _fills_tiles(sizes[-1], depth)
        length = sizes[-1] if self.is_nested else dims.product(sizes)
        inner_tiles = dims.ceildiv(length, depth)
        outer = sizes[:-1] if self.is_nested else []
        self.tiles = dims.product(outer) * inner_tiles
        self.is_exact = dims.mod(length, depth) == 0 and dims.is_at_least(dims.product(sizes), 1)
        self._length = length if self.is_exact else builder.parameter("depth", length)

        def divisor(name: str, size: Dim) -> Dim:
            positive = dims.maximum(size, 1)
            return positive if literal and isinstance(positive, int) else builder.parameter(name, positive)

        self._inner_tiles = divisor("pieces_each", inner_tiles) if self.is_nested else 1
        divided = outer if self.is_nested else sizes
        divisors = [divisor(f"sums{n}", size) if n else size for n, size in enumerate(divided)]
        self._sizes = [1 if n == 0 else size for n, size in enumerate(divisors)]  # the first is never divided by
        self._loops = [builder.parameter(f"loop{n}", size) for n, size in enumerate(outer)]

    def tile(self, hint: str) -> DepthTile:
        """Create variables for a depth tile; `begin` or `loop_over_tiles` defines them."""
        number = self.builder.variable(f"{hint}_piece")
        outer = len(self._sizes) if self.is_nested else 0
        return DepthTile(number, tuple(self.builder.variables(f"{hint}_sum", outer)))

    def begin(self, tile: DepthTile, number: Dim) -> list[Statement]:
        """Define a depth tile by its number among all."""
        if not self.is_nested:
            return [let(tile.number, number)]
        positions = unravel_index(dims.floordiv(number, self._inner_tiles), self._sizes)
        lets = [let(name, position) for name, position in zip(tile.sums, positions)]
        return [let(tile.number, dims.mod(number, self._inner_tiles)), *lets]

    def loop_over_tiles(
        self, tile: DepthTile, before: Sequence[Statement], body: Sequence[Statement]
    ) -> list[Statement]:
        """Run `body` for all depth tiles, and `before` whenever an outer position changes."""
        stop = self._inner_tiles if self.is_nested else self.builder.parameter("pieces", self.tiles)
        loops: list[Statement] = [*before, repeat(tile.number, 0, stop, 1, body)]
        for position, size in reversed(list(zip(tile.sums, self._loops))):
            loops = [repeat(position, 0, size, 1, loops)]
        return loops

    def outer(self, tile: DepthTile) -> list[Dim]:
        """Return the position along each loop axis that all elements of a depth tile share; 0 where they differ."""
        return [*tile.sums, 0] if self.is_nested else [0] * len(self._sizes)

    def inner(self, tile: DepthTile, within: Dim) -> list[Dim]:
        """Return the positions along each loop axis of one element, to be added to the outer ones."""
        index = self._index(tile, within)
        if self.is_nested:
            return [*(0 for _ in self._sizes), index]
        return unravel_index(index, self._sizes) if self._sizes else []

    def test(self, tile: DepthTile, within: Dim) -> list[Code]:
        """Return the condition under which an element exists."""
        if self.is_exact:
            return []
        return [Call("less", (Integer(self._index(tile, within)), Integer(self._length)), DType.bool)]

    def _index(self, tile: DepthTile, within: Dim) -> Dim:
        return self.depth * tile.number + within


def _fills_tiles(size: Dim, depth: int) -> bool:
    """Whether depth tiles along one loop axis leave few elements idle."""
    return dims.mod(size, depth) == 0 or not isinstance(size, int) or size >= _LONG * depth
