"""Insert barriers where lanes of a block access the same memory.

Kernel -> Kernel, for targets whose lanes are threads. Builders may assume lanes that run in lockstep, like the elements
of a vector. Threads do not: a barrier comes before every statement that reads memory which another lane may not have
written yet, or overwrites memory which another lane may not have read yet. A lane's accesses to its own elements need
no barrier.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from weft.ir import dims
from weft.ir.dims import Dim, Expr, Symbol
from weft.ir.kernel import (
    LANE,
    Barrier,
    Code,
    Fetch,
    FetchRun,
    Kernel,
    Let,
    MoveRun,
    MultiplyTiles,
    Put,
    PutRun,
    PutSums,
    PutTile,
    Repeat,
    ScaleSums,
    Statement,
    TilePipeline,
    Transpose,
    View,
    When,
    dims_vary,
    inner_bodies,
    read_buffers,
    statement_codes,
    walk_code,
)
from weft.ir.row_products import MultiplyRows
from weft.ir.work import Launch, Section, map_launches
from weft.records import dataclass


def insert_barriers(kernel: Kernel) -> Kernel:
    """Insert the barriers that a kernel needs."""
    if kernel.lanes == 1:
        return kernel
    written = {buffer.name for buffer in kernel.buffers if buffer.written or buffer.local_size is not None}
    shared = written & read_buffers(kernel.body) - _find_pipeline_tiles(kernel.body)
    body, _ = _BarrierInserter(kernel.lanes, shared).body(kernel.body, _State(), {}, {})
    return kernel if body == kernel.body else replace(kernel, body=body)


def insert_section_barriers(sections: Sequence[Section]) -> tuple[Section, ...]:
    """Insert barriers into all kernels of sections; equal kernels become one."""
    by_kernel: dict[Kernel, Kernel] = {}
    by_id: dict[int, Kernel] = {}  # identity is quicker to look up

    def lower(launch: Launch) -> Launch:
        kernel = launch.kernel
        if id(kernel) not in by_id:
            if kernel not in by_kernel:
                by_kernel[kernel] = insert_barriers(kernel)
            by_id[id(kernel)] = by_kernel[kernel]
        return replace(launch, kernel=by_id[id(kernel)])

    return map_launches(sections, lower)


def _find_pipeline_tiles(body: Sequence[Statement]) -> set[str]:
    """Return the tiles that pipelines fill, which synchronize access to them."""
    tiles: set[str] = set()
    for statement in body:
        if isinstance(statement, TilePipeline):
            fills = (*statement.moves, *statement.puts)
            tiles |= {fill.tile for fill in fills if isinstance(fill, (MoveRun, PutTile))}
        for inner in inner_bodies(statement):
            tiles |= _find_pipeline_tiles(inner)
    return tiles


@dataclass(frozen=True, slots=True)
class _Access:
    """`width` elements of a buffer; accesses with the same `key`, unless it is None, are private to each lane.

    `put` marks writes to a tile: nothing else writes the same elements before the tile is read.
    """

    buffer: str
    key: Dim | None
    width: int = 1
    put: bool = False

    def overlaps(self, other: _Access) -> bool:
        if self.buffer != other.buffer or (self.put and other.put):
            return False
        if self.key is None or other.key is None:
            return True
        if (self.key, self.width) == (other.key, other.width):
            return False
        return _do_lanes_meet((self.key, self.width), (other.key, other.width))


@lru_cache(maxsize=4096)
def _do_lanes_meet(first: tuple[Dim, int], second: tuple[Dim, int]) -> bool:
    """Whether two lanes may access the same element, each a number of elements from an offset on."""
    places, others = _list_places(first[0]), _list_places(second[0])
    if places is None or others is None:
        return True
    owners: dict[int, set[int]] = {}
    for lane, place in enumerate(places):
        for element in range(place, place + first[1]):
            owners.setdefault(element, set()).add(lane)
    return any(
        owners.get(element, set()) - {lane}
        for lane, place in enumerate(others)
        for element in range(place, place + second[1])
    )


@lru_cache(maxsize=4096)
def _list_places(offset: Dim) -> tuple[int, ...] | None:
    """Return the offset of each lane; None if it depends on anything else."""
    symbols = dims.symbols(offset)
    if len(symbols) != 1:
        return None
    (symbol,) = symbols
    if symbol.name != LANE or symbol.high is None:
        return None
    return tuple(dims.evaluate(offset, {LANE: lane}) for lane in range(symbol.high + 1))


@dataclass(frozen=True, slots=True)
class _State:
    """Reads and writes of a statement, or since the last barrier."""

    read: frozenset[_Access] = frozenset()
    written: frozenset[_Access] = frozenset()

    def __or__(self, other: _State) -> _State:
        return _State(self.read | other.read, self.written | other.written)

    def conflicts(self, later: _State) -> bool:
        return any(a.overlaps(b) for a in later.read for b in self.written) or any(
            a.overlaps(b) for a in later.written for b in (*self.written, *self.read)
        )


class _BarrierInserter:
    def __init__(self, lanes: int, shared: set[str]) -> None:
        self.lanes = lanes
        self.shared = shared  # buffers that the kernel both writes and reads
        self.states: dict[Any, list[_State]] = {}  # accesses of a body's statements; loops are walked several times

    def body(
        self, body: tuple[Statement, ...], state: _State, steps: Mapping[str, int], views: Mapping[str, str]
    ) -> tuple[tuple[Statement, ...], _State]:
        """Return the body with barriers, and the accesses since its last one. `steps`: of the enclosing loops."""
        result: list[Statement] = []
        states = self.states.setdefault((id(body), *steps.items(), *views.items()), [])
        steps, views = dict(steps), dict(views)
        for number, statement in enumerate(body):
            if number == len(states):
                states.append(self.accesses(statement, steps, views))
            accesses = states[number]
            if accesses.read or accesses.written:
                if state.conflicts(accesses):
                    result.append(Barrier())
                    state = _State()
                state = state | accesses
            match statement:
                case Barrier():
                    state = _State()
                    result.append(statement)
                case Repeat(name, _, _, step, inner):
                    around = {**steps, name: step}
                    _, end = self.body(inner, _State(), around, views)
                    inside, end = self.body(inner, end, around, views)
                    if self.body(inner, state | end, around, views)[0] != inside:
                        result.append(Barrier())  # once before the loop rather than in every iteration
                        state = _State()
                    result.append(replace(statement, body=inside))
                    state = state | end
                case When(_, then, otherwise):
                    then, then_state = self.body(then, state, steps, views)
                    otherwise, otherwise_state = self.body(otherwise, state, steps, views)
                    result.append(replace(statement, body=then, otherwise=otherwise))
                    state = then_state | otherwise_state
                case Let(name, value):
                    if any(symbol.name in steps for symbol in dims.symbols(value)):
                        steps[name] = 1
                    result.append(statement)
                case View(name, buffer, _):
                    views[name] = views.get(buffer, buffer)
                    result.append(statement)
                case Transpose():
                    state = _State()  # it includes barriers
                    result.append(statement)
                case TilePipeline(name, body=inner):
                    around = {**steps, name: 1}
                    _, end = self.body(inner, _State(), around, views)
                    inside, _ = self.body(inner, end, around, views)
                    state = _State()  # it synchronizes lanes before and after
                    result.append(replace(statement, body=inside))
                case _:
                    result.append(statement)
        return tuple(result), state

    def accesses(self, statement: Statement, steps: Mapping[str, int], views: Mapping[str, str]) -> _State:
        read: set[_Access] = set()
        written: set[_Access] = set()

        def add(to: set[_Access], name: str, offset: Dim, indirect: Code | None, width: int) -> None:
            buffer = views.get(name, name)
            if buffer in self.shared:
                private = indirect is None and name == buffer and self.is_private(offset, steps, width)
                to.add(_Access(buffer, offset if private else None, width))

        for code in statement_codes(statement):
            for node in walk_code(code):
                if isinstance(node, Fetch):
                    add(read, node.buffer, node.offset, node.indirect, 1)
        match statement:
            case Put(name, offset, _, indirect):
                add(written, name, offset, indirect, 1)
            case PutRun(name, offset, values):
                add(written, name, offset, None, len(values))
            case FetchRun(names, name, offset, indirect=indirect):
                add(read, name, offset, indirect, len(names))
            case PutTile(name):
                written |= {replace(access, put=True) for access in self.whole(name, views)}
            case PutSums(_, name):
                written |= self.whole(name, views)
            case ScaleSums(_, name):
                read |= self.whole(name, views)
            case MultiplyTiles(_, left, right):
                read |= self.whole(left, views) | self.whole(right, views)
            case MultiplyRows():
                read = read.union(*(self.whole(tile, views) for tile in statement.tiles))
        return _State(frozenset(read), frozenset(written))

    def whole(self, name: str, views: Mapping[str, str]) -> set[_Access]:
        """Return an access of any lane to a whole buffer; none for tiles that a pipeline fills."""
        buffer = views.get(name, name)
        return {_Access(buffer, None)} if buffer in self.shared else set()

    def is_private(self, offset: Dim, steps: Mapping[str, int], width: int) -> bool:
        """Return whether each lane accesses distinct elements at an offset, in all iterations of enclosing loops."""
        if not dims_vary(offset) or not isinstance(offset, Expr):
            return False
        moving = {symbol.name for symbol in dims.symbols(offset) if symbol.name in steps}
        if not moving:
            return True
        for monomial, coefficient in offset.terms:
            names = [atom.name for atom in monomial if isinstance(atom, Symbol)]
            if LANE in names and (len(monomial) > 1 or coefficient != width):
                return False
            if len(names) < len(monomial) and any(
                symbol.name in moving or symbol.name == LANE for symbol in dims.symbols(Expr(((monomial, 1),)))
            ):
                return False
            stride = coefficient
            for name in names:
                stride *= steps.get(name, 1)
            if moving.intersection(names) and stride % (self.lanes * width):
                return False
        return True
