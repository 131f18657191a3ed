"""Emit tile pipelines for threads: tiles of later turns are copied while those of the current turn are multiplied.

If turns consist of asynchronous products only, the products of one turn overlap those of the next. Other pipelines
wait for their products in the same turn: if sums were read while products of another turn are running, ptxas would
serialize the products.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from weft.backends.llvm import assembly as ir
from weft.backends.llvm import tiles
from weft.backends.llvm.instructions import Value
from weft.backends.llvm.tile_instructions import await_copies, await_products, commit_copies
from weft.backends.llvm.tile_layout import build_layout
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
SECOND_BARRIER_STAGES = 3  # pipelines with at most this many stages use all of them, at the cost of a second barrier


class PipelineEmitter:
    """Emits a pipeline. Turn n uses stage n % stages of the tiles."""

    def __init__(self, emitter: Emitter, pipeline: TilePipeline) -> None:
        self.emitter, self.pipeline = emitter, pipeline
        self.tiles = sorted(_find_written_tiles((*pipeline.moves, *pipeline.puts)))
        forms = [form for name in self.tiles if (form := tiles.find_buffer(emitter, name).tile) is not None]
        self.stages = min((form.stages for form in forms), default=1)
        products = [statement for statement in pipeline.body if isinstance(statement, MultiplyTiles)]
        plain = all(isinstance(statement, (MultiplyTiles, Let, View)) for statement in pipeline.body)
        self.overlaps_turns = (
            plain and self.stages > 1 and bool(products) and all(tiles.is_asynchronous(emitter, p) for p in products)
        )
        self.products = len(products)
        # Running products still read the tiles of the turn before: either one more stage is left untouched, or a second
        # barrier follows once they are done.
        self.has_second_barrier = self.overlaps_turns and self.stages <= SECOND_BARRIER_STAGES
        self.prefetch = self.stages - (2 if self.overlaps_turns and not self.has_second_barrier else 1)  # turns
        self.start, self.stop = emitter.emit_index(pipeline.start), emitter.emit_index(pipeline.stop)
        self.first_stages = {name: emitter.buffers[name] for name in self.tiles}

    def write(self) -> None:
        emitter, pipeline = self.emitter, self.pipeline
        tiles.wait_for_sums(emitter)
        emitter.lanes.barrier(emitter)
        hoisted = dict(emitter.hoisted_addresses)
        loads = (*pipeline.moves, *pipeline.fetches, *pipeline.puts)
        changing = {pipeline.variable, *_find_variables(loads)}
        tiles.hoist(emitter, loads, pipeline.body, changing)
        pipeline = self.pipeline = replace(
            pipeline,
            moves=self.hoist_masks(pipeline.moves, changing),
            fetches=self.hoist_masks(pipeline.fetches, changing),
        )
        for number in range(self.prefetch):
            self.start_copies(self.advance(self.start, number), emitter.index(number))
        if self.prefetch and pipeline.puts:
            self.load_and_store(self.start, emitter.index(0), lambda: None)
        emitter.emit_loop(pipeline.variable, self.start, self.stop, 1, self.emit_loop_body, pipeline.body)
        if self.overlaps_turns:
            emitter.pending_sums |= {s.sums for s in pipeline.body if isinstance(s, MultiplyTiles)}
        emitter.hoisted_addresses = hoisted
        tiles.wait_for_sums(emitter)
        if self.prefetch:
            emitter.lanes.barrier(emitter)

    def hoist_masks(self, statements: tuple[Statement, ...], changing: set[str]) -> tuple[Statement, ...]:
        """Compute parts of masks that are the same in all turns before the loop, and replace them by variables."""
        emitter = self.emitter

        def hoist_code(code: Code) -> Code:
            match code:
                case Call(function, arguments, dtype):
                    return Call(function, tuple(map(hoist_code, arguments)), dtype)
                case Integer(value):
                    invariant, variant = emitter.split_invariant(value, changing)
                    if not dims_vary(invariant):
                        return code
                    name = f".invariant {invariant}"
                    emitter.variables.setdefault(name, emitter.emit_index(invariant))
                    return Integer(variant + dims.symbol(name, None, None))
            return code

        return tuple(
            replace(statement, mask=hoist_code(statement.mask))
            if isinstance(statement, (MoveRun, FetchRun)) and statement.mask is not None
            else statement
            for statement in statements
        )

    def emit_loop_body(self) -> None:
        emitter, builder = self.emitter, self.emitter.builder
        now = emitter.variables[self.pipeline.variable]
        number = builder.sub(now, self.start)
        if not self.prefetch:
            self.start_copies(now, emitter.index(0))
            if self.pipeline.puts:
                self.load_and_store(now, emitter.index(0), lambda: None)
            self.await_copies_of_turn(0)
            emitter.lanes.barrier(emitter)
            self.emit_work(emitter.index(0), lambda: None)
            emitter.lanes.barrier(emitter)
            return
        self.await_copies_of_turn(self.prefetch - 1)
        emitter.lanes.barrier(emitter)

        further, stage = self.advance(now, self.prefetch), self.stage(number, self.prefetch)

        def move() -> None:
            if self.has_second_barrier:
                await_products(builder, self.products)
                emitter.lanes.barrier(emitter)
            self.start_copies(further, stage)

        def work() -> None:
            self.emit_work(self.stage(number, 0), move)

        if self.pipeline.puts:
            self.load_and_store(self.advance(now, 1), self.stage(number, 1), work)
        else:
            work()
        if self.overlaps_turns and not self.has_second_barrier:
            await_products(builder, self.products)

    def advance(self, turn: Value, by: int) -> Value:
        return self.emitter.builder.add(turn, self.emitter.index(by)) if by else turn

    def stage(self, number: Value, by: int) -> Value:
        return self.emitter.builder.urem(self.advance(number, by), self.emitter.index(self.stages))

    def emit_turn(
        self, turn: Value, stage: Value, write: Callable[[], None], carried: tuple[Statement, ...] = ()
    ) -> None:
        """Emit code for a turn, with its variable and its stage of the tiles."""
        emitter = self.emitter
        buffers, available = dict(emitter.buffers), emitter.available
        emitter.available = {}  # expressions of another turn have other values
        for name in self.tiles:
            buffer = tiles.find_buffer(emitter, name)
            assert buffer.tile is not None
            size = build_layout(buffer.tile, element_bytes(buffer.dtype)).stage_bytes
            offset = emitter.builder.mul(stage, emitter.index(size))
            emitter.buffers[name] = emitter.builder.gep(self.first_stages[name], [offset], source_etype=_BYTE)
        with emitter.scope(emitter.find_carried(carried)):
            emitter.variables[self.pipeline.variable] = turn
            write()
        emitter.buffers, emitter.available = buffers, available

    def start_copies(self, turn: Value, stage: Value) -> None:
        """Start the asynchronous copies of a turn, if it exists."""
        if not self.pipeline.moves:
            return
        emitter = self.emitter
        with emitter.builder.if_then(emitter.builder.icmp_signed("<", turn, self.stop)):
            self.emit_turn(turn, stage, lambda: emitter.emit_body(self.pipeline.moves))
        commit_copies(emitter.builder)

    def await_copies_of_turn(self, left: int) -> None:
        if self.pipeline.moves:
            await_copies(self.emitter.builder, left)

    def load_and_store(self, turn: Value, stage: Value, between: Callable[[], None]) -> None:
        """Load a turn's elements, emit the code `between`, then store them to the turn's tiles, if the turn exists."""
        emitter, pipeline = self.emitter, self.pipeline
        exists = emitter.builder.icmp_signed("<", turn, self.stop)
        names: list[str] = []

        def load() -> list[Value]:
            values: list[Value] = []

            def write() -> None:
                before = dict(emitter.registers)
                emitter.emit_body(pipeline.fetches)
                names.extend(name for name, value in emitter.registers.items() if before.get(name) is not value)
                values.extend(emitter.registers[name] for name in names)

            self.emit_turn(turn, stage, write)
            return values

        loaded = emitter.compute_if(exists, load)
        between()
        declarations = tuple(statement for statement in pipeline.fetches if isinstance(statement, (Let, View)))

        def store() -> None:
            emitter.registers.update(zip(names, loaded, strict=True))
            emitter.emit_body((*declarations, *pipeline.puts))

        with emitter.builder.if_then(exists):
            self.emit_turn(turn, stage, store)

    def emit_work(self, stage: Value, move: Callable[[], None]) -> None:
        """Emit the body of a turn; copies of a later turn start after its asynchronous products, or first."""
        emitter, body = self.emitter, self.pipeline.body
        now = emitter.variables[self.pipeline.variable]

        def write() -> None:
            has_moved = False
            for statement in body:
                comes_first = isinstance(statement, (Sums, Let, View))
                comes_first |= isinstance(statement, MultiplyTiles) and tiles.is_asynchronous(emitter, statement)
                if not comes_first and not has_moved:
                    move()
                    has_moved = True
                if isinstance(statement, MultiplyTiles):
                    tiles.multiply(emitter, statement)
                    continue
                if inner_bodies(statement) or isinstance(statement, Barrier):
                    tiles.wait_for_sums(emitter)
                emitter.emit_body((statement,))
            if not has_moved:
                move()
            if self.overlaps_turns:
                emitter.pending_sums.clear()
            else:
                tiles.wait_for_sums(emitter)

        self.emit_turn(now, stage, write, body)


def _find_variables(statements: Iterable[Statement]) -> set[str]:
    """Find the variables that statements and nested statements define."""
    variables: set[str] = set()
    for statement in statements:
        if isinstance(statement, Let):
            variables.add(statement.name)
        elif isinstance(statement, (Repeat, TilePipeline)):
            variables.add(statement.variable)
        for inner in inner_bodies(statement):
            variables |= _find_variables(inner)
    return variables


def _find_written_tiles(statements: Iterable[Statement]) -> set[str]:
    written: set[str] = set()
    for statement in statements:
        if isinstance(statement, (MoveRun, PutTile)):
            written.add(statement.tile)
        for inner in inner_bodies(statement):
            written |= _find_written_tiles(inner)
    return written
