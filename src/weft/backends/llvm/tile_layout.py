"""The layout of tiles in shared memory and of their sums in registers, on NVIDIA GPUs.

A tile's lines are split into columns of up to 128 bytes, stored one after another; each column stores its lines in
order. The 16-byte chunks of 8 neighbouring lines are swizzled so that reading one chunk of each line has no bank
conflicts: the chunk's number is xored with bits of the line's number. These are the swizzles of tensor cores.

Sums are in registers of threads, in fragments of 16 x 8: thread t of a warp has [t / 4, t % 4 * 2 + (0, 1)] and the
two elements 8 rows below.
"""

from __future__ import annotations

from math import gcd

from weft.errors import InternalError
from weft.ir.kernel import TileForm
from weft.records import dataclass

CHUNK = 16  # bytes
ALIGNMENT = 1024  # of tiles: swizzles apply to addresses
_COLUMN = 128
WARP, WARP_GROUP = 32, 128
FRAGMENT_ROWS, FRAGMENT_COLUMNS, FRAGMENT_SUMS = 16, 8, 4
GROUP_ROWS = 64  # of a wgmma
MOST_COLUMNS = 256  # of a wgmma
DEPTH_STEP = 32  # bytes along the depth that one instruction multiplies


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
        """Bytes from one stage of the tile to the next."""
        return -(-self.lines * self.line_bytes // ALIGNMENT) * ALIGNMENT

    @property
    def swizzle_mask(self) -> int:
        """The bits of a chunk's number that the swizzle xors."""
        return self.width // CHUNK - 1

    def offset(self, line: int, byte: int) -> int:
        """Return the offset of a byte of a line."""
        column, within = divmod(byte, self.width)
        place = line * self.width + within
        return column * self.column_bytes + (place ^ ((place >> 7 & self.swizzle_mask) << 4))


def build_layout(form: TileForm, element: int) -> TileLayout:
    """Build the layout of a tile; `element` is the size of its elements in bytes."""
    layout = TileLayout(form.lines, form.line_length * element, element)
    if layout.width < CHUNK:
        raise InternalError(f"a tile cannot have lines of {layout.line_bytes} bytes")
    return layout


@dataclass(frozen=True, slots=True)
class SumPartition:
    """How the sums of a tile product are divided among the warps of a block: a grid of teams of warps.

    A team of one warp has neighbouring fragments; in a team of four, each warp has 16 of every 64 rows. Teams beyond
    the grid repeat the work of others.
    """

    team: int  # warps
    team_rows: int  # teams along the rows
    team_columns: int
    row_tiles: int  # fragments of a warp along rows
    column_tiles: int

    @property
    def row_step(self) -> int:
        """Rows from one fragment of a warp to the next."""
        return FRAGMENT_ROWS * self.team

    @property
    def rows(self) -> int:
        """Rows of a team."""
        return self.row_step * self.row_tiles

    @property
    def columns(self) -> int:
        return FRAGMENT_COLUMNS * self.column_tiles

    @property
    def count(self) -> int:
        """Sums of a thread."""
        return self.row_tiles * self.column_tiles * FRAGMENT_SUMS

    def place(self, thread: int, number: int) -> tuple[int, int]:
        """Return the row and the column of a thread's sum."""
        warp, lane = divmod(thread, WARP)
        team = warp // self.team
        fragment, part = divmod(number, FRAGMENT_SUMS)
        row, column = self.fragment(fragment)
        row += team % self.team_rows * self.rows + warp % self.team * FRAGMENT_ROWS + lane // 4 + part // 2 * 8
        column += team // self.team_rows % self.team_columns * self.columns + lane % 4 * 2 + part % 2
        return row, column

    def fragment(self, number: int) -> tuple[int, int]:
        """Return the row and the column of a fragment, relative to its warp's first fragment."""
        row, column = divmod(number, self.column_tiles)
        return row * self.row_step, column * FRAGMENT_COLUMNS


def split_sums(rows: int, columns: int, lanes: int, grouped: bool) -> SumPartition:
    """Divide sums among warps; `grouped`: among warp groups, if possible."""
    if rows % FRAGMENT_ROWS or columns % FRAGMENT_COLUMNS or lanes % WARP:
        raise InternalError(f"{lanes} lanes have no tile product of {rows} rows and {columns} columns")
    if grouped and rows % GROUP_ROWS == 0 and lanes % WARP_GROUP == 0:
        groups = lanes // WARP_GROUP
        candidates = [
            SumPartition(4, down, across, rows // (GROUP_ROWS * down), columns // (FRAGMENT_COLUMNS * across))
            for down, across in _grids(groups, rows // GROUP_ROWS, columns // FRAGMENT_COLUMNS)
        ]
        return min(candidates, key=lambda partition: (partition.count, -partition.team_rows))
    warps = lanes // WARP
    candidates = [
        SumPartition(1, down, across, rows // (FRAGMENT_ROWS * down), columns // (FRAGMENT_COLUMNS * across))
        for down, across in _grids(warps, rows // FRAGMENT_ROWS, columns // FRAGMENT_COLUMNS)
    ]
    return min(candidates, key=lambda it: (it.count, it.rows + it.columns, it.column_tiles % 2))


def _grids(teams: int, rows: int, columns: int) -> list[tuple[int, int]]:
    """List the grids of at most `teams` teams that divide rows and columns evenly."""
    return [
        (down, across)
        for down in range(1, teams + 1)
        for across in range(1, teams // down + 1)
        if rows % down == 0 and columns % across == 0 and teams % (down * across) == 0
    ]


@dataclass(frozen=True, slots=True)
class WgmmaOperand:
    """A tile as an operand of wgmma: the strides of its descriptor, in bytes."""

    layout: TileLayout
    transposed: bool

    @property
    def leading(self) -> int:
        return self.layout.column_bytes if self.transposed else CHUNK

    @property
    def stride(self) -> int:
        """Bytes from 8 lines to the next 8."""
        return 8 * self.layout.width

    @property
    def descriptor(self) -> int:
        """The descriptor without the address."""
        swizzle = {128: 1, 64: 2, 32: 3}[self.layout.width]
        return self.leading // CHUNK << 16 | self.stride // CHUNK << 32 | swizzle << 62

    def row_offset(self, rows: int) -> int:
        """Return the bytes to a row."""
        if not self.transposed:
            return rows * self.layout.width
        column, within = divmod(rows * self.layout.element, self.layout.width)
        if within:
            raise InternalError("a warp group starts inside of a column of a transposed tile")
        return column * self.layout.column_bytes

    def step_offset(self, step: int) -> int:
        """Return the bytes to a step of `DEPTH_STEP` along the depth."""
        if self.transposed:
            return step * DEPTH_STEP // self.layout.element * self.layout.width
        column, within = divmod(step * DEPTH_STEP, self.layout.width)
        return column * self.layout.column_bytes + within
