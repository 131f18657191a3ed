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
    block,
    lane,
    variable,
)
from weft.ir.scalar import Index, Scalar, loads
from weft.ir.target import Target
from weft.kernels.launch import Epilogue, Launch, Tensor
from weft.kernels.layout import offset
from weft.kernels.lowering import Lowering
from weft.kernels.merge import flatten_loads, operand_views, pinned_axes, stride_along
from weft.kernels.nest import cost
from weft.kernels.parameters import Parameters

BLOCK_WORK = 4_000_000  # operations that a block does, about
_TILES_EACH = 8  # tiles of rows that a block does, at most
_CHAINS = 4  # independent sums that keep the multipliers busy
_LOW = 6  # rows up to which several steps at a time pay; more would leave no registers for it
_LONG = 12  # instructions of an epilogue that should be in the code only once


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
    result_start: Mapping[int, Dim] = field(default_factory=dict)  # first position along an axis, where not 0


def accumulator_type(dtype: DType) -> DType:
    """What products of a type are summed up in."""
    return DType.float32 if dtype in (DType.float16, DType.bfloat16) else dtype


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
    return max(1, min((target.vector_registers - 4) // width, 14))


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
        extra = product.epilogue.operands if product.epilogue else ()
        self.operands = (product.result, *extra)
        expression = product.epilogue.expression if product.epilogue else None
        self.expression = None if expression is None else flatten_loads(expression, self.operands)
        self.rows = merge_walks(product.rows, product.result, self.expression, len(self.operands))
        self.sums = merge_walks(product.sums, product.result, None, 0)
        self.row_sizes = [self.parameters.named(f"rows{n}", span.size) for n, span in enumerate(self.rows)]
        self.uses_tile = self.expression is not None and cost(self.expression) > _LONG
        self.height = tile_height(target, product.left, self.lanes)

    def stride(self, name: str, value: Dim) -> Dim:
        """A stride as the kernel sees it: those that decide how to address are written into the code."""
        return value if value in (0, 1) or value == self.lanes else self.parameters.named(name, value)

    def launch(self) -> Launch:
        named = self.parameters.named
        product = self.product
        count = dims.product(span.size for span in self.rows)
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
        self.grid_places = []
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
        inner = [self.section(part, first, end) for part in parts]
        statements.append(Repeat("panel", panel_first, panel_end, 1, tuple(inner)))
        blocks = dims.product(span.size for span in product.grid) * tile_chunks * panel_chunks
        kernel = Kernel(self.name, self.buffers(height), tuple(self.parameters.values), self.lanes, tuple(statements))
        return Launch(kernel, blocks, tuple(self.parameters.values.values()))

    def chunks(self, height: int, tiles: Dim, panels: Dim) -> tuple[Dim, Dim]:
        """Tiles and panels that a block does: rows that stay in the cache, and enough work."""
        depth = dims.product(span.size for span in self.sums)
        bytes_each = height * (self.product.left.bits // 8)
        tiles_each = dims.minimum(_TILES_EACH, dims.floordiv(self.target.cache_bytes // 4, depth * bytes_each + 1))
        tiles_each = dims.minimum(dims.maximum(tiles_each, 1), dims.maximum(tiles, 1))
        work = 2 * max(height, 8) * self.lanes * depth * tiles_each + 1000
        wanted = dims.ceildiv(BLOCK_WORK, work)
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
        found += [Buffer(f"in{n}", t.dtype, False) for n, t in enumerate(self.operands) if n]
        found.append(Buffer("out", self.product.result.dtype, True))
        if self.uses_tile:
            found.append(Buffer("tile", self.type, True, height * self.lanes))
        return tuple(found)

    def section(self, part: Section, first: Dim, end: Dim) -> Statement:
        """The tiles of one height that belong to a block."""
        named = self.parameters.named
        name = f"tile{part.height}"
        start, count = named(f"first{part.height}", part.first), named(f"count{part.height}", part.count)
        row = named(f"row{part.height}", part.row) + (variable(name) - start) * part.height
        body = self.tile(row, part.height)
        return Repeat(name, dims.maximum(first, start), dims.minimum(end, start + count), 1, body)

    def tile(self, row: Dim, height: int) -> tuple[Statement, ...]:
        statements: list[Statement] = []
        places = self.row_places(statements, row, height)
        base = self.start("left", self.product.left_start)
        for number, (span, at) in enumerate(zip(self.product.grid, self.grid_places)):
            base = base + self.stride(f"grid{number}_left", span.left) * at
        lefts = [self.stride(f"rows{number}_left", span.left) for number, span in enumerate(self.rows)]
        for number, place in enumerate(places):
            along = offset(lefts, place)
            statements.append(Let(f"left{number}", base + along))
        splits = max(1, _CHAINS // height)
        names = [_sum(number, split) for number in range(height) for split in range(splits)]
        statements.extend(Define(name, Number(0, self.type), True) for name in names)
        statements.extend(self.reduce(height, splits))
        for number in range(height):
            for split in range(1, splits):
                total = Call("add", (self.register(number), self.register(number, split)), self.type)
                statements.append(Assign(_sum(number), total))
        statements.extend(self.finish(row, places))
        return tuple(statements)

    def start(self, side: str, value: Dim) -> Dim:
        return 0 if value == 0 else self.parameters.named(f"{side}_start", value)

    def row_places(self, statements: list[Statement], row: Dim, height: int) -> list[list[Dim]]:
        """Where the rows of a tile lie along the row spans: counted up from the first one."""
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

    def register(self, number: int, split: int = 0) -> Register:
        return Register(_sum(number, split), self.type, True)

    # -- sums --------------------------------------------------------------------------------------------------------

    def reduce(self, height: int, splits: int) -> tuple[Statement, ...]:
        """The loops over the sums, with the innermost one unrolled."""
        lefts = [self.stride(f"sum{number}_left", span.left) for number, span in enumerate(self.sums)]
        rights = [self.stride(f"sum{number}_right", span.right) for number, span in enumerate(self.sums)]
        sizes = [self.parameters.named(f"sums{number}", span.size) for number, span in enumerate(self.sums)]
        places: list[Dim] = [variable(f"k{number}") for number in range(len(self.sums))]

        def step(split: int) -> list[Statement]:
            at = [*places[:-1], places[-1] + split] if places else []
            return self.multiply(height, offset(lefts, at), offset(rights, at), split)

        if not self.sums:
            return tuple(step(0))
        last = len(self.sums) - 1
        name, count = f"k{last}", sizes[-1]
        body: tuple[Statement, ...]
        if splits == 1:
            body = (Repeat(name, 0, count, 1, tuple(step(0)), unroll=2 if height <= _LOW else 1),)
        else:
            end = dims.floordiv(count, splits) * splits
            together = tuple(statement for split in range(splits) for statement in step(split))
            body = (Repeat(name, 0, end, splits, together), Repeat(name, end, count, 1, tuple(step(0))))
        for number in reversed(range(last)):
            body = (Repeat(f"k{number}", 0, sizes[number], 1, body),)
        return body

    def multiply(self, height: int, left: Dim, right: Dim, split: int) -> list[Statement]:
        product = self.product
        panel = self.stride("panel_right", product.panel)
        place = self.start("right", product.right_start) + right + variable("panel") * panel + lane(self.lanes)
        for number, (span, at) in enumerate(zip(product.grid, self.grid_places)):
            place = place + self.stride(f"grid{number}_right", span.right) * at
        mask = None if product.padded else self.column_mask()
        vector = self.widened(Fetch("right", place, product.right, mask=mask))
        name = f"b{split}"
        statements: list[Statement] = [Define(name, vector, True)]
        columns = Register(name, self.type, True)
        for number in range(height):
            element = self.widened(Fetch("left", variable(f"left{number}", None) + left, product.left))
            total = self.register(number, split)
            statements.append(Assign(total.name, self.multiply_add(element, columns, total)))
        return statements

    def multiply_add(self, a: Code, b: Code, c: Code) -> Code:
        if self.type.is_float and not self.target.fused_multiply_add:
            return Call("add", (Call("multiply", (a, b), self.type), c), self.type)
        return Call("fma", (a, b, c), self.type)

    def widened(self, code: Code) -> Code:
        return code if code.dtype is self.type else Call("cast", (code,), self.type)

    # -- epilogue ----------------------------------------------------------------------------------------------------

    def column(self) -> Dim:
        return variable("panel") * self.lanes + lane(self.lanes)

    def column_mask(self) -> Code | None:
        """Lanes that have a column."""
        columns = self.product.column.size
        if isinstance(columns, int) and columns % self.lanes == 0:
            return None
        return Call("less", (Integer(self.column()), Integer(self.parameters.named("columns", columns))), DType.bool)

    def finish(self, row: Dim, places: list[list[Dim]]) -> list[Statement]:
        """Write the tile, row by row; a long epilogue as a loop, so that the code stays small."""
        if not self.uses_tile:
            return [self.write(self.register(number), place) for number, place in enumerate(places)]
        at = variable("e") * self.lanes + lane(self.lanes)
        statements: list[Statement] = [
            Put("tile", number * self.lanes + lane(self.lanes), self.register(number)) for number in range(len(places))
        ]
        place = split_index(row + variable("e"), self.row_sizes)
        body = self.write(Fetch("tile", at, self.type), place)
        return [*statements, Repeat("e", 0, len(places), 1, (body,))]

    def write(self, value: Code, place: Sequence[Dim]) -> Statement:
        product, named = self.product, self.parameters.named
        axes = {axis: named(f"start{axis}", start) for axis, start in product.result_start.items()}
        spans = [*zip(product.grid, self.grid_places), *zip(self.rows, place), (product.column, self.column())]
        for span, at in spans:
            if span.axis is not None:
                axes[span.axis] = axes.get(span.axis, 0) + self.parameters.size(span.factor) * at
        for axis in range(len(product.result.shape)):
            axes.setdefault(axis, 0)
        mask = self.column_mask()
        value = self.narrowed(value)
        if self.expression is not None:
            views = operand_views(self.operands, self.parameters)
            replace = {0: value, len(self.operands): value}
            value = Lowering(views, axes, self.parameters, replace, mask).code(self.expression)
        strides = [self.stride(f"out{axis}", stride) for axis, stride in enumerate(product.result.strides)]
        return Put("out", offset(strides, [axes[axis] for axis in range(len(strides))]), value, mask=mask)

    def narrowed(self, value: Code) -> Code:
        """A sum as the element that the epilogue, or the result, takes."""
        own = {len(self.operands), 0}
        taken = [load.dtype for load in loads(self.expression) if load.operand in own] if self.expression else []
        dtype = taken[0] if taken else self.product.result.dtype if self.expression is None else self.type
        return value if value.dtype is dtype else Call("cast", (value,), dtype)


def split_index(index: Dim, sizes: Sequence[Dim]) -> list[Dim]:
    """A row-major position as one along each size."""
    places: list[Dim] = []
    for number in reversed(range(len(sizes))):
        places.insert(0, dims.mod(index, sizes[number]) if number else index)
        index = dims.floordiv(index, sizes[number])
    return places


def merge_walks(
    spans: Sequence[Walk], result: Tensor, expression: Scalar | None, operand_count: int
) -> tuple[Walk, ...]:
    """Neighbouring spans that everything steps through alike as one. `expression` has its loads flattened."""
    uses = [] if expression is None else _flat_offsets(expression, operand_count)
    pinned = set() if expression is None else pinned_axes([expression], operand_count)
    merged: list[Walk] = []
    for span in spans:
        if span.size == 1:
            continue
        if merged and _alike(merged[-1], span, result, uses, pinned):
            merged[-1] = Walk(merged[-1].size * span.size, span.left, span.right, span.axis, span.factor)
        else:
            merged.append(span)
    return tuple(merged)


def _flat_offsets(expression: Scalar, operand_count: int) -> list[Dim]:
    places = [load.indices[0] for load in loads(expression) if load.operand > operand_count]
    return [place.value for place in places if isinstance(place, Index)]


def _alike(outer: Walk, inner: Walk, result: Tensor, uses: Sequence[Dim], pinned: set[int]) -> bool:
    if outer.left != inner.left * inner.size or outer.right != inner.right * inner.size:
        return False
    if outer.axis is None or inner.axis is None:
        return outer.axis is inner.axis
    if outer.axis in pinned or inner.axis in pinned:
        return False
    steps = [(result.strides[outer.axis], result.strides[inner.axis])]
    steps += [(stride_along(use, outer.axis), stride_along(use, inner.axis)) for use in uses]
    return all(far * outer.factor == near * inner.factor * inner.size for far, near in steps)


def _sum(number: int, split: int = 0) -> str:
    return f"sum{number}" if split == 0 else f"sum{number}_{split}"
