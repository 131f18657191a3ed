"""The tile of a product that a block computes, and how its lanes share it."""

from __future__ import annotations

from weft.ir import dims
from weft.ir.dims import Dim
from weft.ir.kernel import lane
from weft.kernels.threads.product_operands import RUN
from weft.records import dataclass

_WARP = 32  # lanes that a device runs in lockstep


@dataclass(frozen=True, slots=True)
class Tile:
    """`high` times `wide` lanes, each with `rows` times `columns` sums, both multiples of four; `depth` at a time.

    `near` lanes of a warp are above each other. With several `slices`, that many lanes share the depth of each
    position, and at the end its rows; if `interleaved`, they are neighbours. If `shared`, operands go through shared
    memory; otherwise, with one lane along the rows, `rows` may be less than four.
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
        """Steps of the depth that a slice does."""
        return self.depth // self.slices

    @property
    def slice(self) -> Dim:
        """The slice that a lane belongs to."""
        here = lane(self.lanes)
        return dims.mod(here, self.slices) if self.interleaved else dims.floordiv(here, self.high * self.wide)

    @property
    def between(self) -> int:
        """The distance in lanes from one slice to the next."""
        return 1 if self.interleaved else self.high * self.wide

    def bytes(self, element: int) -> int:
        """Return an upper bound of a block's shared memory, for elements of a size."""
        operands = (self.height + self.width + 2 * RUN) * self.depth if self.shared else 0
        rows, slices, exchange = self.rows, self.slices, 0
        while slices > 1:
            rows, slices = max(rows // 2, 1), slices // 2
            exchange += rows * self.columns * self.lanes
        return (operands + exchange) * element

    def row(self, number: Dim) -> Dim:
        """Return the position in the tile of a lane's row, by its number: four neighbours, then four further on."""
        group, part = dims.floordiv(number, RUN), dims.mod(number, RUN)
        near, _ = self._warp_shape()
        return self._warp_corner()[0] * self.rows + (group * near + self._in_warp()[0]) * RUN + part

    def column(self, number: Dim) -> Dim:
        """Return the position in the tile of a lane's column, by its number."""
        group, part = dims.floordiv(number, RUN), dims.mod(number, RUN)
        _, beside = self._warp_shape()
        return self._warp_corner()[1] * self.columns + (group * beside + self._in_warp()[1]) * RUN + part

    def _warp_shape(self) -> tuple[int, int]:
        """How many lanes of a warp are above each other, and side by side."""
        near = min(self.near, self.high)
        return near, min(max(_WARP // near, 1), self.wide)

    def _position(self) -> Dim:
        here = lane(self.lanes)
        return dims.floordiv(here, self.slices) if self.interleaved else dims.mod(here, self.high * self.wide)

    def _warp_corner(self) -> tuple[Dim, Dim]:
        """Return the number of lanes above this lane's warp, and to its left."""
        near, beside = self._warp_shape()
        warp = dims.floordiv(self._position(), near * beside)
        per_row = self.wide // beside
        return dims.floordiv(warp, per_row) * near, dims.mod(warp, per_row) * beside

    def _in_warp(self) -> tuple[Dim, Dim]:
        """Return the position of a lane in its warp."""
        near, beside = self._warp_shape()
        return dims.mod(dims.floordiv(self._position(), beside), near), dims.mod(self._position(), beside)
