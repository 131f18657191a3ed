"""Attention as one kernel that streams over the keys: no matrix of scores is ever in memory.

A block has some tiles of queries of one head. It goes over the keys in pieces: products of a tile with a piece's keys
go into memory of the block's own, become scores and then weights, and weigh the piece's values into the tile's results.
The softmax is the running one: the largest score so far is subtracted, and where a piece has a larger one, what was
summed up before is scaled down. Keys and values are packed beforehand, see key_panels.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, nan

from weft.cost.blocks import ATTENTION_BLOCK_WORK
from weft.ir import dims
from weft.ir.access import axes_of_shape
from weft.ir.attention import AT_HAND, Attention
from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.ir.kernel import (
    Across,
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
    When,
    block,
    lane,
    variable,
)
from weft.ir.scalar import Index, Load, Scalar, rebuild
from weft.ir.target import VectorTarget
from weft.kernels.build.attention import used_operands, with_operands
from weft.kernels.build.epilogue import EpilogueWriter
from weft.kernels.build.loop_axes import split_index
from weft.kernels.build.loop_nest import Body, Span, lane_loop
from weft.kernels.build.multiply_add import multiply_add
from weft.kernels.lower.expressions import Lowering, Operand
from weft.kernels.lower.memoize import memoized
from weft.kernels.lower.merge_axes import flatten_loads
from weft.kernels.lower.parameters import Parameters
from weft.kernels.lower.tensors import Epilogue, Launch, Tensor
from weft.kernels.vector.key_panels import outer_axes

FLOAT = DType.float32
PIECE = 256  # keys at a time
VECTORS = 2  # of keys, or of columns, at a time
TALLEST = 12  # rows of a tile
LOW = 4  # rows of the tiles that do what is left over
MOST_TILES = 8  # of a block, of which each keeps queries and results
KEPT_BYTES = 48 * 1024  # by all of them
PADDING = 16  # elements between rows of scores, so that rows do not compete for the same lines of a cache
UNROLL = 2  # steps of products


@dataclass(frozen=True, slots=True)
class Tiles:
    """`count` tiles of `height` rows, from tile number `first` and row `row` on; the last may reach over the end."""

    height: int
    first: Dim
    count: Dim
    row: Dim


def share_rows(rows: Dim, height: int) -> list[Tiles]:
    """Rows given to tiles: evenly where their number is known."""
    if isinstance(rows, int):
        tiles = max(1, -(-rows // height))
        tall = -(-rows // tiles)
        count = rows - tiles * (tall - 1)
        found = [Tiles(tall, 0, count, 0)]
        return found if count == tiles else [*found, Tiles(tall - 1, count, tiles - count, count * tall)]
    whole = dims.floordiv(rows, height)
    rest = dims.ceildiv(rows - whole * height, LOW)
    return [Tiles(height, 0, whole, 0), Tiles(LOW, whole, rest, whole * height)]


@memoized
def attention_launch(
    attention: Attention,
    operands: tuple[Tensor, ...],
    keys: Tensor,
    values: Tensor,
    result: Tensor,
    target: VectorTarget,
) -> Launch:
    """Buffers: the operands of query and score, those of the ending, the packed keys and values, the result."""
    return _Builder(attention, operands, keys, values, result, target).launch()


class _Builder:
    def __init__(
        self,
        attention: Attention,
        operands: tuple[Tensor, ...],
        keys: Tensor,
        values: Tensor,
        result: Tensor,
        target: VectorTarget,
    ) -> None:
        self.attention, self.target = attention, target
        self.packed_keys, self.packed_values = keys, values
        self.parameters = Parameters()
        lanes = keys.shape[-1]
        assert isinstance(lanes, int)
        self.lanes = lanes
        self.last = len(attention.shape) - 1
        used = used_operands(attention.query, attention.score)
        self.operands = [operands[number] for number in used]
        self.query, self.score = (
            flatten_loads(with_operands(e, used), self.operands) for e in (attention.query, attention.score)
        )
        self.epilogue_writer = EpilogueWriter(result, self.epilogue(operands, result), self.parameters)
        self.rows = [axis for axis in attention.rows if attention.shape[axis] != 1]
        self.grid = [a for a in range(self.last) if a not in self.rows and attention.shape[a] != 1]
        count = dims.product(attention.shape[axis] for axis in self.rows)
        self.row_count = self.parameters.named("rows", count)
        self.row_sizes = [self.parameters.named(f"rows{axis}", attention.shape[axis]) for axis in self.rows]
        self.tiles = share_rows(count, min((target.vector_registers - 4) // VECTORS, TALLEST))
        self.is_exact = isinstance(count, int)
        self.height = self.tiles[0].height
        self.keys = self.parameters.named("keys", attention.shape[-1])
        self.panels = -(-attention.width // self.lanes)
        self.width = self.panels * self.lanes
        self.most_tiles = max(min(MOST_TILES, KEPT_BYTES // (4 * self.height * (attention.depth + self.width))), 1)

    def epilogue(self, operands: tuple[Tensor, ...], result: Tensor) -> Epilogue | None:
        epilogue_writer = self.attention.epilogue
        if epilogue_writer is None:
            return None
        used = used_operands(epilogue_writer)
        here = Load(0, tuple(map(Index, axes_of_shape(result.shape))), FLOAT)
        moved = rebuild(with_operands(epilogue_writer, used, 1), lambda load: here if load.operand == AT_HAND else load)
        return Epilogue(moved, tuple(operands[number] for number in used))

    # -- the kernel --------------------------------------------------------------------------------------------------

    def launch(self) -> Launch:
        total = self.tiles[-1].first + self.tiles[-1].count
        work = 2 * self.height * (self.attention.depth + self.width) * self.attention.shape[-1] + 1000
        each = dims.minimum(dims.maximum(dims.floordiv(ATTENTION_BLOCK_WORK, work), 1), self.most_tiles)
        chunks = dims.maximum(dims.ceildiv(total, each), 1)
        each = dims.ceildiv(total, chunks)
        statements: list[Statement] = []
        chunk = self.decode(statements, block(), chunks)
        size = self.parameters.named("tiles_each", each)
        self.first = chunk * size
        self.end = dims.minimum(self.first + size, self.parameters.named("tiles", total))
        statements += [self.each_tile(tiles, self.prepare(tiles)) for tiles in self.tiles]
        inner = tuple(self.each_tile(tiles, self.take_in(tiles)) for tiles in self.tiles)
        statements.append(Repeat("start", 0, self.keys, PIECE, inner))
        statements += [self.each_tile(tiles, self.finish(tiles)) for tiles in self.tiles]
        blocks = dims.product(self.attention.shape[axis] for axis in self.grid) * chunks
        kernel = Kernel("attention", self.buffers(), tuple(self.parameters.values), self.lanes, tuple(statements))
        return Launch(kernel, blocks, tuple(self.parameters.values.values()))

    def decode(self, statements: list[Statement], rest: Dim, chunks: Dim) -> Dim:
        """What a block does: its chunk of tiles; its places along the grid go to `places`."""
        count = self.parameters.named("chunks", chunks)
        statements += [Let("chunk", dims.mod(rest, count)), Let("head", dims.floordiv(rest, count))]
        rest = variable("head")
        self.places: dict[int, Dim] = dict.fromkeys(range(self.last), 0)
        for axis in reversed(self.grid):
            size = self.parameters.named(f"grid{axis}", self.attention.shape[axis])
            first = axis == self.grid[0]
            statements.append(Let(f"g{axis}", rest if first else dims.mod(rest, size)))
            if not first:
                statements.append(Let(f"g{axis}_rest", dims.floordiv(rest, size)))
                rest = variable(f"g{axis}_rest")
            self.places[axis] = variable(f"g{axis}")
        return variable("chunk")

    def buffers(self) -> tuple[Buffer, ...]:
        shared = [Buffer(f"from{n}", tensor.dtype, False) for n, tensor in enumerate(self.operands)]
        tile = self.height
        sizes = {
            "queries": self.most_tiles * tile * self.attention.depth,
            "sums": self.most_tiles * tile * self.width,
            "scores": tile * (PIECE + PADDING),
            "largest": self.most_tiles * self.lanes,
            "totals": self.most_tiles * self.lanes,
            "shifts": self.lanes,
            "factors": self.lanes,
            "fresh": self.lanes,
        }
        local = [Buffer(name, FLOAT, True, size) for name, size in sizes.items()]
        packed = [Buffer("keys", FLOAT, False), Buffer("values", FLOAT, False)]
        *ended, out = self.epilogue_writer.buffers
        return (*shared, *ended, *packed, out, *local)

    def each_tile(self, tiles: Tiles, body: Body) -> Statement:
        """The tiles of one height that belong to a block, with a view of what each keeps."""
        named = self.parameters.named
        start, count = named(f"first{tiles.height}", tiles.first), named(f"count{tiles.height}", tiles.count)
        slot = variable("tile") - self.first
        names: tuple[Statement, ...] = (
            Let("row", named(f"row{tiles.height}", tiles.row) + (variable("tile") - start) * tiles.height),
            View("query", "queries", slot * (self.height * self.attention.depth)),
            View("sum", "sums", slot * (self.height * self.width)),
            View("most", "largest", slot * self.lanes),
            View("total", "totals", slot * self.lanes),
        )
        low, high = dims.maximum(self.first, start), dims.minimum(self.end, start + count)
        return Repeat("tile", low, high, 1, (*names, *body))

    def row_places(self, row: Dim) -> dict[int, Dim]:
        """Places along all axes but the last: those of the block, and of a row that is inside."""
        inside = row if self.is_exact else dims.minimum(row, self.row_count - 1)
        return {**self.places, **dict(zip(self.rows, split_index(inside, self.row_sizes)))}

    def each_row(self, height: int, body: Body) -> Statement:
        return Repeat("e", 0, height, 1, body)

    @property
    def at_row(self) -> Dim:
        return variable("row") + variable("e")

    def lowering(self, places: dict[int, Dim], statements: list[Statement], mask: Code | None = None) -> Lowering:
        size = self.parameters.size
        indexed = [
            Operand(f"from{number}", tensor.dtype, tensor.shape, tuple(size(stride) for stride in tensor.strides))
            for number, tensor in enumerate(self.operands)
        ]
        flat = [Operand(f"from{number}", t.dtype, (), (), flat=True) for number, t in enumerate(self.operands)]
        return Lowering([*indexed, *flat], places, self.parameters, None, mask, statements)

    # -- before and after the keys -----------------------------------------------------------------------------------

    def prepare(self, tiles: Tiles) -> Body:
        """Queries gathered, nothing summed up, no largest score."""
        depth = self.attention.depth
        places = self.row_places(self.at_row)

        def gather(position: Dim, mask: Code | None) -> Body:
            statements: list[Statement] = []
            code = self.lowering({**places, self.last + 1: position}, statements, mask).code(self.query)
            return *statements, Put("query", variable("e") * depth + position, code, mask=mask)

        zero = Put("sum", variable("e") * self.width + variable("c") + lane(self.lanes), _number(0.0))
        rows = (
            *lane_loop("i", Span(0, depth), self.lanes, gather, exact=depth % self.lanes == 0),
            Repeat("c", 0, self.width, self.lanes, (zero,)),
        )
        return (
            self.each_row(tiles.height, rows),
            Put("most", lane(self.lanes), _number(-inf)),
            Put("total", lane(self.lanes), _number(0.0)),
            Put("fresh", lane(self.lanes), _number(0.0)),
        )

    def finish(self, tiles: Tiles) -> Body:
        """Results divided by their totals, ended and written."""
        column = variable("panel") * self.lanes + lane(self.lanes)
        mask = None
        if self.attention.width != self.width:
            mask = Call("less", (Integer(column), Integer(self.attention.width)), DType.bool)
        if not self.is_exact:
            inside = Call("less", (Integer(self.at_row), Integer(self.row_count)), DType.bool)
            mask = inside if mask is None else Call("logical_and", (inside, mask), DType.bool)
        place = variable("e") * self.width + column
        factor = Fetch("factors", variable("e"), FLOAT)
        value = _call("multiply", Fetch("sum", place, FLOAT), factor)
        if self.attention.drops_nan:  # its sums may be NaN as well
            nothing = Call("equal", (factor, _number(0.0)), DType.bool)
            value = _call("select", nothing, _number(0.0), value)
        at = {**self.row_places(self.at_row), self.last + 1: column}
        axes = {axis: at[own] for axis, own in enumerate(self.attention.axes)}
        write = self.epilogue_writer.write(Register("value", FLOAT, True), axes, mask)
        panels = Repeat("panel", 0, self.panels, 1, (Define("value", value, True), *write))
        return *self.inverses(), self.each_row(tiles.height, (panels,))

    def inverses(self) -> list[Statement]:
        """One divided by what the results of each row are divided by, into `factors`.

        Rows without a visible key have a total of 0 here; it is NaN where the program lets -inf - -inf happen.
        """
        total: Code = Fetch("total", lane(self.lanes), FLOAT)
        hidden = Call("equal", (Fetch("most", lane(self.lanes), FLOAT), _number(-inf)), DType.bool)
        if not self.attention.shifts_nothing:
            total = _call("select", hidden, _number(nan), total)
        statements: list[Statement] = [Define("whole", total, True)]
        whole = Register("whole", FLOAT, True)
        lowering = Lowering([], {}, self.parameters, {AT_HAND: whole}, None, statements)
        inverse: Code = _call("divide", _number(1.0), lowering.code(self.attention.divisor))
        if self.attention.drops_nan:
            inverse = _call("select", Call("is_nan", (whole,), DType.bool), _number(0.0), inverse)
        if not dims.is_at_least(self.attention.shape[-1], 1):
            empty = Call("equal", (Integer(self.keys), Integer(0)), DType.bool)
            inverse = _call("select", empty, _number(0.0), inverse)
        return [*statements, Put("factors", lane(self.lanes), inverse)]

    # -- a piece of the keys -----------------------------------------------------------------------------------------

    def take_in(self, tiles: Tiles) -> Body:
        """A piece of the keys, as far as some query of a tile sees any: others would have a weight of 0.

        A finite score hides a key only from rows that see another: what comes later counts where all are hidden alike.
        """
        places = self.row_places(variable("row") + (tiles.height - 1))
        index = self.lowering(places, []).index
        certain = [index(end.bound) for end in self.attention.causal_bounds if end.score == -inf]
        likely = [index(end.bound) for end in self.attention.causal_bounds if end.score != -inf]
        seen = Let("count", dims.minimum(_least(self.keys, *certain) - variable("start"), PIECE))
        body: Body = (seen, *self.take_in_seen(tiles))
        if certain:
            some = Call("greater", (Integer(variable("count", None)), Integer(0)), DType.bool)
            body = (seen, When(some, self.take_in_seen(tiles)))
        if likely:
            near = Call("less", (Integer(variable("start")), Integer(_least(*likely))), DType.bool)
            body = (When(Call("logical_or", (near, self.some_row_sees_nothing(tiles.height)), DType.bool), body),)
        return body

    def some_row_sees_nothing(self, height: int) -> Code:
        """Whether a row of the tile has met nothing but hidden keys so far, or NaN."""
        low = max(end.score for end in self.attention.causal_bounds if end.score != -inf)
        own = Call("less", (Integer(lane(self.lanes)), Integer(height)), DType.bool)
        largest = _call("select", own, Fetch("most", lane(self.lanes), FLOAT), _number(inf))
        sees = Call("greater", (Across("minimum", largest), _number(low / 2)), DType.bool)
        return Call("logical_not", (sees,), DType.bool)

    def take_in_seen(self, tiles: Tiles) -> Body:
        return (
            self.multiply_keys(tiles.height),
            self.each_row(tiles.height, self.find_largest()),
            *self.shift(),
            self.each_row(tiles.height, self.weigh()),
            *self.add_totals(),
            self.multiply_values(tiles.height),
        )

    @property
    def score_row(self) -> int:
        return PIECE + PADDING

    def head(self, name: str, element: Scalar, packed: Tensor) -> Dim:
        """Which of the packed heads a block reads."""
        place: Dim = 0
        for number, axis in enumerate(outer_axes(element, self.last)):
            place = place * self.parameters.named(f"{name}{number}", packed.shape[number]) + self.places[axis]
        return place

    def multiply_keys(self, height: int) -> Statement:
        """Products of all queries of a tile with a panel of keys at a time."""
        depth = self.attention.depth
        head = self.head("keys", self.attention.key, self.packed_keys)
        panels = self.parameters.named("key_panels", self.packed_keys.shape[-3])
        place = head * panels + dims.floordiv(variable("start"), self.lanes) + variable("panel")
        body: list[Statement] = [View("columns", "keys", place * (depth * self.lanes))]
        body += [Define(f"a{row}", _number(0.0), True) for row in range(height)]
        step: list[Statement] = [
            Define("b", Fetch("columns", variable("k") * self.lanes + lane(self.lanes), FLOAT), True)
        ]
        step += [self.add_product(row, Fetch("query", row * depth + variable("k"), FLOAT)) for row in range(height)]
        body.append(Repeat("k", 0, depth, 1, tuple(step), unroll=UNROLL))
        at = variable("panel") * self.lanes + lane(self.lanes)
        body += [Put("scores", row * self.score_row + at, _accumulator(row)) for row in range(height)]
        return Repeat("panel", 0, dims.ceildiv(variable("count"), self.lanes), 1, tuple(body))

    def multiply_values(self, height: int) -> Statement:
        """What was summed up, scaled, and the piece's values by their weights, for a vector of columns at a time."""
        head = self.head("values", self.attention.value, self.packed_values)
        at = variable("panel") * self.lanes + lane(self.lanes)
        start = (head * self.panels + variable("panel")) * self.keys + variable("start")
        body: list[Statement] = [View("columns", "values", start * self.lanes)]
        for row in range(height):
            scaled = _call("multiply", Fetch("sum", row * self.width + at, FLOAT), Fetch("factors", row, FLOAT))
            body.append(Define(f"a{row}", scaled, True))
        fetched = Fetch("columns", variable("k") * self.lanes + lane(self.lanes), FLOAT)
        steps: list[Statement] = [Define("b", fetched, True)]
        steps += [
            self.add_product(row, Fetch("scores", row * self.score_row + variable("k"), FLOAT)) for row in range(height)
        ]
        body.append(Repeat("k", 0, variable("count"), 1, tuple(steps), unroll=UNROLL))
        body += [Put("sum", row * self.width + at, _accumulator(row)) for row in range(height)]
        return Repeat("panel", 0, self.panels, 1, tuple(body))

    def add_product(self, row: int, element: Code) -> Statement:
        total = multiply_add(self.target, element, Register("b", FLOAT, True), _accumulator(row))
        return Assign(f"a{row}", total)

    def find_largest(self) -> Body:
        """The scores of a row, and the largest of them into `fresh`."""
        plain = isinstance(self.score, Load)
        places = self.row_places(self.at_row)
        names = [Let(f"y{axis}", places[axis]) for axis in self.rows]
        places |= {axis: variable(f"y{axis}") for axis in self.rows}
        largest = Register("m", FLOAT, True)

        def take(position: Dim, mask: Code | None) -> Body:
            statements: list[Statement] = []
            at = variable("e") * self.score_row + position
            code: Code = Fetch("scores", at, FLOAT)
            if not plain:
                here = {**places, self.last: variable("start") + position}
                lowering = self.lowering(here, statements, mask)
                lowering.replace = {len(self.operands) + AT_HAND: code}
                statements.append(Define("s", lowering.code(self.score), True))
                code = Register("s", FLOAT, True)
                statements.append(Put("scores", at, code, mask=mask))
            if mask is not None:
                code = _call("select", mask, code, _number(-inf))
            return *statements, Assign("m", _call("maximum", largest, code))

        loop = lane_loop("j", Span(0, variable("count")), self.lanes, take)
        put = Put("fresh", variable("e"), Across("maximum", largest))
        return *names, Define("m", _number(-inf), True), *loop, put

    def shift(self) -> list[Statement]:
        """What is subtracted from all scores of each row, and what its sums so far are multiplied by; rows as lanes."""
        at = lane(self.lanes)
        before, now, by = (Register(name, FLOAT, True) for name in ("before", "now", "by"))
        unseen = Call("equal", (now, _number(-inf)), DType.bool)
        return [
            Define("before", Fetch("most", at, FLOAT), True),
            Define("now", _call("maximum", before, Fetch("fresh", at, FLOAT)), True),
            Define("by", _call("select", unseen, _number(0.0), now), True),
            Put("most", at, now),
            Put("shifts", at, by),
            Put("factors", at, _call("exp", _call("subtract", before, by))),
        ]

    def weigh(self) -> Body:
        """Scores of a row as weights, and their sum into `fresh`."""
        total = Register("t", FLOAT, True)
        by = Register("by", FLOAT, False)

        def take(position: Dim, mask: Code | None) -> Body:
            at = variable("e") * self.score_row + position
            weight: Code = _call("exp", _call("subtract", Fetch("scores", at, FLOAT), by))
            if mask is not None:
                weight = _call("select", mask, weight, _number(0.0))
            own = Register("w", FLOAT, True)
            return Define("w", weight, True), Put("scores", at, own), Assign("t", _call("add", total, own))

        loop = lane_loop("j", Span(0, variable("count")), self.lanes, take)
        put = Put("fresh", variable("e"), Across("sum", total))
        return (
            Define("by", Fetch("shifts", variable("e"), FLOAT), False),
            Define("t", _number(0.0), True),
            *loop,
            put,
        )

    def add_totals(self) -> list[Statement]:
        at = lane(self.lanes)
        scaled = _call("multiply", Fetch("total", at, FLOAT), Fetch("factors", at, FLOAT))
        return [Put("total", at, _call("add", scaled, Fetch("fresh", at, FLOAT)))]


def _least(*values: Dim) -> Dim:
    least, *others = values
    for value in others:
        least = dims.minimum(least, value)
    return least


def _number(value: float) -> Number:
    return Number(value, FLOAT)


def _call(function: str, *arguments: Code) -> Call:
    return Call(function, arguments, FLOAT)


def _accumulator(row: int) -> Register:
    return Register(f"a{row}", FLOAT, True)
