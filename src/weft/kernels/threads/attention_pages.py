"""Attention over a paged cache: a block computes some rows that share keys, for one chunk of keys or for all of them.

Keys, and then values, go through shared memory; neighbouring lanes bring neighbours of one key. A lane computes scores
of some rows with some keys, then weights of one row, then columns of some rows. Tiles for few and for many rows differ
in how lanes share the work, and in nothing that a row's bits depend on: a score adds along the depth, a sum along the
keys of the chunk.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf

from weft.ir import dims
from weft.ir.attention import Attention
from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.ir.kernel import Buffer, Call, Code, Integer, Register, Statement, When, lane
from weft.ir.scalar import ELEMENT
from weft.ir.target import ThreadTarget
from weft.kernels.build.multiply_add import multiply_add
from weft.kernels.lower.expressions import ValueKey
from weft.kernels.lower.kernel_builder import assign, define, fetch, fetch_run, put, put_run, repeat
from weft.kernels.lower.memoize import memoize_launch
from weft.kernels.lower.tensors import Launch, StoredTensor
from weft.kernels.threads.attention import FLOAT, RUN, Body, KeySplit, call, float32, is_below, larger
from weft.kernels.threads.attention_frame import CHUNK, KeyRange, PagedFrame, RowSums, extract_row_values
from weft.kernels.threads.attention_split import SplitWriter
from weft.kernels.threads.points import all_of
from weft.records import dataclass

_LANES = 128
_FEW = (8, 4, 1)  # rows of a tile, of a lane in the product with keys, and in that with values
_MANY = ((32, 4, 4), (16, 4, 2))
_SLICES = ((32, 32), (16, 32), (8, 16), (4, 8), (2, 4))  # runs of keys, and values, that are not resident
_STAGED_KEYS = 16  # that the lanes of a block bring at once
_PITCH = CHUNK + RUN  # elements of a row of scores
_UNROLL = 4
_RESIDENT_RUNS = 64  # of a key and a value; more need too many registers on their way to shared memory
_WORD = 4  # bytes of an element


@dataclass(frozen=True, slots=True)
class PageTile:
    """`rows` of a block. A lane has `score_rows` and `value_rows` of them in the two products.

    `key_runs` of every key, or `values`, are in shared memory at a time; if the tile `is_resident`, all keys and values
    of a chunk.
    """

    rows: int
    score_rows: int
    value_rows: int
    key_runs: int
    values: int
    is_resident: bool
    lanes: int

    @property
    def key_lanes(self) -> int:
        """Lanes that share the keys of a row."""
        return self.lanes * self.score_rows // self.rows

    @property
    def column_lanes(self) -> int:
        """Lanes that share the columns of a row."""
        return self.lanes * self.value_rows // self.rows

    @property
    def weight_lanes(self) -> int:
        """Lanes that share the weights of a row."""
        return self.lanes // self.rows

    def bytes(self, depth: int, width: int) -> int:
        """Shared memory of a block; depth and width are in runs."""
        keys, values = CHUNK * (self.key_runs | 1) * RUN, self.values * width * RUN
        staged = keys + values if self.is_resident else max(keys, values)
        return _WORD * (staged + self.rows * ((depth | 1) * RUN + _PITCH + 1))


def choose_page_tiles(attention: Attention, target: ThreadTarget) -> tuple[PageTile, PageTile]:
    """Choose the tiles for few rows and for many."""
    depth, width = -(-attention.depth // RUN), -(-attention.width // RUN)
    lanes = min(_LANES, target.most_block_threads)
    slices = [(min(runs, depth), values, False) for runs, values in _SLICES]
    resident = [(depth, CHUNK, True)] if depth + width <= _RESIDENT_RUNS else []

    def choose(shapes: Sequence[tuple[int, int, int]]) -> PageTile:
        tiles = [PageTile(*shape, *part, lanes) for part in resident for shape in shapes]
        tiles += [PageTile(*shape, *part, lanes) for shape in shapes for part in slices]
        return next((tile for tile in tiles if tile.bytes(depth, width) <= target.shared_bytes), tiles[-1])

    return choose([_FEW]), choose([shape for shape in (*_MANY, _FEW) if shape[0] <= lanes])


class _PagedAttention(PagedFrame):
    """With `splits`, each block computes one chunk of the keys and leaves its sums for the kernel that merges them."""

    def __init__(
        self,
        attention: Attention,
        operands: tuple[StoredTensor, ...],
        result: StoredTensor,
        target: ThreadTarget,
        tile: PageTile,
        splits: KeySplit | None,
    ) -> None:
        super().__init__(attention, operands, result, target, tile.rows, splits)
        self.tile, builder = tile, self.builder
        self.depth, self.width = -(-attention.depth // RUN), -(-attention.width // RUN)  # in runs
        self.depth_pitch, self.key_pitch = (self.depth | 1) * RUN, (tile.key_runs | 1) * RUN
        if splits is not None:
            self.split_writer = SplitWriter(builder, attention.width)
        here = lane(tile.lanes)
        self.score_group, self.score_lane = dims.floordiv(here, tile.key_lanes), dims.mod(here, tile.key_lanes)
        self.value_group, self.column_lane = dims.floordiv(here, tile.column_lanes), dims.mod(here, tile.column_lanes)
        self.columns = -(-self.width // tile.column_lanes)  # runs of a lane
        self.queries = builder.local("queries", FLOAT, tile.rows * self.depth_pitch)
        self.scores = builder.local("scores", FLOAT, tile.rows * _PITCH)
        self.largest = builder.local("largest", FLOAT, tile.rows)
        keys, values = CHUNK * self.key_pitch, tile.values * self.width * RUN
        self.key_buffer = builder.local("keys", FLOAT, keys if tile.is_resident else max(keys, values))
        self.value_buffer = builder.local("values", FLOAT, values) if tile.is_resident else self.key_buffer
        self.score, self.row_values = extract_row_values(self.score, self.last)
        self.row_sums = [self.declare_sums("") for _ in range(tile.value_rows)]
        self.range = KeyRange(None, None)

    def declare_sums(self, hint: str) -> RowSums:
        registers, count = self.builder.registers, self.columns * RUN
        (largest,), (total,) = registers(f"{hint}largest", 1, FLOAT), registers(f"{hint}total", 1, FLOAT)
        return RowSums(largest, total, tuple(registers(f"{hint}sum", count, FLOAT)))

    def build_launch(self) -> Launch:
        statements: list[Statement] = self.locate_block()
        self.range = self.find_block_range(statements)
        if self.split is not None:
            start, puts = self.split_index * CHUNK, self.fetch_queries(statements)
            fetches, body = self.process_chunk(start)
            statements += [*fetches, *puts, *self.when_visible(start, body)]
            return self.launch(self.tile.lanes, statements)
        number = self.builder.variable("chunk")
        chunks = self.builder.parameter("chunks_of_keys", dims.ceildiv(self.attention.shape[-1], CHUNK))
        statements += self.fetch_queries(statements)
        statements += [statement for row in self.row_sums for statement in row.clear()]
        fetches, body = self.process_chunk(number * CHUNK)
        statements.append(repeat(number, 0, chunks, 1, self.when_visible(number * CHUNK, (*fetches, *body))))
        return self.launch(self.tile.lanes, [*statements, *self.finish()])

    def when_visible(self, start: Dim, body: Body) -> Body:
        """Run the body for a chunk with keys that some row may see."""
        test = all_of(self.range.tests(start))
        return body if test is None else (When(test, body),)

    # -- staging -----------------------------------------------------------------------------------------------------

    def fetch_queries(self, statements: list[Statement]) -> list[Statement]:
        """Fetch queries, and what the scores of a lane's rows have in common; return the puts to shared memory."""
        tile, puts = self.tile, list[Statement]()
        runs = tile.rows * self.depth
        for first in range(0, runs, tile.lanes):
            index = first + lane(tile.lanes)
            mask = None if first + tile.lanes <= runs else is_below(index, runs)
            row, run = dims.floordiv(index, self.depth), dims.mod(index, self.depth)
            values = self.read_padded(self.query, self.row_positions(row), run, self.attention.depth, mask, statements)
            puts.append(put_run(self.queries, row * self.depth_pitch + run * RUN, values, mask))
        self.common = [
            self.compute_row_values(self.row_positions(self.score_row(row)), statements)
            for row in range(tile.score_rows)
        ]
        return puts

    def compute_row_values(self, places: Mapping[int, Dim], statements: list[Statement]) -> dict[ValueKey, Code]:
        """Compute what all scores of a row have in common."""
        lowering, values = self.lowering(places, statements), dict[ValueKey, Code]()
        for name, value in self.row_values.items():
            definition, values[name] = self.builder.keep("common", lowering.code(value), varying=True)
            statements.append(definition)
        return values

    def stage_keys(self, start: Dim, first: Dim, count: int) -> tuple[list[Statement], list[Statement]]:
        """Return the statements that fetch some runs of a chunk's keys, and those that put them to shared memory."""
        fetches, puts = list[Statement](), list[Statement]()
        for key, run, mask in self.list_runs(CHUNK, count):
            places = {**self.join_positions({}), self.last: start + key}
            values = self.read_padded(self.key, places, first + run, self.attention.depth, mask, fetches)
            puts.append(put_run(self.key_buffer, key * self.key_pitch + run * RUN, values, mask))
        return fetches, puts

    def stage_values(self, start: Dim, count: int) -> tuple[list[Statement], list[Statement]]:
        """Return the statements that fetch some values, and those that put them to shared memory.

        What is beyond the keys that rows see may belong to another sequence; it becomes 0.
        """
        fetches, puts = list[Statement](), list[Statement]()
        for key, run, mask in self.list_runs(count, self.width):
            places = {**self.join_positions({}), self.last: start + key}
            values = self.read_padded(self.value, places, run, self.attention.width, mask, fetches)
            is_visible = self.is_key(start + key)
            if is_visible is not None:
                values = [call("select", is_visible, value, float32(0.0)) for value in values]
            puts.append(put_run(self.value_buffer, (key * self.width + run) * RUN, values, mask))
        return fetches, puts

    def list_runs(self, keys: int, runs: int) -> list[tuple[Dim, Dim, Code | None]]:
        """List (key, run, mask) of the runs that a lane brings, of some keys with some runs each."""
        members, here = self.tile.lanes // _STAGED_KEYS, lane(self.tile.lanes)
        listed: list[tuple[Dim, Dim, Code | None]] = []
        for first in range(0, keys, _STAGED_KEYS):
            key = first + dims.floordiv(here, members)
            has_key = None if first + _STAGED_KEYS <= keys else is_below(key, keys)
            for turn in range(-(-runs // members)):
                run = turn * members + dims.mod(here, members)
                has_run = None if (turn + 1) * members <= runs else is_below(run, runs)
                listed.append((key, run, all_of([has_key, has_run])))
        return listed

    def is_key(self, key: Dim) -> Code | None:
        """Test whether a key exists, and some row may see it."""
        end = self.range.end
        is_exact = dims.mod(self.attention.shape[-1], CHUNK) == 0
        exists = None if is_exact else is_below(key, self.keys)
        return all_of([exists, None if end is None else Call("less", (Integer(key), end), DType.bool)])

    # -- a chunk of keys ---------------------------------------------------------------------------------------------

    def process_chunk(self, start: Dim) -> tuple[Body, Body]:
        """Return the statements that fetch a chunk, if it is resident, and those that merge or write its sums."""
        tile, keys = self.tile, CHUNK // self.tile.key_lanes
        scores = [self.builder.registers(f"s{row}_", keys, FLOAT) for row in range(tile.score_rows)]
        sums = [self.declare_sums("chunk_") for _ in range(tile.value_rows)]
        fetches, products, weighted_sums = self.multiply_slices(start, scores, sums)
        statements: list[Statement] = [define(score, float32(0.0)) for row in scores for score in row]
        statements += [*products, *self.put_scores(start, scores), *self.compute_weights()]
        statements += [statement for row in sums for statement in row.clear()]
        statements += weighted_sums
        for number, (row, total) in enumerate(zip(sums, self.row_sums)):
            statements.append(assign(row.largest, fetch(self.largest, self.value_row(number))))
            if self.split is None:
                statements += self.merge_chunk(total, row.largest, row.total, row.sums)
            else:
                statements += self.write_chunk(number, row)
        return tuple(fetches), tuple(statements)

    def multiply_slices(
        self, start: Dim, scores: Sequence[Sequence[Register]], sums: Sequence[RowSums]
    ) -> tuple[list[Statement], list[Statement], list[Statement]]:
        """Return the statements that fetch a resident chunk, that add up scores, and that add up weighted values."""
        tile = self.tile
        if tile.is_resident:
            keys, put_keys = self.stage_keys(start, 0, self.depth)
            values, put_values = self.stage_values(start, CHUNK)
            products = [*put_keys, *put_values, *self.multiply_keys(scores, 0, self.depth)]
            return [*keys, *values], products, self.accumulate_values(sums, 0)

        def multiply(first: Dim, count: int) -> list[Statement]:
            fetches, puts = self.stage_keys(start, first, count)
            return [*fetches, *puts, *self.multiply_keys(scores, first, count)]

        number, rest = self.builder.variable("slice"), self.depth % tile.key_runs
        body = multiply(number * tile.key_runs, tile.key_runs)
        products = [repeat(number, 0, self.depth // tile.key_runs, 1, body)]
        products += multiply(self.depth - rest, rest) if rest else []
        number = self.builder.variable("slice")
        fetches, puts = self.stage_values(start + number * tile.values, tile.values)
        body = [*fetches, *puts, *self.accumulate_values(sums, number * tile.values)]
        return [], products, [repeat(number, 0, CHUNK // tile.values, 1, body)]

    def multiply_keys(self, scores: Sequence[Sequence[Register]], first: Dim, count: int) -> list[Statement]:
        """Add the products of a lane's rows with its keys along some runs of the depth."""
        tile, step, body = self.tile, self.builder.variable("d"), list[Statement]()
        rows = [
            self.load_run(self.queries, self.score_row(row) * self.depth_pitch + (first + step) * RUN, body)
            for row in range(tile.score_rows)
        ]
        for number in range(len(scores[0])):
            key = self.load_run(self.key_buffer, self.lane_key(number) * self.key_pitch + step * RUN, body)
            for part in range(RUN):
                for row, score in zip(rows, scores):
                    body.append(assign(score[number], multiply_add(self.target, row[part], key[part], score[number])))
        return [repeat(step, 0, count, 1, body, _UNROLL)]

    def put_scores(self, start: Dim, scores: Sequence[Sequence[Register]]) -> list[Statement]:
        statements: list[Statement] = []
        is_exact = dims.mod(self.attention.shape[-1], CHUNK) == 0
        for row, registers in enumerate(scores):
            places = self.row_positions(self.score_row(row))
            for number, product in enumerate(registers):
                key = start + self.lane_key(number)
                lowering = self.lowering({**places, self.last: self.clamp_key(key, CHUNK)}, statements)
                lowering.values = {ELEMENT: product, **self.common[row]}
                score = lowering.code(self.score)
                if not is_exact:
                    score = call("select", is_below(key, self.keys), score, float32(-inf))
                statements.append(put(self.scores, self.score_row(row) * _PITCH + self.lane_key(number), score))
        return statements

    def compute_weights(self) -> list[Statement]:
        """Turn the scores of a row into weights, and store the largest score; several lanes share a row."""
        members, here = self.tile.weight_lanes, lane(self.tile.lanes)
        row, member = dims.floordiv(here, members), dims.mod(here, members)
        definition, largest = self.builder.keep("most", float32(-inf), varying=True)
        step, body = self.builder.variable("run"), list[Statement]()
        scores = self.load_run(self.scores, row * _PITCH + step * RUN, body)
        body += [assign(largest, larger(largest, score)) for score in scores]
        to_shift, shift = self.builder.keep("by", self.shift(largest), varying=True)
        is_first = Call("equal", (Integer(member), Integer(0)), DType.bool)
        statements: list[Statement] = [definition, repeat(step, 0, CHUNK // RUN, 1, body, _UNROLL), to_shift]
        statements.append(put(self.largest, row, largest, mask=is_first))
        for first in range(0, CHUNK // RUN, members):
            place = row * _PITCH + (first + member) * RUN
            weights = self.load_run(self.scores, place, statements)
            statements += [assign(weight, call("exp", call("subtract", weight, shift))) for weight in weights]
            statements.append(put_run(self.scores, place, weights))
        return statements

    def accumulate_values(self, sums: Sequence[RowSums], first: Dim) -> list[Statement]:
        """Add weighted values, from a key of the chunk on, to the sums of a lane."""
        step, body = self.builder.variable("k"), list[Statement]()
        weights = [
            self.load_run(self.scores, self.value_row(row) * _PITCH + first + step * RUN, body)
            for row in range(self.tile.value_rows)
        ]
        for key in range(RUN):
            for row, weight in zip(sums, weights):
                body.append(assign(row.total, call("add", row.total, weight[key])))
            for column in range(self.columns):
                place = ((step * RUN + key) * self.width + self.column(column)) * RUN
                for part, value in enumerate(self.load_run(self.value_buffer, place, body)):
                    for row, weight in zip(sums, weights):
                        total = row.sums[column * RUN + part]
                        body.append(assign(total, multiply_add(self.target, weight[key], value, total)))
        return [repeat(step, 0, self.tile.values // RUN, 1, body, 1)]

    def load_run(self, buffer: Buffer, place: Dim, statements: list[Statement]) -> list[Register]:
        registers = self.builder.registers("four", RUN, FLOAT)
        statements.append(fetch_run(registers, buffer, place))
        return registers

    # -- the places of a lane ----------------------------------------------------------------------------------------

    def score_row(self, number: int) -> Dim:
        return self.score_group * self.tile.score_rows + number

    def value_row(self, number: int) -> Dim:
        return self.value_group * self.tile.value_rows + number

    def lane_key(self, number: int) -> Dim:
        """Return a key of the chunk; neighbouring lanes have neighbours."""
        return self.score_lane + number * self.tile.key_lanes

    def column(self, number: int) -> Dim:
        """Return a run of columns, clamped to the last one."""
        run = self.column_lane + number * self.tile.column_lanes
        return run if self.covers_columns(number) else dims.minimum(run, self.width - 1)

    def covers_columns(self, number: int) -> bool:
        return (number + 1) * self.tile.column_lanes <= self.width

    # -- results -----------------------------------------------------------------------------------------------------

    def write_chunk(self, number: int, row: RowSums) -> list[Statement]:
        """Write the sums of a chunk for the kernel that merges them."""
        at = self.value_row(number)
        has_row, split_row = self.has_row(at), self.split_row(at)
        is_first = Call("equal", (Integer(self.column_lane), Integer(0)), DType.bool)
        statements = self.split_writer.put_row(split_row, row.largest, row.total, all_of([is_first, has_row]))
        for column in range(self.columns):
            run = self.column_lane + column * self.tile.column_lanes
            tests = [has_row, None if self.covers_columns(column) else is_below(run, self.width)]
            sums = row.sums[column * RUN : (column + 1) * RUN]
            statements += self.split_writer.put_sums(split_row, run * RUN, sums, tests)
        return statements

    def finish(self) -> list[Statement]:
        """Divide sums by their totals, apply the epilogue and write."""
        statements: list[Statement] = []
        for number, row in enumerate(self.row_sums):
            at = self.value_row(number)
            inverse = self.inverse(row.total, row.largest, at, statements)
            for column in range(self.columns):
                run, has_row = self.column_lane + column * self.tile.column_lanes, self.has_row(at)
                tests = [has_row, None if self.covers_columns(column) else is_below(run, self.width)]
                sums = row.sums[column * RUN : (column + 1) * RUN]
                statements += self.write_columns(sums, inverse, at, run * RUN, tests)
        return statements


build_paged_attention = memoize_launch(_PagedAttention)
