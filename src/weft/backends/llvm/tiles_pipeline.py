"""Pipelines where lanes are threads: copies of tiles that are brought while others are multiplied.

Where turns do nothing but multiply, a turn's products go on while the next one's are started. Others wait for theirs in
the same turn: the assembler lets nobody read sums while products of another turn go on, and has these wait instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from weft.backends.llvm import assembly as ir
from weft.backends.llvm import tiles
from weft.backends.llvm.instructions import Value
from weft.backends.llvm.tile_instructions import await_copies, await_products, commit_copies
from weft.backends.llvm.tile_layout import layout_of
from weft.backends.llvm.types import element_bytes
from weft.ir import dims
from weft.ir.kernel import (
    Barrier,
    Call,
    Code,
    FetchRun,
    Integer,
    Let,
    MoveRun,
    MultiplyTiles,
    PutTile,
    Repeat,
    Statement,
    Sums,
    TilePipeline,
    View,
    dims_vary,
    inner_bodies,
)

if TYPE_CHECKING:
    from weft.backends.llvm.emit import Emitter

_BYTE = ir.IntType(8)
MEETS_AGAIN = 3  # stages, so few that each counts


class Turns:
    """The code of a pipeline. Turn number n has the copies n % stages of the tiles."""

    def __init__(self, emitter: Emitter, pipeline: TilePipeline) -> None:
        self.emitter, self.pipeline = emitter, pipeline
        self.tiles = sorted(_brought((*pipeline.moves, *pipeline.puts)))
        forms = [form for name in self.tiles if (form := tiles.buffer_of(emitter, name).tile) is not None]
        self.stages = min((form.stages for form in forms), default=1)
        products = [statement for statement in pipeline.body if isinstance(statement, MultiplyTiles)]
        plain = all(isinstance(statement, (MultiplyTiles, Let, View)) for statement in pipeline.body)
        self.overlaps = (
            plain and self.stages > 1 and bool(products) and all(tiles.goes_on(emitter, p) for p in products)
        )
        self.products = len(products)
        # products that go on still read the copies of the turn before: those are left alone for another turn, or all
        # lanes meet again once they are done
        self.meets_again = self.overlaps and self.stages <= MEETS_AGAIN
        self.ahead = self.stages - (2 if self.overlaps and not self.meets_again else 1)  # turns that copies are ahead
        self.start, self.stop = emitter.integer(pipeline.start), emitter.integer(pipeline.stop)
        self.places = {name: emitter.buffers[name] for name in self.tiles}  # of their first copies

    def write(self) -> None:
        emitter, pipeline = self.emitter, self.pipeline
        tiles.settle(emitter)
        emitter.lanes.barrier(emitter)
        hoisted = dict(emitter.hoisted)
        brought = (*pipeline.moves, *pipeline.fetches, *pipeline.puts)
        changing = {pipeline.variable, *_introduced(brought)}
        tiles.hoist(emitter, brought, changing)
        pipeline = self.pipeline = replace(
            pipeline,
            moves=self.with_still_masks(pipeline.moves, changing),
            fetches=self.with_still_masks(pipeline.fetches, changing),
        )
        for number in range(self.ahead):
            self.move(self.further(self.start, number), emitter.index(number))
        if self.ahead and pipeline.puts:
            self.bring(self.start, emitter.index(0), lambda: None)
        emitter.count(pipeline.variable, self.start, self.stop, 1, self.turn, pipeline.body)
        if self.overlaps:
            emitter.unsettled |= {s.sums for s in pipeline.body if isinstance(s, MultiplyTiles)}
        emitter.hoisted = hoisted
        tiles.settle(emitter)
        if self.ahead:
            emitter.lanes.barrier(emitter)

    def with_still_masks(self, statements: tuple[Statement, ...], changing: set[str]) -> tuple[Statement, ...]:
        """Statements in whose masks a variable stands for what of indices no turn changes, computed now."""
        emitter = self.emitter

        def still_code(code: Code) -> Code:
            match code:
                case Call(function, arguments, dtype):
                    return Call(function, tuple(map(still_code, arguments)), dtype)
                case Integer(value):
                    still, moving = emitter.split_moving(value, changing)
                    if not dims_vary(still):
                        return code
                    name = f".still {still}"
                    emitter.variables.setdefault(name, emitter.integer(still))
                    return Integer(moving + dims.symbol(name, None, None))
            return code

        return tuple(
            replace(statement, mask=still_code(statement.mask))
            if isinstance(statement, (MoveRun, FetchRun)) and statement.mask is not None
            else statement
            for statement in statements
        )

    def turn(self) -> None:
        emitter, builder = self.emitter, self.emitter.builder
        now = emitter.variables[self.pipeline.variable]
        number = builder.sub(now, self.start)
        if not self.ahead:
            self.move(now, emitter.index(0))
            if self.pipeline.puts:
                self.bring(now, emitter.index(0), lambda: None)
            self.await_moves(0)
            emitter.lanes.barrier(emitter)
            self.work(emitter.index(0), lambda: None)
            emitter.lanes.barrier(emitter)
            return
        self.await_moves(self.ahead - 1)
        emitter.lanes.barrier(emitter)

        further, stage = self.further(now, self.ahead), self.stage(number, self.ahead)

        def move() -> None:
            if self.meets_again:
                await_products(builder, self.products)
                emitter.lanes.barrier(emitter)
            self.move(further, stage)

        def work() -> None:
            self.work(self.stage(number, 0), move)

        if self.pipeline.puts:
            self.bring(self.further(now, 1), self.stage(number, 1), work)
        else:
            work()
        if self.overlaps and not self.meets_again:
            await_products(builder, self.products)

    def further(self, turn: Value, by: int) -> Value:
        return self.emitter.builder.add(turn, self.emitter.index(by)) if by else turn

    def stage(self, number: Value, by: int) -> Value:
        return self.emitter.builder.urem(self.further(number, by), self.emitter.index(self.stages))

    def at(self, turn: Value, stage: Value, write: Callable[[], None], carried: tuple[Statement, ...] = ()) -> None:
        """Write something for a turn, on its copies of the tiles."""
        emitter = self.emitter
        buffers, known = dict(emitter.buffers), emitter.known
        emitter.known = {}  # what was computed with the variable of another turn is another value
        for name in self.tiles:
            buffer = tiles.buffer_of(emitter, name)
            assert buffer.tile is not None
            size = layout_of(buffer.tile, element_bytes(buffer.dtype)).stage_bytes
            offset = emitter.builder.mul(stage, emitter.index(size))
            emitter.buffers[name] = emitter.builder.gep(self.places[name], [offset], source_etype=_BYTE)
        with emitter.scope(emitter.carried(carried)):
            emitter.variables[self.pipeline.variable] = turn
            write()
        emitter.buffers, emitter.known = buffers, known

    def move(self, turn: Value, stage: Value) -> None:
        """Start the moves of a turn, if there is such a turn."""
        if not self.pipeline.moves:
            return
        emitter = self.emitter
        with emitter.builder.if_then(emitter.builder.icmp_signed("<", turn, self.stop)):
            self.at(turn, stage, lambda: emitter.body(self.pipeline.moves))
        commit_copies(emitter.builder)

    def await_moves(self, left: int) -> None:
        if self.pipeline.moves:
            await_copies(self.emitter.builder, left)

    def bring(self, turn: Value, stage: Value, between: Callable[[], None]) -> None:
        """Fetch what a turn needs and put it into its tiles, if there is such a turn, with something in between."""
        emitter, pipeline = self.emitter, self.pipeline
        within = emitter.builder.icmp_signed("<", turn, self.stop)
        names: list[str] = []

        def fetched() -> list[Value]:
            values: list[Value] = []

            def write() -> None:
                before = dict(emitter.registers)
                emitter.body(pipeline.fetches)
                names.extend(name for name, value in emitter.registers.items() if before.get(name) is not value)
                values.extend(emitter.registers[name] for name in names)

            self.at(turn, stage, write)
            return values

        found = emitter.guarded(within, fetched)
        between()
        named = tuple(statement for statement in pipeline.fetches if isinstance(statement, (Let, View)))

        def put() -> None:
            emitter.registers.update(zip(names, found, strict=True))
            emitter.body((*named, *pipeline.puts))

        with emitter.builder.if_then(within):
            self.at(turn, stage, put)

    def work(self, stage: Value, move: Callable[[], None]) -> None:
        """The body of a turn. Moves of a later one are started once products go on, or before all else."""
        emitter, body = self.emitter, self.pipeline.body
        now = emitter.variables[self.pipeline.variable]

        def write() -> None:
            moved = False
            for statement in body:
                first = isinstance(statement, (Sums, Let, View))
                first |= isinstance(statement, MultiplyTiles) and tiles.goes_on(emitter, statement)
                if not first and not moved:
                    move()
                    moved = True
                if isinstance(statement, MultiplyTiles):
                    tiles.multiply(emitter, statement)
                    continue
                if inner_bodies(statement) or isinstance(statement, Barrier):
                    tiles.settle(emitter)
                emitter.body((statement,))
            if not moved:
                move()
            if self.overlaps:
                emitter.unsettled.clear()
            else:
                tiles.settle(emitter)

        self.at(now, stage, write, body)


def _introduced(statements: Iterable[Statement]) -> set[str]:
    """The variables of statements and of those inside of them."""
    found: set[str] = set()
    for statement in statements:
        match statement:
            case Let(name) | Repeat(name) | TilePipeline(name):
                found.add(name)
            case _:
                pass
        for inner in inner_bodies(statement):
            found |= _introduced(inner)
    return found


def _brought(statements: Iterable[Statement]) -> set[str]:
    found: set[str] = set()
    for statement in statements:
        if isinstance(statement, (MoveRun, PutTile)):
            found.add(statement.tile)
        for inner in inner_bodies(statement):
            found |= _brought(inner)
    return found
