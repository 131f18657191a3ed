"""The register-tiled kernel for sums of products: matrix products and convolutions are this, with other strides.

A tile is some rows times the lanes of a block: one accumulator a row, whose lanes are neighbouring columns. Each step
of the sums takes one vector from the right operand, one number a row from the left one, and multiplies them into the
accumulators. Rows may lie anywhere in the left operand. The epilogue is applied to the accumulators.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from weft.ir import dims
from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.ir.kernel import (
    Assign,
    Buffer,
    Call,
    Code,
    Define,
    Fetch,
    Integer,
    Kernel,
    Let,
    Number,
    Put,
    Register,
    Repeat,
    Statement,
    View,
    block,
    lane,
    variable,
)
from weft.ir.target import Target
from weft.kernels.ending import Ending
from weft.kernels.launch import Epilogue, Launch, Tensor
from weft.kernels.layout import offset
from weft.kernels.parameters import Parameters
from weft.kernels.remember import remembered

BLOCK_WORK = 4_000_000  # operations that a block does, about
_TILES_EACH = 8  # tiles of rows that a block does, at most
_CHAINS = 4  # independent sums that keep the multipliers busy
_LOW = 6  # rows up to which several steps at a time pay; more would leave no registers for it
_WIDE = 8  # vectors of columns at a time, times rows, where an operand in place is read for few rows
_ALIAS = 4096  # bytes between places that compete for the same lines of a cache


@dataclass(frozen=True, slots=True)
class Walk:
    """A loop of a product: how far a step goes in the operands, and along which of the result's axes."""

    size: Dim
    left: Dim = 0
    right: Dim = 0
    axis: int | None = None
    factor: Dim = 1  # positions along the axis


@dataclass(frozen=True, slots=True)
class Product:
    """result[grid, rows, column] = epilogue(sum of left * right over `sums`).

    Lanes are neighbours in the right operand; `panel` elements lie between vectors of columns. With `padded` every
    vector of columns is whole there.
    """

    left: DType
    right: DType
    result: Tensor
    epilogue: Epilogue | None
    grid: tuple[Walk, ...]
    rows: tuple[Walk, ...]
    column: Walk
    sums: tuple[Walk, ...]
    lanes: int
    panel: Dim
    padded: bool
    left_start: Dim = 0
    right_start: Dim = 0
    result_start: Mapping[int, Dim] = field(default_factory=dict, hash=False)  # first position along an axis, if not 0
    unsigned: str = ""  # elements are words of four bytes: int8 in one operand, uint8 in this one, left or right


def accumulator_type(dtype: DType) -> DType:
    """What products of a type are summed up in."""
    return DType.float32 if dtype in (DType.float16, DType.bfloat16) else dtype


def widened(code: Code, dtype: DType) -> Code:
    """A value in the type that sums have."""
    return code if code.dtype is dtype else Call("cast", (code,), dtype)


def accumulate(product: Product, target: Target, left: Code, right: Code, total: Code) -> Code:
    """The total with what two elements give added."""
    match product.unsigned:
        case "left":
            return dot_of_bytes(target, left, right, total)
        case "right":
            return dot_of_bytes(target, right, left, total)
        case _:
            return multiply_add(target, left, right, total)


def dot_of_bytes(target: Target, unsigned: Code, signed: Code, total: Code) -> Code:
    """Four uint8 times four int8, added to a total; byte by byte where the target has no instruction for it."""
    if target.dot_product_8:
        return Call("dot4", (unsigned, signed, total), DType.int32)
    for byte in range(4):
        low = Call("shift_right", (unsigned, Number(8 * byte, DType.int32)), DType.int32)
        a = Call("bit_and", (low, Number(255, DType.int32)), DType.int32)
        high = Call("shift_left", (signed, Number(24 - 8 * byte, DType.int32)), DType.int32)
        b = Call("shift_right", (high, Number(24, DType.int32)), DType.int32)
        total = multiply_add(target, a, b, total)
    return total


def multiply_add(target: Target, a: Code, b: Code, c: Code) -> Code:
    """a * b + c, as the target does it best."""
    if c.dtype.is_float and not target.fused_multiply_add:
        return Call("add", (Call("multiply", (a, b), c.dtype), c), c.dtype)
    return Call("fma", (a, b, c), c.dtype)


def lanes_for(target: Target, dtype: DType, columns: Dim) -> int:
    """Two vector registers of columns, or fewer where there are no more columns."""
    least = max(target.vector_bytes // 4, 4) // 4
    lanes = 2 * target.vector_bytes // max(accumulator_type(dtype).bits // 8, 4)
    if isinstance(columns, int):
        while lanes > max(least, 2) and lanes // 2 >= columns:
            lanes //= 2
    return lanes


def tile_height(target: Target, dtype: DType, lanes: int) -> int:
    """Rows whose accumulators fit the registers, beside a vector of the right operand and one to broadcast into."""
    width = max(1, lanes * max(accumulator_type(dtype).bits // 8, 4) // target.vector_bytes)
    return max(1, min((target.vector_registers - 4) // width, 12))


@dataclass(frozen=True, slots=True)
class Shape:
    """What is summed up at the same time: rows, vectors of columns, and parts of the sums."""

    height: int
    width: int
    splits: int


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


@remembered
def product_kernel(name: str, product: Product, target: Target) -> Launch:
    """A launch with the buffers left, right, the epilogue's operands, and the result."""
    return _Builder(name, product, target).launch()


class _Builder:
    def __init__(self, name: str, product: Product, target: Target) -> None:
        self.name = name
        self.product = product
        self.target = target
        self.lanes = product.lanes
        self.type = accumulator_type(product.left)
        self.parameters = Parameters()
        self.ending = Ending(product.result, product.epilogue, self.parameters)
        self.rows = merge_walks(product.rows, self.ending)
        self.sums = merge_walks(product.sums)
        self.row_sizes = [self.parameters.named(f"rows{n}", walk.size) for n, walk in enumerate(self.rows)]
        self.height = self.most_rows()

    def most_rows(self) -> int:
        """Rows of a tile; half as many where all of them would share one set of the first cache."""
        height = tile_height(self.target, self.product.left, self.lanes)
        steps = [walk.left for walk in self.rows[-1:]]
        aliased = all(isinstance(step, int) and step * (self.product.left.bits // 8) % _ALIAS == 0 for step in steps)
        return max(1, height // 2) if aliased and self.rows else height

    def stride(self, name: str, value: Dim) -> Dim:
        """A stride as the kernel sees it: those that decide how to address are written into the code."""
        return value if value in (0, 1) or value == self.lanes else self.parameters.named(name, value)

    def launch(self) -> Launch:
        named = self.parameters.named
        product = self.product
        count = dims.product(walk.size for walk in self.rows)
        parts = sections(count, self.height)
        height = parts[0].height if parts else 1
        tiles = parts[-1].first + parts[-1].count if parts else 0
        panels = dims.ceildiv(product.column.size, self.lanes)
        tiles_each, panels_each = self.chunks(height, tiles, panels)
        tile_chunks, panel_chunks = dims.ceildiv(tiles, tiles_each), dims.ceildiv(panels, panels_each)
        statements: list[Statement] = []
        rest: Dim = block()
        rest, panel_chunk = self.decode(statements, rest, panel_chunks, "panel_chunk")
        rest, tile_chunk = self.decode(statements, rest, tile_chunks, "tile_chunk")
        self.grid_places: list[Dim] = []
        for number in reversed(range(len(product.grid))):
            last = number == 0
            rest, place = self.decode(statements, rest, 0 if last else product.grid[number].size, f"g{number}")
            self.grid_places.insert(0, place)
        each = named("tiles_each", tiles_each)
        first = tile_chunk * each
        end = dims.minimum(first + each, named("tiles", tiles))
        each = named("panels_each", panels_each)
        panel_first = panel_chunk * each
        panel_end = dims.minimum(panel_first + each, named("panels", panels))
        flat = [part for part in parts if part.height <= _LOW and not product.padded]
        tall = [part for part in parts if part not in flat]
        if tall:
            inner = tuple(self.section(part, first, end) for part in tall)
            statements.append(Repeat("panel", panel_first, panel_end, 1, inner))
        for part in flat:
            statements.extend(self.wide_section(part, first, end, panel_first, panel_end))
        blocks = dims.product(walk.size for walk in product.grid) * tile_chunks * panel_chunks
        kernel = Kernel(self.name, self.buffers(height), tuple(self.parameters.values), self.lanes, tuple(statements))
        return Launch(kernel, blocks, tuple(self.parameters.values.values()))

    def chunks(self, height: int, tiles: Dim, panels: Dim) -> tuple[Dim, Dim]:
        """Tiles and panels that a block does: rows that stay in the cache, and enough work."""
        depth = dims.product(walk.size for walk in self.sums)
        bytes_each = height * (self.product.left.bits // 8)
        tiles_each = dims.minimum(_TILES_EACH, dims.floordiv(self.target.cache_bytes // 4, depth * bytes_each + 1))
        tiles_each = dims.minimum(dims.maximum(tiles_each, 1), dims.maximum(tiles, 1))
        work = 2 * max(height, 8) * self.lanes * depth * tiles_each + 1000
        wanted = dims.ceildiv(BLOCK_WORK, work)
        if height <= _LOW and not self.product.padded:
            wanted = dims.ceildiv(wanted, _WIDE) * _WIDE
        chunks = dims.maximum(dims.ceildiv(panels, wanted), 1)
        return tiles_each, dims.maximum(dims.ceildiv(panels, chunks), 1)

    def decode(self, statements: list[Statement], rest: Dim, size: Dim, name: str) -> tuple[Dim, Dim]:
        """Split a position off the number of the block; what remains, and the position. Size 0: all that remains."""
        if size == 0:
            return 0, rest
        count = self.parameters.named(f"{name}s", size)
        statements.append(Let(name, dims.mod(rest, count)))
        statements.append(Let(f"{name}_rest", dims.floordiv(rest, count)))
        return variable(f"{name}_rest"), variable(name)

    def buffers(self, height: int) -> tuple[Buffer, ...]:
        found = [Buffer("left", self.product.left, False), Buffer("right", self.product.right, False)]
        found += self.ending.buffers
        if self.ending.is_long:
            found.append(Buffer("tile", self.type, True, max(height, _WIDE) * self.lanes))
        return tuple(found)

    def section(self, part: Section, first: Dim, end: Dim, width: int = 1) -> Statement:
        """The tiles of one height that belong to a block."""
        named = self.parameters.named
        name = f"tile{part.height}"
        start, count = named(f"first{part.height}", part.first), named(f"count{part.height}", part.count)
        row = named(f"row{part.height}", part.row) + (variable(name) - start) * part.height
        body = self.tile(row, Shape(part.height, width, 1 if width > 1 else max(1, _CHAINS // part.height)))
        return Repeat(name, dims.maximum(first, start), dims.minimum(end, start + count), 1, body)

    def wide_section(self, part: Section, first: Dim, end: Dim, panel: Dim, panel_end: Dim) -> list[Statement]:
        """The same with several vectors of columns at a time, so that few rows read long pieces of memory."""
        width = max(1, _WIDE // part.height)
        whole = dims.floordiv(self.parameters.named("columns", self.product.column.size), self.lanes)
        pieces = dims.floordiv(dims.maximum(dims.minimum(whole, panel_end) - panel, 0), width)
        middle = panel + pieces * width
        return [
            Repeat("panel", panel, middle, width, (self.section(part, first, end, width),)),
            Repeat("panel", middle, panel_end, 1, (self.section(part, first, end),)),
        ]

    def tile(self, row: Dim, shape: Shape) -> tuple[Statement, ...]:
        statements: list[Statement] = []
        places = self.row_places(statements, row, shape.height)
        base = self.start("left", self.product.left_start)
        for number, (walk, at) in enumerate(zip(self.product.grid, self.grid_places)):
            base = base + self.stride(f"grid{number}_left", walk.left) * at
        lefts = [self.stride(f"rows{number}_left", walk.left) for number, walk in enumerate(self.rows)]
        statements.extend(Let(f"left{number}", base + offset(lefts, place)) for number, place in enumerate(places))
        count = shape.height * shape.width * shape.splits
        statements.extend(Define(f"sum{number}", Number(0, self.type), True) for number in range(count))
        statements.extend(self.reduce(shape))
        for number in range(shape.height * shape.width):
            for split in range(1, shape.splits):
                other = self.register(number + split * shape.height * shape.width)
                total = Call("add", (self.register(number), other), self.type)
                statements.append(Assign(f"sum{number}", total))
        statements.extend(self.finish(row, places, shape))
        return tuple(statements)

    def start(self, side: str, value: Dim) -> Dim:
        return 0 if value == 0 else self.parameters.named(f"{side}_start", value)

    def row_places(self, statements: list[Statement], row: Dim, height: int) -> list[list[Dim]]:
        """Where the rows of a tile lie along the row walks: counted up from the first one."""
        if len(self.rows) <= 1:
            return [[row + number][: len(self.rows)] for number in range(height)]
        statements.append(Let("row", row))
        places: list[list[Dim]] = [[]]
        for number, place in enumerate(split_index(variable("row"), self.row_sizes)):
            statements.append(Let(f"y{number}_0", place))
            places[0].append(variable(f"y{number}_0"))
        for step in range(1, height):
            carry: Dim = 1
            following: list[Dim] = []
            for number in reversed(range(len(self.rows))):
                moved = places[-1][number] + carry
                if number:
                    statements.append(Let(f"wrap{number}_{step}", dims.maximum(moved + 1 - self.row_sizes[number], 0)))
                    carry = variable(f"wrap{number}_{step}", 0, 1)
                    moved = moved - carry * self.row_sizes[number]
                statements.append(Let(f"y{number}_{step}", moved))
                following.insert(0, variable(f"y{number}_{step}"))
            places.append(following)
        return places

    def register(self, number: int) -> Register:
        return Register(f"sum{number}", self.type, True)

    # -- sums --------------------------------------------------------------------------------------------------------

    def reduce(self, shape: Shape) -> tuple[Statement, ...]:
        """The loops over the sums; the innermost one does as many steps at a time as there are splits."""
        lefts = [self.stride(f"sum{number}_left", walk.left) for number, walk in enumerate(self.sums)]
        rights = [self.stride(f"sum{number}_right", walk.right) for number, walk in enumerate(self.sums)]
        sizes = [self.parameters.named(f"sums{number}", walk.size) for number, walk in enumerate(self.sums)]
        places: list[Dim] = [variable(f"k{number}") for number in range(len(self.sums))]

        last = len(self.sums) - 1
        outer = offset(lefts[:last], places[:last]) if self.sums else 0

        def step(split: int) -> list[Statement]:
            at = [*places[:-1], places[-1] + split] if places else []
            return self.multiply(shape, offset(lefts[-1:], at[-1:]), offset(rights[-1:], at[-1:]), split)

        views = [View(f"row{n}", "left", variable(f"left{n}", None) + outer) for n in range(shape.height)]
        views.append(View("panels", "right", self.right_place() + offset(rights[:last], places[:last])))
        if not self.sums:
            return (*views, *step(0))
        name, count = f"k{last}", sizes[-1]
        body: tuple[Statement, ...]
        if shape.splits == 1:
            unroll = 2 if shape.height * shape.width <= _LOW else 1
            body = (Repeat(name, 0, count, 1, tuple(step(0)), unroll=unroll),)
        else:
            end = dims.floordiv(count, shape.splits) * shape.splits
            together = tuple(statement for split in range(shape.splits) for statement in step(split))
            body = (Repeat(name, 0, end, shape.splits, together), Repeat(name, end, count, 1, tuple(step(0))))
        body = (*views, *body)
        for number in reversed(range(last)):
            body = (Repeat(f"k{number}", 0, sizes[number], 1, body),)
        return body

    def right_place(self) -> Dim:
        """Where the present panel starts."""
        place = self.start("right", self.product.right_start)
        for number, (walk, at) in enumerate(zip(self.product.grid, self.grid_places)):
            place = place + self.stride(f"grid{number}_right", walk.right) * at
        return place + variable("panel") * self.stride("panel_right", self.product.panel)

    def multiply(self, shape: Shape, left: Dim, right: Dim, split: int) -> list[Statement]:
        """One step of the sums: all rows times all vectors of columns."""
        product = self.product
        panel = self.stride("panel_right", product.panel)
        mask = None if product.padded or shape.width > 1 else self.column_mask()
        statements: list[Statement] = []
        for column in range(shape.width):
            place = right + column * panel + lane(self.lanes)
            vector = widened(Fetch("panels", place, product.right, mask=mask), self.type)
            statements.append(Define(f"b{column}_{split}", vector, True))
        for number in range(shape.height):
            element = widened(Fetch(f"row{number}", left, product.left), self.type)
            if shape.width > 1:
                statements.append(Define(f"a{number}_{split}", element, False))
                element = Register(f"a{number}_{split}", self.type, False)
            for column in range(shape.width):
                total = self.register((split * shape.height + number) * shape.width + column)
                columns = Register(f"b{column}_{split}", self.type, True)
                statements.append(Assign(total.name, accumulate(product, self.target, element, columns, total)))
        return statements

    # -- epilogue ----------------------------------------------------------------------------------------------------

    def column(self, number: int = 0) -> Dim:
        return (variable("panel") + number) * self.lanes + lane(self.lanes)

    def column_mask(self) -> Code | None:
        """Lanes that have a column."""
        columns = self.product.column.size
        if isinstance(columns, int) and columns % self.lanes == 0:
            return None
        return Call("less", (Integer(self.column()), Integer(self.parameters.named("columns", columns))), DType.bool)

    def finish(self, row: Dim, places: list[list[Dim]], shape: Shape) -> list[Statement]:
        """Write the tile, row by row; a long epilogue as a loop, so that the code stays small."""
        mask = None if shape.width > 1 else self.column_mask()
        statements: list[Statement] = []
        if not self.ending.is_long:
            for number, place in enumerate(places):
                for column in range(shape.width):
                    value = self.register(number * shape.width + column)
                    statements.extend(self.write(value, place, self.column(column), mask, f"t{number}_{column}_"))
            return statements
        for number in range(shape.height * shape.width):
            at = number * self.lanes + lane(self.lanes)
            statements.append(Put("tile", at, self.register(number)))
        place = split_index(row + variable("e"), self.row_sizes)
        body: list[Statement] = []
        for column in range(shape.width):
            at = (variable("e") * shape.width + column) * self.lanes + lane(self.lanes)
            body.extend(self.write(Fetch("tile", at, self.type), place, self.column(column), mask, f"t{column}_"))
        return [*statements, Repeat("e", 0, shape.height, 1, tuple(body))]

    def write(
        self, value: Code, place: Sequence[Dim], column: Dim, mask: Code | None, prefix: str
    ) -> tuple[Statement, ...]:
        """One vector of the result."""
        product, named = self.product, self.parameters.named
        axes = {axis: named(f"start{axis}", start) for axis, start in product.result_start.items()}
        walks = [*zip(product.grid, self.grid_places), *zip(self.rows, place), (product.column, column)]
        for walk, at in walks:
            if walk.axis is not None:
                axes[walk.axis] = axes.get(walk.axis, 0) + self.parameters.size(walk.factor) * at
        return self.ending.write(value, axes, mask, prefix)


def split_index(index: Dim, sizes: Sequence[Dim]) -> list[Dim]:
    """A row-major position as one along each size."""
    places: list[Dim] = []
    for number in reversed(range(len(sizes))):
        places.insert(0, dims.mod(index, sizes[number]) if number else index)
        index = dims.floordiv(index, sizes[number])
    return places


def merge_walks(walks: Sequence[Walk], ending: Ending | None = None) -> tuple[Walk, ...]:
    """Neighbouring walks that everything steps through alike as one."""
    merged: list[Walk] = []
    for walk in walks:
        if walk.size == 1:
            continue
        if merged and _alike(merged[-1], walk, ending):
            merged[-1] = Walk(merged[-1].size * walk.size, walk.left, walk.right, walk.axis, walk.factor)
        else:
            merged.append(walk)
    return tuple(merged)


def _alike(outer: Walk, inner: Walk, ending: Ending | None) -> bool:
    if outer.left != inner.left * inner.size or outer.right != inner.right * inner.size:
        return False
    if outer.axis is None or inner.axis is None or ending is None:
        return outer.axis is inner.axis
    return ending.steps_alike((outer.axis, outer.factor), (inner.axis, inner.factor), inner.size)
