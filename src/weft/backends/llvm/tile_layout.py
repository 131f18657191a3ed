"""Where the elements of tiles and of their sums are on an NVIDIA GPU: plain numbers, of which emission makes code.

A tile's lines are cut into columns of up to 128 bytes, one column after another. In a column line after line follows,
and the 16-byte chunks of 8 neighbouring lines are mixed so that reading one chunk of each of them meets every bank of
shared memory once: the chunk's number is xored with bits of the line's. Tensor cores know this order as their swizzles.

Sums lie in registers of threads by fragments of 16 x 8: thread t of a warp has [t / 4, t % 4 * 2 + (0, 1)] and the same
two 8 rows below.
"""

from __future__ import annotations

from math import gcd

from weft.errors import InternalError
from weft.ir.kernel import TileForm
from weft.records import dataclass

CHUNK = 16  # bytes that stay together
ALIGNMENT = 1024  # of tiles: the mix is one of addresses
_COLUMN = 128
WARP, WARP_GROUP = 32, 128
FRAGMENT_ROWS, FRAGMENT_COLUMNS, FRAGMENT_SUMS = 16, 8, 4
GROUP_ROWS = 64  # of a product of a group of warps
MOST_COLUMNS = 256  # of it
DEPTH_STEP = 32  # bytes along the depth that are multiplied at once


@dataclass(frozen=True, slots=True)
class TileLayout:
    """A tile in shared memory."""

    lines: int
    line_bytes: int
    element: int  # bytes

    @property
    def width(self) -> int:
        """Bytes of a column."""
        return gcd(self.line_bytes, _COLUMN)

    @property
    def column_bytes(self) -> int:
        return self.lines * self.width

    @property
    def stage_bytes(self) -> int:
        """From one copy of the tile to the next."""
        return -(-self.lines * self.line_bytes // ALIGNMENT) * ALIGNMENT

    @property
    def mixed(self) -> int:
        """The bits of a chunk's number that are xored."""
        return self.width // CHUNK - 1

    def offset(self, line: int, byte: int) -> int:
        """Where a byte of a line is."""
        column, within = divmod(byte, self.width)
        place = line * self.width + within
        return column * self.column_bytes + (place ^ ((place >> 7 & self.mixed) << 4))


def layout_of(form: TileForm, element: int) -> TileLayout:
    """The layout of a tile whose elements have so many bytes."""
    layout = TileLayout(form.lines, form.line_length * element, element)
    if layout.width < CHUNK:
        raise InternalError(f"lines of {layout.line_bytes} bytes are no tile")
    return layout


@dataclass(frozen=True, slots=True)
class Shares:
    """Which sums the warps of a block have: teams of warps are a grid over the [rows, columns].

    A team of one warp has neighbouring fragments; one of four has each 64 rows one after another, 16 to each warp.
    Teams beyond the grid do what others do as well.
    """

    team: int  # warps
    team_rows: int  # teams side by side along rows
    team_columns: int
    row_tiles: int  # fragments of a warp along rows
    column_tiles: int

    @property
    def row_step(self) -> int:
        """Rows from one fragment of a warp to its next."""
        return FRAGMENT_ROWS * self.team

    @property
    def rows(self) -> int:
        """Of a team."""
        return self.row_step * self.row_tiles

    @property
    def columns(self) -> int:
        return FRAGMENT_COLUMNS * self.column_tiles

    @property
    def count(self) -> int:
        """Registers of a thread."""
        return self.row_tiles * self.column_tiles * FRAGMENT_SUMS

    def place(self, thread: int, number: int) -> tuple[int, int]:
        """The row and the column of a thread's register."""
        warp, lane = divmod(thread, WARP)
        team = warp // self.team
        fragment, part = divmod(number, FRAGMENT_SUMS)
        row, column = self.fragment(fragment)
        row += team % self.team_rows * self.rows + warp % self.team * FRAGMENT_ROWS + lane // 4 + part // 2 * 8
        column += team // self.team_rows % self.team_columns * self.columns + lane % 4 * 2 + part % 2
        return row, column

    def fragment(self, number: int) -> tuple[int, int]:
        """Where a fragment starts, as seen from the first of its warp."""
        row, column = divmod(number, self.column_tiles)
        return row * self.row_step, column * FRAGMENT_COLUMNS


def shares_of(rows: int, columns: int, lanes: int, grouped: bool) -> Shares:
    """How sums are shared; `grouped` where groups of warps multiply together, if they can."""
    if rows % FRAGMENT_ROWS or columns % FRAGMENT_COLUMNS or lanes % WARP:
        raise InternalError(f"{lanes} lanes have no tile product of {rows} rows and {columns} columns")
    if grouped and rows % GROUP_ROWS == 0 and lanes % WARP_GROUP == 0:
        groups = lanes // WARP_GROUP
        found = [
            Shares(4, down, across, rows // (GROUP_ROWS * down), columns // (FRAGMENT_COLUMNS * across))
            for down, across in _grids(groups, rows // GROUP_ROWS, columns // FRAGMENT_COLUMNS)
        ]
        return min(found, key=lambda shares: (shares.count, -shares.team_rows))
    warps = lanes // WARP
    found = [
        Shares(1, down, across, rows // (FRAGMENT_ROWS * down), columns // (FRAGMENT_COLUMNS * across))
        for down, across in _grids(warps, rows // FRAGMENT_ROWS, columns // FRAGMENT_COLUMNS)
    ]
    return min(found, key=lambda shares: (shares.count, shares.rows + shares.columns, shares.column_tiles % 2))


def _grids(teams: int, rows: int, columns: int) -> list[tuple[int, int]]:
    """The grids of up to so many teams that share rows and columns evenly."""
    return [
        (down, across)
        for down in range(1, teams + 1)
        for across in range(1, teams // down + 1)
        if rows % down == 0 and columns % across == 0 and teams % (down * across) == 0
    ]


@dataclass(frozen=True, slots=True)
class GroupOperand:
    """A tile as groups of warps read it by descriptors: bytes between its parts."""

    layout: TileLayout
    turned: bool

    @property
    def leading(self) -> int:
        return self.layout.column_bytes if self.turned else CHUNK

    @property
    def stride(self) -> int:
        """From 8 lines to the next 8."""
        return 8 * self.layout.width

    @property
    def descriptor(self) -> int:
        """All but the address."""
        swizzle = {128: 1, 64: 2, 32: 3}[self.layout.width]
        return self.leading // CHUNK << 16 | self.stride // CHUNK << 32 | swizzle << 62

    def row_offset(self, rows: int) -> int:
        """Bytes to a number of rows further on."""
        if not self.turned:
            return rows * self.layout.width
        column, within = divmod(rows * self.layout.element, self.layout.width)
        if within:
            raise InternalError("a group of warps starts inside of a column of a turned tile")
        return column * self.layout.column_bytes

    def step_offset(self, step: int) -> int:
        """Bytes to a number of steps along the depth, of `DEPTH_STEP`."""
        if self.turned:
            return step * DEPTH_STEP // self.layout.element * self.layout.width
        column, within = divmod(step * DEPTH_STEP, self.layout.width)
        return column * self.layout.column_bytes + within
