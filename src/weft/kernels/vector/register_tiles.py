"""The register-tiled kernel for sums of products: matrix products and convolutions are this, with other strides.

A tile is some rows times a panel, some vectors of neighbouring columns, with an accumulator for each row and vector.
Each step of the sums takes the vectors from the right operand, one number a row from the left one, and multiplies them
into the accumulators. Columns after the last whole panel go vector by vector, so that hardly a lane is idle. Rows may
lie anywhere in the left operand. The epilogue is applied to the accumulators.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field

from weft.fuse.channel_order import period_of
from weft.ir import dims
from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.ir.kernel import Buffer, Call, Code, Integer, Number, Register, Statement, View, block, lane
from weft.ir.layout import offset
from weft.ir.target import VectorTarget
from weft.kernels.build.epilogue import EpilogueWriter
from weft.kernels.build.loop_axes import LoopAxis, merge_loop_axes, split_index
from weft.kernels.build.multiply_add import accumulate, factor, sums_type
from weft.kernels.lower.kernel_builder import KernelBuilder, assign, define, fetch, let, put, repeat
from weft.kernels.lower.memoize import memoized
from weft.kernels.lower.tensors import LEFT, RIGHT, Epilogue, Launch, StoredTensor
from weft.kernels.vector.blocking import Blocking, Demand, cut
from weft.kernels.vector.panels import Panels, tile_height
from weft.records import dataclass

_TILES_EACH = 8  # tiles of rows that a block does, at most: their rows stay in the first cache where sums are short
_CHAINS = 4  # independent sums that keep the multipliers busy
_LOW = 6  # rows up to which several steps at a time pay; more would leave no registers for it
_WIDE = 8  # panels at a time, times rows, where an operand in place is read for few rows
_LONG = 128  # terms of sums beside which a write to the first cache and a read are nothing
_ALIAS = 4096  # bytes between places that compete for the same lines of a cache


@dataclass(frozen=True, slots=True)
class TiledProduct:
    """result[grid, rows, column] = epilogue(sum of left * right over `sums`).

    Lanes are neighbours in the right operand, where `panel` elements lie between panels. In place, vectors of a panel
    lie side by side like all others, and nothing lies behind the last column. With `padded` every vector is whole;
    with `packed` single vectors too lie on their own, and the steps of the sums are shorter there.
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
    order: Dim | None = None  # which element of the left operand is the one at a place along the grid and the only sum
    words: str = ""  # elements are words: of int8 in one operand, uint8 in this one, left or right; or PAIRS


@dataclass(frozen=True, slots=True)
class TileExtent:
    """What is summed up at the same time: rows, vectors of columns (or a single one), and parts of the sums."""

    height: int
    width: int
    splits: int
    single: bool


@dataclass(frozen=True, slots=True)
class RegisterTile:
    """A tile in the making: where its rows start in the left operand, where its columns do, and its sums."""

    shape: TileExtent
    lefts: Sequence[Dim]
    columns: ColumnStart
    sums: Sequence[Register]


@dataclass(frozen=True, slots=True)
class ColumnStart:
    """The first column of a tile, and its place in the right operand."""

    first: Dim
    start: Dim


@dataclass(frozen=True, slots=True)
class Section:
    """`count` tiles of one height, from tile number `first` and row `row` on."""

    height: int
    first: Dim
    count: Dim
    row: Dim


def sections(rows: Dim, height: int) -> list[Section]:
    """Rows shared out to tiles: evenly where their number is known, else greedily."""
    if isinstance(rows, int):
        tiles = max(1, -(-rows // height))
        tall = -(-rows // tiles)
        count = rows - tiles * (tall - 1)
        found = [Section(tall, 0, count, 0)] if rows else []
        if tiles > count or rows > height * (height - 1):
            found.append(Section(tall - 1, count, tiles - count, count * tall))
        return found
    found = []
    first: Dim = 0
    row: Dim = 0
    size = height
    while size:
        count_left = dims.floordiv(rows - row, size)
        found.append(Section(size, first, count_left, row))
        first, row = first + count_left, row + count_left * size
        size = 8 if size > 8 else size // 2
    return found


@memoized
def product_kernel(name: str, product: TiledProduct, target: VectorTarget) -> Launch:
    """A launch whose operands are left, right and the epilogue's."""
    return ProductBuilder(name, product, target).launch()


class ProductBuilder:
    """Of a `TiledProduct`; others may bring steps of the sums of their own."""

    def __init__(self, name: str, product: TiledProduct, target: VectorTarget) -> None:
        self.product = product
        self.target = target
        self.panels = product.panels
        self.lanes = product.panels.lanes
        self.type = sums_type(product.words, product.left)
        self.builder = KernelBuilder(name)
        self.left = self.builder.input("left", product.left, LEFT)
        self.right = self.builder.input("right", product.right, RIGHT)
        self.epilogue_writer = EpilogueWriter(product.result, product.epilogue, self.builder, 2)
        self.rows = merge_loop_axes(product.rows, self.epilogue_writer)
        self.sums = merge_loop_axes(product.sums)
        self.row_sizes = [self.builder.named(f"rows{n}", loop_axis.size) for n, loop_axis in enumerate(self.rows)]
        self.height = self.most_rows()
        self.grid_places: list[Dim] = []
        self.chains = 1  # the same for all rows, so that each sums up in the same order
        self.writes_in_loop = self.epilogue_writer.is_long or self.sums_are_long()

    def most_rows(self) -> int:
        """Rows of a tile; half as many where all of them would share one set of the first cache."""
        height = tile_height(self.target, self.panels.width)
        steps = [loop_axis.left for loop_axis in self.rows[-1:]]
        aliased = all(isinstance(step, int) and step * (self.product.left.bits // 8) % _ALIAS == 0 for step in steps)
        return max(1, height // 2) if aliased and self.rows else height

    def sums_are_long(self) -> bool:
        """Whether the way of a tile through memory is nothing to its sums, so that its rows are written in a loop.

        Rows along several axes have their places found by division there.
        """
        depth = dims.product(loop_axis.size for loop_axis in self.sums)
        return dims.is_at_least(depth, _LONG if len(self.rows) <= 1 else 4 * _LONG)

    def stride(self, name: str, value: Dim) -> Dim:
        """A stride as the kernel sees it: those that decide how to address are written into the code."""
        return value if value in (0, 1) else self.builder.named(name, value)

    def stride_right(self, name: str, value: Dim) -> Dim:
        """The same for the right operand, where vectors and panels mostly follow each other."""
        return value if value in (self.lanes, self.panels.step) else self.stride(name, value)

    def launch(self) -> Launch:
        product = self.product
        count = dims.product(loop_axis.size for loop_axis in self.rows)
        parts = sections(count, self.height)
        height = parts[0].height if parts else 1
        if self.writes_in_loop:
            self.kept = self.builder.local("tile", self.type, max(height, _WIDE) * self.panels.step)
        self.chains = max(1, _CHAINS // height)
        tiles = parts[-1].first + parts[-1].count if parts else 0
        panels = self.panels.whole + self.panels.singles
        made = self.cut(height, dims.ceildiv(count, height), panels)
        chunks = dims.ceildiv(tiles, made.tiles), dims.ceildiv(panels, made.panels)
        statements: list[Statement] = []
        tile_chunk, panel_chunk = self.decode(statements, chunks, made)
        first, end = self.share("tiles", tile_chunk, made.tiles, tiles)
        panel_first, panel_end = self.share("panels", panel_chunk, made.panels, panels)
        flat = [part for part in parts if part.height <= _LOW and not product.padded]
        tall = [part for part in parts if part not in flat]
        if tall:
            statements.extend(self.columns(tall, first, end, panel_first, panel_end))
        for part in flat:
            wide = max(1, _WIDE // part.height)
            statements.extend(self.columns([part], first, end, panel_first, panel_end, wide))
        blocks = dims.product(loop_axis.size for loop_axis in product.grid) * chunks[0] * chunks[1]
        return self.builder.launch(self.lanes, statements, blocks)

    # -- blocks ------------------------------------------------------------------------------------------------------

    def cut(self, height: int, tiles: Dim, panels: Dim) -> Blocking:
        """What a block does: rows that stay in the cache, and enough work."""
        depth = dims.product(loop_axis.size for loop_axis in self.sums)
        tile_bytes = self.row_elements() * height * (self.product.left.bits // 8)
        most = dims.minimum(_TILES_EACH, dims.floordiv(self.target.cache_bytes // 4, tile_bytes + 1))
        demand = Demand(
            grid=dims.product(loop_axis.size for loop_axis in self.product.grid),
            tiles=tiles,
            panels=panels,
            work=2 * max(height, 4) * self.panels.step * depth,
            tile_bytes=tile_bytes,
            panel_bytes=depth * self.panels.step * (self.product.right.bits // 8),
        )
        flat = height <= _LOW and not self.product.padded
        return cut(demand, dims.maximum(most, 1), _WIDE if flat else 1, self.target.cache_bytes)

    def row_elements(self) -> Dim:
        """Elements of the left operand that one more row brings: windows of neighbouring rows may overlap."""
        depth = dims.product(loop_axis.size for loop_axis in self.sums)
        if not self.sums or not self.rows or self.sums[-1].left != 1:
            return depth
        inner, step = self.sums[-1].size, self.rows[-1].left
        if not isinstance(inner, int) or not isinstance(step, int) or not 0 < step < inner:
            return depth
        return dims.floordiv(depth, inner) * step

    def decode(self, statements: list[Statement], chunks: tuple[Dim, Dim], made: Blocking) -> tuple[Dim, Dim]:
        """Which tiles and panels a block has, by its number; its places in the grid are kept.

        The order is a matter of parameters, so that it needs no other kernel.
        """
        named = self.builder.named
        tile_chunks, panel_chunks = named("tile_chunks", chunks[0], 1), named("panel_chunks", chunks[1], 1)
        tile_step = named("tile_step", 1 if made.tiles_first else chunks[1], 1)
        panel_step = named("panel_step", chunks[0] if made.tiles_first else 1, 1)
        tile_of_block = dims.mod(dims.floordiv(block(), tile_step), tile_chunks)
        panel_of_block = dims.mod(dims.floordiv(block(), panel_step), panel_chunks)
        first, tile_chunk = self.builder.let("tile_chunk", tile_of_block)
        second, panel_chunk = self.builder.let("panel_chunk", panel_of_block)
        third, place = self.builder.let("place", dims.floordiv(block(), tile_chunks * panel_chunks))
        statements += [first, second, third]
        sizes = [named(f"grid{number}", loop_axis.size) for number, loop_axis in enumerate(self.product.grid)]
        for number, value in enumerate(split_index(place, sizes)):
            defined, at = self.builder.let(f"g{number}", value)
            statements.append(defined)
            self.grid_places.append(at)
        return tile_chunk, panel_chunk

    def share(self, name: str, chunk: Dim, each: Dim, count: Dim) -> tuple[Dim, Dim]:
        """The first of a chunk, and where it ends."""
        size = self.builder.named(f"{name}_each", each, 0)
        return chunk * size, dims.minimum(chunk * size + size, self.builder.named(name, count, 0))

    # -- tiles -------------------------------------------------------------------------------------------------------

    def columns(
        self, parts: Sequence[Section], first: Dim, end: Dim, panel: Dim, panel_end: Dim, wide: int = 1
    ) -> list[Statement]:
        """Tiles with all panels of a block: `wide` panels at a time, then one, then the single vectors."""
        panels = self.panels
        statements: list[Statement] = []
        whole = self.builder.named("whole", panels.whole, 0)

        def loop(
            span: tuple[Dim, Dim], step: int, width: int, splits: bool, place: Callable[[Dim], tuple[Dim, Dim]]
        ) -> None:
            number = self.builder.variable("panel")
            column, start = place(number)
            first_let, at = self.builder.let("column", column)
            second_let, start_at = self.builder.let("start", start)
            columns = ColumnStart(at, start_at)
            tiles = [self.section(part, (first, end), columns, width, splits) for part in parts]
            statements.append(repeat(number, *span, step, (first_let, second_let, *tiles)))

        distance = self.stride_right("panel_right", self.product.panel)
        if panels.whole != 0:
            stop = dims.minimum(panel_end, whole)

            def whole_panel(number: Dim) -> tuple[Dim, Dim]:
                return number * panels.step, number * distance

            middle = panel
            if wide > 1:
                middle = panel + dims.floordiv(dims.maximum(stop - panel, 0), wide) * wide
                loop((panel, middle), wide, wide * panels.width, False, whole_panel)
            loop((middle, stop), 1, panels.width, True, whole_panel)
        if panels.singles != 0:
            near = self.narrowed("single_right", self.product.panel) if self.product.packed else self.lanes

            def single_vector(number: Dim) -> tuple[Dim, Dim]:
                further = number - whole
                return whole * panels.step + further * self.lanes, whole * distance + further * near

            loop((dims.maximum(panel, whole), panel_end), 1, 0, True, single_vector)
        return statements

    def section(
        self, part: Section, tiles: tuple[Dim, Dim], columns: ColumnStart, width: int, splits: bool
    ) -> Statement:
        """The tiles of one height that belong to a block; width 0 means single vectors."""
        named = self.builder.named
        number = self.builder.variable(f"tile{part.height}")
        height = part.height
        start, count = named(f"first{height}", part.first, 0), named(f"count{height}", part.count, 0)
        row = named(f"row{height}", part.row, 0) + (number - start) * height
        splits = splits and self.product.order is None
        shape = TileExtent(part.height, max(width, 1), self.chains if splits else 1, width == 0)
        low, high = dims.maximum(tiles[0], start), dims.minimum(tiles[1], start + count)
        return repeat(number, low, high, 1, self.tile(row, shape, columns))

    def tile(self, row: Dim, shape: TileExtent, columns: ColumnStart) -> tuple[Statement, ...]:
        statements: list[Statement] = []
        places = self.row_places(statements, row, shape.height)
        base = self.start("left", self.product.left_start)
        if self.product.order is None:
            base = base + self.grid_left()
        lefts = [self.stride(f"rows{number}_left", loop_axis.left) for number, loop_axis in enumerate(self.rows)]
        starts = self.builder.variables("left", shape.height, None)
        statements.extend(let(start, base + offset(lefts, place)) for start, place in zip(starts, places))
        count = shape.height * shape.width
        sums = self.builder.registers("sum", count * shape.splits, self.type)
        statements.extend(define(total, Number(0, self.type)) for total in sums)
        tile = RegisterTile(shape, starts, columns, sums)
        statements.extend(self.reduce(tile))
        for number in range(count):
            for split in range(1, shape.splits):
                total = Call("add", (sums[number], sums[number + split * count]), self.type)
                statements.append(assign(sums[number], total))
        statements.extend(self.finish(row, places, tile))
        return tuple(statements)

    def start(self, side: str, value: Dim) -> Dim:
        return 0 if value == 0 else self.builder.named(f"{side}_start", value)

    def row_places(self, statements: list[Statement], row: Dim, height: int) -> list[list[Dim]]:
        """Where the rows of a tile lie along the row loop axes: counted up from the first one."""
        if not self.rows:
            return [[] for _ in range(height)]
        defined, first = self.builder.let("row", row)
        statements.append(defined)
        if len(self.rows) == 1:
            return [[first + number] for number in range(height)]
        places: list[list[Dim]] = [[]]
        for number, place in enumerate(split_index(first, self.row_sizes)):
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
        """The loops over the sums; the innermost one does as many steps at a time as there are splits."""
        shape = tile.shape
        if self.product.order is not None:
            return self.reduce_in_order(tile, self.product.order)
        lefts = [self.stride(f"sum{number}_left", loop_axis.left) for number, loop_axis in enumerate(self.sums)]
        step_right = self.narrowed if self.is_narrow(shape) else self.stride_right
        rights = [step_right(f"sum{number}_right", loop_axis.right) for number, loop_axis in enumerate(self.sums)]
        sizes = [self.builder.named(f"sums{number}", loop_axis.size) for number, loop_axis in enumerate(self.sums)]
        places = self.builder.variables("k", len(self.sums))
        last = len(self.sums) - 1
        outer = offset(lefts[:last], places[:last]) if self.sums else 0

        views, sources = self.views(tile, outer, offset(rights[:last], places[:last]))

        def step(split: int) -> list[Statement]:
            at = [*places[:-1], places[-1] + split] if places else []
            return self.multiply(tile, sources, offset(lefts[-1:], at[-1:]), offset(rights[-1:], at[-1:]), split)

        if not self.sums:
            return (*views, *step(0))
        number, count = places[-1], sizes[-1]
        body: tuple[Statement, ...]
        if shape.splits == 1:
            unroll = 2 if shape.height * shape.width <= _LOW else 1
            body = (repeat(number, 0, count, 1, step(0), unroll),)
        else:
            end = dims.floordiv(count, shape.splits) * shape.splits
            together = tuple(statement for split in range(shape.splits) for statement in step(split))
            body = (repeat(number, 0, end, shape.splits, together), repeat(number, end, count, 1, step(0)))
        body = (*views, *body)
        for place, size in reversed(list(zip(places[:-1], sizes))):
            body = (repeat(place, 0, size, 1, body),)
        return body

    def views(self, tile: RegisterTile, left: Dim, right: Dim) -> tuple[list[View], list[Buffer]]:
        """The rows of a tile, then its columns, each as memory of its own from an offset on."""
        made = [self.builder.view(f"row{n}", self.left, start + left) for n, start in enumerate(tile.lefts)]
        made.append(self.builder.view("panels", self.right, self.right_place(tile.columns) + right))
        return [view for view, _ in made], [buffer for _, buffer in made]

    def is_narrow(self, shape: TileExtent) -> bool:
        """Whether a tile's single vectors lie closer together than those of panels."""
        return shape.single and self.product.packed

    def narrowed(self, name: str, value: Dim) -> Dim:
        """A stride of panels as one of the single vectors that are packed like them."""
        return self.stride_right(f"{name}_single", dims.floordiv(value, self.panels.width))

    def reduce_in_order(self, tile: RegisterTile, order: Dim) -> tuple[Statement, ...]:
        """The only sum, with the left operand's elements where `order` says: those a period apart after each other."""
        shape = tile.shape
        period, advance = period_of(order)
        (loop_axis,) = self.sums
        right = dims.floordiv(loop_axis.right, self.panels.width) if self.is_narrow(shape) else loop_axis.right
        turn, place = self.builder.variable("turn"), self.builder.variable("k")
        at = dims.substitute(
            order, lambda _: turn + offset([loop_axis.left for loop_axis in self.product.grid], self.grid_places)
        )
        views, sources = self.views(tile, at, turn * right)
        count = dims.ceildiv(self.builder.named("sums", loop_axis.size) - turn, period)
        step = self.multiply(tile, sources, place * advance, place * (period * right), 0)
        unroll = 2 if shape.height * shape.width <= _LOW else 1
        return (repeat(turn, 0, period, 1, (*views, repeat(place, 0, count, 1, step, unroll))),)

    def grid_left(self) -> Dim:
        strides = [
            self.stride(f"grid{number}_left", loop_axis.left) for number, loop_axis in enumerate(self.product.grid)
        ]
        return offset(strides, self.grid_places)

    def right_place(self, columns: ColumnStart) -> Dim:
        """Where the present panel starts."""
        place = self.start("right", self.product.right_start)
        for number, (loop_axis, at) in enumerate(zip(self.product.grid, self.grid_places)):
            place = place + self.stride(f"grid{number}_right", loop_axis.right) * at
        return place + columns.start

    def multiply(self, tile: RegisterTile, sources: list[Buffer], left: Dim, right: Dim, split: int) -> list[Statement]:
        """One step of the sums: all rows times all vectors of columns."""
        product, shape = self.product, tile.shape
        mask = None if product.padded else self.column_mask(tile)
        statements: list[Statement] = []
        *rows, panels = sources
        vectors: list[Register] = []
        for column in range(shape.width):
            place = right + column * self.lanes + lane(self.lanes)
            defined, vector = self.builder.keep("b", factor(product.words, fetch(panels, place, mask=mask), self.type))
            statements.append(defined)
            vectors.append(vector)
        for number, row in enumerate(rows):
            element = factor(product.words, fetch(row, left), self.type)
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
        """Lanes that have a column: all of them, in whole panels."""
        if not tile.shape.single or self.panels.are_full:
            return None
        columns = self.builder.named("columns", self.panels.columns)
        return Call("less", (Integer(self.column(tile)), Integer(columns)), DType.bool)

    def finish(self, row: Dim, places: list[list[Dim]], tile: RegisterTile) -> list[Statement]:
        """Write the tile, row by row; a long epilogue as a loop, so that the code stays small."""
        shape = tile.shape
        mask = self.column_mask(tile)
        statements: list[Statement] = []
        if not self.writes_in_loop:
            for number, place in enumerate(places):
                for column in range(shape.width):
                    value = tile.sums[number * shape.width + column]
                    statements.extend(self.write(value, place, self.column(tile, column), mask))
            return statements
        for number in range(shape.height * shape.width):
            at = number * self.lanes + lane(self.lanes)
            statements.append(put(self.kept, at, tile.sums[number]))
        element = self.builder.variable("e")
        place = split_index(row + element, self.row_sizes)
        body: list[Statement] = []
        for column in range(shape.width):
            at = (element * shape.width + column) * self.lanes + lane(self.lanes)
            body.extend(self.write(fetch(self.kept, at), place, self.column(tile, column), mask))
        return [*statements, repeat(element, 0, shape.height, 1, body)]

    def write(self, value: Code, place: Sequence[Dim], column: Dim, mask: Code | None) -> tuple[Statement, ...]:
        """One vector of the result."""
        product, named = self.product, self.builder.named
        axes = {axis: named(f"start{axis}", start) for axis, start in product.result_start.items()}
        loop_axes = [*zip(product.grid, self.grid_places), *zip(self.rows, place), (product.column, column)]
        for loop_axis, at in loop_axes:
            if loop_axis.axis is not None:
                axes[loop_axis.axis] = axes.get(loop_axis.axis, 0) + self.builder.size(loop_axis.factor) * at
        return self.epilogue_writer.write(value, axes, mask)
