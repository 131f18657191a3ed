"""Attention on tiles of queries and keys in the shared memory of a block.

Lanes are `wide` times as many as there are groups of rows: a lane has some rows, of these the scores of four keys of a
piece, and some columns of the results. Queries stay in shared memory while there is room for them; a piece's keys and
then its values take the same memory, in buffers that every lane writes once. Weights go through shared memory too, for
all lanes of a row to read, and so does the largest score of each lane; totals only at the end. Barriers stand before
the loops that would have them in every turn otherwise; there are more where memory is used anew.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf

from weft.cost.sizes import estimate
from weft.ir import dims
from weft.ir.attention import Attention
from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.ir.kernel import Barrier, Buffer, Call, Code, Register, Statement, lane
from weft.ir.scalar import Scalar
from weft.ir.target import ThreadTarget
from weft.kernels.build.multiply_add import multiply_add, widened
from weft.kernels.lower.kernel_builder import assign, define, fetch_run, put_run, repeat
from weft.kernels.lower.memoize import memoized
from weft.kernels.lower.tensors import Launch, StoredTensor
from weft.kernels.threads.attention import FLOAT, RUN, Body, Streaming, below, call, larger, number_of
from weft.kernels.threads.points import all_of
from weft.records import dataclass

MOST_WIDE = 8
MOST_ROWS = 4  # of a lane
FEW_BLOCKS = 256  # fewer do not keep a GPU busy
WORD = 4  # bytes of an element
ELSEWHERE = 2048  # bytes of shared memory that are left to others


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
        """Of a piece."""
        return self.wide * RUN

    def bytes(self, depth: int, width: int) -> int:
        """Shared memory, for queries of so many runs and values of so many."""
        queries = self.rows * self.high * odd(depth) if self.keeps_queries else 0
        pieces = self.lanes * max(self.key_buffers(depth), self.value_buffers(width))
        weights = self.rows * self.high * (self.wide + 1)
        return RUN * WORD * (queries + pieces + weights) + WORD * weights

    def key_buffers(self, depth: int) -> int:
        return -(-self.keys * depth // self.lanes)

    def values_each(self, width: int) -> int:
        """Values in a buffer: a power of two, and a multiple of four."""
        each = RUN
        while 2 * each * width <= self.lanes and 2 * each <= self.keys:
            each *= 2
        return each

    def value_buffers(self, width: int) -> int:
        return self.keys // self.values_each(width)


def odd(number: int) -> int:
    """A pitch that keeps lanes of different rows apart in the banks of shared memory."""
    return number | 1


def choose_shape(attention: Attention, target: ThreadTarget) -> AttentionTile:
    """As many rows a lane as there are blocks enough for, and as shared memory has room for."""
    depth, width = -(-attention.depth // RUN), -(-attention.width // RUN)
    count = estimate(dims.product(attention.shape[axis] for axis in attention.rows))
    heads = estimate(dims.product(attention.shape[:-1])) // max(count, 1)
    lanes = min(target.most_block_threads, 128 if RUN * width <= 128 else 256)
    room = target.shared_bytes - ELSEWHERE
    wide = MOST_WIDE
    while wide > 1 and (wide * RUN > lanes or AttentionTile(lanes, wide, 1, False).bytes(depth, width) > room):
        wide //= 2
    chosen = AttentionTile(lanes, wide, 1, AttentionTile(lanes, wide, 1, True).bytes(depth, width) <= room)
    rows = 2
    while rows <= MOST_ROWS:
        for keeps in (True, False):
            taller = AttentionTile(lanes, wide, rows, keeps)
            blocks = heads * -(-count // taller.height)
            fits = taller.bytes(depth, width) <= room and (keeps or not chosen.keeps_queries)
            if fits and blocks >= FEW_BLOCKS and chosen.height < count:
                chosen = taller
                break
        rows *= 2
    return chosen


@memoized
def attention_on_tiles(
    attention: Attention, operands: tuple[StoredTensor, ...], result: StoredTensor, target: ThreadTarget
) -> Launch:
    """Operands as those of `Streaming`."""
    return AttentionTiles(attention, operands, result, target, choose_shape(attention, target)).build()


class AttentionTiles(Streaming):
    def __init__(
        self,
        attention: Attention,
        operands: Sequence[StoredTensor],
        result: StoredTensor,
        target: ThreadTarget,
        shape: AttentionTile,
    ) -> None:
        super().__init__(attention, operands, result, target, shape.height)
        self.shape = shape
        self.depth, self.width = -(-attention.depth // RUN), -(-attention.width // RUN)  # in runs
        here = lane(shape.lanes)
        self.high, self.wide = dims.floordiv(here, shape.wide), dims.mod(here, shape.wide)
        self.each = shape.values_each(self.width)
        self.columns = -(-self.width // shape.wide)  # runs of a lane
        self.own = range(shape.rows)
        self.deep = shape.lanes // shape.keys  # runs of every key in a buffer
        self.is_exact = dims.mod(attention.shape[-1], shape.keys) == 0
        self.add_local_memory()
        self.largest = self.builder.registers("largest", shape.rows, FLOAT)
        self.totals = self.builder.registers("total", shape.rows, FLOAT)
        self.sums = [self.builder.registers(f"sum{row}_", self.columns * RUN, FLOAT) for row in self.own]

    def build(self) -> Launch:
        statements: list[Statement] = self.decode()
        statements += self.keep_queries() if self.shape.keeps_queries else []
        for row in self.own:
            statements += [define(self.largest[row], number_of(-inf)), define(self.totals[row], number_of(0.0))]
            statements += [define(total, number_of(0.0)) for total in self.sums[row]]
        statements += self.each_piece(self.shape.keys, self.pieces, self.largest)
        statements += self.finish()
        return self.launch(self.shape.lanes, statements)

    def add_local_memory(self) -> None:
        """Of keys and then values, of weights and what lanes of a row tell each other, and of queries."""
        shape = self.shape

        def several(hint: str, count: int, size: int) -> list[Buffer]:
            return [self.builder.local(f"{hint}{number}", FLOAT, size) for number in range(count)]

        pieces = max(shape.key_buffers(self.depth), shape.value_buffers(self.width))
        self.piece_buffers = several("piece", pieces, shape.lanes * RUN)
        self.weights = several("weights", shape.rows, shape.high * (shape.wide + 1) * RUN)
        self.meetings = self.builder.local("meeting", FLOAT, shape.high * (shape.wide + 1) * shape.rows)
        if shape.keeps_queries:
            self.queries = several("queries", shape.rows, shape.high * odd(self.depth) * RUN)

    def row(self, number: int) -> Dim:
        return self.high * self.shape.rows + number

    # -- queries, keys and values ------------------------------------------------------------------------------------

    def keep_queries(self) -> list[Statement]:
        """The queries of a group of rows, brought by its own lanes."""
        statements: list[Statement] = []
        for number in range(-(-self.depth // self.shape.wide)):
            run = self.wide + number * self.shape.wide
            inside = None if (number + 1) * self.shape.wide <= self.depth else below(run, self.depth)
            for row in self.own:
                places = self.at_row(self.row(row))
                values = self.take(self.query, places, run, self.attention.depth, inside, statements)
                place = (self.high * odd(self.depth) + run) * RUN
                statements.append(put_run(self.queries[row], place, values, inside))
        return statements

    def query_run(self, row: int, run: Dim, statements: list[Statement]) -> Sequence[Code]:
        """A run of a row's query."""
        if not self.shape.keeps_queries:
            places = self.at_row(self.row(row))
            return self.take(self.query, places, run, self.attention.depth, None, statements)
        place = (self.high * odd(self.depth) + run) * RUN
        return self.fetched(self.queries[row], place, statements)

    def fetched(self, buffer: Buffer, place: Dim, statements: list[Statement]) -> list[Register]:
        """A run from shared memory."""
        registers = self.builder.registers("four", RUN, FLOAT)
        statements.append(fetch_run(registers, buffer, place))
        return registers

    def fetch_keys(self, start: Dim, statements: list[Statement]) -> list[list[Code]]:
        """What a lane brings of a piece's keys: for each buffer a run of one key.

        Key 4 * w + n of a piece lies at w + n * wide, so that lanes beside each other read neighbours. A key beyond
        the end is the last one.
        """
        here, shape = lane(self.shape.lanes), self.shape
        slot = dims.mod(here, shape.keys)
        key = self.inside(start, dims.mod(slot, shape.wide) * RUN + dims.floordiv(slot, shape.wide))
        found = []
        for number in range(shape.key_buffers(self.depth)):
            run = dims.floordiv(here, shape.keys) + number * self.deep
            mask = None if (number + 1) * self.deep <= self.depth else below(run, self.depth)
            places = {**self.places, self.last: key}
            found.append(self.take(self.key, places, run, self.attention.depth, mask, statements))
        return found

    def fetch_values(self, start: Dim, statements: list[Statement]) -> list[list[Code]]:
        """What a lane brings of a piece's values; those beyond the end are 0."""
        here = lane(self.shape.lanes)
        found = []
        for number in range(self.shape.value_buffers(self.width)):
            key = start + dims.floordiv(here, self.width) + number * self.each
            idle = self.each * self.width < self.shape.lanes
            mask = below(key, self.keys) if idle or not self.is_exact else None
            places, run = {**self.places, self.last: key}, dims.mod(here, self.width)
            found.append(self.take(self.value, places, run, self.attention.width, mask, statements))
        return found

    def take(
        self,
        element: Scalar,
        places: Mapping[int, Dim],
        run: Dim,
        extent: int,
        mask: Code | None,
        statements: list[Statement],
    ) -> list[Code]:
        """A run of a query, key or value with `extent` numbers; 0 beyond these, and where a mask says so."""
        if extent % RUN == 0:
            found = self.take_run(element, {**places, self.last + 1: run * RUN}, statements, mask)
            return [widened(value, FLOAT) for value in found]
        values: list[Code] = []
        for part in range(RUN):
            test = below(run * RUN + part, extent)
            test = test if mask is None else Call("logical_and", (mask, test), DType.bool)
            at = {**places, self.last + 1: run * RUN + part}
            values += self.take_run(element, at, statements, test, 1)
        return [widened(value, FLOAT) for value in values]

    def inside(self, start: Dim, key: Dim) -> Dim:
        """The place of a key of the piece among all, of the last one for those that are not there."""
        position = start + key
        if self.is_exact:
            return position
        return dims.minimum(position, self.builder.named("last_key", dims.maximum(self.attention.shape[-1] - 1, 0)))

    # -- a piece of the keys -----------------------------------------------------------------------------------------

    def pieces(self, begin: Dim, end: Dim) -> Body:
        start = self.builder.variable("start")
        return (repeat(start, begin, end, self.shape.keys, self.piece(start)),)

    def piece(self, start: Dim) -> Body:
        """The keys from `start` on."""
        statements: list[Statement] = []
        keys = self.fetch_keys(start, statements)
        values = self.fetch_values(start, statements)
        place = lane(self.shape.lanes) * RUN
        statements += [put_run(buffer, place, run) for buffer, run in zip(self.piece_buffers, keys)]
        scores = [self.builder.registers(f"s{row}_", RUN, FLOAT) for row in self.own]
        statements += [Barrier(), *self.products(scores), *self.find_scores(start, scores)]
        idle = self.each * self.width < self.shape.lanes
        mask = below(lane(self.shape.lanes), self.each * self.width) if idle else None
        statements += [put_run(buffer, place, run, mask) for buffer, run in zip(self.piece_buffers, values)]
        return *statements, *self.weigh(scores), Barrier(), *self.sum_up()

    def products(self, scores: Sequence[Sequence[Register]]) -> list[Statement]:
        """Products of a lane's rows with its four keys."""
        statements: list[Statement] = [define(score, number_of(0.0)) for row in scores for score in row]
        for number in range(self.shape.key_buffers(self.depth)):
            count = min(self.deep, self.depth - number * self.deep)
            step = self.builder.variable("d") if count > 1 else 0
            body: list[Statement] = []
            queries = [self.query_run(row, number * self.deep + step, body) for row in self.own]
            for key in range(RUN):
                at = (step * self.shape.keys + key * self.shape.wide + self.wide) * RUN
                found = self.fetched(self.piece_buffers[number], at, body)
                for part, right in enumerate(found):
                    for query, score in zip(queries, scores):
                        body.append(assign(score[key], multiply_add(self.target, query[part], right, score[key])))
            statements += [repeat(step, 0, count, 1, body)] if count > 1 else body
        return statements

    def find_scores(self, start: Dim, scores: Sequence[Sequence[Register]]) -> list[Statement]:
        """Scores of the products, and the largest of each row, for its other lanes to see."""
        statements: list[Statement] = []
        most: list[Code] = []
        for row in self.own:
            places = self.at_row(self.row(row))
            defined, largest = self.builder.keep("m", number_of(-inf), varying=True)
            statements.append(defined)
            for number, own in enumerate(scores[row]):
                key = self.wide * RUN + number
                score = self.score_at(own, places, self.inside(start, key), statements)
                if not self.is_exact:
                    score = call("select", below(start + key, self.keys), score, number_of(-inf))
                if score is not own:
                    statements.append(assign(own, score))
                statements.append(assign(largest, larger(largest, own)))
            most.append(largest)
        return [*statements, put_run(self.meetings, self.meeting(self.wide), most)]

    def meeting(self, number: Dim) -> Dim:
        """Where lane number `number` of the lane's group leaves what it has for each row."""
        return (self.high * (self.shape.wide + 1) + number) * self.shape.rows

    def met(self, hint: str, statements: list[Statement]) -> list[list[Code]]:
        """What all lanes of the group left, for each row."""
        found = []
        for number in range(self.shape.wide):
            registers = self.builder.registers(hint, self.shape.rows, FLOAT)
            statements.append(fetch_run(registers, self.meetings, self.meeting(number)))
            found.append(registers)
        return [list(row) for row in zip(*found)]

    def weigh(self, scores: Sequence[Sequence[Register]]) -> list[Statement]:
        """Scores as weights, for the lanes of a row to read; what was summed up so far scaled."""
        statements: list[Statement] = []
        for row, others in zip(self.own, self.met("most", statements)):
            before = self.largest[row]
            defined, now = self.builder.keep("now", before)
            statements.append(defined)
            statements += [assign(now, larger(now, other)) for other in others]
            first, by = self.builder.keep("by", self.shift(now), varying=True)
            second, factor = self.builder.keep("factor", call("exp", call("subtract", before, by)), varying=True)
            statements += [first, second, assign(before, now)]
            total: Code = call("multiply", self.totals[row], factor)
            for own in scores[row]:
                statements.append(assign(own, call("exp", call("subtract", own, by))))
                total = call("add", total, own)
            statements.append(assign(self.totals[row], total))
            statements += [assign(own, call("multiply", own, factor)) for own in self.sums[row]]
        place = (self.high * (self.shape.wide + 1) + self.wide) * RUN
        return [*statements, *(put_run(buffer, place, row) for buffer, row in zip(self.weights, scores))]

    def sum_up(self) -> list[Statement]:
        """The piece's values by their weights."""
        statements: list[Statement] = []
        count = self.each // RUN
        for number in range(self.shape.value_buffers(self.width)):
            step = self.builder.variable("k") if count > 1 else 0
            body: list[Statement] = []
            at = (self.high * (self.shape.wide + 1) + number * count + step) * RUN
            weights = [self.fetched(buffer, at, body) for buffer in self.weights]
            for key in range(RUN):
                for column in range(self.columns):
                    place = ((step * RUN + key) * self.width + self.column(column)) * RUN
                    found = self.fetched(self.piece_buffers[number], place, body)
                    for row, weight in zip(self.sums, weights):
                        for part, value in enumerate(found):
                            total = row[column * RUN + part]
                            body.append(assign(total, multiply_add(self.target, weight[key], value, total)))
            statements += [repeat(step, 0, count, 1, body)] if count > 1 else body
        return statements

    def column(self, number: int) -> Dim:
        """A run of columns of a lane, the last one of all for one that is not there."""
        run = self.wide + number * self.shape.wide
        return run if (number + 1) * self.shape.wide <= self.width else dims.minimum(run, self.width - 1)

    # -- the end -----------------------------------------------------------------------------------------------------

    def finish(self) -> list[Statement]:
        """Results divided by their totals, ended and written."""
        statements: list[Statement] = [put_run(self.meetings, self.meeting(self.wide), self.totals)]
        for row, parts in zip(self.own, self.met("part", statements)):
            total = parts[0]
            for part in parts[1:]:
                total = call("add", total, part)
            inverse = self.inverse(total, self.largest[row], statements)
            there = self.has_row(self.row(row))
            for column in range(self.columns):
                statements += self.write_run(row, column, inverse, there)
        return statements

    def write_run(self, row: int, column: int, inverse: Code, there: Code | None) -> list[Statement]:
        run = self.wide + column * self.shape.wide
        sums = self.sums[row][column * RUN : (column + 1) * RUN]
        if self.attention.width % RUN == 0:
            whole = (column + 1) * self.shape.wide <= self.width
            mask = all_of([test for test in (there, None if whole else below(run, self.width)) if test is not None])
            return self.write(sums, inverse, self.row(row), run * RUN, mask)
        statements: list[Statement] = []
        for part, own in enumerate(sums):
            inside = below(run * RUN + part, self.attention.width)
            mask = all_of([test for test in (there, inside) if test is not None])
            statements += self.write([own], inverse, self.row(row), run * RUN + part, mask)
        return statements
