"""The sums of a product in pieces of a fixed depth.

Where the innermost walk is long, a piece lies within it, and the other walks stand still for all its elements; else a
piece is a stretch of all walks together, and every element finds its place along each.
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.ir import dims
from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.ir.kernel import Call, Code, Integer, Let, Repeat, Statement, variable
from weft.kernels.build.loop_axes import LoopAxis, split_index
from weft.kernels.lower.parameters import Parameters

_LONG = 8  # pieces of a walk from which on one that is not full does not matter


class Depth:
    """Pieces of `depth` sums; `pieces` is their number. Names of the pieces at hand are given by who asks."""

    def __init__(self, loop_axes: Sequence[LoopAxis], parameters: Parameters, depth: int) -> None:
        self.depth, self.parameters = depth, parameters
        sizes = [loop_axis.size for loop_axis in loop_axes]
        self.nested = len(sizes) > 1 and _suits(sizes[-1], depth)
        whole = sizes[-1] if self.nested else dims.product(sizes)
        each = dims.ceildiv(whole, depth)
        outer = sizes[:-1] if self.nested else []
        self.pieces = dims.product(outer) * each
        self.is_exact = dims.mod(whole, depth) == 0 and dims.is_at_least(dims.product(sizes), 1)
        self._whole = whole if self.is_exact else parameters.named("depth", whole)
        self._each = parameters.named("pieces_each", dims.maximum(each, 1)) if self.nested else 1
        inner = outer if self.nested else sizes
        named = [parameters.named(f"sums{n}", dims.maximum(size, 1)) if n else size for n, size in enumerate(inner)]
        self._sizes = [1 if n == 0 else size for n, size in enumerate(named)]  # the first one is never divided by
        self._loops = [parameters.named(f"loop{n}", size) for n, size in enumerate(outer)]

    def begin(self, piece: Dim, name: str) -> list[Statement]:
        """Names for where a piece is."""
        if not self.nested:
            return [Let(f"{name}piece", piece)]
        statements: list[Statement] = [Let(f"{name}piece", dims.mod(piece, self._each))]
        rest = dims.floordiv(piece, self._each)
        for number, place in enumerate(split_index(rest, self._sizes)):
            statements.append(Let(f"{name}sum{number}", place))
        return statements

    def loops(self, name: str, before: Sequence[Statement], body: Sequence[Statement]) -> list[Statement]:
        """All pieces, one after the other; `before` each stretch of them that has the outer places in common."""
        stop = self._each if self.nested else self.parameters.named("pieces", self.pieces)
        found: list[Statement] = [*before, Repeat(f"{name}piece", 0, stop, 1, tuple(body))]
        for number, size in reversed(list(enumerate(self._loops))):
            found = [Repeat(f"{name}sum{number}", 0, size, 1, tuple(found))]
        return found

    def outer(self, name: str) -> list[Dim]:
        """Where all elements of a piece are along each walk; 0 along those that they differ in."""
        if not self.nested:
            return [0] * len(self._sizes)
        return [*(variable(f"{name}sum{number}") for number in range(len(self._sizes))), 0]

    def inner(self, name: str, within: Dim) -> list[Dim]:
        """Where an element of a piece is besides."""
        index = self._index(name, within)
        if self.nested:
            return [*(0 for _ in self._sizes), index]
        return split_index(index, self._sizes) if self._sizes else []

    def test(self, name: str, within: Dim) -> list[Code]:
        """The condition under which there is such an element."""
        if self.is_exact:
            return []
        return [Call("less", (Integer(self._index(name, within)), Integer(self._whole)), DType.bool)]

    def _index(self, name: str, within: Dim) -> Dim:
        return self.depth * variable(f"{name}piece") + within


def _suits(size: Dim, depth: int) -> bool:
    """Whether pieces of one walk leave few elements idle."""
    return dims.mod(size, depth) == 0 or not isinstance(size, int) or size >= _LONG * depth
