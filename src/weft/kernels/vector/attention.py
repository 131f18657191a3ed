"""Flash attention as one kernel that streams over the keys; the score matrix is never in memory.

A block has some tiles of queries of one head. It goes over the keys in chunks: the products of a tile with a chunk's
keys go to block-local memory, become scores and then weights, and the values weighted by them are added to the tile's
sums. The softmax is online: the largest score so far is subtracted, and if a chunk has a larger one, earlier sums are
scaled down. Keys and values are packed beforehand (key_panels.py); if they are pairs of bfloat16, queries and weights
are rounded to such pairs as well.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf, nan

from weft.cost.blocks import ATTENTION_BLOCK_WORK
from weft.ir import dims
from weft.ir.attention import Attention
from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.ir.kernel import Across, Buffer, Call, Code, Integer, Number, Register, Statement, When, block, lane
from weft.ir.scalar import ELEMENT, Placeholder, Scalar
from weft.ir.target import VectorTarget
from weft.kernels.build.attention import find_operands, renumber_operands
from weft.kernels.build.epilogue import EpilogueWriter
from weft.kernels.build.loop_axes import unravel_index
from weft.kernels.build.loop_nest import Body, Span, build_lane_loop
from weft.kernels.build.multiply_add import PAIRS, accumulate
from weft.kernels.lower.expressions import Lowering
from weft.kernels.lower.kernel_builder import KernelBuilder, assign, define, fetch, let, put, repeat, unbounded
from weft.kernels.lower.memoize import memoize_launch
from weft.kernels.lower.merge_axes import flatten_loads, operand_views
from weft.kernels.lower.operations import less, logical_and, logical_not, logical_or
from weft.kernels.lower.tensors import Epilogue, Launch, Reference, StoredTensor
from weft.kernels.vector.key_panels import WORDS, outer_axes
from weft.records import dataclass

FLOAT = DType.float32
HALF_BITS = DType.uint16  # of a bfloat16
KEY_CHUNK = 256  # keys per chunk
VECTORS = 2  # of keys, or of columns, per step
MAX_HEIGHT = 12  # rows of a tile; at most the lanes, because row maxima and totals are kept one per lane
LOW_HEIGHT = 4  # rows of the tiles that cover the remaining rows
MAX_TILES = 8  # per block; each has its queries and sums in local memory
MAX_TILE_BYTES = 48 * 1024  # of local memory for all tiles of a block
PADDING = 16  # elements between rows of scores, so that rows do not share cache sets
UNROLL = 2  # steps of products


@dataclass(frozen=True, slots=True)
class QueryTiles:
    """`count` tiles of `height` rows, from tile `first` and row `row` on; the last may extend past the end."""

    height: int
    first: Dim
    count: Dim
    row: Dim


def split_rows(rows: Dim, height: int) -> list[QueryTiles]:
    """Split rows into tiles, evenly if their number is known."""
    if isinstance(rows, int):
        tiles = max(1, -(-rows // height))
        tall = -(-rows // tiles)
        count = rows - tiles * (tall - 1)
        first = QueryTiles(tall, 0, count, 0)
        return [first] if count == tiles else [first, QueryTiles(tall - 1, count, tiles - count, count * tall)]
    whole_tiles = dims.floordiv(rows, height)
    low_tiles = dims.ceildiv(rows - whole_tiles * height, LOW_HEIGHT)
    return [QueryTiles(height, 0, whole_tiles, 0), QueryTiles(LOW_HEIGHT, whole_tiles, low_tiles, whole_tiles * height)]


@dataclass(frozen=True, slots=True)
class TileRows:
    """A tile of query rows: its first row, and views of its local memory."""

    height: int
    row: Dim
    query: Buffer
    query_words: Buffer
    sum: Buffer
    largest: Buffer
    total: Buffer


@dataclass(frozen=True, slots=True)
class KeyChunk:
    """A chunk of the keys: its first key, and the number of keys that may be visible."""

    start: Dim
    count: Dim


class _Builder:
    """Operands are those of query and score, then of the epilogue, packed keys and packed values."""

    def __init__(
        self,
        attention: Attention,
        operands: tuple[StoredTensor, ...],
        keys: StoredTensor,
        values: StoredTensor,
        result: StoredTensor,
        target: VectorTarget,
    ) -> None:
        self.attention, self.target = attention, target
        self.packed_keys, self.packed_values = keys, values
        self.builder = KernelBuilder("attention")
        lanes = keys.shape[-1]
        assert isinstance(lanes, int)
        self.lanes = lanes
        self.last = len(attention.shape) - 1
        used = find_operands(attention.query, attention.score)
        self.operands = [operands[number] for number in used]
        self.query, self.score = (
            flatten_loads(renumber_operands(e, used), self.operands) for e in (attention.query, attention.score)
        )
        self.sources = [
            self.builder.input(f"from{n}", tensor.dtype, Reference("operand", n))
            for n, tensor in enumerate(self.operands)
        ]
        self.epilogue_writer = EpilogueWriter(result, self.epilogue(operands), self.builder, len(used))
        before = len(used) + len(self.epilogue_writer.inputs)
        self.key_buffer = self.builder.input("keys", keys.dtype, Reference("operand", before))
        self.value_buffer = self.builder.input("values", values.dtype, Reference("operand", before + 1))
        self.element = HALF_BITS if keys.dtype is WORDS else FLOAT  # of queries and weights
        self.per_word = 2 if keys.dtype is WORDS else 1
        self.rows = [axis for axis in attention.rows if attention.shape[axis] != 1]
        self.grid_axes = [a for a in range(self.last) if a not in self.rows and attention.shape[a] != 1]
        count = dims.product(attention.shape[axis] for axis in self.rows)
        self.row_count = self.builder.parameter("rows", count)
        self.row_sizes = [self.builder.parameter(f"rows{axis}", attention.shape[axis]) for axis in self.rows]
        self.tiles = split_rows(count, min((target.vector_registers - 4) // VECTORS, MAX_HEIGHT, self.lanes))
        self.is_exact = isinstance(count, int)
        self.height = self.tiles[0].height
        self.keys = self.builder.parameter("keys", attention.shape[-1])
        self.panels = -(-attention.width // self.lanes)
        self.width = self.panels * self.lanes
        self.max_tiles = max(min(MAX_TILES, MAX_TILE_BYTES // (4 * self.height * (attention.depth + self.width))), 1)

    def epilogue(self, operands: tuple[StoredTensor, ...]) -> Epilogue | None:
        if self.attention.epilogue is None:
            return None
        used = find_operands(self.attention.epilogue)
        return Epilogue(renumber_operands(self.attention.epilogue, used), tuple(operands[number] for number in used))

    # -- the kernel --------------------------------------------------------------------------------------------------

    def build_launch(self) -> Launch:
        total = self.tiles[-1].first + self.tiles[-1].count
        work = 2 * self.height * (self.attention.depth + self.width) * self.attention.shape[-1] + 1000
        each = dims.minimum(dims.maximum(dims.floordiv(ATTENTION_BLOCK_WORK, work), 1), self.max_tiles)
        chunks = dims.maximum(dims.ceildiv(total, each), 1)
        each = dims.ceildiv(total, chunks)
        statements: list[Statement] = []
        chunk = self.decode_block(statements, block(), chunks)
        size = self.builder.parameter("tiles_each", each)
        self.first = chunk * size
        self.end = dims.minimum(self.first + size, self.builder.parameter("tiles", total))
        self.add_local_memory()
        statements += [self.loop_over_tiles(tiles, self.prepare) for tiles in self.tiles]
        start = self.builder.variable("start")
        inner = [self.loop_over_tiles(tiles, lambda rows: self.process_keys(rows, start)) for tiles in self.tiles]
        statements.append(repeat(start, 0, self.keys, KEY_CHUNK, inner))
        statements += [self.loop_over_tiles(tiles, self.finish) for tiles in self.tiles]
        blocks = dims.product(self.attention.shape[axis] for axis in self.grid_axes) * chunks
        return self.builder.launch(self.lanes, statements, blocks)

    def decode_block(self, statements: list[Statement], remaining: Dim, chunks: Dim) -> Dim:
        """Decode a block number into its chunk of tiles, and set `places` to its position along the grid."""
        count = self.builder.parameter("chunks", chunks)
        first, chunk = self.builder.let("chunk", dims.mod(remaining, count))
        second, remaining = self.builder.let("head", dims.floordiv(remaining, count))
        statements += [first, second]
        self.places: dict[int, Dim] = dict.fromkeys(range(self.last), 0)
        for axis in reversed(self.grid_axes):
            size = self.builder.parameter(f"grid{axis}", self.attention.shape[axis])
            first_axis = axis == self.grid_axes[0]
            position = remaining if first_axis else dims.mod(remaining, size)
            defined, self.places[axis] = self.builder.let(f"g{axis}", position)
            statements.append(defined)
            if not first_axis:
                defined, remaining = self.builder.let(f"g{axis}_rest", dims.floordiv(remaining, size))
                statements.append(defined)
        return chunk

    def add_local_memory(self) -> None:
        """Allocate the state of all tiles, and the scratch memory of the current one."""
        tile = self.height
        self.queries = self.builder.local("queries", self.element, self.max_tiles * tile * self.attention.depth)
        self.sums = self.builder.local("sums", FLOAT, self.max_tiles * tile * self.width)
        self.scores = self.builder.local("scores", FLOAT, tile * self.score_row)
        self.weights = self.scores
        if self.per_word > 1:
            self.weights = self.builder.local("weights", self.element, tile * self.score_row)
        self.largest = self.builder.local("largest", FLOAT, self.max_tiles * self.lanes)
        self.totals = self.builder.local("totals", FLOAT, self.max_tiles * self.lanes)
        self.shifts = self.builder.local("shifts", FLOAT, self.lanes)
        self.factors = self.builder.local("factors", FLOAT, self.lanes)
        self.row_values = self.builder.local("fresh", FLOAT, self.lanes)

    def loop_over_tiles(self, tiles: QueryTiles, body: Callable[[TileRows], Body]) -> Statement:
        """Loop over a block's tiles of one height, with views of each tile's state."""
        parameter = self.builder.parameter
        tile = self.builder.variable("tile")
        row = self.builder.variable("row")
        slot = tile - self.first
        parts = {
            "query": (self.queries, self.height * self.attention.depth),
            "sum": (self.sums, self.height * self.width),
            "most": (self.largest, self.lanes),
            "total": (self.totals, self.lanes),
        }
        views = [self.builder.view(hint, whole, slot * size) for hint, (whole, size) in parts.items()]
        words = views[0]
        if self.per_word > 1:
            words = self.builder.view("query_words", self.queries, slot * parts["query"][1], WORDS)
        query, *others = (buffer for _, buffer in views)
        views += [words] if self.per_word > 1 else []
        inner = body(TileRows(tiles.height, row, query, words[1], *others))
        start, count = parameter(f"first{tiles.height}", tiles.first), parameter(f"count{tiles.height}", tiles.count)
        first = let(row, parameter(f"row{tiles.height}", tiles.row) + (tile - start) * tiles.height)
        low, high = dims.maximum(self.first, start), dims.minimum(self.end, start + count)
        return repeat(tile, low, high, 1, (first, *(view for view, _ in views), *inner))

    def row_places(self, row: Dim) -> dict[int, Dim]:
        """Return the positions of a row along all axes but the last, clamped to the last row."""
        inside = row if self.is_exact else dims.minimum(row, self.row_count - 1)
        return {**self.places, **dict(zip(self.rows, unravel_index(inside, self.row_sizes)))}

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
            gathered = build_lane_loop(self.builder, "i", Span(0, depth), self.lanes, gather, exact=exact)
            column = self.builder.variable("c")
            zero = put(rows.sum, number * self.width + column + lane(self.lanes), _number(0.0))
            return *gathered, repeat(column, 0, self.width, self.lanes, (zero,))

        return (
            self.loop_over_rows(rows, prepare_row),
            put(rows.largest, lane(self.lanes), _number(-inf)),
            put(rows.total, lane(self.lanes), _number(0.0)),
            put(self.row_values, lane(self.lanes), _number(0.0)),
        )

    def finish(self, rows: TileRows) -> Body:
        """Divide the sums of a tile by their totals, apply the epilogue and write."""
        return *self.invert_totals(rows), self.loop_over_rows(rows, lambda number: (self.finish_row(rows, number),))

    def finish_row(self, rows: TileRows, number: Dim) -> Statement:
        panel = self.builder.variable("panel")
        column = panel * self.lanes + lane(self.lanes)
        mask = None
        if self.attention.width != self.width:
            mask = less(column, self.attention.width)
        if not self.is_exact:
            inside = less(rows.row + number, self.row_count)
            mask = inside if mask is None else logical_and(inside, mask)
        factor = fetch(self.factors, number)
        value = _call("multiply", fetch(rows.sum, number * self.width + column), factor)
        if self.attention.drops_nan:  # sums may be NaN as well
            is_zero = Call("equal", (factor, _number(0.0)), DType.bool)
            value = _call("select", is_zero, _number(0.0), value)
        at = {**self.row_places(rows.row + number), self.last + 1: column}
        axes = {axis: at[score_axis] for axis, score_axis in enumerate(self.attention.axes)}
        defined, kept_value = self.builder.keep("value", value, varying=True)
        return repeat(panel, 0, self.panels, 1, (defined, *self.epilogue_writer.write(kept_value, axes, mask)))

    def invert_totals(self, rows: TileRows) -> list[Statement]:
        """Compute the inverse divisor of each row into `factors`.

        Rows without a visible key have a total of 0 here; it becomes NaN if the program computes -inf - -inf.
        """
        total: Code = fetch(rows.total, lane(self.lanes))
        hidden = Call("equal", (fetch(rows.largest, lane(self.lanes)), _number(-inf)), DType.bool)
        if not self.attention.shifts_nothing:
            total = _call("select", hidden, _number(nan), total)
        defined, whole = self.builder.keep("whole", total, varying=True)
        statements: list[Statement] = [defined]
        lowering = Lowering({}, {}, self.builder, {ELEMENT: whole}, None, statements)
        inverse: Code = _call("divide", _number(1.0), lowering.code(self.attention.divisor))
        if self.attention.drops_nan:
            inverse = _call("select", Call("is_nan", (whole,), DType.bool), _number(0.0), inverse)
        if not dims.is_at_least(self.attention.shape[-1], 1):
            empty = Call("equal", (Integer(self.keys), Integer(0)), DType.bool)
            inverse = _call("select", empty, _number(0.0), inverse)
        return [*statements, put(self.factors, lane(self.lanes), inverse)]

    # -- a chunk of the keys -----------------------------------------------------------------------------------------

    def process_keys(self, rows: TileRows, start: Dim) -> Body:
        """Process the chunk of keys from `start` on, up to the last that a query of the tile sees: others weigh 0.

        A mask with a finite score hides a key only from rows that see another key. If it hides all keys of a row,
        later keys still count.
        """
        places = self.row_places(rows.row + (rows.height - 1))
        index = self.lowering(places, []).index
        certain = [index(end.bound) for end in self.attention.causal_bounds if end.score == -inf]
        likely = [index(end.bound) for end in self.attention.causal_bounds if end.score != -inf]
        set_count, count = self.builder.let("count", dims.minimum(_minimum(self.keys, *certain) - start, KEY_CHUNK))
        visible = self.process_visible_keys(rows, KeyChunk(start, count))
        body: Body = (set_count, *visible)
        if certain:
            some = Call("greater", (Integer(unbounded(count)), Integer(0)), DType.bool)
            body = (set_count, When(some, visible))
        if likely:
            near = less(start, _minimum(*likely))
            body = (When(logical_or(near, self.has_hidden_row(rows)), body),)
        return body

    def has_hidden_row(self, rows: TileRows) -> Code:
        """Test whether all keys so far were hidden from a row of the tile, or had NaN scores."""
        low = max(end.score for end in self.attention.causal_bounds if end.score != -inf)
        is_row = less(lane(self.lanes), rows.height)
        largest = _call("select", is_row, fetch(rows.largest, lane(self.lanes)), _number(inf))
        sees = Call("greater", (Across("minimum", largest), _number(low / 2)), DType.bool)
        return logical_not(sees)

    def process_visible_keys(self, rows: TileRows, keys: KeyChunk) -> Body:
        return (
            self.multiply_keys(rows, keys),
            self.loop_over_rows(rows, lambda number: self.find_row_maximum(rows, keys, number)),
            *self.update_shifts(rows),
            self.loop_over_rows(rows, lambda number: self.compute_weights(keys, number)),
            *self.add_totals(rows),
            self.multiply_values(rows, keys),
        )

    @property
    def score_row(self) -> int:
        return KEY_CHUNK + PADDING

    def head(self, name: str, element: Scalar, packed: StoredTensor) -> Dim:
        """Return which of the packed heads a block reads."""
        place: Dim = 0
        for number, axis in enumerate(outer_axes(element, self.last)):
            place = place * self.builder.parameter(f"{name}{number}", packed.shape[number]) + self.places[axis]
        return place

    def multiply_keys(self, rows: TileRows, keys: KeyChunk) -> Statement:
        """Multiply the queries of a tile with a chunk's keys, one panel at a time, into `scores`."""
        depth = self.attention.depth // self.per_word
        head = self.head("keys", self.attention.key, self.packed_keys)
        panels = self.builder.parameter("key_panels", self.packed_keys.shape[-3])
        panel, k = self.builder.variable("panel"), self.builder.variable("k")
        place = head * panels + dims.floordiv(keys.start, self.lanes) + panel
        view, columns = self.builder.view("columns", self.key_buffer, place * (depth * self.lanes))
        totals = self.builder.registers("a", rows.height, FLOAT)
        elements = [fetch(rows.query_words, row * depth + k) for row in range(rows.height)]
        at = panel * self.lanes + lane(self.lanes)
        body = [
            view,
            *(define(total, _number(0.0)) for total in totals),
            self.accumulate_products(k, depth, columns, elements, totals),
            *(put(self.scores, row * self.score_row + at, total) for row, total in enumerate(totals)),
        ]
        return repeat(panel, 0, dims.ceildiv(keys.count, self.lanes), 1, body)

    def multiply_values(self, rows: TileRows, keys: KeyChunk) -> Statement:
        """Rescale the sums of a tile and add a chunk's weighted values, one vector of columns at a time."""
        head = self.head("values", self.attention.value, self.packed_values)
        panel, k = self.builder.variable("panel"), self.builder.variable("k")
        at = panel * self.lanes + lane(self.lanes)
        steps = self.builder.parameter("value_steps", self.packed_values.shape[-2])
        start = (head * self.panels + panel) * steps + dims.floordiv(keys.start, self.per_word)
        view, columns = self.builder.view("columns", self.value_buffer, start * self.lanes)
        body: list[Statement] = [view]
        weights = self.weights
        if self.per_word > 1:
            words_view, weights = self.builder.view("weight_words", self.weights, 0, WORDS)
            body.append(words_view)
        totals = self.builder.registers("a", rows.height, FLOAT)
        for row, total in enumerate(totals):
            before = fetch(rows.sum, row * self.width + at)
            body.append(define(total, _call("multiply", before, fetch(self.factors, row))))
        elements = [fetch(weights, row * (self.score_row // self.per_word) + k) for row in range(rows.height)]
        body.append(self.accumulate_products(k, dims.ceildiv(keys.count, self.per_word), columns, elements, totals))
        body += [put(rows.sum, row * self.width + at, total) for row, total in enumerate(totals)]
        return repeat(panel, 0, self.panels, 1, body)

    def accumulate_products(
        self, step: Dim, count: Dim, columns: Buffer, elements: Sequence[Code], totals: Sequence[Register]
    ) -> Statement:
        """Loop over `count` steps, adding each row's element times a vector of columns to the row's total."""
        defined, vector = self.builder.keep("b", fetch(columns, step * self.lanes + lane(self.lanes)))
        words = PAIRS if self.per_word > 1 else ""
        added = [
            assign(total, accumulate(words, self.target, element, vector, total))
            for element, total in zip(elements, totals)
        ]
        return repeat(step, 0, count, 1, (defined, *added), UNROLL)

    def find_row_maximum(self, rows: TileRows, keys: KeyChunk, number: Dim) -> Body:
        """Compute the scores of a row, and their maximum into `row_values`."""
        plain = isinstance(self.score, Placeholder)
        places = self.row_places(rows.row + number)
        lets = {axis: self.builder.let(f"y{axis}", places[axis]) for axis in self.rows}
        places |= {axis: name for axis, (_, name) in lets.items()}
        begin, largest = self.builder.keep("m", _number(-inf), varying=True)

        def score_keys(position: Dim, mask: Code | None) -> Body:
            statements: list[Statement] = []
            at = number * self.score_row + position
            code: Code = fetch(self.scores, at)
            if not plain:
                here = {**places, self.last: keys.start + position}
                lowering = self.lowering(here, statements, mask)
                lowering.values = {ELEMENT: code}
                defined, code = self.builder.keep("s", lowering.code(self.score), varying=True)
                statements += [defined, put(self.scores, at, code, mask=mask)]
            if mask is not None:
                code = _call("select", mask, code, _number(-inf))
            return *statements, assign(largest, _call("maximum", largest, code))

        loop = build_lane_loop(self.builder, "j", Span(0, keys.count), self.lanes, score_keys)
        store = put(self.row_values, number, Across("maximum", largest))
        return *(statement for statement, _ in lets.values()), begin, *loop, store

    def update_shifts(self, rows: TileRows) -> list[Statement]:
        """Update each row's shift (subtracted from its scores) and factor (of its sums so far); a row per lane."""
        at = lane(self.lanes)
        first, before = self.builder.keep("before", fetch(rows.largest, at))
        second, now = self.builder.keep("now", _call("maximum", before, fetch(self.row_values, at)))
        unseen = Call("equal", (now, _number(-inf)), DType.bool)
        third, by = self.builder.keep("by", _call("select", unseen, _number(0.0), now))
        return [
            first,
            second,
            third,
            put(rows.largest, at, now),
            put(self.shifts, at, by),
            put(self.factors, at, _call("exp", _call("subtract", before, by))),
        ]

    def compute_weights(self, keys: KeyChunk, number: Dim) -> Body:
        """Turn the scores of a row into weights, and put their sum into `row_values`."""
        begin_by, by = self.builder.keep("by", fetch(self.shifts, number), varying=False)
        begin, total = self.builder.keep("t", _number(0.0), varying=True)

        def weigh_keys(position: Dim, mask: Code | None) -> Body:
            at = number * self.score_row + position
            weight: Code = _call("exp", _call("subtract", fetch(self.scores, at), by))
            if mask is not None:
                weight = _call("select", mask, weight, _number(0.0))
            defined, register = self.builder.keep("w", weight, varying=True)
            return (
                defined,
                put(self.weights, at, self.round_element(register, "small_half_bits")),
                assign(total, _call("add", total, register)),
            )

        loop = build_lane_loop(self.builder, "j", Span(0, keys.count), self.lanes, weigh_keys)
        return begin_by, begin, *loop, put(self.row_values, number, Across("sum", total))

    def add_totals(self, rows: TileRows) -> list[Statement]:
        at = lane(self.lanes)
        scaled = _call("multiply", fetch(rows.total, at), fetch(self.factors, at))
        return [put(rows.total, at, _call("add", scaled, fetch(self.row_values, at)))]


build_attention_launch = memoize_launch(_Builder)


def _minimum(*values: Dim) -> Dim:
    smallest, *others = values
    for value in others:
        smallest = dims.minimum(smallest, value)
    return smallest


def _number(value: float) -> Number:
    return Number(value, FLOAT)


def _call(function: str, *arguments: Code) -> Call:
    return Call(function, arguments, FLOAT)
