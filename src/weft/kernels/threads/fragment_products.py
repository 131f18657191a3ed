"""Products by packed weights on tensor cores: warps decode weights, and multiply fragments in registers.

One row is split into planes by each block, in local memory; more rows by a launch before, in a workspace. For all
numbers of rows, products are added in the order of `fragment_format.py`: the ranges of the sums belong to different
warps, to different blocks, whose sums another launch adds, or are computed one after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from weft.ir import dims
from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.ir.kernel import Buffer, Call, Code, MultiplyFragments, Number, Register, Statement, When, block, lane
from weft.ir.target import ThreadTarget
from weft.kernels.build.multiply_add import multiply_add
from weft.kernels.lower.kernel_builder import KernelBuilder, assign, define, fetch, fetch_run, put_run, repeat
from weft.kernels.lower.memoize import memoize
from weft.kernels.lower.operations import less
from weft.kernels.lower.tensors import LEFT, Launch
from weft.kernels.threads.block_format import SCALES, WORDS
from weft.kernels.threads.fragment_format import COLUMNS, LANES, STEP, WINDOW, FragmentDecoder, FragmentFormat
from weft.kernels.threads.fragment_rows import HALVES, ROWS, FragmentRows, locate_plane
from weft.kernels.threads.points import all_of
from weft.kernels.threads.product import Product, merge_product_axes
from weft.kernels.threads.product_frame import ProductFrame
from weft.kernels.threads.product_operands import RUN
from weft.records import dataclass

_I32, _F32 = DType.int32, DType.float32
_UNROLL = 4  # iterations that split a row, so that a lane has several reads in flight
_HALF_STEPS = WINDOW // HALVES // STEP


@dataclass(frozen=True, slots=True)
class FragmentTile:
    """The tile of a block: `wide` warps along the columns by `slices` that have a range of the sums each.

    A warp has `columns` tiles of 16 columns and `rows` tiles of 8 rows. With 0, it has one row, which the block splits
    into planes. Ranges are shared by `slices` warps or `splits` blocks, or a warp has all of them. Words are fetched
    `ahead` units before their use, those of long units one unit.
    """

    columns: int
    rows: int
    wide: int
    slices: int = 1
    splits: int = 1
    ahead: int = 2
    depth: int = RUN

    @property
    def lanes(self) -> int:
        return LANES * self.wide * self.slices

    @property
    def width(self) -> int:
        return COLUMNS * self.columns * self.wide

    @property
    def height(self) -> int:
        return max(ROWS * self.rows, 1)

    def shared_bytes(self, fragments: FragmentFormat) -> int:
        sums = 16 * self.lanes * self.columns * max(self.rows, 1)
        return sums + (0 if self.rows else 2 * (fragments.windows * WINDOW + 8 * self.lanes) * fragments.planes)


Columns = list[list[Register]]
"""Registers for each tile of columns."""

Queue = list[Columns]
"""The next to be used, those after it, ..."""


@memoize
def build_fragment_launch(
    product: Product, fragments: FragmentFormat, tile: FragmentTile, target: ThreadTarget
) -> Launch:
    """Operands are the left one (its planes, if the tile has several rows), the words, the scales, the epilogue's."""
    return _FragmentKernel(merge_product_axes(product), fragments, tile, target).build_launch()


class _FragmentKernel(ProductFrame):
    def __init__(self, product: Product, fragments: FragmentFormat, tile: FragmentTile, target: ThreadTarget) -> None:
        builder = KernelBuilder("multiply_fragments")
        self.tile, self.target, self.format = tile, target, fragments
        self.decoder = FragmentDecoder(fragments, builder)
        if tile.rows:
            self.planes = [builder.input("planes", _I32, LEFT)] * fragments.planes
        else:
            self.left = FragmentRows(product, fragments, builder)
            size = 4 * tile.lanes * self.split_turns
            self.planes = [builder.local(f"plane{number}", _I32, size) for number in range(fragments.planes)]
        self.words = builder.input("words", _I32, WORDS)
        if fragments.has_scales:
            self.scales = builder.input("scales", _I32, SCALES)
        super().__init__(builder, product, tile, tile.splits, _F32, lambda number: number, lambda number: number)
        here = lane(tile.lanes)
        self.within, self.warp = dims.mod(here, LANES), dims.floordiv(here, LANES)
        self.g, self.q = dims.floordiv(self.within, 4), dims.mod(self.within, 4)
        self.wide, self.slice = dims.mod(self.warp, tile.wide), dims.floordiv(self.warp, tile.wide)

    def build_launch(self) -> Launch:
        tile, builder = self.tile, self.builder
        statements = self.locate_block()
        turns = self.format.ranges // (tile.slices * tile.splits)
        turn = builder.variable("range") if turns > 1 else 0
        self.sums = builder.registers("sum", 4 * tile.columns * max(tile.rows, 1), _F32)
        body: list[Statement] = [define(own, Number(-0.0, _F32)) for own in self.sums]  # -0 + x is x
        body += self.add_range(self.slice + self.split + turn)
        if turns > 1:
            statements += self.add_turns(turn, turns, body)
        else:
            statements += body
            if tile.slices > 1:
                statements += self.add_slices()
        return builder.launch(tile.lanes, (*statements, *self.write_lane()), self.blocks)

    def add_turns(self, turn: Dim, turns: int, body: Sequence[Statement]) -> list[Statement]:
        """Compute one range after the other; their sums are added in local memory, of which each lane has a part."""
        builder, here = self.builder, lane(self.tile.lanes)
        buffers = self.declare_fragments()
        statements = [put_run(buffer, 4 * here, [Number(-0.0, _F32)] * 4) for buffer in buffers]
        added, read = [*body], list[Statement]()
        for number, buffer in enumerate(buffers):
            sums = self.sums[4 * number : 4 * number + 4]
            before = builder.registers("before", 4, _F32)
            added.append(fetch_run(before, buffer, 4 * here))
            added.append(put_run(buffer, 4 * here, [Call("add", pair, _F32) for pair in zip(before, sums)]))
            totals = builder.registers("total", 4, _F32)
            read.append(fetch_run(totals, buffer, 4 * here))
            self.sums[4 * number : 4 * number + 4] = totals
        return [*statements, repeat(turn, 0, builder.parameter("ranges", turns), 1, added), *read]

    def add_slices(self) -> list[Statement]:
        """Add the ranges of all slices in order, in the lanes of the first one."""
        tile, here = self.tile, lane(self.tile.lanes)
        statements: list[Statement] = []
        buffers = self.declare_fragments()
        for number, buffer in enumerate(buffers):
            statements.append(put_run(buffer, 4 * here, self.sums[4 * number : 4 * number + 4]))
        first = dims.mod(here, LANES * tile.wide)
        for number, buffer in enumerate(buffers):
            for part in range(tile.slices):
                values = self.builder.registers("slice", 4, _F32)
                statements.append(fetch_run(values, buffer, 4 * (part * LANES * tile.wide + first)))
                for at, value in enumerate(values):
                    own = self.sums[4 * number + at]
                    statements.append(assign(own, Call("add", (own, value), _F32) if part else value))
        return statements

    def declare_fragments(self) -> list[Buffer]:
        """Declare local memory for the sums of each fragment: apart, so that lanes need not wait for each other."""
        size = 4 * self.tile.lanes
        return [self.builder.local(f"sums{number}", _F32, size) for number in range(len(self.sums) // 4)]

    def locate_block(self) -> list[Statement]:
        """Compute which tile and split a block has; blocks with the same columns are neighbours."""
        parameter, statements = self.builder.parameter, list[Statement]()
        row_tiles = parameter("row_tiles", dims.maximum(self.rows.tiles, 1))
        self.row_tile = self.let(statements, "tile_row", dims.mod(block(), row_tiles))
        self.rows.first = self.row_tile * self.tile.height
        columns = dims.mod(dims.floordiv(block(), row_tiles), parameter("column_tiles", self.columns.tiles))
        self.column_tile = self.let(statements, "tile_column", columns)
        self.columns.first = self.column_tile * self.tile.width
        self.locate_in_grid(statements)
        return statements

    # -- weights -----------------------------------------------------------------------------------------------------

    def fetch_words(self, window: Dim, statements: list[Statement]) -> Columns:
        """Fetch the words of a window."""
        fragments, builder = self.format, self.builder
        windows, run = builder.parameter("windows", fragments.windows), fragments.run
        columns: Columns = []
        for tile in self.find_tiles():
            place = (tile * windows + window) * (LANES * fragments.bits) + self.within * run
            words: list[Register] = []
            for number in range(fragments.bits // run):
                words += builder.registers("word", run, _I32)
                statements.append(fetch_run(words[-run:], self.words, place + number * LANES * run))
            columns.append(words)
        return columns

    def fetch_scales(self, unit: Dim, statements: list[Statement]) -> Columns:
        """Fetch the scales of a unit, then its zero points."""
        fragments, builder = self.format, self.builder
        if not fragments.has_scales:
            return [[] for _ in self.find_tiles()]
        units, zero_words = builder.parameter("units", fragments.units), fragments.zero_words
        scales = 2 * fragments.unit_blocks
        size = fragments.tiles * fragments.units * (COLUMNS // 2) * scales
        start = builder.parameter("zeros", size) if zero_words else 0
        columns: Columns = []
        for tile in self.find_tiles():
            place = (tile * units + unit) * (COLUMNS // 2) + self.g
            columns.append(self.fetch_run(place * scales, scales, statements))
            if zero_words:
                columns[-1] += self.fetch_run(start + place * zero_words, zero_words, statements)
        return columns

    def find_tiles(self) -> list[Dim]:
        """Return the number of each of the warp's tiles of columns."""
        last = self.builder.parameter("last_tile", self.format.tiles - 1)
        first = (self.column_tile * self.tile.wide + self.wide) * self.tile.columns
        return [dims.minimum(first + number, last) for number in range(self.tile.columns)]

    def fetch_run(self, place: Dim, count: int, statements: list[Statement]) -> list[Register]:
        registers = self.builder.registers("scale", count, _I32)
        if count == 1:
            statements.append(define(registers[0], fetch(self.scales, place)))
            return registers
        runs = range(0, count, 4)
        statements.extend(fetch_run(registers[at : at + 4], self.scales, place + at) for at in runs)
        return registers

    # -- sums --------------------------------------------------------------------------------------------------------

    def add_range(self, number: Dim) -> list[Statement]:
        """Add the products of a range; its first weights are fetched before a row is split."""
        builder, fragments = self.builder, self.format
        each = fragments.unit // WINDOW
        count, step = builder.parameter("range_units", fragments.range_units), builder.variable("step")
        units = _Queue(number * count, count, builder.parameter("last_unit", fragments.range_units - 1))
        windows = units
        if each > 1:
            last = builder.parameter("last_window", fragments.range_units * each - 1)
            windows = _Queue(each * units.first, each * count, last)
        ahead = self.tile.ahead if each == 1 or self.tile.ahead == 1 else each
        statements: list[Statement] = []
        scales = units.open(self.fetch_scales, ahead if each == 1 else 1, statements)
        words = windows.open(self.fetch_words, ahead, statements)
        if not self.tile.rows:
            statements += self.split_row()
        blocks, body = _Blocks(self, scales[0]), list[Statement]()
        if each == 1:
            end: list[Statement] = []
            for queue, fetch_columns in ((words, self.fetch_words), (scales, self.fetch_scales)):
                begin, own_end = units.advance(queue, step, fetch_columns, builder)
                body += begin
                end += own_end
            self.multiply_window(units.first + step, words[0], blocks, body)
            return [*statements, repeat(step, 0, count, 1, (*body, *end), ahead)]
        window = builder.variable("window")
        at = each * step + window
        begin, end = units.advance(scales, step, self.fetch_scales, builder)
        blocks.begin(0, body)
        inner, inner_end = windows.advance(words, at, self.fetch_words, builder)
        self.multiply_window(windows.first + at, words[0], blocks, inner)
        body += [*begin, repeat(window, 0, each, 1, (*inner, *inner_end), ahead)]
        blocks.end(body)
        return [*statements, repeat(step, 0, count, 1, (*body, *end))]

    @property
    def split_turns(self) -> int:
        """How often each lane splits eight places of a row."""
        return -(-4 * HALVES * self.format.windows // self.tile.lanes)

    def split_row(self) -> list[Statement]:
        """Split the block's row into planes in local memory; lanes after the last place split it again."""
        builder, lanes, turns = self.builder, self.tile.lanes, self.split_turns
        turn = builder.variable("turn", 0, turns - 1)
        place = turn * lanes + lane(lanes)
        at = dims.minimum(place, 4 * HALVES * self.format.windows - 1)
        body: list[Statement] = []
        words = self.left.read(self.rows.places(0), dims.floordiv(at, 4), dims.mod(at, 4), body)
        body += [put_run(buffer, 4 * place, own) for buffer, own in zip(self.planes, words)]
        return [repeat(turn, 0, turns, 1, body, min(turns, _UNROLL))]

    def multiply_window(self, window: Dim, words: Columns, blocks: _Blocks, statements: list[Statement]) -> None:
        """Multiply the fragments of a window; blocks that are not longer begin and end there."""
        fragments = self.format
        block_steps = fragments.block // STEP
        count = min(_HALF_STEPS, block_steps)
        for half in range(HALVES):
            rows = self.fetch_rows(window, half, statements)
            for first in range(half * _HALF_STEPS, (half + 1) * _HALF_STEPS, count):
                if first % block_steps == 0 and fragments.block <= WINDOW:
                    blocks.begin(first // block_steps, statements)
                steps = range(first, first + count)
                left = tuple(
                    tuple(r.name for step in steps for r in self.decoder.decode(own, step, offsets, statements))
                    for own, offsets in zip(words, blocks.offsets)
                )
                right = tuple(
                    tuple(
                        register.name
                        for step in steps
                        for plane in reversed(planes)
                        for register in plane[2 * (step % _HALF_STEPS) : 2 * (step % _HALF_STEPS) + 2]
                    )
                    for planes in rows
                )
                names = [register.name for register in blocks.partial]
                groups = tuple(tuple(names[at : at + 4]) for at in range(0, len(names), 4))
                statements.append(MultiplyFragments(groups, left, right, fragments.planes, fragments.element))
                if (first + count) % block_steps == 0 and fragments.block <= WINDOW:
                    blocks.end(statements)

    def fetch_rows(self, window: Dim, half: int, statements: list[Statement]) -> list[list[list[Register]]]:
        """Fetch the words of the rows' fragments in a half of a window: [tile of rows][plane]."""
        windows = self.builder.parameter("windows", self.format.windows)
        last = self.builder.parameter("last_rows", dims.maximum(dims.ceildiv(self.rows.count, ROWS) - 1, 0))
        tiles: list[list[list[Register]]] = []
        for number in range(max(self.tile.rows, 1)):
            tiles.append([])
            for plane, buffer in enumerate(self.planes):
                place: Dim = ((window * HALVES + half) * 4 + self.q) * 4
                if self.tile.rows:
                    tile = dims.minimum(self.row_tile * self.tile.rows + number, last)
                    place = locate_plane(tile * windows + window, half, plane, len(self.planes), self.within)
                registers = self.builder.registers("row", 4, _I32)
                statements.append(fetch_run(registers, buffer, place))
                tiles[-1].append(registers)
        return tiles

    # -- results -----------------------------------------------------------------------------------------------------

    def write_lane(self) -> list[Statement]:
        """Write the sums of a lane, if they are inside the result."""
        tile = self.tile
        self.begin_results()
        statements: list[Statement] = []
        is_first = less(self.warp, tile.wide) if tile.slices > 1 else None
        first = (self.wide * tile.columns) * COLUMNS + self.g
        columns = [first + COLUMNS * number + 8 * upper for number in range(tile.columns) for upper in range(2)]
        rows = [ROWS * number + 2 * self.q + odd for number in range(tile.rows) for odd in range(2)]
        in_columns = [self.columns.tests(column, 1, 1, statements)[0] for column in columns]
        in_rows = [self.rows.tests(row, 1, 1, statements)[0] for row in rows] or [less(self.q, 1)]
        for number, value in enumerate(self.sums):
            fragment, element = divmod(number, 4)
            column_tile, row_tile = divmod(fragment, max(tile.rows, 1))
            if not tile.rows and element % 2:
                continue
            at, row_at = 2 * column_tile + element // 2, 2 * row_tile + element % 2
            row = rows[row_at] if tile.rows else 0
            mask = all_of([is_first, in_rows[row_at], in_columns[at]])
            if self.splits > 1:
                statements.append(self.write_sums([value], row, columns[at], mask))
            else:
                places = self.rows.places(row), self.columns.places(columns[at])
                statements += self.write_results([value], *places, mask)
        return statements


class _Blocks:
    """The sums of the current block of a unit: its products are added on tensor cores, then scaled and added."""

    def __init__(self, kernel: _FragmentKernel, scales: Columns) -> None:
        self.kernel, self.scales = kernel, scales
        self.number = 0
        self.partial: list[Register] = []
        self.offsets: list[list[Code]] = []

    def begin(self, number: int, statements: list[Statement]) -> None:
        """Begin a block of the unit."""
        builder, sums = self.kernel.builder, self.kernel.sums
        self.number, self.partial = number, builder.registers("partial", len(sums), _F32)
        statements += [define(register, Number(0.0, _F32)) for register in self.partial]
        self.offsets = [[self._find_offset(own, upper, statements) for upper in range(2)] for own in self.scales]

    def end(self, statements: list[Statement]) -> None:
        """Scale the sums of the block, and add them to the lane's."""
        each = len(self.partial) // len(self.scales)
        for at, (total, own) in enumerate(zip(self.kernel.sums, self.partial)):
            value: Code = Call("add", (own, total), _F32)
            if self.kernel.format.has_scales:
                scale = self.scales[at // each][2 * self.number + at % 4 // 2]
                value = multiply_add(self.kernel.target, own, Call("bitcast", (scale,), _F32), total)
            statements.append(assign(total, value))

    def _find_offset(self, scales: Sequence[Register], upper: int, statements: list[Statement]) -> Code:
        """Return what is added to the codes of the lower or upper column of a lane."""
        fragments, decoder = self.kernel.format, self.kernel.decoder
        if not fragments.zero_words:
            return decoder.find_offset(None, statements)
        word, byte = divmod(2 * self.number + upper, 4)
        zeros = scales[2 * fragments.unit_blocks + word]
        shifted = Call("shift_right", (zeros, Number(8 * byte, _I32)), _I32)
        return decoder.find_offset(Call("bit_and", (shifted, Number(255, _I32)), _I32), statements)


@dataclass(frozen=True, slots=True)
class _Queue:
    """Fetches weights of a range of units or windows ahead of their use: `count` from `first` on, up to `last`."""

    first: Dim
    count: Dim
    last: Dim

    def open(self, read: Callable[[Dim, list[Statement]], Columns], ahead: int, statements: list[Statement]) -> Queue:
        """Fetch the first entries."""
        return [read(self.first + dims.minimum(number, self.last), statements) for number in range(ahead)]

    def advance(
        self, queue: Queue, at: Dim, read: Callable[[Dim, list[Statement]], Columns], builder: KernelBuilder
    ) -> tuple[list[Statement], list[Statement]]:
        """Return statements for the begin and the end of an iteration, which replace the first entry by a later one.

        A single entry is fetched at the begin: an iteration is long. Of several, the next one is fetched into the
        registers of the first, which moves to the end of the queue: a loop that is unrolled as often as the queue has
        entries moves no registers, and so waits for none.
        """
        begin: list[Statement] = []
        if len(queue) == 1:
            following = read(self.first + dims.minimum(at + 1, self.last), begin)
            return begin, _assign_columns(queue[0], following)
        body: list[Statement] = []
        body += _assign_columns(queue[0], read(self.first + at + len(queue), body))
        end: list[Statement] = [When(less(at + len(queue), self.count), tuple(body))]
        fetched: Columns = []
        for own in queue[0]:
            copies = [builder.keep("fetched", register, varying=True) for register in own]
            end += [definition for definition, _ in copies]
            fetched.append([register for _, register in copies])
        for to, after in zip(queue, [*queue[1:], fetched]):
            end += _assign_columns(to, after)
        return begin, end


def _assign_columns(to: Columns, values: Columns) -> list[Statement]:
    pairs = [pair for own, other in zip(to, values, strict=True) for pair in zip(own, other, strict=True)]
    return [assign(register, value) for register, value in pairs]
