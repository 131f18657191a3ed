"""Attention on tile products (tensor cores).

A block has some queries of one head; tiles of keys and values come through a pipeline. Scores go from the sums of
products to shared memory, where several lanes per row turn them into weights: a tile again, which is multiplied with
the values. Elements are multiplied in the type of the tiles, or in several planes that hold all their bits. Where
elements have 16 bits, attention_rows.py keeps scores and weights in registers instead.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import inf

from weft.ir import dims
from weft.ir.attention import Attention
from weft.ir.dims import Dim
from weft.ir.kernel import (
    AddSums,
    Buffer,
    Code,
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
from weft.ir.scalar import Apply, FlatLoad, Scalar
from weft.ir.target import ThreadTarget
from weft.kernels.build.multiply_add import multiply_add
from weft.kernels.lower.kernel_builder import assign, define, fetch, fetch_run, put, repeat
from weft.kernels.lower.memoize import memoize_launch
from weft.kernels.lower.tensors import Launch, StoredTensor
from weft.kernels.threads.attention import (
    FLOAT,
    RUN,
    Body,
    KeySplit,
    StreamingAttention,
    call,
    float32,
    is_below,
    larger,
)
from weft.kernels.threads.attention_shapes import ProductShape, TileConverter
from weft.kernels.threads.attention_split import SplitWriter
from weft.kernels.threads.points import all_of

_UNROLL = 8  # iterations of the loop that computes scores
_SCORE_PAD = 4  # elements with which lanes of neighbouring rows access different banks of shared memory


class AttentionProducts(StreamingAttention):
    def __init__(
        self,
        attention: Attention,
        operands: Sequence[StoredTensor],
        result: StoredTensor,
        target: ThreadTarget,
        shape: ProductShape,
        split: KeySplit | None,
    ) -> None:
        super().__init__(attention, operands, result, target, shape.rows, split)
        self.shape = shape
        self.query, self.key, self.value = map(self.drop_widening, (self.query, self.key, self.value))
        self.converter = TileConverter(shape, self.builder)
        self.run = shape.run
        self.is_exact = dims.mod(attention.shape[-1], shape.keys) == 0
        self.moves_keys = self.can_move(self.key, attention.depth, shape.deep_line)
        self.moves_values = shape.transposes_values and self.can_move(self.value, attention.width, shape.columns)
        if split is not None:
            self.split_writer = SplitWriter(self.builder, attention.width)
        self.add_tiles()
        self.add_state()

    def drop_widening(self, element: Scalar) -> Scalar:
        """Return what a cast widens, if it has the type of tiles."""
        match element:
            case Apply("cast", (FlatLoad() as load,)) if self.shape.planes == 1 and load.dtype is self.shape.element:
                return load
        return element

    @property
    def deep(self) -> int:
        """The number of tiles of a query or key."""
        return self.shape.deep(self.attention.depth)

    @property
    def across(self) -> int:
        """The number of tiles of a value."""
        return self.shape.across(self.attention.width)

    def add_tiles(self) -> None:
        """Declare the tiles of queries, keys and values."""
        shape, builder = self.shape, self.builder

        self.query_tiles = self.declare_tiles("queries", self.deep, TileForm(shape.rows, shape.deep_line))
        self.key_tiles = self.declare_tiles("keys", self.deep, TileForm(shape.keys, shape.deep_line, shape.stages))
        if shape.transposes_values:
            form = TileForm(shape.columns, shape.keys, shape.stages, transposed=True)
            count = 1
        else:
            form = TileForm(shape.columns, shape.line, shape.stages)
            count = shape.keys // shape.line
        self.value_tiles = [self.declare_tiles(f"values{column}_", count, form) for column in range(self.across)]
        self.factors = builder.local("factors", FLOAT, shape.lanes)
        self.result_pitch = self.across * shape.columns + _SCORE_PAD
        self.results = builder.late("results", FLOAT, shape.rows * self.result_pitch)

    def declare_tiles(self, hint: str, count: int, form: TileForm) -> list[list[Buffer]]:
        """Declare `count` tiles, each in all planes."""
        shape, builder = self.shape, self.builder
        return [
            [builder.tile(f"{hint}{number}_", shape.element, form) for _ in range(shape.planes)]
            for number in range(count)
        ]

    def add_state(self) -> None:
        """Declare what a block keeps for its rows, and the memory through which lanes exchange scores and weights."""
        shape, builder = self.shape, self.builder
        here = lane(shape.lanes)
        self.row, self.member = dims.mod(here, shape.rows), dims.floordiv(here, shape.rows)
        self.weight_tiles = self.declare_tiles("weights", shape.keys // shape.line, TileForm(shape.rows, shape.line))
        self.pitch = shape.keys + _SCORE_PAD
        self.scores = builder.local("scores", FLOAT, shape.rows * self.pitch)
        if shape.ahead:
            self.scored = builder.local("scored", FLOAT, shape.rows * shape.keys)
        self.exchange = builder.local("meeting", FLOAT, shape.lanes)
        self.largest = builder.registers("largest", 1, FLOAT)
        self.totals = builder.registers("total", 1, FLOAT)
        self.sums = [builder.sums("out", shape.rows, shape.columns, FLOAT) for _ in range(self.across)]

    def build_launch(self) -> Launch:
        statements: list[Statement] = self.locate_block()
        statements += self.stage_queries()
        statements += [define(largest, float32(-inf)) for largest in self.largest]
        statements += [define(total, float32(0.0)) for total in self.totals]
        statements += [*self.begin_sums(), *self.loop_over_keys(self.shape.keys, self.process_range, self.largest)]
        statements += self.finish()
        return self.launch(self.shape.lanes, statements)

    def begin_sums(self) -> Sequence[Statement]:
        return self.sums

    # -- tiles from memory -------------------------------------------------------------------------------------------

    def can_move(self, element: Scalar, extent: int, length: int) -> bool:
        """Whether elements can be moved into a tile without conversion."""
        if not isinstance(element, FlatLoad) or self.shape.planes > 1 or element.dtype is not self.shape.element:
            return False
        is_even = self.shape.keys * length // self.run % self.shape.lanes == 0
        return is_even and extent % self.run == 0 and self.is_run(element, self.run)

    def read(
        self,
        element: Scalar,
        places: Mapping[int, Dim],
        first: Dim,
        extent: int,
        is_covered: bool,
        mask: Code | None,
        statements: list[Statement],
    ) -> list[Code]:
        """Read a run of a query, key or value with `extent` elements; 0 where masked, and past the end.

        `is_covered`: no run goes past the end.
        """
        values: list[Code] = []
        step = RUN if extent % RUN == 0 else 1
        for number in range(0, self.run, step):
            test = all_of([mask, None if is_covered else is_below(first + number, extent)])
            at = {**places, self.last + 1: first + number}
            values += self.read_run(element, at, statements, test, step)
        return values

    def line_runs(self, lines: int, length: int) -> list[tuple[Dim, Dim, Code | None]]:
        """List (line, first, mask) of the runs that a lane fills of a tile with `lines` lines of `length`."""
        shape = self.shape
        line_runs = length // self.run
        runs: list[tuple[Dim, Dim, Code | None]] = []
        for number in range(-(-lines * line_runs // shape.lanes)):
            index = lane(shape.lanes) + number * shape.lanes
            mask = None if (number + 1) * shape.lanes <= lines * line_runs else is_below(index, lines * line_runs)
            runs.append((dims.floordiv(index, line_runs), dims.mod(index, line_runs) * self.run, mask))
        return runs

    def put_planes(
        self,
        tiles: Sequence[Buffer],
        line: Dim,
        first: Dim,
        values: Sequence[Code],
        mask: Code | None = None,
        *,
        clamps: bool = True,
    ) -> Body:
        """Convert values and put them into the tiles of their planes; `clamps`: they may exceed the tiles' range."""
        statements: list[Statement] = []
        converted = [self.converter.convert(value, statements, clamps=clamps) for value in values]
        for plane, tile in enumerate(tiles):
            statements.append(PutTile(tile.name, line, first, tuple(planes[plane] for planes in converted), mask))
        return tuple(statements)

    def stage_queries(self) -> list[Statement]:
        statements: list[Statement] = []
        length, extent = self.shape.deep_line, self.attention.depth
        for number, tiles in enumerate(self.query_tiles):
            for line, first, mask in self.line_runs(self.shape.rows, length):
                deep = first + number * length
                places = self.row_positions(line)
                values = self.read(self.query, places, deep, extent, extent % length == 0, mask, statements)
                statements += self.put_planes(tiles, line, first, values, mask)
        return statements

    def stage_lines(
        self, element: Scalar, is_moved: bool, extent: int, length: int, tiles: Sequence[Sequence[Buffer]], start: Dim
    ) -> tuple[Body, Body, Body]:
        """Build (moves, fetches, puts) for tiles whose lines are keys; keys past the end are 0."""
        moves: list[Statement] = []
        fetches: list[Statement] = []
        puts: list[Statement] = []
        is_covered = extent % length == 0
        for number, planes in enumerate(tiles):
            for line, first, mask in self.line_runs(self.shape.keys, length):
                assert mask is None or not is_moved
                key, at = start + line, first + number * length
                has_key = None if self.is_exact else is_below(key, self.keys)
                places = {**self.grid_positions, self.last: key}
                if not is_moved:
                    values = self.read(element, places, at, extent, is_covered, all_of([mask, has_key]), fetches)
                    puts += self.put_planes(planes, line, first, values, mask)
                    continue
                assert isinstance(element, FlatLoad)
                test = all_of([has_key, None if is_covered else is_below(at, extent)])
                offset = self.lowering({**places, self.last + 1: at}, moves).flat_offset(element.offset)
                source = self.sources[element.operand].name
                moves.append(MoveRun(planes[0].name, line, first, self.run, source, offset, test))
        return tuple(moves), tuple(fetches), tuple(puts)

    def stage_transposed(self, start: Dim) -> tuple[Body, Body, Body]:
        """Build (moves, fetches, puts) for tiles whose lines are columns of the values: lanes transpose blocks."""
        fetches: list[Statement] = []
        puts: list[Statement] = []
        shape, size = self.shape, self.run
        extent = self.attention.width
        is_covered = extent % shape.columns == 0
        columns = shape.columns // size  # blocks along them
        for column, tiles in enumerate(self.value_tiles):
            for number, planes in enumerate(tiles):
                blocks = columns * shape.line // size
                for turn in range(-(-blocks // shape.lanes)):
                    index = lane(shape.lanes) + turn * shape.lanes
                    mask = None if (turn + 1) * shape.lanes <= blocks else is_below(index, blocks)
                    line, first = dims.mod(index, columns) * size, dims.floordiv(index, columns) * size
                    rows = []
                    for row in range(size):
                        key = start + number * shape.line + first + row
                        test = all_of([mask, None if self.is_exact else is_below(key, self.keys)])
                        places, at = {**self.grid_positions, self.last: key}, column * shape.columns + line
                        rows.append(self.read(self.value, places, at, extent, is_covered, test, fetches))
                    for row, transposed in enumerate(zip(*rows)):
                        puts += self.put_planes(planes, line + row, first, transposed, mask)
        return (), tuple(fetches), tuple(puts)

    # -- a tile of keys ----------------------------------------------------------------------------------------------

    def process_range(self, begin: Dim, end: Dim) -> Body:
        shape, attention = self.shape, self.attention
        turn = self.builder.variable("turn")
        start = turn * shape.keys
        keys = self.stage_lines(self.key, self.moves_keys, attention.depth, shape.deep_line, self.key_tiles, start)
        if shape.transposes_values:
            lines = [tiles[0] for tiles in self.value_tiles]
            values = self.stage_lines(self.value, self.moves_values, attention.width, shape.columns, lines, start)
        else:
            values = self.stage_transposed(start)
        moves, fetches, puts = (of_keys + of_values for of_keys, of_values in zip(keys, values))
        (name,) = (symbol.name for symbol in dims.symbols(turn))
        first, stop = dims.floordiv(begin, shape.keys), dims.ceildiv(end, shape.keys)
        return (TilePipeline(name, first, stop, moves, fetches, puts, self.process_tile(start)),)

    def process_tile(self, start: Dim) -> Body:
        """Process the tile of keys from `start` on, and its values."""
        statements: list[Statement] = []
        products = self.builder.sums("products", self.shape.rows, self.shape.keys, FLOAT)
        statements.append(products)
        for queries, keys in zip(self.query_tiles, self.key_tiles):
            statements += self.multiply(products, queries, keys)
        statements.append(PutSums(products.name, self.scores.name, 0, self.pitch))
        if self.shape.ahead:
            statements.append(self.score_by_keys(start))
        scores = self.compute_scores(start, statements)
        self.compute_weights(scores, statements)
        for column, total in enumerate(self.sums):
            statements.append(ScaleSums(total.name, self.factors.name, 0))
            partial = total
            if self.shape.planes > 1:
                partial = self.builder.sums("added", self.shape.rows, self.shape.columns, FLOAT)
                statements.append(partial)
            for weights, values in zip(self.weight_tiles, self.value_tiles[column]):
                statements += self.multiply(partial, weights, values)
            if partial is not total:
                statements.append(AddSums(total.name, partial.name))
        return tuple(statements)

    def multiply(self, sums: Sums, left: Sequence[Buffer], right: Sequence[Buffer]) -> list[Statement]:
        """Multiply all pairs of planes that matter, the smallest first."""
        pairs = [(rank - b, b) for rank in reversed(range(self.shape.planes)) for b in range(rank + 1)]
        return [MultiplyTiles(sums.name, left[a].name, right[b].name) for a, b in pairs]

    def list_lane_keys(self) -> list[tuple[int, Dim]]:
        """List (tile of weights, place in its line) of the runs of keys that a lane has."""
        shape = self.shape
        return [
            (first // shape.line, first % shape.line + self.member * self.run)
            for first in range(0, shape.keys, shape.members * self.run)
        ]

    def compute_scores(self, start: Dim, statements: list[Statement]) -> list[list[Code]]:
        """Compute the scores of a lane's runs of keys, and share the largest with the other lanes of the row."""
        places = self.row_positions(self.row)
        run_scores: list[list[Code]] = []
        for tile, place in self.list_lane_keys():
            scores: list[Code] = []
            first = tile * self.shape.line + place
            for part in range(0, self.run, RUN):
                run = self.builder.registers("product", RUN, FLOAT)
                if self.shape.ahead:
                    column = dims.mod(first + part + RUN * self.row, self.shape.keys)
                    statements.append(fetch_run(run, self.scored, self.row * self.shape.keys + column))
                    scores += run
                    continue
                statements.append(fetch_run(run, self.scores, self.row * self.pitch + first + part))
                for number, product in enumerate(run):
                    scores.append(self.masked_score(product, places, start + first + part + number, statements))
            run_scores.append(scores)
        largest = self.reduce_pairs([score for scores in run_scores for score in scores], larger, statements)
        statements.append(put(self.exchange, lane(self.shape.lanes), largest))
        return run_scores

    def masked_score(self, product: Code, places: Mapping[int, Dim], key: Dim, statements: list[Statement]) -> Code:
        """Compute the score from a product; -inf for a key past the end."""
        score = self.compute_score(product, places, self.clamp_key(key, self.shape.keys), statements)
        if self.is_exact:
            return score
        masked = call("select", is_below(key, self.keys), score, float32(-inf))
        definition, score = self.builder.keep("score", masked, varying=True)
        statements.append(definition)
        return score

    def score_by_keys(self, start: Dim) -> Statement:
        """Compute all scores, by lanes that are neighbours along the keys.

        Each row is rotated by a run more than the one before it, so that lanes of neighbouring rows read different
        banks.
        """
        shape, here = self.shape, lane(self.shape.lanes)
        turn_rows = shape.lanes // shape.keys
        turn = self.builder.variable("r")
        row = turn * turn_rows + dims.floordiv(here, shape.keys)
        key = dims.mod(dims.mod(here, shape.keys) + (shape.keys - RUN) * row, shape.keys)
        definition, product = self.builder.keep("product", fetch(self.scores, row * self.pitch + key), varying=True)
        body: list[Statement] = [definition]
        score = self.masked_score(product, self.row_positions(row), start + key, body)
        body.append(put(self.scored, turn * shape.lanes + here, score))
        return repeat(turn, 0, shape.rows // turn_rows, 1, body, _UNROLL)

    def reduce_pairs(
        self, values: Sequence[Code], function: Callable[[Code, Code], Code], statements: list[Statement]
    ) -> Code:
        """Reduce values as a binary tree, which shortens the chain of dependent operations."""
        remaining = list(values)
        while len(remaining) > 1:
            pairs = [function(*pair) for pair in zip(remaining[::2], remaining[1::2])]
            registers = [self.builder.keep("pair", value, varying=True) for value in pairs]
            statements += [definition for definition, _ in registers]
            remaining = [*(register for _, register in registers), *remaining[2 * len(pairs) :]]
        return remaining[0]

    def read_exchange(self) -> list[Code]:
        """Read the values of all lanes of the row."""
        return [fetch(self.exchange, self.row + member * self.shape.rows) for member in range(self.shape.members)]

    def compute_weights(self, scores: Sequence[Sequence[Code]], statements: list[Statement]) -> None:
        """Put the weights of scores into their tiles, and the factor that scales the sums so far into `factors`."""
        (before,) = self.largest
        definition, largest = self.builder.keep("now", before)
        statements.append(definition)
        for value in self.read_exchange():
            definition, lane_maximum = self.builder.keep("other", value, varying=True)
            statements += [definition, assign(largest, larger(largest, lane_maximum))]
        first, shift = self.builder.keep("by", self.shift(largest), varying=True)
        second, factor = self.builder.keep("factor", call("exp", call("subtract", before, shift)), varying=True)
        statements += [first, second, assign(before, largest), put(self.factors, lane(self.shape.lanes), factor)]
        all_weights: list[Register] = []
        for (tile, place), run_scores in zip(self.list_lane_keys(), scores):
            weights: list[Register] = []
            for score in run_scores:
                exponential = call("exp", call("subtract", score, shift))
                definition, weight = self.builder.keep("weight", exponential, varying=True)
                statements.append(definition)
                weights.append(weight)
            statements += self.put_planes(self.weight_tiles[tile], self.row, place, weights, clamps=False)
            all_weights += weights
        total = self.reduce_pairs(all_weights, lambda a, b: call("add", a, b), statements)
        (own_total,) = self.totals
        statements.append(assign(own_total, multiply_add(self.target, own_total, factor, total)))

    # -- the end -----------------------------------------------------------------------------------------------------

    def finish(self) -> list[Statement]:
        """Divide results by their totals, apply the epilogue and write them; of a split, write its sums."""
        (own_total,), (largest,) = self.totals, self.largest
        statements: list[Statement] = [put(self.exchange, lane(self.shape.lanes), own_total)]
        definition, total = self.builder.keep("whole", self.read_exchange()[0], varying=True)
        statements.append(definition)
        statements += [assign(total, call("add", total, lane_total)) for lane_total in self.read_exchange()[1:]]
        if self.split is None:
            inverse = self.inverse(total, largest, self.row, statements)
            statements.append(put(self.factors, lane(self.shape.lanes), inverse))
        else:
            test = all_of([is_below(lane(self.shape.lanes), self.shape.rows), self.has_row(self.row)])
            statements += self.split_writer.put_row(self.split_row(self.row), largest, total, test)
        for number, sums in enumerate(self.sums):
            statements.append(PutSums(sums.name, self.results.name, number * self.shape.columns, self.result_pitch))
        return [*statements, *self.write_results()]

    def write_results(self) -> list[Statement]:
        """Scale what is in `results`, apply the epilogue and write it; of a split, write it as it is."""
        runs = -(-self.attention.width // RUN)
        count = -(-self.shape.rows * runs // self.shape.lanes)
        turn = self.builder.variable("w") if count > 1 else 0
        body = self.write_runs(lane(self.shape.lanes) + turn * self.shape.lanes, runs)
        return [repeat(turn, 0, count, 1, body)] if count > 1 else body

    def write_runs(self, index: Dim, runs: int) -> list[Statement]:
        shape = self.shape
        row, run = dims.floordiv(index, runs), dims.mod(index, runs)
        tests: list[Code | None] = []
        if shape.rows * runs % shape.lanes:
            tests.append(is_below(index, shape.rows * runs))
            row = dims.minimum(row, shape.rows - 1)
        tests.append(self.has_row(row))
        statements: list[Statement] = []
        sums = self.builder.registers("sum", RUN, FLOAT)
        column = run * RUN
        statements.append(fetch_run(sums, self.results, row * self.result_pitch + column))
        if self.split is not None:
            return [*statements, *self.split_writer.put_sums(self.split_row(row), column, sums, tests)]
        definition, inverse = self.builder.keep("by", fetch(self.factors, row), varying=True)
        statements.append(definition)
        if self.attention.width % RUN == 0:
            return [*statements, *self.write(sums, inverse, row, column, all_of(tests))]
        for number, total in enumerate(sums):
            mask = all_of([*tests, is_below(column + number, self.attention.width)])
            statements += self.write([total], inverse, row, column + number, mask)
        return statements


build_product_attention = memoize_launch(AttentionProducts)
