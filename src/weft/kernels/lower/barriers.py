"""Barriers where lanes of a block meet in memory.

Kernel -> Kernel, for targets whose lanes are threads. Builders may write for lanes that go on together, as the elements
of vectors do. Where lanes are threads, one must not read what another has still to write, nor overwrite what it has
still to read: before such a statement all of them wait. A lane that meets only itself does not wait.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
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
from weft.ir.work import Launch, Section, map_launches
from weft.records import dataclass


def with_barriers(kernel: Kernel) -> Kernel:
    """The kernel with barriers where lanes need them."""
    if kernel.lanes == 1:
        return kernel
    written = {buffer.name for buffer in kernel.buffers if buffer.written or buffer.local_size is not None}
    shared = written & read_buffers(kernel.body) - _brought(kernel.body)
    body, _ = _Walk(kernel.lanes, shared).body(kernel.body, _State(), {}, {})
    return kernel if body == kernel.body else replace(kernel, body=body)


def sections_with_barriers(sections: Sequence[Section]) -> tuple[Section, ...]:
    """Sections whose kernels all have barriers; equal kernels become one."""
    made: dict[Kernel, Kernel] = {}
    found: dict[int, Kernel] = {}  # by identity, which is quicker to look up

    def lowered(launch: Launch) -> Launch:
        kernel = launch.kernel
        if id(kernel) not in found:
            if kernel not in made:
                made[kernel] = with_barriers(kernel)
            found[id(kernel)] = made[kernel]
        return replace(launch, kernel=found[id(kernel)])

    return map_launches(sections, lowered)


def _brought(body: Sequence[Statement]) -> set[str]:
    """The tiles that pipelines bring: lanes meet in them where a pipeline says so."""
    found: set[str] = set()
    for statement in body:
        if isinstance(statement, TilePipeline):
            brought = (*statement.moves, *statement.puts)
            found |= {part.tile for part in brought if isinstance(part, (MoveRun, PutTile))}
        for inner in inner_bodies(statement):
            found |= _brought(inner)
    return found


@dataclass(frozen=True, slots=True)
class _Access:
    """`width` elements of a buffer; accesses with the same `key`, unless it is None, are each lane's own.

    What is `put` into a tile is at places that nothing else is put to before the tile is read.
    """

    buffer: str
    key: Dim | None
    width: int = 1
    put: bool = False

    def meets(self, other: _Access) -> bool:
        if self.buffer != other.buffer or (self.put and other.put):
            return False
        return self.key is None or (self.key, self.width) != (other.key, other.width)


@dataclass(frozen=True, slots=True)
class _State:
    """What was read and written, by a statement or since the last barrier."""

    read: frozenset[_Access] = frozenset()
    written: frozenset[_Access] = frozenset()

    def __or__(self, other: _State) -> _State:
        return _State(self.read | other.read, self.written | other.written)

    def conflicts(self, later: _State) -> bool:
        return any(a.meets(b) for a in later.read for b in self.written) or any(
            a.meets(b) for a in later.written for b in (*self.written, *self.read)
        )


class _Walk:
    def __init__(self, lanes: int, shared: set[str]) -> None:
        self.lanes = lanes
        self.shared = shared  # buffers that the kernel both writes and reads
        self.known: dict[Any, list[_State]] = {}  # what the statements of a body do, since loops are walked again

    def body(
        self, body: tuple[Statement, ...], state: _State, steps: Mapping[str, int], views: Mapping[str, str]
    ) -> tuple[tuple[Statement, ...], _State]:
        """The body with barriers, and what is left open at its end. `steps` are those of loops around it."""
        found: list[Statement] = []
        known = self.known.setdefault((id(body), *steps.items(), *views.items()), [])
        steps, views = dict(steps), dict(views)
        for number, statement in enumerate(body):
            if number == len(known):
                known.append(self.accesses(statement, steps, views))
            own = known[number]
            if own.read or own.written:
                if state.conflicts(own):
                    found.append(Barrier())
                    state = _State()
                state = state | own
            match statement:
                case Barrier():
                    state = _State()
                    found.append(statement)
                case Repeat(name, _, _, step, inner):
                    around = {**steps, name: step}
                    _, end = self.body(inner, _State(), around, views)
                    inside, end = self.body(inner, end, around, views)
                    if self.body(inner, state | end, around, views)[0] != inside:
                        found.append(Barrier())  # once for what went before, rather than every time
                        state = _State()
                    found.append(replace(statement, body=inside))
                    state = state | end
                case When(_, then, otherwise):
                    first, one = self.body(then, state, steps, views)
                    second, other = self.body(otherwise, state, steps, views)
                    found.append(replace(statement, body=first, otherwise=second))
                    state = one | other
                case Let(name, value):
                    if any(symbol.name in steps for symbol in dims.symbols(value)):
                        steps[name] = 1
                    found.append(statement)
                case View(name, buffer, _):
                    views[name] = views.get(buffer, buffer)
                    found.append(statement)
                case Transpose():
                    state = _State()  # it has barriers of its own
                    found.append(statement)
                case TilePipeline(name, body=inner):
                    around = {**steps, name: 1}
                    _, end = self.body(inner, _State(), around, views)
                    inside, _ = self.body(inner, end, around, views)
                    state = _State()  # lanes meet before and after it
                    found.append(replace(statement, body=inside))
                case _:
                    found.append(statement)
        return tuple(found), state

    def accesses(self, statement: Statement, steps: Mapping[str, int], views: Mapping[str, str]) -> _State:
        read: set[_Access] = set()
        written: set[_Access] = set()

        def add(to: set[_Access], name: str, offset: Dim, indirect: Code | None, width: int) -> None:
            buffer = views.get(name, name)
            if buffer in self.shared:
                apart = indirect is None and name == buffer and self.is_own(offset, steps, width)
                to.add(_Access(buffer, offset if apart else None, width))

        for code in statement_codes(statement):
            for node in walk_code(code):
                if isinstance(node, Fetch):
                    add(read, node.buffer, node.offset, node.indirect, 1)
        match statement:
            case Put(name, offset, _, indirect):
                add(written, name, offset, indirect, 1)
            case PutRun(name, offset, values):
                add(written, name, offset, None, len(values))
            case FetchRun(names, name, offset):
                add(read, name, offset, None, len(names))
            case PutTile(name):
                written |= {replace(access, put=True) for access in self.whole(name, views)}
            case PutSums(_, name):
                written |= self.whole(name, views)
            case ScaleSums(_, name):
                read |= self.whole(name, views)
            case MultiplyTiles(_, left, right):
                read |= self.whole(left, views) | self.whole(right, views)
        return _State(frozenset(read), frozenset(written))

    def whole(self, name: str, views: Mapping[str, str]) -> set[_Access]:
        """All of a buffer, by any lane; tiles that a pipeline brings are its own matter."""
        buffer = views.get(name, name)
        return {_Access(buffer, None)} if buffer in self.shared else set()

    def is_own(self, offset: Dim, steps: Mapping[str, int], width: int) -> bool:
        """Whether each lane has elements of its own at an offset, in all iterations of the loops around it."""
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
