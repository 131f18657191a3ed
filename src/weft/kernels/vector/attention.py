"""Attention as one kernel that streams over the keys: no matrix of scores is ever in memory.

A block has some tiles of queries of one head. It goes over the keys in pieces: products of a tile with a piece's keys
go into memory of the block's own, become scores and then weights, and weigh the piece's values into the tile's results.
The softmax is the running one: the largest score so far is subtracted, and where a piece has a larger one, what was
summed up before is scaled down. Keys and values are packed beforehand, see key_panels.py; where these are pairs of
bfloat16, queries and weights are rounded to such pairs as well.
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
from weft.ir.scalar import AT_HAND, Held, Scalar
from weft.ir.target import VectorTarget
from weft.kernels.build.attention import used_operands, with_operands
from weft.kernels.build.epilogue import EpilogueWriter
from weft.kernels.build.loop_axes import split_index
from weft.kernels.build.loop_nest import Body, Span, lane_loop
from weft.kernels.build.multiply_add import PAIRS, accumulate
from weft.kernels.lower.expressions import Lowering
from weft.kernels.lower.kernel_builder import KernelBuilder, assign, define, fetch, let, put, repeat, unbounded
from weft.kernels.lower.memoize import memoized
from weft.kernels.lower.merge_axes import flatten_loads, operand_views
from weft.kernels.lower.tensors import Epilogue, Launch, Reference, StoredTensor
from weft.kernels.vector.key_panels import WORDS, outer_axes
from weft.records import dataclass

FLOAT = DType.float32
HALF_BITS = DType.uint16  # of a bfloat16
PIECE = 256  # keys at a time
VECTORS = 2  # of keys, or of columns, at a time
TALLEST = 12  # rows of a tile; never more than lanes, which stand for rows where those are summed up
LOW = 4  # rows of the tiles that do what is left over
MOST_TILES = 8  # of a block, of which each keeps queries and results
KEPT_BYTES = 48 * 1024  # by all of them
PADDING = 16  # elements between rows of scores, so that rows do not compete for the same lines of a cache
UNROLL = 2  # steps of products


@dataclass(frozen=True, slots=True)
class QueryTiles:
    """`count` tiles of `height` rows, from tile number `first` and row `row` on; the last may reach over the end."""

    height: int
    first: Dim
    count: Dim
    row: Dim


def share_rows(rows: Dim, height: int) -> list[QueryTiles]:
    """Rows given to tiles: evenly where their number is known."""
    if isinstance(rows, int):
        tiles = max(1, -(-rows // height))
        tall = -(-rows // tiles)
        count = rows - tiles * (tall - 1)
        found = [QueryTiles(tall, 0, count, 0)]
        return found if count == tiles else [*found, QueryTiles(tall - 1, count, tiles - count, count * tall)]
    whole = dims.floordiv(rows, height)
    rest = dims.ceildiv(rows - whole * height, LOW)
    return [QueryTiles(height, 0, whole, 0), QueryTiles(LOW, whole, rest, whole * height)]


@dataclass(frozen=True, slots=True)
class TileRows:
    """A tile of rows in the making: its first row, and views of what it keeps."""

    height: int
    row: Dim
    query: Buffer
    query_words: Buffer
    sum: Buffer
    most: Buffer
    total: Buffer


@dataclass(frozen=True, slots=True)
class KeyPiece:
    """A piece of the keys: its first, and how many of it are looked at."""

    start: Dim
    count: Dim


@memoized
def attention_launch(
    attention: Attention,
    operands: tuple[StoredTensor, ...],
    keys: StoredTensor,
    values: StoredTensor,
    result: StoredTensor,
    target: VectorTarget,
) -> Launch:
    """Operands are those of query and score, those of the epilogue, the packed keys and the packed values."""
    return _Builder(attention, operands, keys, values, result, target).launch()


class _Builder:
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
        used = used_operands(attention.query, attention.score)
        self.operands = [operands[number] for number in used]
        self.query, self.score = (
            flatten_loads(with_operands(e, used), self.operands) for e in (attention.query, attention.score)
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
        self.grid = [a for a in range(self.last) if a not in self.rows and attention.shape[a] != 1]
        count = dims.product(attention.shape[axis] for axis in self.rows)
        self.row_count = self.builder.named("rows", count)
        self.row_sizes = [self.builder.named(f"rows{axis}", attention.shape[axis]) for axis in self.rows]
        self.tiles = share_rows(count, min((target.vector_registers - 4) // VECTORS, TALLEST, self.lanes))
        self.is_exact = isinstance(count, int)
        self.height = self.tiles[0].height
        self.keys = self.builder.named("keys", attention.shape[-1])
        self.panels = -(-attention.width // self.lanes)
        self.width = self.panels * self.lanes
        self.most_tiles = max(min(MOST_TILES, KEPT_BYTES // (4 * self.height * (attention.depth + self.width))), 1)

    def epilogue(self, operands: tuple[StoredTensor, ...]) -> Epilogue | None:
        if self.attention.epilogue is None:
            return None
        used = used_operands(self.attention.epilogue)
        return Epilogue(with_operands(self.attention.epilogue, used), tuple(operands[number] for number in used))

    # -- the kernel --------------------------------------------------------------------------------------------------

    def launch(self) -> Launch:
        total = self.tiles[-1].first + self.tiles[-1].count
        work = 2 * self.height * (self.attention.depth + self.width) * self.attention.shape[-1] + 1000
        each = dims.minimum(dims.maximum(dims.floordiv(ATTENTION_BLOCK_WORK, work), 1), self.most_tiles)
        chunks = dims.maximum(dims.ceildiv(total, each), 1)
        each = dims.ceildiv(total, chunks)
        statements: list[Statement] = []
        chunk = self.decode(statements, block(), chunks)
        size = self.builder.named("tiles_each", each)
        self.first = chunk * size
        self.end = dims.minimum(self.first + size, self.builder.named("tiles", total))
        self.add_local_memory()
        statements += [self.each_tile(tiles, self.prepare) for tiles in self.tiles]
        start = self.builder.variable("start")
        inner = [self.each_tile(tiles, lambda rows: self.take_in(rows, start)) for tiles in self.tiles]
        statements.append(repeat(start, 0, self.keys, PIECE, inner))
        statements += [self.each_tile(tiles, self.finish) for tiles in self.tiles]
        blocks = dims.product(self.attention.shape[axis] for axis in self.grid) * chunks
        return self.builder.launch(self.lanes, statements, blocks)

    def decode(self, statements: list[Statement], rest: Dim, chunks: Dim) -> Dim:
        """What a block does: its chunk of tiles; its places along the grid go to `places`."""
        count = self.builder.named("chunks", chunks)
        first, chunk = self.builder.let("chunk", dims.mod(rest, count))
        second, rest = self.builder.let("head", dims.floordiv(rest, count))
        statements += [first, second]
        self.places: dict[int, Dim] = dict.fromkeys(range(self.last), 0)
        for axis in reversed(self.grid):
            size = self.builder.named(f"grid{axis}", self.attention.shape[axis])
            first_axis = axis == self.grid[0]
            defined, self.places[axis] = self.builder.let(f"g{axis}", rest if first_axis else dims.mod(rest, size))
            statements.append(defined)
            if not first_axis:
                defined, rest = self.builder.let(f"g{axis}_rest", dims.floordiv(rest, size))
                statements.append(defined)
        return chunk

    def add_local_memory(self) -> None:
        """What tiles keep, and what the present one works with."""
        tile = self.height
        self.queries = self.builder.local("queries", self.element, self.most_tiles * tile * self.attention.depth)
        self.sums = self.builder.local("sums", FLOAT, self.most_tiles * tile * self.width)
        self.scores = self.builder.local("scores", FLOAT, tile * self.score_row)
        self.weights = self.scores
        if self.per_word > 1:
            self.weights = self.builder.local("weights", self.element, tile * self.score_row)
        self.largest = self.builder.local("largest", FLOAT, self.most_tiles * self.lanes)
        self.totals = self.builder.local("totals", FLOAT, self.most_tiles * self.lanes)
        self.shifts = self.builder.local("shifts", FLOAT, self.lanes)
        self.factors = self.builder.local("factors", FLOAT, self.lanes)
        self.fresh = self.builder.local("fresh", FLOAT, self.lanes)

    def each_tile(self, tiles: QueryTiles, body: Callable[[TileRows], Body]) -> Statement:
        """The tiles of one height that belong to a block, with a view of what each keeps."""
        named = self.builder.named
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
        start, count = named(f"first{tiles.height}", tiles.first), named(f"count{tiles.height}", tiles.count)
        first = let(row, named(f"row{tiles.height}", tiles.row) + (tile - start) * tiles.height)
        low, high = dims.maximum(self.first, start), dims.minimum(self.end, start + count)
        return repeat(tile, low, high, 1, (first, *(view for view, _ in views), *inner))

    def row_places(self, row: Dim) -> dict[int, Dim]:
        """Places along all axes but the last: those of the block, and of a row that is inside."""
        inside = row if self.is_exact else dims.minimum(row, self.row_count - 1)
        return {**self.places, **dict(zip(self.rows, split_index(inside, self.row_sizes)))}

    def rounded(self, code: Code, function: str = "half_bits") -> Code:
        """A query, or a weight, which is at most 1, as it is kept."""
        return Call(function, (code,), HALF_BITS) if self.per_word > 1 else code

    def each_row(self, rows: TileRows, body: Callable[[Dim], Body]) -> Statement:
        """A loop over the rows of a tile, around what is done for one by its number."""
        number = self.builder.variable("e")
        return repeat(number, 0, rows.height, 1, body(number))

    def lowering(self, places: dict[int, Dim], statements: list[Statement], mask: Code | None = None) -> Lowering:
        views = operand_views(self.operands, dict(enumerate(self.sources)), self.builder)
        return Lowering(views, places, self.builder, None, mask, statements)

    # -- before and after the keys -----------------------------------------------------------------------------------

    def prepare(self, rows: TileRows) -> Body:
        """Queries gathered, nothing summed up, no largest score."""
        depth = self.attention.depth

        def one(number: Dim) -> Body:
            places = self.row_places(rows.row + number)

            def gather(position: Dim, mask: Code | None) -> Body:
                statements: list[Statement] = []
                code = self.lowering({**places, self.last + 1: position}, statements, mask).code(self.query)
                return *statements, put(rows.query, number * depth + position, self.rounded(code), mask=mask)

            exact = depth % self.lanes == 0
            gathered = lane_loop(self.builder, "i", Span(0, depth), self.lanes, gather, exact=exact)
            column = self.builder.variable("c")
            zero = put(rows.sum, number * self.width + column + lane(self.lanes), _number(0.0))
            return *gathered, repeat(column, 0, self.width, self.lanes, (zero,))

        return (
            self.each_row(rows, one),
            put(rows.most, lane(self.lanes), _number(-inf)),
            put(rows.total, lane(self.lanes), _number(0.0)),
            put(self.fresh, lane(self.lanes), _number(0.0)),
        )

    def finish(self, rows: TileRows) -> Body:
        """Results divided by their totals, ended and written."""
        return *self.inverses(rows), self.each_row(rows, lambda number: (self.finish_row(rows, number),))

    def finish_row(self, rows: TileRows, number: Dim) -> Statement:
        panel = self.builder.variable("panel")
        column = panel * self.lanes + lane(self.lanes)
        mask = None
        if self.attention.width != self.width:
            mask = Call("less", (Integer(column), Integer(self.attention.width)), DType.bool)
        if not self.is_exact:
            inside = Call("less", (Integer(rows.row + number), Integer(self.row_count)), DType.bool)
            mask = inside if mask is None else Call("logical_and", (inside, mask), DType.bool)
        factor = fetch(self.factors, number)
        value = _call("multiply", fetch(rows.sum, number * self.width + column), factor)
        if self.attention.drops_nan:  # its sums may be NaN as well
            nothing = Call("equal", (factor, _number(0.0)), DType.bool)
            value = _call("select", nothing, _number(0.0), value)
        at = {**self.row_places(rows.row + number), self.last + 1: column}
        axes = {axis: at[own] for axis, own in enumerate(self.attention.axes)}
        defined, found = self.builder.keep("value", value, varying=True)
        return repeat(panel, 0, self.panels, 1, (defined, *self.epilogue_writer.write(found, axes, mask)))

    def inverses(self, rows: TileRows) -> list[Statement]:
        """One divided by what the results of each row are divided by, into `factors`.

        Rows without a visible key have a total of 0 here; it is NaN where the program lets -inf - -inf happen.
        """
        total: Code = fetch(rows.total, lane(self.lanes))
        hidden = Call("equal", (fetch(rows.most, lane(self.lanes)), _number(-inf)), DType.bool)
        if not self.attention.shifts_nothing:
            total = _call("select", hidden, _number(nan), total)
        defined, whole = self.builder.keep("whole", total, varying=True)
        statements: list[Statement] = [defined]
        lowering = Lowering({}, {}, self.builder, {AT_HAND: whole}, None, statements)
        inverse: Code = _call("divide", _number(1.0), lowering.code(self.attention.divisor))
        if self.attention.drops_nan:
            inverse = _call("select", Call("is_nan", (whole,), DType.bool), _number(0.0), inverse)
        if not dims.is_at_least(self.attention.shape[-1], 1):
            empty = Call("equal", (Integer(self.keys), Integer(0)), DType.bool)
            inverse = _call("select", empty, _number(0.0), inverse)
        return [*statements, put(self.factors, lane(self.lanes), inverse)]

    # -- a piece of the keys -----------------------------------------------------------------------------------------

    def take_in(self, rows: TileRows, start: Dim) -> Body:
        """A piece of the keys, from `start` on, as far as a query of the tile sees any: others would weigh nothing.

        A finite score hides a key only from rows that see another: what comes later counts where all are hidden alike.
        """
        places = self.row_places(rows.row + (rows.height - 1))
        index = self.lowering(places, []).index
        certain = [index(end.bound) for end in self.attention.causal_bounds if end.score == -inf]
        likely = [index(end.bound) for end in self.attention.causal_bounds if end.score != -inf]
        seen, count = self.builder.let("count", dims.minimum(_least(self.keys, *certain) - start, PIECE))
        taken = self.take_in_seen(rows, KeyPiece(start, count))
        body: Body = (seen, *taken)
        if certain:
            some = Call("greater", (Integer(unbounded(count)), Integer(0)), DType.bool)
            body = (seen, When(some, taken))
        if likely:
            near = Call("less", (Integer(start), Integer(_least(*likely))), DType.bool)
            body = (When(Call("logical_or", (near, self.some_row_sees_nothing(rows)), DType.bool), body),)
        return body

    def some_row_sees_nothing(self, rows: TileRows) -> Code:
        """Whether a row of the tile has met nothing but hidden keys so far, or NaN."""
        low = max(end.score for end in self.attention.causal_bounds if end.score != -inf)
        own = Call("less", (Integer(lane(self.lanes)), Integer(rows.height)), DType.bool)
        largest = _call("select", own, fetch(rows.most, lane(self.lanes)), _number(inf))
        sees = Call("greater", (Across("minimum", largest), _number(low / 2)), DType.bool)
        return Call("logical_not", (sees,), DType.bool)

    def take_in_seen(self, rows: TileRows, keys: KeyPiece) -> Body:
        return (
            self.multiply_keys(rows, keys),
            self.each_row(rows, lambda number: self.find_largest(rows, keys, number)),
            *self.shift(rows),
            self.each_row(rows, lambda number: self.weigh(keys, number)),
            *self.add_totals(rows),
            self.multiply_values(rows, keys),
        )

    @property
    def score_row(self) -> int:
        return PIECE + PADDING

    def head(self, name: str, element: Scalar, packed: StoredTensor) -> Dim:
        """Which of the packed heads a block reads."""
        place: Dim = 0
        for number, axis in enumerate(outer_axes(element, self.last)):
            place = place * self.builder.named(f"{name}{number}", packed.shape[number]) + self.places[axis]
        return place

    def multiply_keys(self, rows: TileRows, keys: KeyPiece) -> Statement:
        """Products of all queries of a tile with a panel of keys at a time."""
        depth = self.attention.depth // self.per_word
        head = self.head("keys", self.attention.key, self.packed_keys)
        panels = self.builder.named("key_panels", self.packed_keys.shape[-3])
        panel, k = self.builder.variable("panel"), self.builder.variable("k")
        place = head * panels + dims.floordiv(keys.start, self.lanes) + panel
        view, columns = self.builder.view("columns", self.key_buffer, place * (depth * self.lanes))
        totals = self.builder.registers("a", rows.height, FLOAT)
        elements = [fetch(rows.query_words, row * depth + k) for row in range(rows.height)]
        at = panel * self.lanes + lane(self.lanes)
        body = [
            view,
            *(define(total, _number(0.0)) for total in totals),
            self.add_products(k, depth, columns, elements, totals),
            *(put(self.scores, row * self.score_row + at, total) for row, total in enumerate(totals)),
        ]
        return repeat(panel, 0, dims.ceildiv(keys.count, self.lanes), 1, body)

    def multiply_values(self, rows: TileRows, keys: KeyPiece) -> Statement:
        """What was summed up, scaled, and the piece's values by their weights, for a vector of columns at a time."""
        head = self.head("values", self.attention.value, self.packed_values)
        panel, k = self.builder.variable("panel"), self.builder.variable("k")
        at = panel * self.lanes + lane(self.lanes)
        steps = self.builder.named("value_steps", self.packed_values.shape[-2])
        start = (head * self.panels + panel) * steps + dims.floordiv(keys.start, self.per_word)
        view, columns = self.builder.view("columns", self.value_buffer, start * self.lanes)
        body: list[Statement] = [view]
        weights = self.weights
        if self.per_word > 1:
            seen, weights = self.builder.view("weight_words", self.weights, 0, WORDS)
            body.append(seen)
        totals = self.builder.registers("a", rows.height, FLOAT)
        for row, total in enumerate(totals):
            before = fetch(rows.sum, row * self.width + at)
            body.append(define(total, _call("multiply", before, fetch(self.factors, row))))
        elements = [fetch(weights, row * (self.score_row // self.per_word) + k) for row in range(rows.height)]
        body.append(self.add_products(k, dims.ceildiv(keys.count, self.per_word), columns, elements, totals))
        body += [put(rows.sum, row * self.width + at, total) for row, total in enumerate(totals)]
        return repeat(panel, 0, self.panels, 1, body)

    def add_products(
        self, step: Dim, count: Dim, columns: Buffer, elements: Sequence[Code], totals: Sequence[Register]
    ) -> Statement:
        """For so many steps, one row's element after the other times a vector of columns, added to the row's total."""
        defined, vector = self.builder.keep("b", fetch(columns, step * self.lanes + lane(self.lanes)))
        words = PAIRS if self.per_word > 1 else ""
        added = [
            assign(total, accumulate(words, self.target, element, vector, total))
            for element, total in zip(elements, totals)
        ]
        return repeat(step, 0, count, 1, (defined, *added), UNROLL)

    def find_largest(self, rows: TileRows, keys: KeyPiece, number: Dim) -> Body:
        """The scores of a row, and the largest of them into `fresh`."""
        plain = isinstance(self.score, Held)
        places = self.row_places(rows.row + number)
        made = {axis: self.builder.let(f"y{axis}", places[axis]) for axis in self.rows}
        places |= {axis: name for axis, (_, name) in made.items()}
        begin, largest = self.builder.keep("m", _number(-inf), varying=True)

        def take(position: Dim, mask: Code | None) -> Body:
            statements: list[Statement] = []
            at = number * self.score_row + position
            code: Code = fetch(self.scores, at)
            if not plain:
                here = {**places, self.last: keys.start + position}
                lowering = self.lowering(here, statements, mask)
                lowering.known = {AT_HAND: code}
                defined, code = self.builder.keep("s", lowering.code(self.score), varying=True)
                statements += [defined, put(self.scores, at, code, mask=mask)]
            if mask is not None:
                code = _call("select", mask, code, _number(-inf))
            return *statements, assign(largest, _call("maximum", largest, code))

        loop = lane_loop(self.builder, "j", Span(0, keys.count), self.lanes, take)
        found = put(self.fresh, number, Across("maximum", largest))
        return *(name for name, _ in made.values()), begin, *loop, found

    def shift(self, rows: TileRows) -> list[Statement]:
        """What is subtracted from all scores of each row, and what its sums so far are multiplied by; rows as lanes."""
        at = lane(self.lanes)
        first, before = self.builder.keep("before", fetch(rows.most, at))
        second, now = self.builder.keep("now", _call("maximum", before, fetch(self.fresh, at)))
        unseen = Call("equal", (now, _number(-inf)), DType.bool)
        third, by = self.builder.keep("by", _call("select", unseen, _number(0.0), now))
        return [
            first,
            second,
            third,
            put(rows.most, at, now),
            put(self.shifts, at, by),
            put(self.factors, at, _call("exp", _call("subtract", before, by))),
        ]

    def weigh(self, keys: KeyPiece, number: Dim) -> Body:
        """Scores of a row as weights, and their sum into `fresh`."""
        begin_by, by = self.builder.keep("by", fetch(self.shifts, number), varying=False)
        begin, total = self.builder.keep("t", _number(0.0), varying=True)

        def take(position: Dim, mask: Code | None) -> Body:
            at = number * self.score_row + position
            weight: Code = _call("exp", _call("subtract", fetch(self.scores, at), by))
            if mask is not None:
                weight = _call("select", mask, weight, _number(0.0))
            defined, own = self.builder.keep("w", weight, varying=True)
            return (
                defined,
                put(self.weights, at, self.rounded(own, "small_half_bits")),
                assign(total, _call("add", total, own)),
            )

        loop = lane_loop(self.builder, "j", Span(0, keys.count), self.lanes, take)
        return begin_by, begin, *loop, put(self.fresh, number, Across("sum", total))

    def add_totals(self, rows: TileRows) -> list[Statement]:
        at = lane(self.lanes)
        scaled = _call("multiply", fetch(rows.total, at), fetch(self.factors, at))
        return [put(rows.total, at, _call("add", scaled, fetch(self.fresh, at)))]


def _least(*values: Dim) -> Dim:
    least, *others = values
    for value in others:
        least = dims.minimum(least, value)
    return least


def _number(value: float) -> Number:
    return Number(value, FLOAT)


def _call(function: str, *arguments: Code) -> Call:
    return Call(function, arguments, FLOAT)
