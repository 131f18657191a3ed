"""Memory for any sizes: who shares it is decided once, and where everything lies follows from the sizes of a run.

Pieces are placed for usual sizes first (plan/arena.py), which gives them an order from the bottom up. Where a piece
lies then is the end of the highest of those below it that are alive with it: whatever the sizes are, no two pieces that
are needed at the same time overlap, and for the usual sizes nothing takes more than planned.

Offsets are dims of symbols of their own. What these stand for are the planner's `definitions`: each the largest of some
dims, to be computed in their order.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import field
from typing import Any

from weft.ir import dims
from weft.ir.dim_evaluator import DimEvaluator
from weft.ir.dims import Dim, Expr, Symbol
from weft.ir.program import Value
from weft.ir.work import NativeSection, ScanTask
from weft.plan.arena import Lifetime, place_blocks
from weft.plan.order import choose_order
from weft.plan.storage import Sizes, StoragePlan, plan_storage
from weft.records import dataclass

ALIGNMENT = 64
LARGEST_BYTES = 2**56
"""What no offset and no tensor may exceed, so that sums of a few of them fit into 64 bits."""

Owner = Any  # of a piece: a value, or a task's number with a workspace's
Bindings = Mapping[str, Dim]
"""What the sizes that only a scan's body knows are outside."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """Memory that is needed from one step to another, both included."""

    owner: Owner
    size: Dim
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class DefinedSize:
    """What a symbol stands for: the largest of some dims, or the most bytes that one of some units needs."""

    name: str
    parts: tuple[Dim, ...]
    units: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ScanLayout:
    """Two places for each carry, from the start of a scan's memory, and where the memory of its body begins."""

    inner: Bindings
    pairs: tuple[tuple[Dim, Dim], ...]
    base: Dim
    body: SectionLayout


@dataclass(frozen=True, slots=True)
class SectionLayout:
    """The order of a section's tasks, who lies in whose memory, and the offsets of pieces from the section's start."""

    order: tuple[int, ...]
    storage: StoragePlan
    offsets: Mapping[Owner, Dim]
    total: Dim
    scans: Mapping[int, ScanLayout] = field(default_factory=dict)


def bound(dim: Dim, bindings: Bindings) -> Dim:
    """A dim of a scan's body in terms of sizes outside."""
    if isinstance(dim, int) or not bindings:
        return dim
    return dims.substitute(dim, lambda atom: _replaced(atom, bindings))


def _replaced(atom: Symbol | dims.Axis, bindings: Bindings) -> Dim:
    found = bindings.get(atom.name) if isinstance(atom, Symbol) else None
    return Expr((((atom,), 1),)) if found is None else found


def shape_of(value: Value, bindings: Bindings) -> tuple[Dim, ...]:
    return tuple([bound(dim, bindings) for dim in value.shape])


def value_bytes(value: Value, bindings: Bindings) -> Dim:
    return dims.product(shape_of(value, bindings)) * value.itemsize


def aligned(size: Dim) -> Dim:
    return dims.ceildiv(size, ALIGNMENT) * ALIGNMENT


def bind_body(task: ScanTask, outer: Bindings) -> dict[str, Dim]:
    """The sizes that a scan's body learns from its inputs, and those around it."""
    inner, primitive = dict(outer), task.primitive
    for number, (inside, outside) in enumerate(zip(task.program.inputs, task.operands)):
        shape = shape_of(outside, outer)
        is_sequence = primitive.carries <= number < primitive.carries + primitive.sequences
        for dim, size in zip(inside.shape, shape[1:] if is_sequence else shape):
            symbol = dims.as_symbol(dim)
            if symbol is not None and size != dim:
                inner[symbol.name] = size
    return inner


class MemoryPlanner:
    """Lays sections out. `usual` are sizes that decide who lies above whom."""

    def __init__(self, usual: Mapping[str, int]) -> None:
        self.usual = DimEvaluator(usual)
        self.definitions: list[DefinedSize] = []

    def lay_out(self, section: NativeSection, given: Collection[Value], bindings: Bindings) -> SectionLayout:
        """A section of a program; `given` are values that lie elsewhere."""
        own = tuple(range(len(section.tasks)))
        sizes = Sizes(
            lambda dim: self._usual(bound(dim, bindings)),
            lambda value: self._usual(value_bytes(value, bindings)),
            lambda task: self._scan_bytes(task, bindings),
        )
        try:
            order = tuple(choose_order(section, sizes, given.__contains__))
        except ArithmeticError:
            order = own
        return self._section(section, given, order, bindings)

    def largest(self, of: Sequence[Dim]) -> Dim:
        """The largest of some dims, none of which is negative: a number, or a symbol that is defined from now on."""
        fixed = max((dim for dim in of if isinstance(dim, int)), default=0)
        others: tuple[Dim, ...] = tuple(dict.fromkeys(dim for dim in of if isinstance(dim, Expr)))
        if not others:
            return fixed
        parts = (fixed, *others) if fixed else others
        return self._define(DefinedSize(self._name(), parts), max(map(self._usual, parts)))

    def largest_unit(self, units: Sequence[tuple[int, int]]) -> Dim:
        """The most bytes that one of some units needs, given by their numbers with what they need for usual sizes."""
        numbers = tuple(number for number, _ in units)
        return self._define(DefinedSize(self._name(), (), numbers), max((size for _, size in units), default=0))

    def _name(self) -> str:
        return f"\0{len(self.definitions)}"  # as no dim of a model is called

    def _define(self, definition: DefinedSize, usual: int) -> Dim:
        self.definitions.append(definition)
        self.usual.bind(definition.name, usual)
        return dims.symbol(definition.name, 0, LARGEST_BYTES)

    def _usual(self, dim: Dim) -> int:
        try:
            return max(self.usual(dim), 0)
        except ArithmeticError:
            return 0

    def _section(
        self, section: NativeSection, given: Collection[Value], order: tuple[int, ...], bindings: Bindings
    ) -> SectionLayout:
        scans = {
            number: self._scan(task, bindings)
            for number, task in enumerate(section.tasks)
            if isinstance(task, ScanTask)
        }
        by_task = {id(section.tasks[number]): scan.base + scan.body.total for number, scan in scans.items()}
        symbolic: Any = (  # the arithmetic of plan_storage() is that of dims; it takes what is not sure for not so
            lambda dim: bound(dim, bindings),
            lambda value: value_bytes(value, bindings),
            lambda task: by_task[id(task)],
        )
        places = [0] * len(order)
        for position, number in enumerate(order):
            places[number] = position
        spans = [(position, position) for position in places]
        choices = [plan_storage(section, Sizes(*symbolic), spans, given, join=join) for join in (True, False)]
        storage = min(choices if len(choices[0].skipped) > 1 else choices[:1], key=self._arena_size)
        offsets, total = self.place(_stretches(storage))
        return SectionLayout(order, storage, offsets, total, scans)

    def _scan(self, task: ScanTask, outer: Bindings) -> ScanLayout:
        inner = bind_body(task, outer)
        base: Dim = 0
        pairs = []
        for value in task.program.inputs[: task.primitive.carries]:
            size = aligned(value_bytes(value, inner))
            pairs.append((base, base + size))
            base = base + 2 * size
        given = {*task.body.inputs, *task.body.outputs, *task.program.constants}
        body = self._section(task.body, given, tuple(range(len(task.body.tasks))), inner)
        return ScanLayout(inner, tuple(pairs), base, body)

    def _scan_bytes(self, task: ScanTask, outer: Bindings) -> int:
        """About what a scan takes, to choose an order with."""
        inner = bind_body(task, outer)
        results = (value for one in task.body.tasks for value in one.results)
        return sum(self._usual(value_bytes(value, inner)) for value in results)

    def _usual_lifetimes(self, pieces: Sequence[Stretch]) -> list[Lifetime]:
        return [Lifetime(self._usual(piece.size), piece.first, piece.last) for piece in pieces]

    def _arena_size(self, storage: StoragePlan) -> int:
        return place_blocks(self._usual_lifetimes(_stretches(storage)), ALIGNMENT).size

    def place(self, given: Sequence[Stretch]) -> tuple[dict[Owner, Dim], Dim]:
        """Offsets of pieces by their owners, and what all take together."""
        usual = place_blocks(self._usual_lifetimes(given), ALIGNMENT).offsets
        pieces = [given[n] for n in sorted(range(len(usual)), key=lambda n: (usual[n], n))]
        offsets: dict[Owner, Dim] = {}
        ends: list[Dim] = []
        for number, piece in enumerate(pieces):
            below = [n for n in range(number) if _meet(pieces[n], piece)]
            highest = [n for n in below if not any(m > n and _meet(pieces[n], pieces[m]) for m in below)]
            offset = offsets[piece.owner] = self.largest([ends[n] for n in highest])
            ends.append(offset + aligned(piece.size))
        return offsets, self.largest(ends)


def _stretches(storage: StoragePlan) -> list[Stretch]:
    return [Stretch(piece.owner, piece.size, piece.first, piece.last) for piece in storage.blocks]


def _meet(one: Stretch, other: Stretch) -> bool:
    return one.first <= other.last and other.first <= one.last
