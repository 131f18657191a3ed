"""Plan memory for all sizes: sharing is decided once, and offsets are functions of the sizes of a run.

Blocks are first placed for usual sizes (plan/arena.py), which orders them from the bottom up. The offset of a block is
then the end of the highest block below it with an overlapping lifetime. So blocks that are alive at the same time never
overlap, whatever the sizes, and for usual sizes the total is the planned one.

Offsets are dims of additional symbols, which the planner's `definitions` define in order: each is the largest of some
dims.
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
"""The limit of offsets and tensors, so that sums of a few of them fit into 64 bits."""

Owner = Any  # of a block: a value, or the numbers of a task and of its workspace
Bindings = Mapping[str, Dim]
"""The sizes of a body's symbols in terms of outer symbols."""


@dataclass(frozen=True, slots=True)
class Block:
    """Memory that is needed from one step to another, both included."""

    owner: Owner
    size: Dim
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class DefinedSize:
    """The definition of a symbol: the largest of some dims, or the most bytes that one of some units needs."""

    name: str
    parts: tuple[Dim, ...]
    units: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ScanLayout:
    """The two buffers of each carry, as offsets in a scan's memory, and the offset of its body's memory."""

    inner: Bindings
    pairs: tuple[tuple[Dim, Dim], ...]
    base: Dim
    body: SectionLayout


@dataclass(frozen=True, slots=True)
class SectionLayout:
    """The order of a section's tasks, which values share memory, and the offsets of blocks in the section's memory."""

    order: tuple[int, ...]
    storage: StoragePlan
    offsets: Mapping[Owner, Dim]
    total: Dim
    scans: Mapping[int, ScanLayout] = field(default_factory=dict)


def bind_dim(dim: Dim, bindings: Bindings) -> Dim:
    """Express a dim of a body in outer symbols."""
    if isinstance(dim, int) or not bindings:
        return dim
    return dims.substitute(dim, lambda atom: _bind_atom(atom, bindings))


def _bind_atom(atom: Symbol | dims.Axis, bindings: Bindings) -> Dim:
    dim = bindings.get(atom.name) if isinstance(atom, Symbol) else None
    return Expr((((atom,), 1),)) if dim is None else dim


def bind_shape(value: Value, bindings: Bindings) -> tuple[Dim, ...]:
    return tuple([bind_dim(dim, bindings) for dim in value.shape])


def value_bytes(value: Value, bindings: Bindings) -> Dim:
    return dims.product(bind_shape(value, bindings)) * value.itemsize


def aligned(size: Dim) -> Dim:
    return dims.ceildiv(size, ALIGNMENT) * ALIGNMENT


def bind_body(task: ScanTask, outer: Bindings) -> dict[str, Dim]:
    """Return the sizes that a scan's body gets from its inputs, and those of `outer`."""
    inner, primitive = dict(outer), task.primitive
    for number, (inside, outside) in enumerate(zip(task.program.inputs, task.operands)):
        shape = bind_shape(outside, outer)
        is_sequence = primitive.carries <= number < primitive.carries + primitive.sequences
        for dim, size in zip(inside.shape, shape[1:] if is_sequence else shape):
            symbol = dims.as_symbol(dim)
            if symbol is not None and size != dim:
                inner[symbol.name] = size
    return inner


class MemoryPlanner:
    """Lays out sections. `usual` are the sizes that determine the order of blocks."""

    def __init__(self, usual: Mapping[str, int]) -> None:
        self.usual = DimEvaluator(usual)
        self.definitions: list[DefinedSize] = []

    def lay_out(self, section: NativeSection, external: Collection[Value], bindings: Bindings) -> SectionLayout:
        """Lay out a section of a program; `external` values have memory elsewhere."""
        sizes = Sizes(
            lambda dim: self._usual(bind_dim(dim, bindings)),
            lambda value: self._usual(value_bytes(value, bindings)),
            lambda task: self._scan_bytes(task, bindings),
        )
        try:
            order = tuple(choose_order(section, sizes, external.__contains__))
        except ArithmeticError:
            order = tuple(range(len(section.tasks)))
        return self._section(section, external, order, bindings)

    def largest(self, of: Sequence[Dim]) -> Dim:
        """Return the largest of some dims, none negative: a number, or a newly defined symbol."""
        fixed = max((dim for dim in of if isinstance(dim, int)), default=0)
        others: tuple[Dim, ...] = tuple(dict.fromkeys(dim for dim in of if isinstance(dim, Expr)))
        if not others:
            return fixed
        parts = (fixed, *others) if fixed else others
        return self._define(DefinedSize(self._name(), parts), max(map(self._usual, parts)))

    def largest_unit(self, units: Sequence[tuple[int, int]]) -> Dim:
        """Define the most bytes that one of some units needs; `units` are numbers, with the bytes for usual sizes."""
        numbers = tuple(number for number, _ in units)
        return self._define(DefinedSize(self._name(), (), numbers), max((size for _, size in units), default=0))

    def _name(self) -> str:
        return f"\0{len(self.definitions)}"  # cannot be the name of a dim of a model

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
        self, section: NativeSection, external: Collection[Value], order: tuple[int, ...], bindings: Bindings
    ) -> SectionLayout:
        scans = {
            number: self._scan(task, bindings)
            for number, task in enumerate(section.tasks)
            if isinstance(task, ScanTask)
        }
        by_task = {id(section.tasks[number]): scan.base + scan.body.total for number, scan in scans.items()}
        symbolic: Any = (  # plan_storage() computes with dims here; an undecided comparison is false
            lambda dim: bind_dim(dim, bindings),
            lambda value: value_bytes(value, bindings),
            lambda task: by_task[id(task)],
        )
        places = [0] * len(order)
        for position, number in enumerate(order):
            places[number] = position
        spans = [(position, position) for position in places]
        choices = [plan_storage(section, Sizes(*symbolic), spans, external, join=join) for join in (True, False)]
        storage = min(choices if len(choices[0].skipped) > 1 else choices[:1], key=self._arena_size)
        offsets, total = self.place(_blocks(storage))
        return SectionLayout(order, storage, offsets, total, scans)

    def _scan(self, task: ScanTask, outer: Bindings) -> ScanLayout:
        inner = bind_body(task, outer)
        base: Dim = 0
        pairs = []
        for value in task.program.inputs[: task.primitive.carries]:
            size = aligned(value_bytes(value, inner))
            pairs.append((base, base + size))
            base = base + 2 * size
        external = {*task.body.inputs, *task.body.outputs, *task.program.constants}
        body = self._section(task.body, external, tuple(range(len(task.body.tasks))), inner)
        return ScanLayout(inner, tuple(pairs), base, body)

    def _scan_bytes(self, task: ScanTask, outer: Bindings) -> int:
        """Estimate the bytes of a scan, for the choice of an order."""
        inner = bind_body(task, outer)
        results = (value for one in task.body.tasks for value in one.results)
        return sum(self._usual(value_bytes(value, inner)) for value in results)

    def _usual_lifetimes(self, blocks: Sequence[Block]) -> list[Lifetime]:
        return [Lifetime(self._usual(block.size), block.first, block.last) for block in blocks]

    def _arena_size(self, storage: StoragePlan) -> int:
        return place_blocks(self._usual_lifetimes(_blocks(storage)), ALIGNMENT).size

    def place(self, unordered: Sequence[Block]) -> tuple[dict[Owner, Dim], Dim]:
        """Return the offsets of blocks by their owners, and the total."""
        usual = place_blocks(self._usual_lifetimes(unordered), ALIGNMENT).offsets
        blocks = [unordered[n] for n in sorted(range(len(usual)), key=lambda n: (usual[n], n))]
        offsets: dict[Owner, Dim] = {}
        ends: list[Dim] = []
        for number, block in enumerate(blocks):
            below = [n for n in range(number) if _meet(blocks[n], block)]
            highest = [n for n in below if not any(m > n and _meet(blocks[n], blocks[m]) for m in below)]
            offset = offsets[block.owner] = self.largest([ends[n] for n in highest])
            ends.append(offset + aligned(block.size))
        return offsets, self.largest(ends)


def _blocks(storage: StoragePlan) -> list[Block]:
    return [Block(block.owner, block.size, block.first, block.last) for block in storage.blocks]


def _meet(one: Block, other: Block) -> bool:
    return one.first <= other.last and other.first <= one.last
