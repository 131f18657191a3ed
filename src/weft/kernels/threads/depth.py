"""The sums of a product in pieces of a fixed depth.

Where the innermost loop axis is long, a piece lies within it, and the others stand still for all its elements; else a
piece is a stretch of all loop axes together, and every element finds its place along each.
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.ir import dims
from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.ir.kernel import Call, Code, Integer, Statement
from weft.kernels.build.loop_axes import LoopAxis, split_index
from weft.kernels.lower.kernel_builder import KernelBuilder, let, repeat
from weft.records import dataclass

_LONG = 8  # pieces of a loop axis from which on one that is not full does not matter


@dataclass(frozen=True, slots=True)
class DepthPiece:
    """Where a piece is: its number, along the innermost loop axis or all of them, and its places along the others."""

    number: Dim
    sums: tuple[Dim, ...]


class Depth:
    """Pieces of `depth` sums; `pieces` is their number. Sizes that are divided by are parameters, or `literal`."""

    def __init__(
        self, loop_axes: Sequence[LoopAxis], builder: KernelBuilder, depth: int, *, literal: bool = False
    ) -> None:
        self.depth, self.builder = depth, builder
        sizes = [loop_axis.size for loop_axis in loop_axes]
        self.nested = len(sizes) > 1 and _suits(sizes[-1], depth)
        whole = sizes[-1] if self.nested else dims.product(sizes)
        each = dims.ceildiv(whole, depth)
        outer = sizes[:-1] if self.nested else []
        self.pieces = dims.product(outer) * each
        self.is_exact = dims.mod(whole, depth) == 0 and dims.is_at_least(dims.product(sizes), 1)
        self._whole = whole if self.is_exact else builder.named("depth", whole)

        def divisor(name: str, size: Dim) -> Dim:
            known = dims.maximum(size, 1)
            return known if literal and isinstance(known, int) else builder.named(name, known)

        self._each = divisor("pieces_each", each) if self.nested else 1
        inner = outer if self.nested else sizes
        named = [divisor(f"sums{n}", size) if n else size for n, size in enumerate(inner)]
        self._sizes = [1 if n == 0 else size for n, size in enumerate(named)]  # the first one is never divided by
        self._loops = [builder.named(f"loop{n}", size) for n, size in enumerate(outer)]

    def piece(self, hint: str) -> DepthPiece:
        """Variables for a piece, which `begin` or `loops` introduces."""
        number = self.builder.variable(f"{hint}_piece")
        return DepthPiece(number, tuple(self.builder.variables(f"{hint}_sum", len(self._sizes) if self.nested else 0)))

    def begin(self, piece: DepthPiece, number: Dim) -> list[Statement]:
        """Where the piece of a number among all is."""
        if not self.nested:
            return [let(piece.number, number)]
        places = split_index(dims.floordiv(number, self._each), self._sizes)
        lets = [let(name, place) for name, place in zip(piece.sums, places)]
        return [let(piece.number, dims.mod(number, self._each)), *lets]

    def loops(self, piece: DepthPiece, before: Sequence[Statement], body: Sequence[Statement]) -> list[Statement]:
        """All pieces, one after the other; `before` each stretch of them that has the outer places in common."""
        stop = self._each if self.nested else self.builder.named("pieces", self.pieces)
        found: list[Statement] = [*before, repeat(piece.number, 0, stop, 1, body)]
        for place, size in reversed(list(zip(piece.sums, self._loops))):
            found = [repeat(place, 0, size, 1, found)]
        return found

    def outer(self, piece: DepthPiece) -> list[Dim]:
        """Where all elements of a piece are along each loop axis; 0 along those that they differ in."""
        return [*piece.sums, 0] if self.nested else [0] * len(self._sizes)

    def inner(self, piece: DepthPiece, within: Dim) -> list[Dim]:
        """Where an element of a piece is besides."""
        index = self._index(piece, within)
        if self.nested:
            return [*(0 for _ in self._sizes), index]
        return split_index(index, self._sizes) if self._sizes else []

    def test(self, piece: DepthPiece, within: Dim) -> list[Code]:
        """The condition under which there is such an element."""
        if self.is_exact:
            return []
        return [Call("less", (Integer(self._index(piece, within)), Integer(self._whole)), DType.bool)]

    def _index(self, piece: DepthPiece, within: Dim) -> Dim:
        return self.depth * piece.number + within


def _suits(size: Dim, depth: int) -> bool:
    """Whether pieces of one loop axis leave few elements idle."""
    return dims.mod(size, depth) == 0 or not isinstance(size, int) or size >= _LONG * depth
