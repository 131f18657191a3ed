"""Tiles: the part of a product that a block computes, and how its lanes share it."""

from __future__ import annotations

from dataclasses import dataclass

from weft.ir import dims
from weft.ir.dims import Dim
from weft.ir.kernel import lane

RUN = 4
_TOGETHER = 32  # lanes that a device runs in step
_NEAR = 4  # of these, along the rows: they read the same columns


@dataclass(frozen=True, slots=True)
class Tile:
    """`high` times `wide` lanes, each with `rows` times `columns` sums, both multiples of four; `depth` at a time.

    Shared: operands go through memory that the lanes share. `unroll` of the depth are written out in the kernel.
    """

    high: int
    wide: int
    rows: int
    columns: int
    depth: int
    shared: bool
    unroll: int

    @property
    def lanes(self) -> int:
        return self.high * self.wide

    @property
    def height(self) -> int:
        return self.high * self.rows

    @property
    def width(self) -> int:
        return self.wide * self.columns

    def bytes(self, element: int) -> int:
        """Shared memory that it takes at most."""
        return (self.height + self.width + 2 * RUN) * self.depth * element if self.shared else 0

    def row(self, group: int) -> Dim:
        """The first of four rows of a lane, of which it has several groups."""
        near = min(_NEAR, self.high)
        y, _ = self._corner()
        return (y * self.rows + group * near * RUN) + self._inner()[0] * RUN

    def column(self, group: int) -> Dim:
        """The first of four columns."""
        _, x = self._corner()
        return x * self.columns + group * self._beside() * RUN + self._inner()[1] * RUN

    def _beside(self) -> int:
        return min(max(_TOGETHER // min(_NEAR, self.high), 1), self.wide)

    def _corner(self) -> tuple[Dim, Dim]:
        """Lanes above and to the left of those that run together with this one."""
        near, beside = min(_NEAR, self.high), self._beside()
        bundle = dims.floordiv(lane(self.lanes), near * beside)
        along = self.wide // beside
        return dims.floordiv(bundle, along) * near, dims.mod(bundle, along) * beside

    def _inner(self) -> tuple[Dim, Dim]:
        """Where a lane is among those that run together."""
        near, beside = min(_NEAR, self.high), self._beside()
        here = lane(self.lanes)
        return dims.mod(dims.floordiv(here, beside), near), dims.mod(here, beside)
