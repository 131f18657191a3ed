"""Flash attention as one kernel that streams over the keys; the score matrix is never in memory.

A block has some tiles of queries of one head. It goes over the keys in chunks. The products of a tile with a chunk's
keys go to block-local memory and become scores, then weights relative to the chunk's largest score; the values weighted
by them are merged into the tile's sums, which are relative to the largest score of all chunks so far.

Keys and values are packed beforehand (key_panels.py) or read in place, from a paged cache (attention_operands.py).
If they are pairs of bfloat16, queries and weights are rounded to such pairs as well.

The operations of a row, and their order, do not depend on the other rows, on the tile's height, on the number of keys
that are masked for it, or on which block computes a chunk: a row has the same bits in any batch and any chunk of a
prompt.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf, nan

from weft.cost.blocks import ATTENTION_BLOCK_WORK
from weft.ir import dims
from weft.ir.attention import Attention
from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.ir.kernel import Call, Code, Integer, Number, Register, Statement, When, block, lane
from weft.ir.scalar import ELEMENT, Scalar
from weft.ir.target import VectorTarget
from weft.kernels.build.attention import find_operands, renumber_operands
from weft.kernels.build.attention_rows import find_row_axes
from weft.kernels.build.epilogue import EpilogueWriter
from weft.kernels.build.loop_axes import unravel_index
from weft.kernels.build.loop_nest import Body, Span, build_lane_loop
from weft.kernels.lower.expressions import Lowering
from weft.kernels.lower.kernel_builder import KernelBuilder, assign, fetch, let, put, repeat
from weft.kernels.lower.merge_axes import flatten_loads, operand_views
from weft.kernels.lower.operations import less, logical_and
from weft.kernels.lower.tensors import Epilogue, Launch, Reference, StoredTensor
from weft.kernels.vector.attention_tiles import (
    QueryTiles,
    TileRows,
    cover_exactly,
    split_groups,
    split_rows,
)
from weft.kernels.vector.key_panels import WORDS
from weft.records import dataclass

FLOAT = DType.float32
HALF_BITS = DType.uint16  # of a bfloat16
KEY_CHUNK = 256  # keys per chunk
VECTORS = 2  # of keys, or of columns, per step
MAX_HEIGHT = 12  # rows of a tile
MAX_TILES = 8  # per block; each has its queries and sums in local memory
MAX_TILE_BYTES = 48 * 1024  # of local memory for the queries and sums of all tiles of a block
PADDING = 16  # elements between rows of scores, so that rows do not share cache sets
SCORE_ROW = KEY_CHUNK + PADDING
SPLIT_TILES = 64  # tiles of all heads; if there are more, the keys are not split between blocks
SUMS, STATISTICS = Reference("workspace", 0), Reference("workspace", 1)


@dataclass(frozen=True, slots=True)
class KeySplits:
    """How blocks share the keys: in `count` splits of `chunks` chunks each; with one split, a block has all keys."""

    count: Dim
    chunks: Dim

    @property
    def is_used(self) -> Dim:
        """1 if there are several splits, otherwise 0."""
        return dims.minimum(self.count - 1, 1)


def streamed_expressions(attention: Attention, *, in_place: bool) -> tuple[Scalar, ...]:
    """Return the expressions whose operands the kernel loads, except for the epilogue."""
    keys = (attention.key, attention.value) if in_place else ()
    sinks = () if attention.sink is None else (attention.sink,)
    return attention.query, attention.score, *attention.loaded_bounds, *attention.loaded_starts, *sinks, *keys


class StreamingAttention:
    """Operands are those of the streamed expressions, then of the epilogue, packed keys and packed values."""

    def __init__(
        self,
        attention: Attention,
        operands: tuple[StoredTensor, ...],
        result: StoredTensor,
        target: VectorTarget,
        *,
        in_place: bool,
        pairs: bool,
    ) -> None:
        self.attention, self.target, self.in_place = attention, target, in_place
        self.builder = KernelBuilder("attention")
        self.lanes = target.vector_bytes // FLOAT.numpy.itemsize
        self.panel = VECTORS * self.lanes
        self.last = len(attention.shape) - 1
        expressions = streamed_expressions(attention, in_place=in_place)
        used = find_operands(*expressions)
        self.operands = [operands[number] for number in used]
        self.query, self.score, *others = (
            flatten_loads(renumber_operands(e, used), self.operands) for e in expressions
        )
        bounds, starts = len(attention.loaded_bounds), len(attention.loaded_starts)
        self.bounds, self.starts = others[:bounds], others[bounds : bounds + starts]
        others = others[bounds + starts :]
        self.sink = None if attention.sink is None else others.pop(0)
        self.key_value = others
        self.sources = [
            self.builder.input(f"from{n}", tensor.dtype, Reference("operand", n))
            for n, tensor in enumerate(self.operands)
        ]
        self.epilogue_writer = EpilogueWriter(result, self.epilogue(operands), self.builder, len(used))
        self.next_operand = len(used) + len(self.epilogue_writer.inputs)
        self.element = HALF_BITS if pairs else FLOAT  # of queries and weights
        self.per_word = 2 if pairs else 1
        self.axes = find_row_axes(attention, in_place=in_place)
        self.row_count = self.builder.parameter("rows", self.axes.count)
        self.row_sizes = [self.builder.parameter(f"rows{axis}", size) for axis, size in self.axes.rows]
        height = min((target.vector_registers - 4) // VECTORS, MAX_HEIGHT)
        if in_place:
            self.tiles = split_groups(self.axes.count, height, self.axes.find_group())
        else:
            self.tiles = split_rows(self.axes.count, min(height, self.panel))
        self.is_exact = cover_exactly(self.tiles, self.axes.count)
        self.height = self.tiles[0].height
        self.state = -(-self.height // self.lanes) * self.lanes  # row maxima and totals of a tile
        self.keys = self.builder.parameter("keys", attention.shape[-1])
        alone = self.lanes if in_place else self.panel
        self.width = -(-attention.width // alone) * alone
        self.max_tiles = max(min(MAX_TILES, MAX_TILE_BYTES // (4 * self.height * (attention.depth + self.width))), 1)
        self.heads = dims.product(size for _, size in self.axes.grid)
        self.block_end: Register | None = None
        self.block_begin: Register | None = None

    def epilogue(self, operands: tuple[StoredTensor, ...]) -> Epilogue | None:
        if self.attention.epilogue is None:
            return None
        used = find_operands(self.attention.epilogue)
        return Epilogue(renumber_operands(self.attention.epilogue, used), tuple(operands[number] for number in used))

    # -- the kernel --------------------------------------------------------------------------------------------------

    @property
    def tile_count(self) -> Dim:
        """The number of tiles of a head."""
        return self.tiles[-1].first + self.tiles[-1].count

    def tiles_each(self) -> Dim:
        """Return the number of tiles of a block: many, if it gathers the keys for all of them."""
        if self.in_place:
            return self.max_tiles
        work = 2 * self.height * (self.attention.depth + self.width) * self.attention.shape[-1] + 1000
        return dims.minimum(dims.maximum(dims.floordiv(ATTENTION_BLOCK_WORK, work), 1), self.max_tiles)

    def find_splits(self) -> KeySplits:
        """Split keys that are read in place if there are few tiles, into chunks that are merged in order."""
        chunks = dims.maximum(dims.ceildiv(self.attention.shape[-1], KEY_CHUNK), 1)
        if not self.in_place:
            return KeySplits(1, chunks)
        tiles = dims.maximum(self.heads * self.tile_count, 1)
        few = dims.minimum(dims.floordiv(SPLIT_TILES, tiles), 1)
        count = 1 + few * (chunks - 1)
        return KeySplits(count, dims.ceildiv(chunks, count))

    def build_launch(self) -> Launch:
        chunks = dims.maximum(dims.ceildiv(self.tile_count, self.tiles_each()), 1)
        each = dims.ceildiv(self.tile_count, chunks)
        splits = self.find_splits()
        statements: list[Statement] = []
        split: Dim = 0
        remaining: Dim = block()
        if splits.count != 1:
            count = self.builder.parameter("splits", splits.count)
            first, split = self.builder.let("split", dims.mod(remaining, count))
            second, remaining = self.builder.let("unsplit", dims.floordiv(remaining, count))
            statements += [first, second]
        count = self.builder.parameter("chunks", chunks)
        first, chunk = self.builder.let("chunk", dims.mod(remaining, count))
        second, head = self.builder.let("head", dims.floordiv(remaining, count))
        statements += [first, second, *self.decode_head(head)]
        size = self.builder.parameter("tiles_each", each)
        self.first = chunk * size
        self.end = dims.minimum(self.first + size, self.builder.parameter("tiles", self.tile_count))
        self.add_local_memory(self.max_tiles)
        statements += self.begin_bounds()
        statements += [self.loop_over_tiles(tiles, self.prepare) for tiles in self.tiles]
        number = self.builder.variable("number")
        start = self.builder.parameter("split_chunks", splits.chunks) * split
        stop = dims.minimum(start + self.builder.parameter("split_chunks", splits.chunks), self.chunk_count)
        statements.append(repeat(number, start, stop, 1, self.process_chunk(number * KEY_CHUNK)))
        finish = [self.loop_over_tiles(tiles, self.finish) for tiles in self.tiles]
        if splits.count != 1:
            save = [self.loop_over_tiles(tiles, lambda rows: self.save(rows, head, split)) for tiles in self.tiles]
            is_split = less(1, self.builder.parameter("splits", splits.count))
            finish = [When(is_split, tuple(save), tuple(finish))]
        return self.builder.launch(self.lanes, [*statements, *finish], self.heads * chunks * splits.count)

    @property
    def chunk_count(self) -> Dim:
        return dims.ceildiv(self.keys, KEY_CHUNK)

    def decode_head(self, remaining: Dim) -> list[Statement]:
        """Set `blocks` to the position of a head along the axes of the grid."""
        statements: list[Statement] = []
        self.blocks: dict[int, Dim] = dict.fromkeys(range(self.last), 0)
        for number in reversed(range(len(self.axes.grid))):
            axis, size = self.axes.grid[number]
            parameter = self.builder.parameter(f"grid{axis}", size)
            position = dims.mod(remaining, parameter) if number else remaining
            defined, self.blocks[axis] = self.builder.let(f"g{axis}", position)
            statements.append(defined)
            if number:
                defined, remaining = self.builder.let(f"g{axis}_rest", dims.floordiv(remaining, parameter))
                statements.append(defined)
        return statements

    def add_local_memory(self, tiles: int) -> None:
        """Allocate the state of all tiles, and the scratch memory of the current one."""
        tile = self.height
        self.queries = self.builder.local("queries", self.element, tiles * tile * self.attention.depth)
        self.sums = self.builder.local("sums", FLOAT, tiles * tile * self.width)
        self.scores = self.builder.local("scores", FLOAT, tiles * tile * SCORE_ROW)
        self.weights = self.scores
        if self.per_word > 1:
            self.weights = self.builder.local("weights", self.element, tile * SCORE_ROW)
        self.largest = self.builder.local("largest", FLOAT, tiles * self.state)
        self.totals = self.builder.local("totals", FLOAT, tiles * self.state)
        self.shifts = self.builder.local("shifts", FLOAT, self.state)
        self.factors = self.builder.local("factors", FLOAT, self.state)
        self.scales = self.builder.local("scales", FLOAT, self.state)
        self.row_values = self.builder.local("fresh", FLOAT, self.state)
        self.ends = self.builder.local("ends", DType.int64, tiles) if self.bounds else None
        self.begins = self.builder.local("begins", DType.int64, tiles) if self.starts else None

    def loop_over_tiles(self, tiles: QueryTiles, body: Callable[[TileRows], Body]) -> Statement:
        """Loop over a block's tiles of one height, with views of each tile's state."""
        parameter = self.builder.parameter
        tile, row = self.builder.variable("tile"), self.builder.variable("row")
        rows, views = self.view_tile(tiles.height, row, tile - self.first)
        start, count = parameter(f"first{tiles.height}", tiles.first), parameter(f"count{tiles.height}", tiles.count)
        first = let(row, parameter(f"row{tiles.height}", tiles.row) + (tile - start) * tiles.height)
        low, high = dims.maximum(self.first, start), dims.minimum(self.end, start + count)
        return repeat(tile, low, high, 1, (first, *views, *body(rows)))

    def view_tile(self, height: int, row: Dim, slot: Dim) -> tuple[TileRows, list[Statement]]:
        """Return a tile at an index in local memory, and the statements that define its views."""
        parts = {
            "query": (self.queries, self.height * self.attention.depth),
            "sum": (self.sums, self.height * self.width),
            "most": (self.largest, self.state),
            "total": (self.totals, self.state),
            "score": (self.scores, self.height * SCORE_ROW),
        }
        pairs = [self.builder.view(hint, whole, slot * size) for hint, (whole, size) in parts.items()]
        statements: list[Statement] = [view for view, _ in pairs]
        query, sums, largest, total, scores = (buffer for _, buffer in pairs)
        words, weights = query, scores
        if self.per_word > 1:
            view, words = self.builder.view("query_words", self.queries, slot * parts["query"][1], WORDS)
            statements.append(view)
            weights = self.weights
        return TileRows(height, row, slot, query, words, sums, largest, total, scores, weights), statements

    def row_places(self, row: Dim) -> dict[int, Dim]:
        """Return the positions of a row along all axes but the last, clamped to the last row."""
        inside = row if self.is_exact else dims.minimum(row, self.row_count - 1)
        positions = unravel_index(inside, self.row_sizes)
        rows = {axis: position for (axis, _), position in zip(self.axes.rows, positions)}
        return {axis: self.axes.position(axis, at, rows.get(axis, 0)) for axis, at in self.blocks.items()}

    def round_element(self, code: Code, function: str = "half_bits") -> Code:
        """Round a query or a weight (at most 1) to bfloat16, if products are of pairs."""
        return Call(function, (code,), HALF_BITS) if self.per_word > 1 else code

    def loop_over_rows(self, rows: TileRows, body: Callable[[Dim], Body]) -> Statement:
        """Loop over the rows of a tile; `body` takes the row's number."""
        number = self.builder.variable("e")
        return repeat(number, 0, rows.height, 1, body(number))

    def lowering(self, places: dict[int, Dim], statements: list[Statement], mask: Code | None = None) -> Lowering:
        views = operand_views(self.operands, dict(enumerate(self.sources)), self.builder)
        return Lowering(views, places, self.builder, None, mask, statements)

    def process_chunk(self, start: Dim) -> Body:
        """Process the chunk of keys from `start` on, for all tiles of the block."""
        raise NotImplementedError

    def save(self, rows: TileRows, head: Dim, split: Dim) -> Body:
        """Write the state of a tile after its split of the keys."""
        raise NotImplementedError

    # -- before and after the keys -----------------------------------------------------------------------------------

    def prepare(self, rows: TileRows) -> Body:
        """Load the queries of a tile, and clear its sums, totals and maxima."""
        depth = self.attention.depth

        def prepare_row(number: Dim) -> Body:
            places = self.row_places(rows.row + number)

            def gather(position: Dim, mask: Code | None) -> Body:
                statements: list[Statement] = []
                code = self.lowering({**places, self.last + 1: position}, statements, mask).code(self.query)
                return *statements, put(rows.query, number * depth + position, self.round_element(code), mask=mask)

            exact = depth % self.lanes == 0
            return build_lane_loop(self.builder, "i", Span(0, depth), self.lanes, gather, exact=exact)

        return self.loop_over_rows(rows, prepare_row), *self.clear(rows), *self.find_range(rows)

    def clear(self, rows: TileRows) -> list[Statement]:
        column = self.builder.variable("c")
        zero = put(rows.sum, column + lane(self.lanes), float32(0.0))
        return [
            repeat(column, 0, rows.height * self.width, self.lanes, (zero,)),
            *self.for_states(lambda at: [put(rows.largest, at, float32(-inf)), put(rows.total, at, float32(0.0))]),
            *self.for_states(lambda at: [put(self.row_values, at, float32(0.0))]),
        ]

    def for_states(self, body: Callable[[Dim], list[Statement]]) -> list[Statement]:
        """Run the body for the rows of a tile, one per lane."""
        vectors = range(0, self.state, self.lanes)
        return [statement for first in vectors for statement in body(first + lane(self.lanes))]

    def begin_bounds(self) -> list[Statement]:
        """Define the range of the keys that any row of the block sees, as far as it depends on data."""
        statements: list[Statement] = []
        if self.bounds:
            defined, self.block_end = self.builder.keep("block_end", Integer(0), varying=False)
            statements.append(defined)
        if self.starts:
            defined, self.block_begin = self.builder.keep("block_begin", Integer(self.keys), varying=False)
            statements.append(defined)
        return statements

    def find_range(self, rows: TileRows) -> list[Statement]:
        """Find the range of the keys that any row of a tile sees, as far as it depends on data."""
        statements: list[Statement] = []
        if self.ends is not None and self.block_end is not None:
            combined, end = self.combine_rows(rows, self.bounds, Integer(0), "minimum", "maximum")
            last = Call("maximum", (self.block_end, end), DType.int64)
            statements += [*combined, put(self.ends, rows.slot, end), assign(self.block_end, last)]
        if self.begins is not None and self.block_begin is not None:
            combined, begin = self.combine_rows(rows, self.starts, Integer(self.keys), "maximum", "minimum")
            first = Call("minimum", (self.block_begin, begin), DType.int64)
            statements += [*combined, put(self.begins, rows.slot, begin), assign(self.block_begin, first)]
        return statements

    def combine_rows(
        self, rows: TileRows, expressions: list[Scalar], first: Code, of_row: str, of_all: str
    ) -> tuple[list[Statement], Register]:
        """Combine integers for each row by one function, and those of all rows of a tile by another."""
        begin, result = self.builder.keep("limit", first, varying=False)

        def combine(number: Dim) -> Body:
            statements: list[Statement] = []
            lowering = self.lowering(self.row_places(rows.row + number), statements)
            code, *others = (lowering.code(expression) for expression in expressions)
            for other in others:
                code = Call(of_row, (code, other), DType.int64)
            return *statements, assign(result, Call(of_all, (result, code), DType.int64))

        return [begin, self.loop_over_rows(rows, combine)], result

    def finish(self, rows: TileRows) -> Body:
        """Divide the sums of a tile by their totals, apply the epilogue and write."""
        return *self.invert_totals(rows), self.loop_over_rows(rows, lambda number: (self.finish_row(rows, number),))

    def finish_row(self, rows: TileRows, number: Dim) -> Statement:
        vector = self.builder.variable("vector")
        column = vector * self.lanes + lane(self.lanes)
        mask = None
        if self.attention.width % self.lanes:
            mask = less(column, self.attention.width)
        if not self.is_exact:
            inside = less(rows.row + number, self.row_count)
            mask = inside if mask is None else logical_and(inside, mask)
        factor = fetch(self.factors, number)
        value = call("multiply", fetch(rows.sum, number * self.width + column), factor)
        value = call("add", value, float32(0.0))  # the sign of 0 would depend on keys that weigh 0
        if self.attention.drops_nan:  # sums may be NaN as well
            is_zero = Call("equal", (factor, float32(0.0)), DType.bool)
            value = call("select", is_zero, float32(0.0), value)
        at = {**self.row_places(rows.row + number), self.last + 1: column}
        axes = {axis: at[score_axis] for axis, score_axis in enumerate(self.attention.axes)}
        defined, kept_value = self.builder.keep("value", value, varying=True)
        vectors = -(-self.attention.width // self.lanes)
        return repeat(vector, 0, vectors, 1, (defined, *self.epilogue_writer.write(kept_value, axes, mask)))

    def invert_totals(self, rows: TileRows) -> list[Statement]:
        """Compute the inverse divisor of each row into `factors`, scaled where a sink has a larger score.

        Rows without a visible key have a total of 0 here; it becomes NaN if the program computes -inf - -inf.
        """

        def invert(at: Dim) -> list[Statement]:
            total: Code = fetch(rows.total, at)
            hidden = Call("equal", (fetch(rows.largest, at), float32(-inf)), DType.bool)
            if not self.attention.shifts_nothing:
                total = call("select", hidden, float32(nan), total)
            defined, whole = self.builder.keep("whole", total, varying=True)
            statements: list[Statement] = [defined]
            lowering = Lowering({}, {}, self.builder, {ELEMENT: whole}, None, statements)
            inverse: Code = call("divide", float32(1.0), lowering.code(self.attention.divisor))
            if self.attention.drops_nan:
                inverse = call("select", Call("is_nan", (whole,), DType.bool), float32(0.0), inverse)
            if not dims.is_at_least(self.attention.shape[-1], 1):
                empty = Call("equal", (Integer(self.keys), Integer(0)), DType.bool)
                inverse = call("select", empty, float32(0.0), inverse)
            return [*statements, put(self.factors, at, inverse)]

        return self.for_states(invert if self.sink is None else lambda at: self.invert_with_sink(rows, at))

    def invert_with_sink(self, rows: TileRows, at: Dim) -> list[Statement]:
        """As in `invert_totals`; the sink is the only visible score of rows without a visible key."""
        assert self.sink is not None
        row = dims.minimum(rows.row + at, self.row_count - 1)  # lanes can be beyond the tile
        statements: list[Statement] = []
        sink = self.lowering(self.row_places(row), statements).code(self.sink)
        to_sink, kept_sink = self.builder.keep("sink", sink, varying=True)
        largest, total = fetch(rows.largest, at), fetch(rows.total, at)
        shift = call("select", Call("greater", (largest, kept_sink), DType.bool), largest, kept_sink)
        to_shift, kept_shift = self.builder.keep("by", shift, varying=True)
        to_scale, scale = self.builder.keep("scale", call("exp", call("subtract", largest, kept_shift)), varying=True)
        whole = call("add", call("multiply", total, scale), call("exp", call("subtract", kept_sink, kept_shift)))
        inverse = call("divide", scale, whole)
        return [*statements, to_sink, to_shift, to_scale, put(self.factors, at, inverse)]


def float32(value: float) -> Number:
    return Number(value, FLOAT)


def call(function: str, *arguments: Code) -> Call:
    return Call(function, arguments, FLOAT)
