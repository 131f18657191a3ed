"""Attention on tiles of queries and keys in shared memory.

`wide` lanes share a group of rows: a lane computes the scores of its rows for four keys of a tile, and some columns of
the results. Queries stay in shared memory if they fit; a tile's keys and then its values use the same memory, in
buffers that every lane writes once. Weights and the largest scores of lanes are exchanged through shared memory, totals
only at the end. Barriers are placed before loops that would otherwise get one in every iteration; the barrier pass adds
the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from weft.cost.sizes import estimate
from weft.ir import dims
from weft.ir.attention import Attention
from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.ir.kernel import Barrier, Buffer, Call, Code, Integer, Register, Statement, lane
from weft.ir.target import ThreadTarget
from weft.kernels.build.multiply_add import multiply_add
from weft.kernels.lower.kernel_builder import assign, define, fetch_run, put_run, repeat
from weft.kernels.lower.memoize import memoize
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
from weft.kernels.threads.attention_split import SplitWriter
from weft.kernels.threads.points import all_of
from weft.records import dataclass

MAX_WIDE = 8
MAX_ROWS = 4  # of a lane
MIN_BLOCKS = 256  # to keep a GPU busy
WORD = 4  # bytes of an element
RESERVED_BYTES = 2048  # of shared memory, not used by tiles


@dataclass(frozen=True, slots=True)
class AttentionTile:
    """How the lanes of a block share the work: `high` groups of `rows`, each with `wide` lanes."""

    lanes: int
    wide: int
    rows: int
    keeps_queries: bool

    @property
    def high(self) -> int:
        return self.lanes // self.wide

    @property
    def height(self) -> int:
        """Rows of a block."""
        return self.high * self.rows

    @property
    def keys(self) -> int:
        """Keys of a tile."""
        return self.wide * RUN

    def bytes(self, depth: int, width: int) -> int:
        """Shared memory of a block; the depth of queries and the width of values are in runs."""
        queries = self.rows * self.high * odd(depth) if self.keeps_queries else 0
        tiles = self.lanes * max(self.key_buffers(depth), self.value_buffers(width))
        weights = self.rows * self.high * (self.wide + 1)
        return RUN * WORD * (queries + tiles + weights) + WORD * weights

    def key_buffers(self, depth: int) -> int:
        return -(-self.keys * depth // self.lanes)

    def buffer_values(self, width: int) -> int:
        """Values in a buffer: a power of two, and a multiple of four."""
        count = RUN
        while 2 * count * width <= self.lanes and 2 * count <= self.keys:
            count *= 2
        return count

    def value_buffers(self, width: int) -> int:
        return self.keys // self.buffer_values(width)


def odd(number: int) -> int:
    """Return a pitch with which lanes of different rows access different banks of shared memory."""
    return number | 1


def choose_attention_tile(attention: Attention, target: ThreadTarget) -> AttentionTile:
    """Choose as many rows per lane as leave enough blocks, and fit into shared memory."""
    depth, width = -(-attention.depth // RUN), -(-attention.width // RUN)
    count = estimate(dims.product(attention.shape[axis] for axis in attention.rows))
    heads = estimate(dims.product(attention.shape[:-1])) // max(count, 1)
    lanes = min(target.most_block_threads, 128 if RUN * width <= 128 else 256)
    free_bytes = target.shared_bytes - RESERVED_BYTES
    wide = MAX_WIDE
    while wide > 1 and (wide * RUN > lanes or AttentionTile(lanes, wide, 1, False).bytes(depth, width) > free_bytes):
        wide //= 2
    chosen = AttentionTile(lanes, wide, 1, AttentionTile(lanes, wide, 1, True).bytes(depth, width) <= free_bytes)
    rows = 2
    while rows <= MAX_ROWS:
        for keeps_queries in (True, False):
            taller = AttentionTile(lanes, wide, rows, keeps_queries)
            blocks = heads * -(-count // taller.height)
            fits = taller.bytes(depth, width) <= free_bytes and (keeps_queries or not chosen.keeps_queries)
            if fits and blocks >= MIN_BLOCKS and chosen.height < count:
                chosen = taller
                break
        rows *= 2
    return chosen


@memoize
def build_tile_attention(
    attention: Attention,
    operands: tuple[StoredTensor, ...],
    result: StoredTensor,
    target: ThreadTarget,
    shape: AttentionTile,
    split: KeySplit | None,
) -> Launch:
    """Operands are those of `StreamingAttention`."""
    return AttentionTiles(attention, operands, result, target, shape, split).build_launch()


class AttentionTiles(StreamingAttention):
    def __init__(
        self,
        attention: Attention,
        operands: Sequence[StoredTensor],
        result: StoredTensor,
        target: ThreadTarget,
        shape: AttentionTile,
        split: KeySplit | None = None,
    ) -> None:
        super().__init__(attention, operands, result, target, shape.height, split)
        if split is not None:
            self.split_writer = SplitWriter(self.builder, attention.width)
        self.shape = shape
        self.depth, self.width = -(-attention.depth // RUN), -(-attention.width // RUN)  # in runs
        here = lane(shape.lanes)
        self.high, self.wide = dims.floordiv(here, shape.wide), dims.mod(here, shape.wide)
        self.buffer_values = shape.buffer_values(self.width)
        self.columns = -(-self.width // shape.wide)  # runs of a lane
        self.lane_rows = range(shape.rows)
        self.key_runs = shape.lanes // shape.keys  # of every key in a buffer
        self.is_exact = dims.mod(attention.shape[-1], shape.keys) == 0
        self.add_local_memory()
        self.largest = self.builder.registers("largest", shape.rows, FLOAT)
        self.totals = self.builder.registers("total", shape.rows, FLOAT)
        self.sums = [self.builder.registers(f"sum{row}_", self.columns * RUN, FLOAT) for row in self.lane_rows]

    def build_launch(self) -> Launch:
        statements: list[Statement] = self.locate_block()
        statements += self.stage_queries() if self.shape.keeps_queries else []
        for row in self.lane_rows:
            statements += [define(self.largest[row], float32(-inf)), define(self.totals[row], float32(0.0))]
            statements += [define(total, float32(0.0)) for total in self.sums[row]]
        statements += self.loop_over_keys(self.shape.keys, self.process_range, self.largest)
        statements += self.finish()
        return self.launch(self.shape.lanes, statements)

    def add_local_memory(self) -> None:
        """Declare buffers for keys and values, weights, exchanges between lanes of a row, and queries."""
        shape = self.shape

        def declare(hint: str, count: int, size: int) -> list[Buffer]:
            return [self.builder.local(f"{hint}{number}", FLOAT, size) for number in range(count)]

        count = max(shape.key_buffers(self.depth), shape.value_buffers(self.width))
        self.tile_buffers = declare("piece", count, shape.lanes * RUN)
        self.weights = declare("weights", shape.rows, shape.high * (shape.wide + 1) * RUN)
        self.exchanges = self.builder.local("meeting", FLOAT, shape.high * (shape.wide + 1) * shape.rows)
        if shape.keeps_queries:
            self.queries = declare("queries", shape.rows, shape.high * odd(self.depth) * RUN)

    def row(self, number: int) -> Dim:
        return self.high * self.shape.rows + number

    # -- queries, keys and values ------------------------------------------------------------------------------------

    def stage_queries(self) -> list[Statement]:
        """Store the queries of a group of rows to shared memory, by the group's lanes."""
        statements: list[Statement] = []
        for number in range(-(-self.depth // self.shape.wide)):
            run = self.wide + number * self.shape.wide
            inside = None if (number + 1) * self.shape.wide <= self.depth else is_below(run, self.depth)
            for row in self.lane_rows:
                places = self.row_positions(self.row(row))
                values = self.read_padded(self.query, places, run, self.attention.depth, inside, statements)
                place = (self.high * odd(self.depth) + run) * RUN
                statements.append(put_run(self.queries[row], place, values, inside))
        return statements

    def query_run(self, row: int, run: Dim, statements: list[Statement]) -> Sequence[Code]:
        """Read a run of a row's query."""
        if not self.shape.keeps_queries:
            places = self.row_positions(self.row(row))
            return self.read_padded(self.query, places, run, self.attention.depth, None, statements)
        place = (self.high * odd(self.depth) + run) * RUN
        return self.load_run(self.queries[row], place, statements)

    def load_run(self, buffer: Buffer, place: Dim, statements: list[Statement]) -> list[Register]:
        """Load a run from shared memory."""
        registers = self.builder.registers("four", RUN, FLOAT)
        statements.append(fetch_run(registers, buffer, place))
        return registers

    def fetch_keys(self, start: Dim, statements: list[Statement]) -> list[list[Code]]:
        """Fetch a lane's share of a tile's keys: for each buffer a run of one key.

        Key 4 * w + n of a tile is stored at w + n * wide, so that neighbouring lanes read neighbours. Keys past the end
        are clamped to the last one.
        """
        here, shape = lane(self.shape.lanes), self.shape
        slot = dims.mod(here, shape.keys)
        within = dims.mod(slot, shape.wide) * RUN + dims.floordiv(slot, shape.wide)
        key = self.clamp_key(start + within, shape.keys)
        runs = []
        for number in range(shape.key_buffers(self.depth)):
            run = dims.floordiv(here, shape.keys) + number * self.key_runs
            mask = None if (number + 1) * self.key_runs <= self.depth else is_below(run, self.depth)
            places = {**self.grid_positions, self.last: key}
            runs.append(self.read_padded(self.key, places, run, self.attention.depth, mask, statements))
        return runs

    def fetch_values(self, start: Dim, statements: list[Statement]) -> list[list[Code]]:
        """Fetch a lane's share of a tile's values; those past the end are 0."""
        here = lane(self.shape.lanes)
        runs = []
        for number in range(self.shape.value_buffers(self.width)):
            key = start + dims.floordiv(here, self.width) + number * self.buffer_values
            has_idle_lanes = self.buffer_values * self.width < self.shape.lanes
            mask = is_below(key, self.keys) if has_idle_lanes or not self.is_exact else None
            places, run = {**self.grid_positions, self.last: key}, dims.mod(here, self.width)
            runs.append(self.read_padded(self.value, places, run, self.attention.width, mask, statements))
        return runs

    # -- a tile of keys ----------------------------------------------------------------------------------------------

    def process_range(self, begin: Dim, end: Dim) -> Body:
        start = self.builder.variable("start")
        return (repeat(start, begin, end, self.shape.keys, self.process_tile(start)),)

    def process_tile(self, start: Dim) -> Body:
        """Process the tile of keys from `start` on."""
        statements: list[Statement] = []
        keys = self.fetch_keys(start, statements)
        values = self.fetch_values(start, statements)
        place = lane(self.shape.lanes) * RUN
        statements += [put_run(buffer, place, run) for buffer, run in zip(self.tile_buffers, keys)]
        scores = [self.builder.registers(f"s{row}_", RUN, FLOAT) for row in self.lane_rows]
        statements += [Barrier(), *self.multiply_keys(scores), *self.compute_scores(start, scores)]
        runs = self.buffer_values * self.width
        mask = is_below(lane(self.shape.lanes), runs) if runs < self.shape.lanes else None
        statements += [put_run(buffer, place, run, mask) for buffer, run in zip(self.tile_buffers, values)]
        return *statements, *self.compute_weights(scores), Barrier(), *self.accumulate_values()

    def multiply_keys(self, scores: Sequence[Sequence[Register]]) -> list[Statement]:
        """Compute the dot products of a lane's rows with its four keys."""
        statements: list[Statement] = [define(score, float32(0.0)) for row in scores for score in row]
        for number in range(self.shape.key_buffers(self.depth)):
            count = min(self.key_runs, self.depth - number * self.key_runs)
            step = self.builder.variable("d") if count > 1 else 0
            body: list[Statement] = []
            queries = [self.query_run(row, number * self.key_runs + step, body) for row in self.lane_rows]
            for key in range(RUN):
                at = (step * self.shape.keys + key * self.shape.wide + self.wide) * RUN
                for part, right in enumerate(self.load_run(self.tile_buffers[number], at, body)):
                    for query, score in zip(queries, scores):
                        body.append(assign(score[key], multiply_add(self.target, query[part], right, score[key])))
            statements += [repeat(step, 0, count, 1, body)] if count > 1 else body
        return statements

    def compute_scores(self, start: Dim, scores: Sequence[Sequence[Register]]) -> list[Statement]:
        """Turn products into scores, and share the largest of each row with the row's other lanes."""
        statements: list[Statement] = []
        row_maxima: list[Code] = []
        for row in self.lane_rows:
            places = self.row_positions(self.row(row))
            definition, largest = self.builder.keep("m", float32(-inf), varying=True)
            statements.append(definition)
            for number, register in enumerate(scores[row]):
                key = start + (self.wide * RUN + number)
                score = self.compute_score(register, places, self.clamp_key(key, self.shape.keys), statements)
                if not self.is_exact:
                    score = call("select", is_below(key, self.keys), score, float32(-inf))
                if score is not register:
                    statements.append(assign(register, score))
                statements.append(assign(largest, larger(largest, register)))
            row_maxima.append(largest)
        return [*statements, put_run(self.exchanges, self.exchange_place(self.wide), row_maxima)]

    def exchange_place(self, number: Dim) -> Dim:
        """Return the place in the exchange buffer of lane `number` of this lane's group."""
        return (self.high * (self.shape.wide + 1) + number) * self.shape.rows

    def read_exchange(self, hint: str, statements: list[Statement]) -> list[list[Code]]:
        """Read the values of all lanes of the group, for each row."""
        lanes = []
        for number in range(self.shape.wide):
            registers = self.builder.registers(hint, self.shape.rows, FLOAT)
            statements.append(fetch_run(registers, self.exchanges, self.exchange_place(number)))
            lanes.append(registers)
        return [list(row) for row in zip(*lanes)]

    def compute_weights(self, scores: Sequence[Sequence[Register]]) -> list[Statement]:
        """Turn scores into weights, scale the sums so far, and store the weights for the other lanes of a row."""
        statements: list[Statement] = []
        for row, lane_maxima in zip(self.lane_rows, self.read_exchange("most", statements)):
            before = self.largest[row]
            definition, largest = self.builder.keep("now", before)
            statements.append(definition)
            statements += [assign(largest, larger(largest, lane_maximum)) for lane_maximum in lane_maxima]
            first, shift = self.builder.keep("by", self.shift(largest), varying=True)
            second, factor = self.builder.keep("factor", call("exp", call("subtract", before, shift)), varying=True)
            statements += [first, second, assign(before, largest)]
            total: Code = call("multiply", self.totals[row], factor)
            for score in scores[row]:
                statements.append(assign(score, call("exp", call("subtract", score, shift))))
                total = call("add", total, score)
            statements.append(assign(self.totals[row], total))
            statements += [assign(column, call("multiply", column, factor)) for column in self.sums[row]]
        place = (self.high * (self.shape.wide + 1) + self.wide) * RUN
        return [*statements, *(put_run(buffer, place, row) for buffer, row in zip(self.weights, scores))]

    def accumulate_values(self) -> list[Statement]:
        """Add the tile's values, multiplied by their weights, to the sums."""
        statements: list[Statement] = []
        count = self.buffer_values // RUN
        for number in range(self.shape.value_buffers(self.width)):
            step = self.builder.variable("k") if count > 1 else 0
            body: list[Statement] = []
            at = (self.high * (self.shape.wide + 1) + number * count + step) * RUN
            weights = [self.load_run(buffer, at, body) for buffer in self.weights]
            for key in range(RUN):
                for column in range(self.columns):
                    place = ((step * RUN + key) * self.width + self.column(column)) * RUN
                    values = self.load_run(self.tile_buffers[number], place, body)
                    for row, weight in zip(self.sums, weights):
                        for part, value in enumerate(values):
                            total = row[column * RUN + part]
                            body.append(assign(total, multiply_add(self.target, weight[key], value, total)))
            statements += [repeat(step, 0, count, 1, body)] if count > 1 else body
        return statements

    def column(self, number: int) -> Dim:
        """Return the run of columns of a lane, clamped to the last one."""
        run = self.wide + number * self.shape.wide
        return run if (number + 1) * self.shape.wide <= self.width else dims.minimum(run, self.width - 1)

    # -- the end -----------------------------------------------------------------------------------------------------

    def finish(self) -> list[Statement]:
        """Divide results by their totals, apply the epilogue and write them; of a split, write its sums."""
        statements: list[Statement] = [put_run(self.exchanges, self.exchange_place(self.wide), self.totals)]
        for row, lane_totals in zip(self.lane_rows, self.read_exchange("part", statements)):
            total = lane_totals[0]
            for lane_total in lane_totals[1:]:
                total = call("add", total, lane_total)
            has_row = self.has_row(self.row(row))
            if self.split is not None:
                is_first = Call("equal", (Integer(self.wide), Integer(0)), DType.bool)
                test, split_row = all_of([is_first, has_row]), self.split_row(self.row(row))
                statements += self.split_writer.put_row(split_row, self.largest[row], total, test)
                for column in range(self.columns):
                    statements += self.write_split_run(row, column, has_row)
                continue
            inverse = self.inverse(total, self.largest[row], self.row(row), statements)
            for column in range(self.columns):
                statements += self.write_run(row, column, inverse, has_row)
        return statements

    def write_run(self, row: int, column: int, inverse: Code, has_row: Code | None) -> list[Statement]:
        run = self.wide + column * self.shape.wide
        sums = self.sums[row][column * RUN : (column + 1) * RUN]
        if self.attention.width % RUN == 0:
            is_inside = (column + 1) * self.shape.wide <= self.width
            mask = all_of([has_row, None if is_inside else is_below(run, self.width)])
            return self.write(sums, inverse, self.row(row), run * RUN, mask)
        statements: list[Statement] = []
        for number, total in enumerate(sums):
            mask = all_of([has_row, is_below(run * RUN + number, self.attention.width)])
            statements += self.write([total], inverse, self.row(row), run * RUN + number, mask)
        return statements

    def write_split_run(self, row: int, column: int, has_row: Code | None) -> list[Statement]:
        run = self.wide + column * self.shape.wide
        is_inside = (column + 1) * self.shape.wide <= self.width
        tests = [has_row, None if is_inside else is_below(run, self.width)]
        sums = self.sums[row][column * RUN : (column + 1) * RUN]
        return self.split_writer.put_sums(self.split_row(self.row(row)), run * RUN, sums, tests)
