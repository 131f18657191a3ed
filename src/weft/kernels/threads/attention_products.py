"""Attention on tile products: what all lanes of a block multiply together (tensor cores).

A block has some queries of one head, keys and values come in pieces through a pipeline. Scores go from the sums of
products to shared memory, where lanes take them up by rows, some lanes for each; the weights that become of them are a
tile again, which values are multiplied with. Numbers are multiplied in the type of the tiles, or in several parts that
hold all their bits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import inf

from weft.ir import dims
from weft.ir.attention import Attention
from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.ir.kernel import (
    AddSums,
    Buffer,
    Call,
    Code,
    Integer,
    MoveRun,
    MultiplyTiles,
    PutSums,
    PutTile,
    Register,
    ScaleSums,
    Statement,
    Sums,
    TileForm,
    TilePipeline,
    lane,
)
from weft.ir.scalar import FlatLoad, Scalar
from weft.ir.target import ThreadTarget
from weft.kernels.build.multiply_add import multiply_add
from weft.kernels.lower.kernel_builder import assign, define, fetch, fetch_run, put, repeat
from weft.kernels.lower.memoize import memoized
from weft.kernels.lower.tensors import Launch, StoredTensor
from weft.kernels.threads.attention import FLOAT, RUN, Body, Split, Streaming, below, call, larger, number_of
from weft.kernels.threads.attention_shapes import Forming, ProductShape
from weft.kernels.threads.attention_split import PartWriter
from weft.kernels.threads.points import all_of

_TOGETHER = 8  # scores of a lane that are found at the same time
_SCORE_PAD = 4  # elements that keep lanes of neighbouring rows apart in the banks of shared memory


@memoized
def attention_on_products(
    attention: Attention,
    operands: tuple[StoredTensor, ...],
    result: StoredTensor,
    target: ThreadTarget,
    shape: ProductShape,
    split: Split | None,
) -> Launch:
    """Operands as those of `Streaming`."""
    return AttentionProducts(attention, operands, result, target, shape, split).build()


class AttentionProducts(Streaming):
    def __init__(
        self,
        attention: Attention,
        operands: Sequence[StoredTensor],
        result: StoredTensor,
        target: ThreadTarget,
        shape: ProductShape,
        split: Split | None,
    ) -> None:
        super().__init__(attention, operands, result, target, shape.rows, split)
        self.shape = shape
        self.forming = Forming(shape, self.builder)
        self.run = shape.run
        self.is_exact = dims.mod(attention.shape[-1], shape.keys) == 0
        here = lane(shape.lanes)
        self.row, self.member = dims.mod(here, shape.rows), dims.floordiv(here, shape.rows)
        self.moves_keys = self.is_moved(self.key, attention.depth, shape.deep_line)
        self.moves_values = shape.turns_values and self.is_moved(self.value, attention.width, shape.columns)
        if split is not None:
            self.part_writer = PartWriter(self.builder, attention.width)
        self.add_local_memory()
        (self.largest,) = self.builder.registers("largest", 1, FLOAT)
        (self.total,) = self.builder.registers("total", 1, FLOAT)
        self.sums = [self.builder.sums("out", shape.rows, shape.columns, FLOAT) for _ in range(self.across)]

    @property
    def deep(self) -> int:
        """Tiles that a query or key takes."""
        return self.shape.deep(self.attention.depth)

    @property
    def across(self) -> int:
        """Tiles that a value takes."""
        return self.shape.across(self.attention.width)

    def add_local_memory(self) -> None:
        shape, builder = self.shape, self.builder

        def tiles(hint: str, count: int, form: TileForm) -> list[list[Buffer]]:
            """One for each part of numbers, as often as asked for."""
            return [
                [builder.tile(f"{hint}{number}_", shape.element, form) for _ in range(shape.parts)]
                for number in range(count)
            ]

        weights_deep = shape.keys // shape.line
        self.query_tiles = tiles("queries", self.deep, TileForm(shape.rows, shape.deep_line))
        self.key_tiles = tiles("keys", self.deep, TileForm(shape.keys, shape.deep_line, shape.stages))
        if shape.turns_values:
            form = TileForm(shape.columns, shape.keys, shape.stages, turned=True)
            self.value_tiles = [tiles(f"values{column}_", 1, form) for column in range(self.across)]
        else:
            form = TileForm(shape.columns, shape.line, shape.stages)
            self.value_tiles = [tiles(f"values{column}_", weights_deep, form) for column in range(self.across)]
        self.weight_tiles = tiles("weights", weights_deep, TileForm(shape.rows, shape.line))
        self.pitch = shape.keys + _SCORE_PAD
        self.scores = builder.local("scores", FLOAT, shape.rows * self.pitch)
        if shape.ahead:
            self.scored = builder.local("scored", FLOAT, shape.rows * shape.keys)
        self.meeting = builder.local("meeting", FLOAT, shape.lanes)
        self.factors = builder.local("factors", FLOAT, shape.lanes)
        self.result_pitch = self.across * shape.columns + _SCORE_PAD
        self.results = builder.late("results", FLOAT, shape.rows * self.result_pitch)

    def build(self) -> Launch:
        statements: list[Statement] = self.decode()
        statements += self.keep_queries()
        statements += [define(self.largest, number_of(-inf)), define(self.total, number_of(0.0)), *self.sums]
        statements += self.each_piece(self.shape.keys, self.pieces, [self.largest])
        statements += self.finish()
        return self.launch(self.shape.lanes, statements)

    # -- tiles from memory -------------------------------------------------------------------------------------------

    def is_moved(self, element: Scalar, extent: int, length: int) -> bool:
        """Whether numbers can be moved into a tile as they lie in memory."""
        if not isinstance(element, FlatLoad) or self.shape.parts > 1 or element.dtype is not self.shape.element:
            return False
        even = self.shape.keys * length // self.run % self.shape.lanes == 0
        return even and extent % self.run == 0 and self.is_run(element, self.run)

    def take(
        self,
        element: Scalar,
        places: Mapping[int, Dim],
        first: Dim,
        extent: int,
        covered: bool,
        mask: Code | None,
        statements: list[Statement],
    ) -> list[Code]:
        """A run of a query, key or value with `extent` numbers; 0 where a mask says so, and beyond these.

        Where they are `covered` there is nothing beyond.
        """
        values: list[Code] = []
        step = RUN if extent % RUN == 0 else 1
        for part in range(0, self.run, step):
            inside = None if covered else below(first + part, extent)
            test = all_of([each for each in (mask, inside) if each is not None])
            at = {**places, self.last + 1: first + part}
            values += self.take_run(element, at, statements, test, step)
        return values

    def line_runs(self, lines: int, length: int) -> list[tuple[Dim, Dim, Code | None]]:
        """(line, first, mask) of the runs that a lane fills of a tile with so many lines."""
        shape = self.shape
        each = length // self.run
        found: list[tuple[Dim, Dim, Code | None]] = []
        for number in range(-(-lines * each // shape.lanes)):
            index = lane(shape.lanes) + number * shape.lanes
            idle = None if (number + 1) * shape.lanes <= lines * each else below(index, lines * each)
            found.append((dims.floordiv(index, each), dims.mod(index, each) * self.run, idle))
        return found

    def put_parts(
        self,
        tiles: Sequence[Buffer],
        line: Dim,
        first: Dim,
        values: Sequence[Code],
        mask: Code | None = None,
        *,
        limited: bool = True,
    ) -> Body:
        """Numbers into the tiles of their parts; `limited`, where they may be beyond the range of these."""
        statements: list[Statement] = []
        formed = [self.forming.parts(value, statements, limited=limited) for value in values]
        for part, tile in enumerate(tiles):
            statements.append(PutTile(tile.name, line, first, tuple(own[part] for own in formed), mask))
        return tuple(statements)

    def keep_queries(self) -> list[Statement]:
        statements: list[Statement] = []
        length, extent = self.shape.deep_line, self.attention.depth
        for number, tiles in enumerate(self.query_tiles):
            for line, first, idle in self.line_runs(self.shape.rows, length):
                deep = first + number * length
                places = self.at_row(line)
                values = self.take(self.query, places, deep, extent, extent % length == 0, idle, statements)
                statements += self.put_parts(tiles, line, first, values, idle)
        return statements

    def bring_lines(
        self, element: Scalar, moved: bool, extent: int, length: int, tiles: Sequence[Sequence[Buffer]], start: Dim
    ) -> tuple[Body, Body, Body]:
        """(moves, fetches, puts) for tiles whose lines are keys of a piece; what is not there is 0."""
        moves: list[Statement] = []
        fetches: list[Statement] = []
        puts: list[Statement] = []
        covered = extent % length == 0
        for number, parts in enumerate(tiles):
            for line, first, idle in self.line_runs(self.shape.keys, length):
                assert idle is None or not moved
                key, at = start + line, first + number * length
                there = None if self.is_exact else below(key, self.keys)
                places = {**self.places, self.last: key}
                if not moved:
                    mask = all_of([each for each in (idle, there) if each is not None])
                    values = self.take(element, places, at, extent, covered, mask, fetches)
                    puts += self.put_parts(parts, line, first, values, idle)
                    continue
                assert isinstance(element, FlatLoad)
                test = all_of([t for t in (there, None if covered else below(at, extent)) if t is not None])
                offset = self.lowering({**places, self.last + 1: at}, moves).flat_offset(element.offset)
                source = self.sources[element.operand].name
                moves.append(MoveRun(parts[0].name, line, first, self.run, source, offset, test))
        return tuple(moves), tuple(fetches), tuple(puts)

    def bring_columns(self, start: Dim) -> tuple[Body, Body, Body]:
        """The same for tiles whose lines are columns of the values: lanes turn patches of them."""
        fetches: list[Statement] = []
        puts: list[Statement] = []
        shape, size = self.shape, self.run
        extent = self.attention.width
        covered = extent % shape.columns == 0
        columns = shape.columns // size  # patches along them
        for column, tiles in enumerate(self.value_tiles):
            for number, parts in enumerate(tiles):
                patches = columns * shape.line // size
                for turn in range(-(-patches // shape.lanes)):
                    index = lane(shape.lanes) + turn * shape.lanes
                    idle = None if (turn + 1) * shape.lanes <= patches else below(index, patches)
                    line, first = dims.mod(index, columns) * size, dims.floordiv(index, columns) * size
                    rows = []
                    for own in range(size):
                        key = start + number * shape.line + first + own
                        there = None if self.is_exact else below(key, self.keys)
                        test = all_of([each for each in (idle, there) if each is not None])
                        places, at = {**self.places, self.last: key}, column * shape.columns + line
                        rows.append(self.take(self.value, places, at, extent, covered, test, fetches))
                    for own, turned in enumerate(zip(*rows)):
                        puts += self.put_parts(parts, line + own, first, turned, idle)
        return (), tuple(fetches), tuple(puts)

    # -- a piece of the keys -----------------------------------------------------------------------------------------

    def pieces(self, begin: Dim, end: Dim) -> Body:
        shape, attention = self.shape, self.attention
        turn = self.builder.variable("turn")
        start = turn * shape.keys
        keys = self.bring_lines(self.key, self.moves_keys, attention.depth, shape.deep_line, self.key_tiles, start)
        if shape.turns_values:
            lines = [tiles[0] for tiles in self.value_tiles]
            values = self.bring_lines(self.value, self.moves_values, attention.width, shape.columns, lines, start)
        else:
            values = self.bring_columns(start)
        moves, fetches, puts = (one + other for one, other in zip(keys, values))
        (name,) = (symbol.name for symbol in dims.symbols(turn))
        first, stop = dims.floordiv(begin, shape.keys), dims.ceildiv(end, shape.keys)
        return (TilePipeline(name, first, stop, moves, fetches, puts, self.piece(start)),)

    def piece(self, start: Dim) -> Body:
        """What becomes of the keys from `start` on, and their values, in tiles."""
        statements: list[Statement] = []
        products = self.builder.sums("products", self.shape.rows, self.shape.keys, FLOAT)
        statements.append(products)
        for queries, keys in zip(self.query_tiles, self.key_tiles):
            statements += self.multiply(products, queries, keys)
        statements.append(PutSums(products.name, self.scores.name, 0, self.pitch))
        if self.shape.ahead:
            statements.append(self.score_ahead(start))
        scores = self.find_scores(start, statements)
        self.weigh(scores, statements)
        for column, total in enumerate(self.sums):
            statements.append(ScaleSums(total.name, self.factors.name, 0))
            added = total
            if self.shape.parts > 1:
                added = self.builder.sums("added", self.shape.rows, self.shape.columns, FLOAT)
                statements.append(added)
            for weights, values in zip(self.weight_tiles, self.value_tiles[column]):
                statements += self.multiply(added, weights, values)
            if added is not total:
                statements.append(AddSums(total.name, added.name))
        return tuple(statements)

    def multiply(self, sums: Sums, left: Sequence[Buffer], right: Sequence[Buffer]) -> list[Statement]:
        """Products of all parts that matter, the smallest first."""
        parts = range(self.shape.parts)
        pairs = [(total - two, two) for total in reversed(parts) for two in range(total + 1)]
        return [MultiplyTiles(sums.name, left[one].name, right[two].name) for one, two in pairs]

    def own_keys(self) -> list[tuple[int, Dim]]:
        """(number of the tile of weights, place in a line of it) of the runs of keys that a lane has."""
        shape = self.shape
        together = shape.members * self.run
        return [
            (first // shape.line, first % shape.line + self.member * self.run)
            for first in range(0, shape.keys, together)
        ]

    def find_scores(self, start: Dim, statements: list[Statement]) -> list[list[Code]]:
        """Scores of a lane's runs of keys; the largest is left for the other lanes of the row to see."""
        places = self.at_row(self.row)
        found: list[list[Code]] = []
        for tile, place in self.own_keys():
            own: list[Code] = []
            first = tile * self.shape.line + place
            for part in range(0, self.run, RUN):
                run = self.builder.registers("product", RUN, FLOAT)
                if self.shape.ahead:
                    column = dims.mod(first + part + RUN * self.row, self.shape.keys)
                    statements.append(fetch_run(run, self.scored, self.row * self.shape.keys + column))
                    own += run
                    continue
                statements.append(fetch_run(run, self.scores, self.row * self.pitch + first + part))
                for number, product in enumerate(run):
                    own.append(self.seen_score(product, places, start + first + part + number, statements))
            found.append(own)
        most = self.combined([score for own in found for score in own], larger, statements)
        statements.append(put(self.meeting, lane(self.shape.lanes), most))
        return found

    def seen_score(self, product: Code, places: Mapping[int, Dim], key: Dim, statements: list[Statement]) -> Code:
        """The score that a product becomes, -inf for a key that is not there."""
        score = self.score_at(product, places, self.inside(key), statements)
        if self.is_exact:
            return score
        seen = call("select", below(key, self.keys), score, number_of(-inf))
        kept, score = self.builder.keep("score", seen, varying=True)
        statements.append(kept)
        return score

    def score_ahead(self, start: Dim) -> Statement:
        """All scores, by lanes that are neighbours along the keys.

        Each row lies a run further on than the one before it, so that lanes of neighbouring rows read different banks.
        """
        shape, here = self.shape, lane(self.shape.lanes)
        together = shape.lanes // shape.keys
        turn = self.builder.variable("r")
        row = turn * together + dims.floordiv(here, shape.keys)
        key = dims.mod(dims.mod(here, shape.keys) + (shape.keys - RUN) * row, shape.keys)
        defined, product = self.builder.keep("product", fetch(self.scores, row * self.pitch + key), varying=True)
        body: list[Statement] = [defined]
        score = self.seen_score(product, self.at_row(row), start + key, body)
        body.append(put(self.scored, turn * shape.lanes + here, score))
        return repeat(turn, 0, shape.rows // together, 1, body, _TOGETHER)

    def combined(
        self, values: Sequence[Code], function: Callable[[Code, Code], Code], statements: list[Statement]
    ) -> Code:
        """What a function makes of all values, of two at a time, so that few wait for others."""
        left = list(values)
        while len(left) > 1:
            pairs = [function(*pair) for pair in zip(left[::2], left[1::2])]
            kept = [self.builder.keep("pair", value, varying=True) for value in pairs]
            statements += [defined for defined, _ in kept]
            left = [*(register for _, register in kept), *left[2 * len(pairs) :]]
        return left[0]

    def inside(self, key: Dim) -> Dim:
        """The place of a key, of the last one for those that are not there."""
        if self.is_exact:
            return key
        return dims.minimum(key, self.builder.named("last_key", dims.maximum(self.attention.shape[-1] - 1, 0)))

    def met(self) -> list[Code]:
        """What all lanes of the row left."""
        return [fetch(self.meeting, self.row + other * self.shape.rows) for other in range(self.shape.members)]

    def weigh(self, scores: Sequence[Sequence[Code]], statements: list[Statement]) -> None:
        """Scores as weights in their tiles, and what sums so far are scaled by."""
        before = self.largest
        defined, now = self.builder.keep("now", before)
        statements.append(defined)
        for other in self.met():
            kept, most = self.builder.keep("other", other, varying=True)
            statements += [kept, assign(now, larger(now, most))]
        first, by = self.builder.keep("by", self.shift(now), varying=True)
        second, factor = self.builder.keep("factor", call("exp", call("subtract", before, by)), varying=True)
        statements += [first, second, assign(before, now), put(self.factors, lane(self.shape.lanes), factor)]
        all_weights: list[Register] = []
        for (tile, place), own in zip(self.own_keys(), scores):
            weights: list[Register] = []
            for score in own:
                kept, weight = self.builder.keep("weight", call("exp", call("subtract", score, by)), varying=True)
                statements.append(kept)
                weights.append(weight)
            statements += self.put_parts(self.weight_tiles[tile], self.row, place, weights, limited=False)
            all_weights += weights
        added = self.combined(all_weights, lambda one, other: call("add", one, other), statements)
        statements.append(assign(self.total, multiply_add(self.target, self.total, factor, added)))

    # -- the end -----------------------------------------------------------------------------------------------------

    def finish(self) -> list[Statement]:
        """Results divided by their totals, ended and written; or, of a part of the keys, for what joins these."""
        statements: list[Statement] = [put(self.meeting, lane(self.shape.lanes), self.total)]
        defined, total = self.builder.keep("whole", self.met()[0], varying=True)
        statements.append(defined)
        statements += [assign(total, call("add", total, other)) for other in self.met()[1:]]
        if self.split is None:
            inverse = self.inverse(total, self.largest, statements)
            statements.append(put(self.factors, lane(self.shape.lanes), inverse))
        else:
            first = Call("less", (Integer(lane(self.shape.lanes)), Integer(self.shape.rows)), DType.bool)
            test = all_of([each for each in (first, self.has_row(self.row)) if each is not None])
            statements += self.part_writer.put_row(self.part_row(self.row), self.largest, total, test)
        for number, sums in enumerate(self.sums):
            statements.append(PutSums(sums.name, self.results.name, number * self.shape.columns, self.result_pitch))
        runs = -(-self.attention.width // RUN)
        count = -(-self.shape.rows * runs // self.shape.lanes)
        turn = self.builder.variable("w") if count > 1 else 0
        body = self.write_runs(lane(self.shape.lanes) + turn * self.shape.lanes, runs)
        return [*statements, repeat(turn, 0, count, 1, body)] if count > 1 else [*statements, *body]

    def part_row(self, row: Dim) -> Dim:
        """Which of all parts' rows one of the block is."""
        heads, count = self.builder.named("heads", dims.maximum(self.heads, 1)), self.builder.named("rows", self.count)
        return (self.part * heads + self.head) * count + self.first + row

    def write_runs(self, index: Dim, runs: int) -> list[Statement]:
        shape = self.shape
        row, run = dims.floordiv(index, runs), dims.mod(index, runs)
        tests: list[Code] = []
        if shape.rows * runs % shape.lanes:
            tests.append(below(index, shape.rows * runs))
            row = dims.minimum(row, shape.rows - 1)
        there = self.has_row(row)
        tests += [] if there is None else [there]
        statements: list[Statement] = []
        sums = self.builder.registers("sum", RUN, FLOAT)
        column = run * RUN
        statements.append(fetch_run(sums, self.results, row * self.result_pitch + column))
        if self.split is not None:
            return [*statements, *self.part_writer.put_sums(self.part_row(row), column, sums, tests)]
        defined, inverse = self.builder.keep("by", fetch(self.factors, row), varying=True)
        statements.append(defined)
        if self.attention.width % RUN == 0:
            return [*statements, *self.write(sums, inverse, row, column, all_of(tests))]
        for part, own in enumerate(sums):
            mask = all_of([*tests, below(column + part, self.attention.width)])
            statements += self.write([own], inverse, row, column + part, mask)
        return statements
