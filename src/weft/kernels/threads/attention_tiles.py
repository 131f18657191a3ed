"""Attention on tiles of queries and keys in the shared memory of a block.

Lanes are `wide` times as many as there are groups of rows: a lane has some rows, of these the scores of four keys of a
piece, and some columns of the results. Queries stay in shared memory while there is room for them; a piece's keys and
then its values take the same memory, in buffers that every lane writes once. Weights go through shared memory too, for
all lanes of a row to read, and so does the largest score of each lane; totals only at the end. Barriers stand before
the loops that would have them in every turn otherwise; there are more where memory is used anew.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf

from weft.cost.sizes import estimate
from weft.ir import dims
from weft.ir.attention import Attention
from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.ir.kernel import (
    Assign,
    Barrier,
    Buffer,
    Call,
    Code,
    Define,
    FetchRun,
    Integer,
    PutRun,
    Register,
    Repeat,
    Statement,
    lane,
    variable,
)
from weft.ir.scalar import Scalar
from weft.ir.target import ThreadTarget
from weft.kernels.build.multiply_add import multiply_add
from weft.kernels.lower.memoize import memoized
from weft.kernels.lower.tensors import Launch, Tensor
from weft.kernels.threads.attention import FLOAT, RUN, Body, Streaming, call, larger, number_of
from weft.kernels.threads.points import all_of

MOST_WIDE = 8
MOST_ROWS = 4  # of a lane
FEW_BLOCKS = 256  # fewer do not keep a GPU busy
WORD = 4  # bytes of an element
ELSEWHERE = 2048  # bytes of shared memory that are left to others


@dataclass(frozen=True, slots=True)
class Shape:
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


def choose_shape(attention: Attention, target: ThreadTarget) -> Shape:
    """As many rows a lane as there are blocks enough for, and as shared memory has room for."""
    depth, width = -(-attention.depth // RUN), -(-attention.width // RUN)
    count = estimate(dims.product(attention.shape[axis] for axis in attention.rows))
    heads = estimate(dims.product(attention.shape[:-1])) // max(count, 1)
    lanes = min(target.most_block_threads, 128 if RUN * width <= 128 else 256)
    room = target.shared_bytes - ELSEWHERE
    wide = MOST_WIDE
    while wide > 1 and (wide * RUN > lanes or Shape(lanes, wide, 1, False).bytes(depth, width) > room):
        wide //= 2
    chosen = Shape(lanes, wide, 1, Shape(lanes, wide, 1, True).bytes(depth, width) <= room)
    rows = 2
    while rows <= MOST_ROWS:
        for keeps in (True, False):
            taller = Shape(lanes, wide, rows, keeps)
            blocks = heads * -(-count // taller.height)
            fits = taller.bytes(depth, width) <= room and (keeps or not chosen.keeps_queries)
            if fits and blocks >= FEW_BLOCKS and chosen.height < count:
                chosen = taller
                break
        rows *= 2
    return chosen


@memoized
def attention_on_tiles(
    attention: Attention, operands: tuple[Tensor, ...], result: Tensor, target: ThreadTarget
) -> Launch:
    """Buffers as those of `Streaming`."""
    return Tiles(attention, operands, result, target, choose_shape(attention, target)).build()


class Tiles(Streaming):
    def __init__(
        self, attention: Attention, operands: Sequence[Tensor], result: Tensor, target: ThreadTarget, shape: Shape
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

    def build(self) -> Launch:
        largest = [Register(f"largest{row}", FLOAT, True) for row in self.own]
        statements: list[Statement] = self.decode()
        statements += self.keep_queries() if self.shape.keeps_queries else []
        for row in self.own:
            statements += [Define(f"largest{row}", number_of(-inf), True), Define(f"total{row}", number_of(0.0), True)]
            statements += [Define(f"sum{row}_{n}", number_of(0.0), True) for n in range(self.columns * RUN)]
        statements += self.each_piece(self.shape.keys, self.pieces, largest)
        statements += self.finish()
        return self.launch(self.shape.lanes, statements, self.local_buffers())

    def local_buffers(self) -> list[Buffer]:
        shape = self.shape
        pieces = max(shape.key_buffers(self.depth), shape.value_buffers(self.width))
        sizes = {f"piece{number}": shape.lanes * RUN for number in range(pieces)}
        sizes |= {f"weights{row}": shape.high * (shape.wide + 1) * RUN for row in self.own}
        sizes["meeting"] = shape.high * (shape.wide + 1) * shape.rows
        if shape.keeps_queries:
            sizes |= {f"queries{row}": shape.high * odd(self.depth) * RUN for row in self.own}
        return [Buffer(name, FLOAT, True, size) for name, size in sizes.items()]

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
                places, prefix = self.at_row(self.row(row)), f"query{row}_{number}_"
                values = self.take(self.query, places, run, self.attention.depth, inside, statements, prefix)
                place = (self.high * odd(self.depth) + run) * RUN
                statements.append(PutRun(f"queries{row}", place, tuple(values), inside))
        return statements

    def query_run(self, row: int, run: Dim, statements: list[Statement], prefix: str) -> list[Code]:
        """A run of a row's query."""
        if not self.shape.keeps_queries:
            places = self.at_row(self.row(row))
            return self.take(self.query, places, run, self.attention.depth, None, statements, prefix)
        place = (self.high * odd(self.depth) + run) * RUN
        return fetched(prefix, f"queries{row}", place, statements)

    def fetch_keys(self, statements: list[Statement]) -> list[list[Code]]:
        """What a lane brings of a piece's keys: for each buffer a run of one key.

        Key 4 * w + n of a piece lies at w + n * wide, so that lanes beside each other read neighbours. A key beyond
        the end is the last one.
        """
        here, shape = lane(self.shape.lanes), self.shape
        slot = dims.mod(here, shape.keys)
        key = self.inside(dims.mod(slot, shape.wide) * RUN + dims.floordiv(slot, shape.wide))
        found = []
        for number in range(shape.key_buffers(self.depth)):
            run = dims.floordiv(here, shape.keys) + number * self.deep
            mask = None if (number + 1) * self.deep <= self.depth else below(run, self.depth)
            places = {**self.places, self.last: key}
            prefix = f"key{number}_"
            found.append(self.take(self.key, places, run, self.attention.depth, mask, statements, prefix))
        return found

    def fetch_values(self, statements: list[Statement]) -> list[list[Code]]:
        """What a lane brings of a piece's values; those beyond the end are 0."""
        here = lane(self.shape.lanes)
        found = []
        for number in range(self.shape.value_buffers(self.width)):
            key = variable("start") + dims.floordiv(here, self.width) + number * self.each
            idle = self.each * self.width < self.shape.lanes
            mask = below(key, self.keys) if idle or not self.is_exact else None
            places, run = {**self.places, self.last: key}, dims.mod(here, self.width)
            prefix = f"value{number}_"
            found.append(self.take(self.value, places, run, self.attention.width, mask, statements, prefix))
        return found

    def take(
        self,
        element: Scalar,
        places: Mapping[int, Dim],
        run: Dim,
        extent: int,
        mask: Code | None,
        statements: list[Statement],
        prefix: str,
    ) -> list[Code]:
        """A run of a query, key or value with `extent` numbers; 0 beyond these, and where a mask says so."""
        if extent % RUN == 0:
            return self.take_run(element, {**places, self.last + 1: run * RUN}, statements, prefix, mask)
        values: list[Code] = []
        for part in range(RUN):
            test = below(run * RUN + part, extent)
            test = test if mask is None else Call("logical_and", (mask, test), DType.bool)
            at = {**places, self.last + 1: run * RUN + part}
            values += self.take_run(element, at, statements, f"{prefix}{part}_", test, 1)
        return values

    def inside(self, key: Dim) -> Dim:
        """The place of a key of the piece among all, of the last one for those that are not there."""
        position = variable("start") + key
        if self.is_exact:
            return position
        return dims.minimum(position, self.parameters.named("last_key", dims.maximum(self.attention.shape[-1] - 1, 0)))

    # -- a piece of the keys -----------------------------------------------------------------------------------------

    def pieces(self, begin: Dim, end: Dim) -> Body:
        return (Repeat("start", begin, end, self.shape.keys, self.piece()),)

    def piece(self) -> Body:
        statements: list[Statement] = []
        keys = self.fetch_keys(statements)
        values = self.fetch_values(statements)
        place = lane(self.shape.lanes) * RUN
        statements += [PutRun(f"piece{number}", place, tuple(run)) for number, run in enumerate(keys)]
        statements += [Barrier(), *self.products(), *self.scores()]
        idle = self.each * self.width < self.shape.lanes
        mask = below(lane(self.shape.lanes), self.each * self.width) if idle else None
        statements += [PutRun(f"piece{number}", place, tuple(run), mask) for number, run in enumerate(values)]
        return *statements, *self.weigh(), Barrier(), *self.sum_up()

    def products(self) -> list[Statement]:
        """Products of a lane's rows with its four keys."""
        statements: list[Statement] = [
            Define(f"s{row}_{key}", number_of(0.0), True) for row in self.own for key in range(RUN)
        ]
        for number in range(self.shape.key_buffers(self.depth)):
            count = min(self.deep, self.depth - number * self.deep)
            step = variable("d") if count > 1 else 0
            body: list[Statement] = []
            queries = [self.query_run(row, number * self.deep + step, body, f"q{number}_{row}_") for row in self.own]
            for key in range(RUN):
                at = (step * self.shape.keys + key * self.shape.wide + self.wide) * RUN
                found = fetched(f"k{number}_{key}_", f"piece{number}", at, body)
                for part, right in enumerate(found):
                    for row in self.own:
                        total = Register(f"s{row}_{key}", FLOAT, True)
                        body.append(Assign(total.name, multiply_add(self.target, queries[row][part], right, total)))
            statements += [Repeat("d", 0, count, 1, tuple(body))] if count > 1 else body
        return statements

    def scores(self) -> list[Statement]:
        """Scores of the products, and the largest of each row, for its other lanes to see."""
        statements: list[Statement] = []
        most: list[Code] = []
        for row in self.own:
            places = self.at_row(self.row(row))
            largest = Register(f"m{row}", FLOAT, True)
            statements.append(Define(largest.name, number_of(-inf), True))
            for number in range(RUN):
                key = self.wide * RUN + number
                own = Register(f"s{row}_{number}", FLOAT, True)
                score = self.score_at(own, places, self.inside(key), statements, f"score{row}_{number}_")
                if not self.is_exact:
                    score = call("select", below(variable("start") + key, self.keys), score, number_of(-inf))
                if score is not own:
                    statements.append(Assign(own.name, score))
                statements.append(Assign(largest.name, larger(largest, own)))
            most.append(largest)
        return [*statements, PutRun("meeting", self.meeting(self.wide), tuple(most))]

    def meeting(self, number: Dim) -> Dim:
        """Where lane number `number` of the lane's group leaves what it has for each row."""
        return (self.high * (self.shape.wide + 1) + number) * self.shape.rows

    def met(self, name: str, statements: list[Statement]) -> list[list[Code]]:
        """What all lanes of the group left, for each row."""
        found = []
        for number in range(self.shape.wide):
            names = tuple(f"{name}{number}_{row}" for row in self.own)
            statements.append(FetchRun(names, "meeting", self.meeting(number), FLOAT))
            found.append([Register(each, FLOAT, True) for each in names])
        return [list(row) for row in zip(*found)]

    def weigh(self) -> list[Statement]:
        """Scores as weights, for the lanes of a row to read; what was summed up so far scaled."""
        statements: list[Statement] = []
        for row, others in zip(self.own, self.met("most", statements)):
            before, now, by = (Register(f"{name}{row}", FLOAT, True) for name in ("largest", "now", "by"))
            statements.append(Define(now.name, before, True))
            statements += [Assign(now.name, larger(now, other)) for other in others]
            statements.append(Define(by.name, self.shift(now), True))
            factor = Register(f"factor{row}", FLOAT, True)
            statements.append(Define(factor.name, call("exp", call("subtract", before, by)), True))
            statements.append(Assign(before.name, now))
            total: Code = call("multiply", Register(f"total{row}", FLOAT, True), factor)
            for key in range(RUN):
                own = Register(f"s{row}_{key}", FLOAT, True)
                statements.append(Assign(own.name, call("exp", call("subtract", own, by))))
                total = call("add", total, own)
            statements.append(Assign(f"total{row}", total))
            for number in range(self.columns * RUN):
                own = Register(f"sum{row}_{number}", FLOAT, True)
                statements.append(Assign(own.name, call("multiply", own, factor)))
        for row in self.own:
            weights = tuple(Register(f"s{row}_{key}", FLOAT, True) for key in range(RUN))
            place = (self.high * (self.shape.wide + 1) + self.wide) * RUN
            statements.append(PutRun(f"weights{row}", place, weights))
        return statements

    def sum_up(self) -> list[Statement]:
        """The piece's values by their weights."""
        statements: list[Statement] = []
        count = self.each // RUN
        for number in range(self.shape.value_buffers(self.width)):
            step = variable("k") if count > 1 else 0
            body: list[Statement] = []
            at = (self.high * (self.shape.wide + 1) + number * count + step) * RUN
            weights = [fetched(f"p{number}_{row}_", f"weights{row}", at, body) for row in self.own]
            for key in range(RUN):
                for column in range(self.columns):
                    place = ((step * RUN + key) * self.width + self.column(column)) * RUN
                    found = fetched(f"v{number}_{key}_{column}_", f"piece{number}", place, body)
                    for row in self.own:
                        for part, value in enumerate(found):
                            total = Register(f"sum{row}_{column * RUN + part}", FLOAT, True)
                            body.append(Assign(total.name, multiply_add(self.target, weights[row][key], value, total)))
            statements += [Repeat("k", 0, count, 1, tuple(body))] if count > 1 else body
        return statements

    def column(self, number: int) -> Dim:
        """A run of columns of a lane, the last one of all for one that is not there."""
        run = self.wide + number * self.shape.wide
        return run if (number + 1) * self.shape.wide <= self.width else dims.minimum(run, self.width - 1)

    # -- the end -----------------------------------------------------------------------------------------------------

    def finish(self) -> list[Statement]:
        """Results divided by their totals, ended and written."""
        totals = tuple(Register(f"total{row}", FLOAT, True) for row in self.own)
        statements: list[Statement] = [PutRun("meeting", self.meeting(self.wide), totals)]
        for row, parts in zip(self.own, self.met("part", statements)):
            total = parts[0]
            for part in parts[1:]:
                total = call("add", total, part)
            inverse = self.inverse(total, Register(f"largest{row}", FLOAT, True), statements, f"end{row}_")
            there = self.has_row(self.row(row))
            for column in range(self.columns):
                statements += self.write_run(row, column, inverse, there)
        return statements

    def write_run(self, row: int, column: int, inverse: Code, there: Code | None) -> list[Statement]:
        run = self.wide + column * self.shape.wide
        sums = [Register(f"sum{row}_{column * RUN + part}", FLOAT, True) for part in range(RUN)]
        prefix = f"w{row}_{column}_"
        if self.attention.width % RUN == 0:
            whole = (column + 1) * self.shape.wide <= self.width
            mask = all_of([test for test in (there, None if whole else below(run, self.width)) if test is not None])
            return self.write(sums, inverse, self.row(row), run * RUN, mask, prefix)
        statements: list[Statement] = []
        for part, own in enumerate(sums):
            inside = below(run * RUN + part, self.attention.width)
            mask = all_of([test for test in (there, inside) if test is not None])
            statements += self.write([own], inverse, self.row(row), run * RUN + part, mask, f"{prefix}{part}_")
        return statements


def below(value: Dim, limit: Dim) -> Code:
    return Call("less", (Integer(value), Integer(limit)), DType.bool)


def fetched(name: str, buffer: str, place: Dim, statements: list[Statement]) -> list[Code]:
    """A run from shared memory."""
    names = tuple(f"{name}{part}" for part in range(RUN))
    statements.append(FetchRun(names, buffer, place, FLOAT))
    return [Register(each, FLOAT, True) for each in names]
