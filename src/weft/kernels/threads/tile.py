"""Tiles: the part of a product that a block computes, and how its lanes share it."""

from __future__ import annotations

from weft.ir import dims
from weft.ir.dims import Dim
from weft.ir.kernel import lane
from weft.kernels.threads.product_operands import RUN
from weft.records import dataclass

_TOGETHER = 32  # lanes that a device runs in step


@dataclass(frozen=True, slots=True)
class Tile:
    """`high` times `wide` lanes, each with `rows` times `columns` sums, both multiples of four; `depth` at a time.

    Of lanes that a device runs in step, `near` are above each other. With several `slices` there are so many lanes
    for each place, which share the depth, and at the end the rows; `interleaved`: they are neighbours. `shared`:
    operands go through shared memory; otherwise, with one lane along the rows, there may be fewer than four of them.
    """

    high: int
    wide: int
    rows: int
    columns: int
    depth: int
    shared: bool = True
    near: int = 4
    slices: int = 1
    interleaved: bool = False

    @property
    def lanes(self) -> int:
        return self.high * self.wide * self.slices

    @property
    def height(self) -> int:
        return self.high * self.rows

    @property
    def width(self) -> int:
        return self.wide * self.columns

    @property
    def steps(self) -> int:
        """Of the depth, those that a slice does."""
        return self.depth // self.slices

    @property
    def slice(self) -> Dim:
        """Which slice a lane belongs to."""
        here = lane(self.lanes)
        return dims.mod(here, self.slices) if self.interleaved else dims.floordiv(here, self.high * self.wide)

    @property
    def between(self) -> int:
        """Lanes from one slice to the next."""
        return 1 if self.interleaved else self.high * self.wide

    def bytes(self, element: int) -> int:
        """Shared memory that it takes at most."""
        pieces = (self.height + self.width + 2 * RUN) * self.depth if self.shared else 0
        rows, slices, exchanged = self.rows, self.slices, 0
        while slices > 1:
            rows, slices = max(rows // 2, 1), slices // 2
            exchanged += rows * self.columns * self.lanes
        return (pieces + exchanged) * element

    def row(self, number: Dim) -> Dim:
        """Where a lane's rows, by their number, are in the tile: four side by side, the next four further on."""
        group, part = dims.floordiv(number, RUN), dims.mod(number, RUN)
        near, _ = self._together()
        return self._corner()[0] * self.rows + (group * near + self._inner()[0]) * RUN + part

    def column(self, number: Dim) -> Dim:
        """The same for columns."""
        group, part = dims.floordiv(number, RUN), dims.mod(number, RUN)
        _, beside = self._together()
        return self._corner()[1] * self.columns + (group * beside + self._inner()[1]) * RUN + part

    def _together(self) -> tuple[int, int]:
        """How many lanes that run in step are above each other, and side by side."""
        near = min(self.near, self.high)
        return near, min(max(_TOGETHER // near, 1), self.wide)

    def _place(self) -> Dim:
        here = lane(self.lanes)
        return dims.floordiv(here, self.slices) if self.interleaved else dims.mod(here, self.high * self.wide)

    def _corner(self) -> tuple[Dim, Dim]:
        """Lanes above and to the left of those that run in step with this one."""
        near, beside = self._together()
        bundle = dims.floordiv(self._place(), near * beside)
        along = self.wide // beside
        return dims.floordiv(bundle, along) * near, dims.mod(bundle, along) * beside

    def _inner(self) -> tuple[Dim, Dim]:
        """Where a lane is among those that run in step."""
        near, beside = self._together()
        return dims.mod(dims.floordiv(self._place(), beside), near), dims.mod(self._place(), beside)
