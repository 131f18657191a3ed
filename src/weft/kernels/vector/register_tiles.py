"""The register-tiled kernel for sums of products: matrix products and convolutions differ in strides alone.

A tile is some rows times a panel (some vectors of neighbouring columns), with an accumulator for each row and vector.
Each step of the sums loads the vectors of the right operand and one element per row of the left, and adds their
products to the accumulators. Columns after the last whole panel are computed vector by vector, so that few lanes are
idle. Rows may have any stride in the left operand. The epilogue is applied to the accumulators.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field

from weft.fuse.channel_order import find_period
from weft.ir import dims
from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.ir.kernel import Buffer, Call, Code, Number, Prefetch, Register, Statement, View, block, lane
from weft.ir.layout import offset
from weft.ir.target import VectorTarget
from weft.kernels.build.epilogue import EpilogueWriter
from weft.kernels.build.loop_axes import LoopAxis, merge_loop_axes, unravel_index
from weft.kernels.build.multiply_add import accumulate, convert_factor, sum_dtype
from weft.kernels.lower.kernel_builder import KernelBuilder, assign, define, fetch, let, put, repeat
from weft.kernels.lower.memoize import memoize_launch
from weft.kernels.lower.operations import less
from weft.kernels.lower.tensors import LEFT, RIGHT, Epilogue, Launch, StoredTensor
from weft.kernels.vector.blocking import Blocking, ProductShape, choose_blocking, exceeds_cache
from weft.kernels.vector.panels import Panels, choose_tile_height
from weft.records import dataclass

_MAX_TILES = 8  # tiles of rows per block: their rows stay in L1 if sums are short
_CHAINS = 4  # independent sums that keep the multipliers busy
_MAX_UNROLLED_ROWS = 6  # more rows leave no registers to do several steps at a time
_WIDE_PANELS = 8  # panels at a time, times rows, for few rows and an operand in place
_LONG_SUM = 128  # terms of sums for which a write to L1 and a read are negligible


@dataclass(frozen=True, slots=True)
class TiledProduct:
    """result[grid, rows, column] = epilogue(sum of left * right over `sums`).

    Lanes are contiguous in the right operand, and panels are `panel` elements apart. An operand in place has vectors of
    a panel side by side, and nothing after the last column. With `padded` every vector is whole; with `packed` single
    vectors are also stored separately, with shorter steps of the sums.
    """

    left: DType
    right: DType
    result: StoredTensor
    epilogue: Epilogue | None
    grid: tuple[LoopAxis, ...]
    rows: tuple[LoopAxis, ...]
    column: LoopAxis
    sums: tuple[LoopAxis, ...]
    panels: Panels
    panel: Dim
    padded: bool = False
    packed: bool = False
    left_start: Dim = 0
    right_start: Dim = 0
    result_start: Mapping[int, Dim] = field(default_factory=dict, hash=False)  # first position along an axis, if not 0
    order: Dim | None = None  # the left operand's element at a position along the grid and the only sum
    words: str = ""  # "" or the format of words, see `accumulate`


@dataclass(frozen=True, slots=True)
class TileExtent:
    """The extent of a tile: rows, vectors of columns (or a single one), and independent parts of the sums."""

    height: int
    width: int
    splits: int
    single: bool


@dataclass(frozen=True, slots=True)
class RegisterTile:
    """A tile: where its rows start in the left operand, where its columns start, and its sums."""

    shape: TileExtent
    lefts: Sequence[Dim]
    columns: ColumnStart
    sums: Sequence[Register]
    turn: Dim  # the tile's number in its block


@dataclass(frozen=True, slots=True)
class ColumnStart:
    """The first column of a tile, and its offset in the right operand."""

    first: Dim
    start: Dim


@dataclass(frozen=True, slots=True)
class TileSection:
    """`count` tiles of one height, from tile `first` and row `row` on."""

    height: int
    first: Dim
    count: Dim
    row: Dim


def split_rows(rows: Dim, height: int) -> list[TileSection]:
    """Split rows into tiles: evenly if their number is known, else greedily."""
    if isinstance(rows, int):
        tiles = max(1, -(-rows // height))
        tall = -(-rows // tiles)
        count = rows - tiles * (tall - 1)
        sections = [TileSection(tall, 0, count, 0)] if rows else []
        if tiles > count or rows > height * (height - 1):
            sections.append(TileSection(tall - 1, count, tiles - count, count * tall))
        return sections
    sections = []
    first: Dim = 0
    row: Dim = 0
    size = height
    while size:
        count_left = dims.floordiv(rows - row, size)
        sections.append(TileSection(size, first, count_left, row))
        first, row = first + count_left, row + count_left * size
        size = 8 if size > 8 else size // 2
    return sections


class ProductBuilder:
    """Builds the kernel of a `TiledProduct`, whose operands are left, right and the epilogue's.

    Subclasses may replace the loop over the sums.
    """

    def __init__(self, name: str, product: TiledProduct, target: VectorTarget) -> None:
        self.product = product
        self.target = target
        self.panels = product.panels
        self.lanes = product.panels.lanes
        self.type = sum_dtype(product.words, product.left)
        self.builder = KernelBuilder(name)
        self.left = self.builder.input("left", product.left, LEFT)
        self.right = self.builder.input("right", product.right, RIGHT)
        self.epilogue_writer = EpilogueWriter(product.result, product.epilogue, self.builder, 2)
        self.rows = merge_loop_axes(product.rows, self.epilogue_writer)
        self.sums = merge_loop_axes(product.sums)
        self.row_sizes = [self.builder.parameter(f"rows{n}", loop_axis.size) for n, loop_axis in enumerate(self.rows)]
        self.height = self.choose_height()
        self.grid_places: list[Dim] = []
        self.chains = 1  # the same for all rows, so that all are summed in the same order
        self.writes_in_loop = self.epilogue_writer.is_long or self.sums_are_long()

    def choose_height(self) -> int:
        """Choose the rows of a tile."""
        return choose_tile_height(self.target, self.panels.width)

    def sums_are_long(self) -> bool:
        """Return whether sums are so long that a tile can go through memory, to be written by a loop over its rows.

        With rows along several axes the loop also has to divide to find their positions.
        """
        depth = dims.product(loop_axis.size for loop_axis in self.sums)
        return dims.is_at_least(depth, _LONG_SUM if len(self.rows) <= 1 else 4 * _LONG_SUM)

    def stride(self, name: str, value: Dim) -> Dim:
        """Return a stride as a parameter, or as a literal if it decides the addressing mode."""
        return value if value in (0, 1) else self.builder.parameter(name, value)

    def right_stride(self, name: str, value: Dim) -> Dim:
        """Return a stride of the right operand, where strides of a vector or a panel are literals too."""
        return value if value in (self.lanes, self.panels.step) else self.stride(name, value)

    def build_launch(self) -> Launch:
        product = self.product
        count = dims.product(loop_axis.size for loop_axis in self.rows)
        parts = split_rows(count, self.height)
        height = parts[0].height if parts else 1
        if self.writes_in_loop:
            self.tile_buffer = self.builder.local("tile", self.type, max(height, _WIDE_PANELS) * self.panels.step)
        self.chains = max(1, _CHAINS // height)
        tiles = parts[-1].first + parts[-1].count if parts else 0
        panels = self.panels.whole + self.panels.singles
        blocking = self.choose_blocking(height, dims.ceildiv(count, height), panels)
        self.ahead = self.choose_ahead(blocking)
        chunks = dims.ceildiv(tiles, blocking.tiles), dims.ceildiv(panels, blocking.panels)
        statements: list[Statement] = []
        tile_chunk, panel_chunk = self.decode_block(statements, chunks, blocking)
        first, end = self.block_range("tiles", tile_chunk, blocking.tiles, tiles)
        panel_first, panel_end = self.block_range("panels", panel_chunk, blocking.panels, panels)
        flat = [part for part in parts if part.height <= _MAX_UNROLLED_ROWS and not product.padded]
        tall = [part for part in parts if part not in flat]
        if tall:
            statements.extend(self.columns(tall, first, end, panel_first, panel_end))
        for part in flat:
            panels_at_once = max(1, _WIDE_PANELS // part.height)
            statements.extend(self.columns([part], first, end, panel_first, panel_end, panels_at_once))
        blocks = dims.product(loop_axis.size for loop_axis in product.grid) * chunks[0] * chunks[1]
        return self.builder.launch(self.lanes, statements, blocks)

    # -- blocks ------------------------------------------------------------------------------------------------------

    def choose_blocking(self, height: int, tiles: Dim, panels: Dim) -> Blocking:
        """Choose the tiles and panels of a block: rows that stay in the cache, and enough work."""
        depth = dims.product(loop_axis.size for loop_axis in self.sums)
        tile_bytes = self.row_elements() * height * (self.product.left.bits // 8)
        max_tiles = dims.minimum(_MAX_TILES, dims.floordiv(self.target.cache_bytes // 4, tile_bytes + 1))
        product_shape = ProductShape(
            grid=dims.product(loop_axis.size for loop_axis in self.product.grid),
            tiles=tiles,
            panels=panels,
            work=2 * max(height, 4) * self.panels.step * depth,
            tile_bytes=tile_bytes,
            panel_bytes=depth * self.panels.step * (self.product.right.bits // 8),
        )
        flat = height <= _MAX_UNROLLED_ROWS and not self.product.padded
        return choose_blocking(
            product_shape, dims.maximum(max_tiles, 1), _WIDE_PANELS if flat else 1, self.target.cache_bytes
        )

    def choose_ahead(self, blocking: Blocking) -> Dim:
        """Choose how many elements of the next panel a step of the sums prefetches; 0 if all panels fit the cache.

        The tiles of a block share the next panel, so that it arrives while all of them compute. A single tile waits for
        memory all the time, and prefetches nothing.
        """
        depth = dims.product(loop_axis.size for loop_axis in self.sums)
        right_bytes = depth * self.product.column.size * (self.product.right.bits // 8)
        if not self.product.packed or not exceeds_cache(right_bytes, self.target.cache_bytes):
            return 0
        step = self.panels.step
        return dims.mod(dims.ceildiv(step, blocking.tiles), step)

    def row_elements(self) -> Dim:
        """Return how many elements of the left operand a row adds: windows of neighbouring rows may overlap."""
        depth = dims.product(loop_axis.size for loop_axis in self.sums)
        if not self.sums or not self.rows or self.sums[-1].left != 1:
            return depth
        inner, step = self.sums[-1].size, self.rows[-1].left
        if not isinstance(inner, int) or not isinstance(step, int) or not 0 < step < inner:
            return depth
        return dims.floordiv(depth, inner) * step

    def decode_block(self, statements: list[Statement], chunks: tuple[Dim, Dim], blocking: Blocking) -> tuple[Dim, Dim]:
        """Decode a block number into its chunks of tiles and panels, and set `grid_places`.

        The order of blocks is in parameters, so that both orders share a kernel.
        """
        parameter = self.builder.parameter
        tile_chunks, panel_chunks = parameter("tile_chunks", chunks[0], 1), parameter("panel_chunks", chunks[1], 1)
        tile_step = parameter("tile_step", 1 if blocking.tiles_first else chunks[1], 1)
        panel_step = parameter("panel_step", chunks[0] if blocking.tiles_first else 1, 1)
        tile_of_block = dims.mod(dims.floordiv(block(), tile_step), tile_chunks)
        panel_of_block = dims.mod(dims.floordiv(block(), panel_step), panel_chunks)
        first, tile_chunk = self.builder.let("tile_chunk", tile_of_block)
        second, panel_chunk = self.builder.let("panel_chunk", panel_of_block)
        third, place = self.builder.let("place", dims.floordiv(block(), tile_chunks * panel_chunks))
        statements += [first, second, third]
        sizes = [parameter(f"grid{number}", loop_axis.size) for number, loop_axis in enumerate(self.product.grid)]
        for number, value in enumerate(unravel_index(place, sizes)):
            defined, at = self.builder.let(f"g{number}", value)
            statements.append(defined)
            self.grid_places.append(at)
        return tile_chunk, panel_chunk

    def block_range(self, name: str, chunk: Dim, each: Dim, count: Dim) -> tuple[Dim, Dim]:
        """Return the first item of a chunk, and its end."""
        size = self.builder.parameter(f"{name}_each", each, 0)
        return chunk * size, dims.minimum(chunk * size + size, self.builder.parameter(name, count, 0))

    # -- tiles -------------------------------------------------------------------------------------------------------

    def columns(
        self, parts: Sequence[TileSection], first: Dim, end: Dim, panel: Dim, panel_end: Dim, panels_at_once: int = 1
    ) -> list[Statement]:
        """Build tiles with all panels of a block: `panels_at_once`, then one by one, then the single vectors."""
        panels = self.panels
        statements: list[Statement] = []
        whole = self.builder.parameter("whole", panels.whole, 0)

        def loop(
            span: tuple[Dim, Dim], step: int, width: int, splits: bool, place: Callable[[Dim], tuple[Dim, Dim]]
        ) -> None:
            number = self.builder.variable("panel")
            column, start = place(number)
            first_let, at = self.builder.let("column", column)
            second_let, start_at = self.builder.let("start", start)
            columns = ColumnStart(at, start_at)
            tiles = [self.build_section(part, (first, end), columns, width, splits) for part in parts]
            statements.append(repeat(number, *span, step, (first_let, second_let, *tiles)))

        distance = self.right_stride("panel_right", self.product.panel)
        if panels.whole != 0:
            stop = dims.minimum(panel_end, whole)

            def whole_panel(number: Dim) -> tuple[Dim, Dim]:
                return number * panels.step, number * distance

            middle = panel
            if panels_at_once > 1:
                middle = panel + dims.floordiv(dims.maximum(stop - panel, 0), panels_at_once) * panels_at_once
                loop((panel, middle), panels_at_once, panels_at_once * panels.width, False, whole_panel)
            loop((middle, stop), 1, panels.width, True, whole_panel)
        if panels.singles != 0:
            near = self.single_stride("single_right", self.product.panel) if self.product.packed else self.lanes

            def single_vector(number: Dim) -> tuple[Dim, Dim]:
                further = number - whole
                return whole * panels.step + further * self.lanes, whole * distance + further * near

            loop((dims.maximum(panel, whole), panel_end), 1, 0, True, single_vector)
        return statements

    def build_section(
        self, part: TileSection, tiles: tuple[Dim, Dim], columns: ColumnStart, width: int, splits: bool
    ) -> Statement:
        """Build a block's tiles of one height; width 0 means single vectors."""
        parameter = self.builder.parameter
        number = self.builder.variable(f"tile{part.height}")
        height = part.height
        start, count = parameter(f"first{height}", part.first, 0), parameter(f"count{height}", part.count, 0)
        row = parameter(f"row{height}", part.row, 0) + (number - start) * height
        splits = splits and self.product.order is None
        shape = TileExtent(part.height, max(width, 1), self.chains if splits else 1, width == 0)
        low, high = dims.maximum(tiles[0], start), dims.minimum(tiles[1], start + count)
        return repeat(number, low, high, 1, self.build_tile(row, shape, columns, number - tiles[0]))

    def build_tile(self, row: Dim, shape: TileExtent, columns: ColumnStart, turn: Dim) -> tuple[Statement, ...]:
        statements: list[Statement] = []
        places = self.row_places(statements, row, shape.height)
        base = self.start("left", self.product.left_start)
        if self.product.order is None:
            base = base + self.grid_offset()
        lefts = [self.stride(f"rows{number}_left", loop_axis.left) for number, loop_axis in enumerate(self.rows)]
        starts = self.builder.variables("left", shape.height, None)
        statements.extend(let(start, base + offset(lefts, place)) for start, place in zip(starts, places))
        count = shape.height * shape.width
        sums = self.builder.registers("sum", count * shape.splits, self.type)
        statements.extend(define(total, Number(0, self.type)) for total in sums)
        tile = RegisterTile(shape, starts, columns, sums, turn)
        statements.extend(self.reduce(tile))
        for number in range(count):
            for split in range(1, shape.splits):
                total = Call("add", (sums[number], sums[number + split * count]), self.type)
                statements.append(assign(sums[number], total))
        statements.extend(self.finish(row, places, tile))
        return tuple(statements)

    def start(self, side: str, value: Dim) -> Dim:
        return 0 if value == 0 else self.builder.parameter(f"{side}_start", value)

    def row_places(self, statements: list[Statement], row: Dim, height: int) -> list[list[Dim]]:
        """Return the positions of a tile's rows along the row axes, counted up from the first row."""
        if not self.rows:
            return [[] for _ in range(height)]
        defined, first = self.builder.let("row", row)
        statements.append(defined)
        if len(self.rows) == 1:
            return [[first + number] for number in range(height)]
        places: list[list[Dim]] = [[]]
        for number, place in enumerate(unravel_index(first, self.row_sizes)):
            defined, at = self.builder.let(f"y{number}_0", place)
            statements.append(defined)
            places[0].append(at)
        for step in range(1, height):
            carry: Dim = 1
            following: list[Dim] = []
            for number in reversed(range(len(self.rows))):
                moved = places[-1][number] + carry
                if number:
                    carry = self.builder.variable(f"wrap{number}_{step}", 0, 1)
                    statements.append(let(carry, dims.maximum(moved + 1 - self.row_sizes[number], 0)))
                    moved = moved - carry * self.row_sizes[number]
                defined, at = self.builder.let(f"y{number}_{step}", moved)
                statements.append(defined)
                following.insert(0, at)
            places.append(following)
        return places

    # -- sums --------------------------------------------------------------------------------------------------------

    def reduce(self, tile: RegisterTile) -> tuple[Statement, ...]:
        """Build the loops over the sums; the innermost does as many steps at a time as there are splits."""
        shape = tile.shape
        if self.product.order is not None:
            return self.reduce_in_order(tile, self.product.order)
        lefts = [self.stride(f"sum{number}_left", loop_axis.left) for number, loop_axis in enumerate(self.sums)]
        step_right = self.single_stride if self.has_single_strides(shape) else self.right_stride
        rights = [step_right(f"sum{number}_right", loop_axis.right) for number, loop_axis in enumerate(self.sums)]
        sizes = [self.builder.parameter(f"sums{number}", loop_axis.size) for number, loop_axis in enumerate(self.sums)]
        places = self.builder.variables("k", len(self.sums))
        last = len(self.sums) - 1
        outer = offset(lefts[:last], places[:last]) if self.sums else 0

        views, sources = self.build_views(tile, outer, offset(rights[:last], places[:last]))

        def step(split: int) -> list[Statement]:
            at = [*places[:-1], places[-1] + split] if places else []
            statements = self.multiply(tile, sources, offset(lefts[-1:], at[-1:]), offset(rights[-1:], at[-1:]), split)
            if (
                self.ahead != 0 and shape.height > _MAX_UNROLLED_ROWS
            ):  # for fewer rows, it would cost more than it gains
                statements.append(self.prefetch_next_panel(tile, at))
            return statements

        if not self.sums:
            return (*views, *step(0))
        number, count = places[-1], sizes[-1]
        body: tuple[Statement, ...]
        if shape.splits == 1:
            unroll = 2 if shape.height * shape.width <= _MAX_UNROLLED_ROWS else 1
            body = (repeat(number, 0, count, 1, step(0), unroll),)
        else:
            end = dims.floordiv(count, shape.splits) * shape.splits
            together = tuple(statement for split in range(shape.splits) for statement in step(split))
            body = (repeat(number, 0, end, shape.splits, together), repeat(number, end, count, 1, step(0)))
        body = (*views, *body)
        for place, size in reversed(list(zip(places[:-1], sizes))):
            body = (repeat(place, 0, size, 1, body),)
        return body

    def prefetch_next_panel(self, tile: RegisterTile, places: Sequence[Dim]) -> Statement:
        """Prefetch the part of the next panel that belongs to a step of a tile."""
        step = self.panels.step
        shares = [dims.floordiv(loop_axis.right, step) * self.ahead for loop_axis in self.sums]
        parts = [self.stride(f"sum{number}_ahead", share) for number, share in enumerate(shares)]
        depth = dims.floordiv(self.product.panel, step) * self.ahead
        start = self.right_stride("panel_right", self.product.panel) + self.stride("tile_ahead", depth) * tile.turn
        place = self.right_offset(tile.columns) + start + offset(parts, places)
        return Prefetch(self.right.name, place, 1, level=2)

    def build_views(self, tile: RegisterTile, left: Dim, right: Dim) -> tuple[list[View], list[Buffer]]:
        """Return views of the rows of a tile, then of its columns."""
        views = [self.builder.view(f"row{n}", self.left, start + left) for n, start in enumerate(tile.lefts)]
        views.append(self.builder.view("panels", self.right, self.right_offset(tile.columns) + right))
        return [view for view, _ in views], [buffer for _, buffer in views]

    def has_single_strides(self, shape: TileExtent) -> bool:
        """Return whether a tile is of single vectors, packed with smaller strides than those of panels."""
        return shape.single and self.product.packed

    def single_stride(self, name: str, value: Dim) -> Dim:
        """Return the stride of packed single vectors that corresponds to a stride of panels."""
        return self.right_stride(f"{name}_single", dims.floordiv(value, self.panels.width))

    def reduce_in_order(self, tile: RegisterTile, order: Dim) -> tuple[Statement, ...]:
        """Build the only sum in the order of channels that `order` gives: elements a period apart follow each other."""
        shape = tile.shape
        period, advance = find_period(order)
        (loop_axis,) = self.sums
        right = dims.floordiv(loop_axis.right, self.panels.width) if self.has_single_strides(shape) else loop_axis.right
        turn, place = self.builder.variable("turn"), self.builder.variable("k")
        at = dims.substitute(
            order, lambda _: turn + offset([loop_axis.left for loop_axis in self.product.grid], self.grid_places)
        )
        views, sources = self.build_views(tile, at, turn * right)
        count = dims.ceildiv(self.builder.parameter("sums", loop_axis.size) - turn, period)
        step = self.multiply(tile, sources, place * advance, place * (period * right), 0)
        unroll = 2 if shape.height * shape.width <= _MAX_UNROLLED_ROWS else 1
        return (repeat(turn, 0, period, 1, (*views, repeat(place, 0, count, 1, step, unroll))),)

    def grid_offset(self) -> Dim:
        strides = [
            self.stride(f"grid{number}_left", loop_axis.left) for number, loop_axis in enumerate(self.product.grid)
        ]
        return offset(strides, self.grid_places)

    def right_offset(self, columns: ColumnStart) -> Dim:
        """Return the offset of the current panel."""
        place = self.start("right", self.product.right_start)
        for number, (loop_axis, at) in enumerate(zip(self.product.grid, self.grid_places)):
            place = place + self.stride(f"grid{number}_right", loop_axis.right) * at
        return place + columns.start

    def multiply(self, tile: RegisterTile, sources: list[Buffer], left: Dim, right: Dim, split: int) -> list[Statement]:
        """Build one step of the sums: all rows times all vectors of columns."""
        product, shape = self.product, tile.shape
        mask = None if product.padded else self.column_mask(tile)
        statements: list[Statement] = []
        *rows, panels = sources
        vectors: list[Register] = []
        for column in range(shape.width):
            place = right + column * self.lanes + lane(self.lanes)
            defined, vector = self.builder.keep(
                "b", convert_factor(product.words, fetch(panels, place, mask=mask), self.type)
            )
            statements.append(defined)
            vectors.append(vector)
        for number, row in enumerate(rows):
            element = convert_factor(product.words, fetch(row, left), self.type)
            if shape.width > 1:
                defined, element = self.builder.keep("a", element)
                statements.append(defined)
            for column, vector in enumerate(vectors):
                total = tile.sums[(split * shape.height + number) * shape.width + column]
                added = accumulate(product.words, self.target, element, vector, total)
                statements.append(assign(total, added))
        return statements

    # -- epilogue ----------------------------------------------------------------------------------------------------

    def column(self, tile: RegisterTile, number: int = 0) -> Dim:
        return tile.columns.first + number * self.lanes + lane(self.lanes)

    def column_mask(self, tile: RegisterTile) -> Code | None:
        """Return the mask of lanes that have a column; None in whole panels."""
        if not tile.shape.single or self.panels.has_full_lanes:
            return None
        columns = self.builder.parameter("columns", self.panels.columns)
        return less(self.column(tile), columns)

    def finish(self, row: Dim, places: list[list[Dim]], tile: RegisterTile) -> list[Statement]:
        """Write the tile row by row; in a loop if the epilogue is long, so that the code stays small."""
        shape = tile.shape
        mask = self.column_mask(tile)
        statements: list[Statement] = []
        if not self.writes_in_loop:
            for number, row_place in enumerate(places):
                for column in range(shape.width):
                    value = tile.sums[number * shape.width + column]
                    statements.extend(self.write(value, row_place, self.column(tile, column), mask))
            return statements
        for number, total in enumerate(tile.sums[: shape.height * shape.width]):
            statements.append(put(self.tile_buffer, number * self.lanes + lane(self.lanes), total))
        if len(self.rows) <= 1:
            return [*statements, self.write_rows(0, shape.height, lambda element: [row + element], tile)]
        # Tiles continue on the next line: positions are divided out once for each line, not for each row.
        *outer, width = self.row_sizes
        line, first = self.builder.variable("line"), places[0][-1]
        defined, start = self.builder.let("line_start", line * width - first, None)
        numbers = [places[0][0] + line] if len(outer) == 1 else unravel_index(dims.floordiv(row, width) + line, outer)
        lets: list[Statement] = [defined]
        position: list[Dim] = []
        for axis, coordinate in enumerate(numbers):
            defined, place = self.builder.let(f"line{axis}", coordinate)
            lets.append(defined)
            position.append(place)
        rows = self.write_rows(
            dims.maximum(start, 0),
            dims.minimum(start + width, shape.height),
            lambda element: [*position, element - start],
            tile,
        )
        lines = dims.floordiv(first + shape.height - 1, width) + 1
        return [*statements, repeat(line, 0, lines, 1, (*lets, rows))]

    def write_rows(self, first: Dim, end: Dim, locate: Callable[[Dim], Sequence[Dim]], tile: RegisterTile) -> Statement:
        """Write rows of the tile buffer; `locate` returns the position of a row along the row axes."""
        element, shape, mask = self.builder.variable("e"), tile.shape, self.column_mask(tile)
        body: list[Statement] = []
        for column in range(shape.width):
            at = (element * shape.width + column) * self.lanes + lane(self.lanes)
            body.extend(self.write(fetch(self.tile_buffer, at), locate(element), self.column(tile, column), mask))
        return repeat(element, first, end, 1, body)

    def write(self, value: Code, place: Sequence[Dim], column: Dim, mask: Code | None) -> tuple[Statement, ...]:
        """Write one vector of the result."""
        product, parameter = self.product, self.builder.parameter
        axes = {axis: parameter(f"start{axis}", start) for axis, start in product.result_start.items()}
        loop_axes = [*zip(product.grid, self.grid_places), *zip(self.rows, place), (product.column, column)]
        for loop_axis, at in loop_axes:
            if loop_axis.axis is not None:
                axes[loop_axis.axis] = axes.get(loop_axis.axis, 0) + self.builder.size(loop_axis.factor) * at
        return self.epilogue_writer.write(value, axes, mask)


build_product_kernel = memoize_launch(ProductBuilder)
